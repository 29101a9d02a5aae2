//! Strips: one value over one time for several runs, above each other, with stretches shaded and moments marked.

use maud::{Markup, html};

use crate::live::{self, Area, Data, Drawing, Kind, empty_figure};
use crate::page::Block;
use crate::plot::stroke;

/// Shaded stretch of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Name, shown below the strips.
    pub name: String,
    /// Start, in seconds.
    pub from: f64,
    /// End, in seconds.
    pub until: f64,
    /// Whether it is bad news, which has a colour of its own.
    pub is_bad: bool,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strip {
    /// Heading.
    pub name: String,
    /// Seconds and values, by time.
    pub points: Vec<(f64, f64)>,
    /// Shaded stretches.
    pub spans: Vec<Span>,
    /// Events, as numbered bars along the bottom; those of one name have one number.
    pub events: Vec<Span>,
    /// Marked moments, in seconds.
    pub marks: Vec<f64>,
    /// End of the run, with a word for it.
    pub end: Option<(f64, String)>,
}

/// The figure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strips {
    /// Text above.
    pub caption: String,
    /// Label of the values, with their unit.
    pub label: String,
    /// Value at the top; what is beyond is cut off.
    pub value_max: f64,
    /// Runs, from the top.
    pub strips: Vec<Strip>,
}

struct Layout {
    class: &'static str,
    width: f64,
    /// Of one strip.
    height: f64,
    left: f64,
    /// Columns in which no more than one value is drawn.
    columns: usize,
}

const WIDE: Layout = Layout {
    class: "plot wide",
    width: 920.0,
    height: 120.0,
    left: 50.0,
    columns: 600,
};
const NARROW: Layout = Layout {
    class: "plot narrow",
    width: 360.0,
    height: 110.0,
    left: 40.0,
    columns: 240,
};
const RIGHT: f64 = 14.0;
/// Room for a strip's heading, and for the axis below all.
const HEADING: f64 = 30.0;
const AXIS: f64 = 36.0;
/// Length of a mark.
const MARK: f64 = 9.0;
/// Height of an event's bar, and its least width.
const EVENT: f64 = 4.0;

impl Strips {
    /// The figure as part of a page.
    pub fn html(&self) -> Block {
        let end = self.seconds_max();
        if end <= 0.0 {
            return empty_figure(&self.caption, "No samples.");
        }
        let names = self.strips.iter().flat_map(|strip| &strip.spans);
        let mut legend: Vec<(&str, bool)> = Vec::new();
        for span in names {
            if !legend.iter().any(|(name, _)| *name == span.name) {
                legend.push((&span.name, span.is_bad));
            }
        }
        let below = html! {
                ul.legend {
                    @for (index, (name, is_bad)) in legend.iter().enumerate() {
                        li {
                            svg width="30" height="10" aria-hidden="true" {
                                rect class=(span_class(*is_bad)) style=(shade(index)) x="0" y="0" width="30" height="10" {}
                            }
                            span { (name) }
                        }
                    }
                    @for (index, name) in self.event_names().iter().enumerate() {
                        li { b { (index + 1) } span { (name) } }
                    }
                    li {
                        svg width="30" height="10" aria-hidden="true" { line.miss x1="15" x2="15" y1="0" y2="10" {} }
                        span { "a missed deadline" }
                    }
                }
        };
        let drawings = [WIDE, NARROW].map(|layout| layout.drawing(self, end));
        live::figure(&self.data(), drawings, &below)
    }

    /// The values as the wide drawing has them.
    fn data(&self) -> Data {
        let end = self.seconds_max();
        let mut data = Data::new(&self.caption, [("time", "s"), (&self.label, "")]);
        for (index, strip) in self.strips.iter().enumerate() {
            let points = WIDE.largest(&strip.points, end).into_iter();
            let points = points.map(|(at, value)| vec![at, value]);
            data.add(live::Series::new(&strip.name, index, points.collect()));
        }
        data
    }

