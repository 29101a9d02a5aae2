//! Charts of figures against a quantity: lines over sizes, run times over time. Each axis is linear or
//! logarithmic and knows its unit. On a page a chart comes in two layouts, of which the browser shows one; as a
//! file it is one SVG drawing that carries its colours.
//!
//! ```
//! use tautline_report::chart::{Axis, Chart, Line, Mark, Unit};
//! use tautline_report::reference::Reference;
//!
//! let chart = Chart {
//!     caption: "Latency by size".into(),
//!     across: Axis::logarithmic("message", Unit::Bytes),
//!     up: Axis::linear("one way", Unit::Time),
//!     lines: vec![Line::new("udp", Mark::Dots, vec![(1.0, 3_200.0), (1_450.0, 4_100.0)])],
//!     references: vec![Reference::deadline("deadline 5 µs", 5_000.0)],
//! };
//! assert!(chart.svg().starts_with("<svg"));
//! ```

use std::fmt::Write;

use maud::{Markup, PreEscaped, html};

use crate::live::{self, Area, Data, Drawing, Group, Kind, empty_figure};
use crate::page::{Block, COLOURS, DRAWING};
use crate::plot::{COLOUR_COUNT, Layout, dashed, legend_with, stroke, tick_text};
use crate::reference::{self, Reference};

/// Unit of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds, shown in the unit that suits.
    Time,
    /// Bytes.
    Bytes,
    /// Bits a second, shown with the prefix that suits: the label says the unit, for which an axis has no room.
    BitRate,
    /// A plain number.
    Number,
}

impl Unit {
    /// Name of the unit in the data.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::Time => "ns",
            Unit::Bytes => "B",
            Unit::BitRate => "bit/s",
            Unit::Number => "",
        }
    }

    /// A value on the axis, short.
    pub(crate) fn text(self, value: f64) -> String {
        let digits = |value: f64| (value * 1000.0).round() / 1000.0;
        match self {
            Unit::Time if value == 0.0 => "0".to_owned(),
            Unit::Time => tick_text(value),
            Unit::Bytes => format!("{} B", digits(value)),
            Unit::Number => digits(value).to_string(),
            Unit::BitRate => match value {
                v if v >= 999.5e6 => format!("{} G", digits(v / 1e9)),
                v if v >= 999.5e3 => format!("{} M", digits(v / 1e6)),
                v => format!("{} k", digits(v / 1e3)),
            },
        }
    }
}

/// One axis.
#[derive(Clone, Debug)]
pub struct Axis {
    label: &'static str,
    unit: Unit,
    logarithmic: bool,
}

impl Axis {
    /// From zero (or the least value, if that is below) to the greatest, in equal steps.
    pub fn linear(label: &'static str, unit: Unit) -> Axis {
        Axis {
            label,
            unit,
            logarithmic: false,
        }
    }

    /// In equal factors. Values of zero and below cannot be shown and are left out.
    pub fn logarithmic(label: &'static str, unit: Unit) -> Axis {
        Axis {
            logarithmic: true,
            ..Axis::linear(label, unit)
        }
    }

    fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.logarithmic || value > 0.0)
    }

    fn place(&self, value: f64) -> f64 {
        if self.logarithmic {
            value.log10()
        } else {
            value
        }
    }
}

/// How the points of a line are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Joined.
    Line,
    /// Joined, each with a dot: few points, whose places matter.
    Dots,
    /// Dots alone: many points without an order to see.
    Cloud,
}

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    name: String,
    group: Option<&'static str>,
    mark: Mark,
    points: Vec<(f64, f64)>,
}

impl Line {
    /// A line through points (across, up). One without points is named in the legend and not drawn.
    pub fn new(name: impl Into<String>, mark: Mark, points: Vec<(f64, f64)>) -> Line {
        Line {
            name: name.into(),
            group: None,
            mark,
            points,
        }
    }

    /// Makes it part of a group that can be shown and hidden, such as `p99`; at first, the first group of a chart is
    /// shown. Lines of one name have one colour.
    pub fn in_group(mut self, group: &'static str) -> Line {
        self.group = Some(group);
        self
    }
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Quantity that the chart shows.
    pub caption: String,
    /// The axis across.
    pub across: Axis,
    /// The axis up.
    pub up: Axis,
    /// In the order of the legend.
    pub lines: Vec<Line>,
    /// Values on the axis up with lines of their own.
    pub references: Vec<Reference>,
}

