//! Gantt charts: rows of bars over one scale of time, such as the tasks that ran on a CPU.
//!
//! ```
//! use tautline_report::gantt::{Gantt, Row};
//!
//! let chart = Gantt {
//!     caption: "One hyperperiod".into(),
//!     span_ns: 2_000_000,
//!     rows: vec![Row {
//!         name: "control".into(),
//!         bars_ns: vec![(0, 150_000), (1_000_000, 1_150_000)],
//!         ..Row::default()
//!     }],
//! };
//! assert!(chart.svg().starts_with("<svg"));
//! ```

use std::fmt::Write;

use maud::{Markup, html};

use crate::chart::{Axis, Span, Unit, scale_across, standalone};
use crate::live::{self, Area, Data, Drawing, empty_figure};
use crate::page::Block;
use crate::plot::{COLOUR_COUNT, Layout};

/// One row of a chart. All times are from the start of the scale; whatever lies beyond its end is cut off.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Times for which it is active, from and to.
    pub bars_ns: Vec<(u64, u64)>,
    /// Times for which it waits, drawn as a line.
    pub waits_ns: Vec<(u64, u64)>,
    /// Deadlines, each with a mark of its own.
    pub deadlines_ns: Vec<u64>,
    /// Moments that are marked as faults.
    pub faults_ns: Vec<u64>,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Gantt {
    /// Quantity that the chart shows.
    pub caption: String,
    /// Length of the scale.
    pub span_ns: u64,
    /// From the top.
    pub rows: Vec<Row>,
}

/// From one row to the next, and a bar's own height: the name stands above the bars.
const PITCH: f64 = 38.0;
const THICKNESS: f64 = 14.0;
/// Room for the scale below the rows.
const BOTTOM: f64 = 26.0;
/// Room left and right, for half of a label of the scale.
const MARGIN: f64 = 28.0;
/// Room for the caption in a file.
const CAPTION: f64 = 22.0;

impl Gantt {
    /// Renders it as part of a page.
    pub fn html(&self) -> Block {
        let Some(span) = self.span() else {
            return empty_figure(&self.caption, "No rows.");
        };
        let drawings = [&Layout::WIDE, &Layout::NARROW].map(|layout| Drawing {
            class: layout.class,
            width: layout.width,
            height: self.height(),
            areas: Area::rows(
                self.rows.len(),
                PITCH,
                (MARGIN, layout.width - MARGIN),
                [span.from, span.to],
            ),
            content: self.drawing(layout, &span),
        });
        let has_deadlines = self.rows.iter().any(|row| !row.deadlines_ns.is_empty());
        let legend = html! {
            @if has_deadlines {
                ul.legend {
                    li {
                        svg width="30" height="14" aria-hidden="true" { path.due d="M15 0V14" {} }
                        span { "a deadline" }
                    }
                }
            }
        };
        live::figure(&self.data(), drawings, &legend)
    }

    fn data(&self) -> Data {
        let mut data = Data::new(&self.caption, [("from", "ns"), ("to", "ns")]);
        for (index, row) in self.rows.iter().enumerate() {
            let parts = [("runs", &row.bars_ns), ("is under way", &row.waits_ns)];
            let all = || {
                let part = |(name, parts): (&'static str, &Vec<(u64, u64)>)| {
                    let parts = parts.clone();
                    parts.into_iter().map(move |part| (name, part))
                };
                parts.into_iter().flat_map(part)
            };
            let points = all().map(|(_, (from, to))| vec![from as f64, to as f64]);
            data.add(live::Series {
                names: Some(all().map(|(name, _)| name).collect()),
                ..live::Series::new(&row.name, index, points.collect())
            });
        }
        data
    }

    /// Renders it as a separate file, with its caption.
    pub fn svg(&self) -> String {
        let layout = &Layout::WIDE;
        standalone(
            layout.width,
            self.height() + CAPTION,
            &html! {
                text x="4" y="14" { (self.caption) }
                g transform=(format!("translate(0 {CAPTION})")) {
                    @if let Some(span) = self.span() { (self.drawing(layout, &span)) }
                }
            },
        )
    }

    fn height(&self) -> f64 {
        PITCH * self.rows.len() as f64 + BOTTOM
    }

