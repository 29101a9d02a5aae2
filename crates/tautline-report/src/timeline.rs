//! The plot of when in a run it was late: time across, the worst latency of each slice up (logarithmic).

use maud::{Markup, html};

use crate::live::{self, Area, Data, Drawing, Kind, empty_figure};
use crate::page::Block;
use crate::plot::{legend_with, stroke, tick_text};
use crate::reference::{self, Reference};
use serde::{Deserialize, Serialize};

/// The worst of one slice of a time line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Start of the slice since the start of the phase.
    pub start_ns: u64,
    /// The greatest latency in it.
    pub max_ns: u64,
}

/// One line of the plot.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Name in the legend.
    pub name: &'a str,
    /// The slices, in order.
    pub slices: &'a [Slice],
}

struct Layout {
    class: &'static str,
    width: f64,
    height: f64,
    left: f64,
}

const RIGHT: f64 = 16.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 42.0;

const WIDE: Layout = Layout {
    class: "plot wide",
    width: 920.0,
    height: 300.0,
    left: 78.0,
};
const NARROW: Layout = Layout {
    class: "plot narrow",
    width: 360.0,
    height: 260.0,
    left: 66.0,
};

struct Range {
    end_ns: f64,
    decade_from: i32,
    decade_to: i32,
}

/// The worst latency of each slice of time. References are latencies in nanoseconds.
pub fn timeline(caption: &str, lines: &[Line<'_>], references: &[Reference]) -> Block {
    let slices = || lines.iter().flat_map(|line| line.slices);
    let (Some(least), Some(most), Some(end_ns)) = (
        slices().map(|slice| slice.max_ns.max(1)).min(),
        slices().map(|slice| slice.max_ns.max(1)).max(),
        slices().map(|slice| slice.start_ns).max(),
    ) else {
        return empty_figure(caption, "No time line.");
    };
    let near = || reference::near(references, [least as f64, most as f64], true);
    let (least, most) = (
        near().fold(least as f64, f64::min),
        near().fold(most as f64, f64::max),
    );
    let decade_from = least.log10().floor() as i32;
    let range = Range {
        end_ns: (end_ns as f64).max(1.0),
        decade_from,
        decade_to: (most.log10().ceil() as i32).max(decade_from + 1),
    };
    let mut data = Data::new(caption, [("time", "ns"), ("worst latency", "ns")]);
    for (index, line) in lines.iter().enumerate() {
        let points = line.slices.iter();
        let points = points.map(|slice| vec![slice.start_ns as f64, slice.max_ns as f64]);
        data.add(live::Series::new(line.name, index, points.collect()));
    }
    let names = lines.iter().map(|line| (line.name, None));
    let below = legend_with(names, references, |at| range.has(at));
    let drawings = [WIDE, NARROW].map(|layout| layout.drawing(&range, lines, references));
    live::figure(&data, drawings, &below)
}

impl Range {
    fn has(&self, latency_ns: f64) -> bool {
        let decades = f64::from(self.decade_from)..=f64::from(self.decade_to);
        decades.contains(&latency_ns.log10())
    }
}

impl Layout {
    fn drawing(&self, range: &Range, lines: &[Line<'_>], references: &[Reference]) -> Drawing {
        Drawing {
            class: self.class,
            width: self.width,
            height: self.height,
            areas: vec![Area {
                kind: Kind::Line,
                left: self.left,
                right: self.width - RIGHT,
                top: TOP,
                bottom: self.height - BOTTOM,
                span: Some([0.0, range.end_ns]),
                logarithmic: false,
                map: None,
                series: (0..lines.len()).collect(),
            }],
            content: self.plot(range, lines, references),
        }
    }

    fn plot(&self, range: &Range, lines: &[Line<'_>], references: &[Reference]) -> Markup {
        let (right, bottom) = (self.width - RIGHT, self.height - BOTTOM);
        let up = |at: f64| range.has(at).then(|| self.y(range, at));
        html! {
                text x="4" y="14" { "worst latency" }
                @for decade in range.decade_from..=range.decade_to {
                    @let tick = 10f64.powi(decade);
                    @let y = format!("{:.1}", self.y(range, tick));
                    line.grid x1=(self.left) x2=(right) y1=(y) y2=(y) {}
                    text x=(self.left - 7.0) y=(format!("{:.1}", self.y(range, tick) + 4.0)) text-anchor="end" { (tick_text(tick)) }
                }
                @for quarter in 0..=4u8 {
                    @let share = f64::from(quarter) / 4.0;
                    @let x = format!("{:.1}", self.left + share * (right - self.left));
                    @let anchor = match quarter { 0 => "start", 4 => "end", _ => "middle" };
                    text x=(x) y=(bottom + 17.0) text-anchor=(anchor) { (seconds_text(share * range.end_ns)) }
                }
                line.axis x1=(self.left) x2=(right) y1=(bottom) y2=(bottom) {}
                text x=((self.left + right) / 2.0) y=(self.height - 6.0) text-anchor="middle" { "time in the phase" }
                (reference::across(references, up, [self.left, right]))
                @for (index, line) in lines.iter().enumerate() {
                    path.line data-line=(index) d=(self.path(range, line.slices)) style=(stroke(index)) {}
                }
        }
    }

    fn y(&self, range: &Range, latency_ns: f64) -> f64 {
        let height = (latency_ns.log10() - f64::from(range.decade_from))
            / f64::from(range.decade_to - range.decade_from);
        self.height - BOTTOM - height * (self.height - TOP - BOTTOM)
    }

    fn path(&self, range: &Range, slices: &[Slice]) -> String {
        slices
            .iter()
            .enumerate()
            .map(|(index, slice)| {
                let x = self.left
                    + slice.start_ns as f64 / range.end_ns * (self.width - RIGHT - self.left);
                let y = self.y(range, slice.max_ns.max(1) as f64);
                format!("{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' })
            })
            .collect()
    }
}

fn seconds_text(ns: f64) -> String {
    let seconds = ns / 1e9;
    if seconds >= 100.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{seconds:.1} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slice_is_drawn_inside() {
        let slices: Vec<Slice> = (0..10)
            .map(|i| Slice {
                start_ns: i * 1_000_000,
                max_ns: 1_000 * (i + 1),
            })
            .collect();
        let html = timeline(
            "When",
            &[Line {
                name: "idle",
                slices: &slices,
            }],
            &[Reference::deadline("deadline 20 µs", 20e3)],
        )
        .0
        .into_string();
        assert_eq!(html.matches("reference deadline").count(), 3);
        assert_eq!(html.matches("<path").count(), 2);
        assert!(html.contains("idle") && html.contains("worst latency"));
        for number in html.split(" d=\"M").skip(1).flat_map(|path| {
            path.split('"')
                .next()
                .unwrap()
                .split(['L', ' '])
                .map(|n| n.parse::<f64>().unwrap())
                .collect::<Vec<_>>()
        }) {
            assert!((0.0..=920.0).contains(&number), "{number}");
        }
    }

    #[test]
    fn nothing_and_one_point_are_no_trouble() {
        assert!(
            timeline("When", &[], &[])
                .0
                .into_string()
                .contains("No time line")
        );
        let one = [Slice {
            start_ns: 0,
            max_ns: 0,
        }];
        let html = timeline(
            "When",
            &[Line {
                name: "x",
                slices: &one,
            }],
            &[],
        )
        .0
        .into_string();
        assert!(!html.contains("NaN") && !html.contains("inf"));
    }
}