/// Height of a line of the legend in a file.
const LEGEND_PITCH: f64 = 20.0;

impl Chart {
    /// Renders it as part of a page.
    pub fn html(&self) -> Block {
        let Some(spans) = self.spans() else {
            return empty_figure(&self.caption, "No samples.");
        };
        let names = self.names();
        let remarks = names.iter().map(|name| {
            let mut own = self.lines.iter().filter(|line| line.name == *name);
            let is_empty = own.all(|line| line.points.is_empty());
            (*name, is_empty.then_some("no samples"))
        });
        let below = legend_with(remarks, &self.references, |at| {
            self.is_within(&spans[1], at)
        });
        let drawings = [&Layout::WIDE, &Layout::NARROW].map(|layout| Drawing {
            class: layout.class,
            width: layout.width,
            height: layout.height,
            areas: vec![self.area(layout, &spans[0])],
            content: self.drawing(layout, &spans, Shown::All),
        });
        live::figure(&self.data(), drawings, &below)
    }

    fn area(&self, layout: &Layout, across: &Span) -> Area {
        Area {
            kind: Kind::Line,
            left: layout.left,
            right: layout.width - layout.right,
            top: layout.top,
            bottom: layout.height - layout.bottom,
            span: Some([across.from, across.to]),
            logarithmic: self.across.logarithmic,
            map: None,
            series: (0..self.lines.len()).collect(),
        }
    }

    fn data(&self) -> Data {
        let columns = [&self.across, &self.up].map(|axis| (axis.label, axis.unit.name()));
        let groups = self.groups();
        let groups = groups.iter().enumerate().map(|(index, name)| Group {
            name,
            on: index == 0,
        });
        let mut data = Data::new(&self.caption, columns).with_groups(groups.collect());
        for line in &self.lines {
            let points = self.points(line).map(|(across, up)| vec![across, up]);
            data.add(live::Series {
                group: line.group,
                ..live::Series::new(&line.name, self.place(line), points.collect())
            });
        }
        data
    }