    fn span(&self) -> Option<Span> {
        let is_empty = self.rows.is_empty() || self.span_ns == 0;
        let ends = (!is_empty).then_some(self.span_ns as f64);
        Span::of(&Axis::linear("", Unit::Time), ends.into_iter())
    }

    fn drawing(&self, layout: &Layout, span: &Span) -> Markup {
        let bottom = PITCH * self.rows.len() as f64;
        let x = |ns: f64| MARGIN + span.share(ns) * (layout.width - 2.0 * MARGIN);
        html! {
            (scale_across(span, Unit::Time, x, [2.0, bottom], layout))
            @for (index, row) in self.rows.iter().enumerate() {
                @let top = PITCH * index as f64 + 18.0;
                text x=(MARGIN) y=(top - 4.0) { (row.name) }
                path style="fill:var(--soft)" d=(self.boxes(&row.waits_ns, top + THICKNESS - 2.0, 2.0, x)) {}
                path style=(format!("fill:var(--s{})", index % COLOUR_COUNT)) d=(self.boxes(&row.bars_ns, top, THICKNESS, x)) {}
                path.due d=(self.ticks(&row.deadlines_ns, top, x)) {}
                @for fault in row.faults_ns.iter().filter(|fault| **fault <= self.span_ns) {
                    text x=(format!("{:.1}", x(*fault as f64))) y=(top - 4.0) text-anchor="middle" style="fill:var(--bad)" { "✗" }
                }
            }
            line.axis x1=(MARGIN) x2=(layout.width - MARGIN) y1=(bottom) y2=(bottom) {}
        }
    }

    /// One path for all deadlines of a row.
    fn ticks(&self, deadlines: &[u64], top: f64, x: impl Fn(f64) -> f64) -> String {
        let inside = deadlines.iter().filter(|at| **at <= self.span_ns);
        inside.fold(String::new(), |mut path, at| {
            let _ = write!(
                path,
                "M{:.1} {:.1}v{:.1}",
                x(*at as f64),
                top - 3.0,
                THICKNESS + 6.0
            );
            path
        })
    }

    /// One path for all boxes of a row: thousands of elements would make a page slow.
    fn boxes(&self, boxes: &[(u64, u64)], top: f64, height: f64, x: impl Fn(f64) -> f64) -> String {
        let inside = boxes.iter().filter(|(from, _)| *from < self.span_ns);
        inside.fold(String::new(), |mut path, (from, to)| {
            let (left, right) = (x(*from as f64), x(*to.min(&self.span_ns) as f64));
            let _ = write!(
                path,
                "M{left:.1} {top:.1}H{:.1}v{height:.1}H{left:.1}Z",
                // Narrower than this, nothing of it would be seen.
                right.max(left + 0.5)
            );
            path
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(rows: usize) -> Gantt {
        let row = |index: usize| Row {
            name: format!("<row {index}>"),
            bars_ns: vec![(0, 100), (900, 1_200), (5_000, 6_000)],
            waits_ns: vec![(100, 900)],
            deadlines_ns: vec![900, 5_000],
            faults_ns: vec![950, 7_000],
        };
        Gantt {
            caption: "<caption>".into(),
            span_ns: 1_000,
            rows: (0..rows).map(row).collect(),
        }
    }

    #[test]
    fn bars_lie_inside_and_names_are_escaped() {
        let svg = chart(12).svg();
        assert!(svg.contains("&lt;caption&gt;") && svg.contains("&lt;row 11&gt;"));
        assert_eq!(
            svg.matches('✗').count(),
            12,
            "faults beyond the end are cut off"
        );
        for path in svg.split(" d=\"").skip(1) {
            let path = path.split('"').next().unwrap();
            assert!(
                path.matches('M').count() <= 2,
                "the last bar lies beyond the end"
            );
            let numbers = path.split(['M', 'H', ' ', 'v', 'Z']);
            for number in numbers.filter_map(|text| text.parse::<f64>().ok()) {
                assert!((0.0..=920.0).contains(&number), "{number}");
            }
        }
    }

    #[test]
    fn nothing_is_no_trouble() {
        assert!(chart(0).html().0.into_string().contains("No rows"));
        let mut empty = chart(1);
        empty.span_ns = 0;
        assert!(!empty.svg().contains("NaN"));
        assert!(chart(1).html().0.into_string().matches("<svg").count() == 3);
    }
}