    /// Names of the events, each once, in the order of their numbers.
    fn event_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for event in self.strips.iter().flat_map(|strip| &strip.events) {
            if !names.contains(&event.name.as_str()) {
                names.push(&event.name);
            }
        }
        names
    }

    fn seconds_max(&self) -> f64 {
        let ends = self
            .strips
            .iter()
            .filter_map(|strip| Some(strip.points.last()?.0));
        ends.fold(0.0, f64::max)
    }
}

fn span_class(is_bad: bool) -> &'static str {
    if is_bad { "span bad-span" } else { "span" }
}

/// Later stretches are darker: loads add up.
fn shade(index: usize) -> String {
    format!("opacity:{:.2}", 0.12 + 0.1 * index.min(4) as f64)
}

impl Layout {
    fn drawing(&self, figure: &Strips, end: f64) -> Drawing {
        let pitch = self.height + HEADING;
        let area = |index: usize| {
            let top = index as f64 * pitch + HEADING;
            Area {
                kind: Kind::Line,
                left: self.left,
                right: self.width - RIGHT,
                top,
                bottom: top + self.height,
                span: Some([0.0, end]),
                logarithmic: false,
                map: None,
                series: vec![index],
            }
        };
        Drawing {
            class: self.class,
            width: self.width,
            height: pitch * figure.strips.len() as f64 + AXIS,
            areas: (0..figure.strips.len()).map(area).collect(),
            content: self.plot(figure, end),
        }
    }

    fn plot(&self, figure: &Strips, end: f64) -> Markup {
        let pitch = self.height + HEADING;
        let bottom = pitch * figure.strips.len() as f64;
        html! {
                @for (index, strip) in figure.strips.iter().enumerate() {
                    (self.strip(figure, strip, index, index as f64 * pitch + HEADING, end))
                }
                @for (second, x) in self.seconds(end) {
                    text x=(format!("{x:.1}")) y=(bottom + 15.0) text-anchor="middle" { (second) " s" }
                }
                text x=(self.left) y=(bottom + 31.0) { (figure.label) }
        }
    }

    fn strip(&self, figure: &Strips, strip: &Strip, index: usize, top: f64, end: f64) -> Markup {
        let (floor, right) = (top + self.height, self.width - RIGHT);
        let y = |value: f64| floor - (value / figure.value_max).clamp(0.0, 1.0) * self.height;
        html! {
            text x=(self.left) y=(top - 8.0) style="fill:var(--ink);font-weight:600" { (strip.name) }
            @for (place, span) in strip.spans.iter().enumerate() {
                @let x = self.x(span.from, end);
                rect class=(span_class(span.is_bad)) style=(shade(place)) x=(format!("{x:.1}")) y=(top)
                    width=(format!("{:.1}", (self.x(span.until, end) - x).max(1.0))) height=(self.height) {}
            }
            @for share in [0.0, 0.5, 1.0] {
                @let value = share * figure.value_max;
                line.grid x1=(self.left) x2=(right) y1=(format!("{:.1}", y(value))) y2=(format!("{:.1}", y(value))) {}
                text x=(self.left - 6.0) y=(format!("{:.1}", y(value) + 4.0)) text-anchor="end" { (value) }
            }
            @let names = figure.event_names();
            @for event in &strip.events {
                @let x = self.x(event.from, end);
                @let number = names.iter().position(|name| *name == event.name).map_or(0, |index| index + 1);
                rect.event x=(format!("{x:.1}")) y=(floor - EVENT) height=(EVENT)
                    width=(format!("{:.1}", (self.x(event.until, end) - x).max(EVENT))) {}
                text x=(format!("{x:.1}")) y=(floor - EVENT - 3.0) style="fill:var(--ink)" { (number) }
            }
            @for mark in self.thinned(&strip.marks, end) {
                line.miss x1=(format!("{mark:.1}")) x2=(format!("{mark:.1}")) y1=(top) y2=(top + MARK) {}
            }
            path.line d=(self.path(&strip.points, end, y)) style=(stroke(index)) {}
            @if let Some((at, word)) = &strip.end {
                @let x = self.x(*at, end);
                @let anchor = if x > self.width * 0.7 { "end" } else { "start" };
                line.axis x1=(format!("{x:.1}")) x2=(format!("{x:.1}")) y1=(top) y2=(floor) {}
                text x=(format!("{:.1}", x + if anchor == "end" { -5.0 } else { 5.0 })) y=(top + 24.0) text-anchor=(anchor)
                    style="fill:var(--ink)" { (word) }
            }
        }
    }