    /// Names of the lines, each once.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for line in &self.lines {
            if !names.contains(&line.name.as_str()) {
                names.push(&line.name);
            }
        }
        names
    }

    /// Groups of the lines, each once.
    fn groups(&self) -> Vec<&'static str> {
        let mut groups = Vec::new();
        for group in self.lines.iter().filter_map(|line| line.group) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups
    }

    /// Place of a line in the legend.
    fn place(&self, line: &Line) -> usize {
        let names = self.names();
        names
            .iter()
            .position(|name| *name == line.name)
            .unwrap_or(0)
    }

    /// Whether a line is shown before anybody switches.
    fn is_shown(&self, line: &Line) -> bool {
        line.group.is_none() || line.group == self.groups().first().copied()
    }

    fn stroke(&self, line: &Line) -> String {
        let place = self.place(line);
        match line.group {
            None => stroke(place),
            Some(group) => {
                let groups = self.groups();
                let dash = groups.iter().position(|one| *one == group).unwrap_or(0);
                dashed(place, dash)
            }
        }
    }

    /// Renders it as a separate file, with legend and caption.
    pub fn svg(&self) -> String {
        let layout = &Layout::WIDE;
        let top = LEGEND_PITCH;
        let below = layout.height + top;
        let names = self.names();
        let height = below + LEGEND_PITCH * (names.len() as f64 + 0.5);
        standalone(
            layout.width,
            height,
            &html! {
                text x="4" y="14" { (self.caption) }
                g transform=(format!("translate(0 {top})")) {
                    @if let Some(spans) = self.spans() { (self.drawing(layout, &spans, Shown::AtFirst)) }
                }
                @for (index, name) in names.iter().enumerate() {
                    @let y = below + LEGEND_PITCH * (index as f64 + 0.5);
                    line.line x1=(layout.left) x2=(layout.left + 30.0) y1=(y) y2=(y) style=(stroke(index)) {}
                    text x=(layout.left + 38.0) y=(y + 4.0) { (name) }
                }
            },
        )
    }

    /// Points that both axes can show.
    fn points<'a>(&'a self, line: &'a Line) -> impl Iterator<Item = (f64, f64)> + 'a {
        let shown = |point: &(f64, f64)| self.across.shows(point.0) && self.up.shows(point.1);
        line.points.iter().copied().filter(shown)
    }

    fn spans(&self) -> Option<[Span; 2]> {
        let all = || self.lines.iter().flat_map(|line| self.points(line));
        let least = all().map(|point| point.1).reduce(f64::min)?;
        let most = all().map(|point| point.1).reduce(f64::max)?;
        let references = reference::near(&self.references, [least, most], self.up.logarithmic);
        Some([
            Span::of(&self.across, all().map(|point| point.0))?,
            Span::of(&self.up, all().map(|point| point.1).chain(references))?,
        ])
    }

    /// Whether a value lies within an axis up.
    fn is_within(&self, up: &Span, value: f64) -> bool {
        (up.from..=up.to).contains(&self.up.place(value))
    }

    fn drawing(&self, layout: &Layout, [across, up]: &[Span; 2], shown: Shown) -> Markup {
        let (right, bottom) = (layout.width - layout.right, layout.height - layout.bottom);
        let x = |value: f64| {
            layout.left + across.share(self.across.place(value)) * (right - layout.left)
        };
        let y = |value: f64| bottom - up.share(self.up.place(value)) * (bottom - layout.top);
        html! {
            text x="4" y="14" { (self.up.label) @if self.up.logarithmic { " (logarithmic)" } }
            (scale_across(across, self.across.unit, x, [layout.top, bottom], layout))
            @for (tick, rank) in &up.ticks {
                @let at = y(*tick);
                line class=(if *rank == 0 { "grid" } else { "minor" }) x1=(layout.left) x2=(right) y1=(format!("{at:.1}")) y2=(format!("{at:.1}")) {}
            }
            @for tick in &spaced(&up.ticks, y, 18.0, f64::INFINITY) {
                text x=(layout.left - 7.0) y=(format!("{:.1}", y(*tick) + 4.0)) text-anchor="end" { (self.up.unit.text(*tick)) }
            }
            line.axis x1=(layout.left) x2=(right) y1=(bottom) y2=(bottom) {}
            text x=((layout.left + right) / 2.0) y=(layout.height - 6.0) text-anchor="middle" {
                (self.across.label) @if self.across.logarithmic { " (logarithmic)" }
            }
            (reference::across(&self.references, |at| self.is_within(up, at).then(|| y(at)), [layout.left, right]))
            @for line in &self.lines {
                @if shown == Shown::All || self.is_shown(line) { (self.line(line, &x, &y)) }
            }
        }
    }

    fn line(&self, line: &Line, x: &impl Fn(f64) -> f64, y: &impl Fn(f64) -> f64) -> Markup {
        let points: Vec<(f64, f64)> = self
            .points(line)
            .map(|(across, up)| (x(across), y(up)))
            .collect();
        let path = points.iter().fold(String::new(), |mut path, (x, y)| {
            let command = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{command}{x:.1} {y:.1}");
            path
        });
        let place = self.place(line);
        let fill = format!("fill:var(--s{})", place % COLOUR_COUNT);
        let is_off = !self.is_shown(line);
        let radius = if line.mark == Mark::Cloud { 1.6 } else { 3.0 };
        html! {
            @if line.mark != Mark::Cloud && !points.is_empty() {
                path.line.off[is_off] data-group=[line.group] data-line=(place) d=(path) style=(self.stroke(line)) {}
            }
            @if line.mark != Mark::Line {
                g.mark.off[is_off] data-group=[line.group] data-line=(place) style=(fill) {
                    @for (x, y) in &points {
                        circle cx=(format!("{x:.1}")) cy=(format!("{y:.1}")) r=(radius) {}
                    }
                }
            }
        }
    }
}

/// Lines that a drawing has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// Also those that can be switched on.
    All,
    /// Those that are shown before anybody switches.
    AtFirst,
}