    fn x(&self, at: f64, end: f64) -> f64 {
        self.left + (at / end).clamp(0.0, 1.0) * (self.width - RIGHT - self.left)
    }

    /// Whole seconds that have room for a label.
    fn seconds(&self, end: f64) -> Vec<(u32, f64)> {
        let pitch = if self.width > 500.0 { 1 } else { 3 };
        let all = (0..=end as u32).step_by(pitch);
        all.map(|second| (second, self.x(f64::from(second), end)))
            .filter(|(_, x)| x + 12.0 < self.width)
            .collect()
    }

    /// One mark for each column that has any.
    fn thinned(&self, marks: &[f64], end: f64) -> Vec<f64> {
        let mut columns: Vec<i64> = marks.iter().map(|at| self.x(*at, end) as i64).collect();
        columns.sort_unstable();
        columns.dedup();
        columns
            .into_iter()
            .map(|column| column as f64 + 0.5)
            .collect()
    }

    /// The largest value of each column, and its time.
    fn largest(&self, points: &[(f64, f64)], end: f64) -> Vec<(f64, f64)> {
        let mut largest: Vec<Option<f64>> = vec![None; self.columns + 1];
        for (at, value) in points {
            let column = (at / end * self.columns as f64) as usize;
            let place = &mut largest[column.min(self.columns)];
            *place = Some(place.map_or(*value, |before: f64| before.max(*value)));
        }
        let time = |column: usize| column as f64 / self.columns as f64 * end;
        let columns = largest.into_iter().enumerate();
        columns
            .filter_map(|(column, value)| Some((time(column), value?)))
            .collect()
    }

    fn path(&self, points: &[(f64, f64)], end: f64, y: impl Fn(f64) -> f64) -> String {
        use std::fmt::Write;
        let mut path = String::new();
        for (at, value) in self.largest(points, end) {
            let command = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", self.x(at, end), y(value));
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strips() -> Strips {
        let span = |name: &str, is_bad| Span {
            name: name.to_owned(),
            from: 2.0,
            until: 4.0,
            is_bad,
        };
        let strip = Strip {
            name: "<a>".to_owned(),
            points: (0..100)
                .map(|at| (f64::from(at) / 10.0, f64::from(at % 7)))
                .collect(),
            spans: vec![span("load", false), span("fault", true)],
            events: vec![span("<event>", true), span("other", true)],
            marks: vec![1.0, 1.0001, 9.0],
            end: Some((9.5, "crashed".to_owned())),
        };
        Strips {
            caption: "errors".to_owned(),
            label: "degrees".to_owned(),
            value_max: 5.0,
            strips: vec![strip.clone(), strip],
        }
    }

    #[test]
    fn names_are_escaped_and_each_stretch_is_named_once_below() {
        let html = strips().html().0.into_string();
        assert!(html.contains("&lt;a&gt;") && !html.contains("<a>"));
        assert_eq!(html.matches("<span>load</span>").count(), 1);
        assert_eq!(html.matches("crashed").count(), 4);
        assert_eq!(html.matches("&lt;event&gt;").count(), 1);
        assert!(html.contains("<b>2</b><span>other</span>"), "{html}");
        assert_eq!(
            html.matches(">2</text>").count(),
            4,
            "two strips, wide and narrow"
        );
        assert!(!html.contains("NaN") && !html.contains("inf"));
    }

    #[test]
    fn marks_in_one_column_are_one_mark() {
        assert_eq!(WIDE.thinned(&[1.0, 1.0001, 9.0], 10.0).len(), 2);
    }

    #[test]
    fn a_figure_without_samples_says_so() {
        assert!(
            Strips::default()
                .html()
                .0
                .into_string()
                .contains("No samples")
        );
    }
}