/// Lines and labels of a scale across, down to `bottom`.
pub(crate) fn scale_across(
    span: &Span,
    unit: Unit,
    x: impl Fn(f64) -> f64,
    [top, bottom]: [f64; 2],
    layout: &Layout,
) -> Markup {
    html! {
        @for (tick, _) in &span.ticks {
            @let at = format!("{:.1}", x(*tick));
            line.minor x1=(at) x2=(at) y1=(top) y2=(bottom) {}
        }
        @for tick in &spaced(&span.ticks, &x, layout.label_pitch, layout.width) {
            text x=(format!("{:.1}", x(*tick))) y=(bottom + 17.0) text-anchor="middle" { (unit.text(*tick)) }
        }
    }
}

/// An SVG drawing that stands alone: with its colours, on the reader's background.
pub(crate) fn standalone(width: f64, height: f64, drawing: &Markup) -> String {
    html! {
        svg.plot xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {width} {height}")) width=(width) height=(height) {
            style { (PreEscaped(COLOURS)) (PreEscaped(DRAWING)) }
            rect width="100%" height="100%" style="fill:var(--bg)" {}
            (drawing)
        }
    }
    .into_string()
        + "\n"
}

/// Range of an axis, in places on it, and its ticks (values) with their rank: 0 main, more: lesser.
pub(crate) struct Span {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) ticks: Vec<(f64, u8)>,
}

impl Span {
    pub(crate) fn of(axis: &Axis, values: impl Iterator<Item = f64>) -> Option<Span> {
        let (least, most) = values.fold(None, |span: Option<(f64, f64)>, value| {
            let (least, most) = span.unwrap_or((value, value));
            Some((least.min(value), most.max(value)))
        })?;
        Some(if axis.logarithmic {
            Span::logarithmic(least, most)
        } else {
            Span::linear(least, most)
        })
    }

    /// Half a decade at the least, so that equal values are a line with room beside it.
    fn logarithmic(least: f64, most: f64) -> Span {
        let (from, to) = (least.log10() - 0.04, most.log10() + 0.04);
        let widen = (0.5 - (to - from)).max(0.0) / 2.0;
        let (from, to) = (from - widen, to + widen);
        let mut ticks = Vec::new();
        for decade in from.floor() as i32..=to.ceil() as i32 {
            for (digit, rank) in [(1.0, 0), (2.0, 1), (5.0, 1)] {
                let tick = digit * 10f64.powi(decade);
                if (from..=to).contains(&tick.log10()) {
                    ticks.push((tick, rank));
                }
            }
        }
        Span { from, to, ticks }
    }

    fn linear(least: f64, most: f64) -> Span {
        let from = least.min(0.0);
        let reach = if most > from { most - from } else { 1.0 };
        // Five to ten steps of 1, 2 or 5 times a power of ten.
        let rough = 10f64.powf((reach / 5.0).log10().floor());
        let step = [5.0, 2.0, 1.0]
            .into_iter()
            .map(|digit| digit * rough)
            .find(|step| reach / step >= 5.0)
            .unwrap_or(rough);
        let last = ((from + reach) / step - 1e-9).ceil() as i64;
        let first = (from / step + 1e-9).floor() as i64;
        Span {
            from: first as f64 * step,
            to: last as f64 * step,
            ticks: (first..=last).map(|i| (i as f64 * step, 0)).collect(),
        }
    }

    pub(crate) fn share(&self, place: f64) -> f64 {
        ((place - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }
}

/// The ticks that get a label: main ones first, then the rest, as long as they are `pitch` apart and half of it
/// inside the drawing.
pub(crate) fn spaced(
    ticks: &[(f64, u8)],
    at: impl Fn(f64) -> f64,
    pitch: f64,
    width: f64,
) -> Vec<f64> {
    let mut chosen: Vec<f64> = Vec::new();
    for wanted in 0..=1 {
        for (tick, _) in ticks.iter().filter(|(_, rank)| *rank == wanted) {
            let here = at(*tick);
            let inside = here + pitch / 2.0 <= width && here >= pitch / 2.0;
            if inside
                && chosen
                    .iter()
                    .all(|other| (at(*other) - here).abs() >= pitch)
            {
                chosen.push(*tick);
            }
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(up: Axis, points: Vec<(f64, f64)>) -> Chart {
        Chart {
            caption: "<caption>".into(),
            across: Axis::logarithmic("size", Unit::Bytes),
            up,
            lines: vec![
                Line::new("<one>", Mark::Dots, points.clone()),
                Line::new("cloud", Mark::Cloud, points),
                Line::new("nothing", Mark::Line, Vec::new()),
            ],
            references: Vec::new(),
        }
    }

    fn coordinates(html: &str) -> Vec<f64> {
        html.split(" d=\"M")
            .skip(1)
            .flat_map(|path| {
                path.split('"')
                    .next()
                    .unwrap()
                    .split(['L', ' '])
                    .map(|number| number.parse::<f64>().unwrap())
            })
            .collect()
    }

    #[test]
    fn every_point_lies_inside_the_drawing() {
        for points in [
            vec![(1.0, 5.0), (64.0, 900.0), (1450.0, 1e9)],
            vec![(16.0, 7.0)],
            vec![(1.0, 3.0), (2.0, 3.0)],
        ] {
            for up in [
                Axis::linear("t", Unit::Time),
                Axis::logarithmic("t", Unit::Time),
            ] {
                let text = chart(up, points.clone()).html().0.into_string();
                let found = coordinates(&text);
                assert_eq!(found.len(), points.len() * 4, "two layouts, x and y");
                assert!(found.iter().all(|c| (0.0..=920.0).contains(c)), "{found:?}");
                assert!(!text.contains("NaN") && !text.contains("inf"));
            }
        }
    }

    #[test]
    fn what_an_axis_cannot_show_is_left_out_and_nothing_is_no_trouble() {
        let one = chart(
            Axis::logarithmic("t", Unit::Time),
            vec![(0.0, 4.0), (4.0, 0.0), (4.0, f64::NAN), (4.0, 8.0)],
        );
        assert_eq!(coordinates(&one.svg()).len(), 2);
        let none = chart(Axis::linear("t", Unit::Time), Vec::new());
        assert!(none.html().0.into_string().contains("No samples"));
        assert!(none.svg().ends_with("</svg>\n"));
    }

    #[test]
    fn groups_share_a_colour_and_a_legend_and_the_first_is_shown() {
        let line = |group, up| Line::new("path", Mark::Line, vec![(1.0, up)]).in_group(group);
        let chart = Chart {
            lines: vec![line("p50", 4.0), line("p99", 8.0)],
            references: vec![Reference::paper("the paper: 9 ns", 9.0)],
            ..chart(Axis::logarithmic("t", Unit::Time), Vec::new())
        };
        let html = chart.html().0.into_string();
        assert_eq!(html.matches("<li data-line=\"0\"").count(), 1);
        assert!(!html.contains("<li data-line=\"1\""));
        assert_eq!(
            html.matches("class=\"line off\" data-group=\"p99\"")
                .count(),
            2
        );
        assert_eq!(html.matches("class=\"reference paper\"").count(), 3);
        let svg = chart.svg();
        assert!(svg.contains("data-group=\"p50\"") && !svg.contains("data-group=\"p99\""));
    }

    #[test]
    fn linear_axes_begin_at_zero_and_have_round_steps() {
        let ticks = |most| -> Vec<f64> {
            let span = Span::linear(most / 2.0, most);
            assert!(span.to >= most && span.from == 0.0);
            span.ticks.iter().map(|tick| tick.0).collect()
        };
        assert_eq!(ticks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(4.3).last(), Some(&4.5));
        for most in [0.7, 1.0, 3.0, 9.9, 123_456.0] {
            assert!((6..=12).contains(&ticks(most).len()), "{most}");
        }
    }

    #[test]
    fn values_have_their_unit_and_names_are_escaped() {
        assert_eq!(Unit::BitRate.text(4.5e9), "4.5 G");
        assert_eq!(Unit::BitRate.text(2e7), "20 M");
        assert_eq!(Unit::Bytes.text(1450.0), "1450 B");
        assert_eq!(Unit::Time.text(2e6), "2 ms");
        assert_eq!(Unit::Number.text(1.5), "1.5");
        let svg = chart(Axis::linear("t", Unit::Time), vec![(1.0, 1.0)]).svg();
        assert!(svg.contains("&lt;one&gt;") && svg.contains("&lt;caption&gt;"));
    }
}
