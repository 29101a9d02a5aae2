//! Plots of latencies as SVG inside a page: an overlay of histograms, and the tail.
//!
//! Own code and not a plot library, because the pages follow the reader's light or dark setting and
//! screen: a plot refers to the page's colours by name and comes in two layouts, wide and narrow,
//! of which the browser shows one. The plot libraries at hand write fixed colours and one size.

use maud::{Markup, html};

use crate::histogram::{Bucket, LatencyHistogram};
use crate::live::{self, Area, Data, Drawing, Group, Kind, empty_figure};
use crate::page::Block;
use crate::reference::{self, Reference};

/// Colours that the page's style defines. Further series begin again at the first, with another dash.
pub(crate) const COLOUR_COUNT: usize = 8;

/// Strokes by which lines of like colour are told apart.
const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];

/// Bars to a factor of ten. More show comb patterns of the clock's resolution, fewer hide peaks.
const BARS_PER_DECADE: u32 = 24;

/// Decades of a share that are drawn at most; a share below one in a thousand million is out of reach of a run.
const SHARE_DECADES_MAX: i32 = 9;

/// One line of a plot.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    /// Name in the legend.
    pub name: &'a str,
    /// Samples. A series without any is named in the legend and not drawn.
    pub histogram: &'a LatencyHistogram,
}

/// Percentiles that can be switched on and off, and whether they are shown at first.
const PERCENTILES: [(&str, f64, bool); 4] = [
    ("p50", 0.5, true),
    ("p99", 0.99, true),
    ("p99.9", 0.999, false),
    ("max", 1.0, false),
];

/// Histograms over each other: latency across, share of the samples up, both logarithmic. References are latencies in
/// nanoseconds.
pub fn histograms(caption: &str, series: &[Series<'_>], references: &[Reference]) -> Block {
    let curves = series.iter().map(|one| {
        let (bars, total) = (
            one.histogram.log_buckets(BARS_PER_DECADE),
            one.histogram.count(),
        );
        let share = |bar: &Bucket| bar.count as f64 / total as f64;
        let share_at = |ns: u64| bars.iter().find(|bar| ns <= bar.to_ns).map_or(0.0, share);
        Curve {
            outline: outline(&bars, total),
            steps: bars
                .iter()
                .map(|bar| vec![bar.from_ns as f64, share(bar)])
                .collect(),
            percentiles: percentiles(one.histogram, |ns, _| share_at(ns)),
        }
    });
    let plot = Plot {
        caption,
        share_label: "share of samples",
        filled: true,
        series,
        curves: curves.collect(),
        references,
    };
    plot.html()
}

/// How often which latency was exceeded: latency across, share of the samples above it up, both
/// logarithmic. The last point of a line is its maximum. References are latencies in nanoseconds.
pub fn tails(caption: &str, series: &[Series<'_>], references: &[Reference]) -> Block {
    let curves = series.iter().map(|one| {
        let outline = tail(one.histogram);
        let least = outline.last().map_or(1.0, |point| point.1);
        let from_ns = one.histogram.summary().min_ns as f64;
        let mut steps = vec![vec![from_ns, 1.0]];
        // The second of two points at one latency says how many are above it.
        let pairs = outline.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        steps.extend(pairs.map(|pair| vec![pair[1].0, pair[1].1]));
        steps.extend(outline.last().map(|point| vec![point.0, 0.0]));
        Curve {
            percentiles: percentiles(one.histogram, |_, quantile| (1.0 - quantile).max(least)),
            outline,
            steps,
        }
    });
    let plot = Plot {
        caption,
        share_label: "share of samples above",
        filled: false,
        series,
        curves: curves.collect(),
        references,
    };
    plot.html()
}

/// A latency with three digits and the unit that suits it, such as `2.25 µs`.
pub fn latency_text(ns: u64) -> String {
    let (value, unit) = match ns {
        0..=999 => return format!("{ns} ns"),
        1_000..=999_999 => (ns as f64 / 1e3, "µs"),
        1_000_000..=999_999_999 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// The outline of bars as points (latency, share). Share 0 stands for the floor of the plot.
fn outline(bars: &[Bucket], total: u64) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    for bar in bars {
        let share = bar.count as f64 / total as f64;
        points.push((bar.from_ns.max(1) as f64, share));
        points.push((bar.to_ns.max(1) as f64, share));
    }
    if let (Some(first), Some(last)) = (points.first().copied(), points.last().copied()) {
        points.insert(0, (first.0, 0.0));
        points.push((last.0, 0.0));
    }
    points
}

/// The complementary cumulative distribution as steps.
fn tail(histogram: &LatencyHistogram) -> Vec<(f64, f64)> {
    let total = histogram.count() as f64;
    let max_ns = histogram.summary().max_ns;
    let mut above = histogram.count();
    let mut points = Vec::new();
    for bucket in histogram.buckets() {
        let at = bucket.to_ns.min(max_ns).max(1) as f64;
        points.push((at, above as f64 / total));
        above -= bucket.count;
        if above > 0 {
            points.push((at, above as f64 / total));
        }
    }
    if histogram.unplaced() > 0 {
        // Only the greatest of them is known: the curve is the highest one that they allow.
        points.push((max_ns.max(1) as f64, above as f64 / total));
    }
    points
}

/// Percentiles of a histogram with the height of their marks.
fn percentiles(
    histogram: &LatencyHistogram,
    share: impl Fn(u64, f64) -> f64,
) -> Vec<(&'static str, f64, f64)> {
    let place = |(name, quantile, _): (&'static str, f64, bool)| {
        let ns = histogram.at_quantile(quantile)?;
        Some((name, ns.max(1) as f64, share(ns, quantile)))
    };
    PERCENTILES.into_iter().filter_map(place).collect()
}

/// One series as it is drawn, and as it is told.
struct Curve {
    outline: Vec<(f64, f64)>,
    /// Latencies, and the share from there to the next.
    steps: Vec<Vec<f64>>,
    /// Name, latency, share.
    percentiles: Vec<(&'static str, f64, f64)>,
}

/// Place of a percentile's name: its left end and its foot, in the units of the drawing.
#[derive(Clone, Copy, Debug, Default)]
struct Label {
    x: f64,
    y: f64,
    width: f64,
}

impl Label {
    /// Height of its letters.
    const HEIGHT: f64 = 11.0;

    fn overlaps(&self, other: &Label) -> bool {
        let across = self.x < other.x + other.width && other.x < self.x + self.width;
        across && (self.y - other.y).abs() < Self::HEIGHT
    }
}

struct Plot<'a> {
    caption: &'a str,
    share_label: &'a str,
    filled: bool,
    series: &'a [Series<'a>],
    curves: Vec<Curve>,
    references: &'a [Reference],
}

impl Plot<'_> {
    fn html(&self) -> Block {
        let Some(range) = Range::of(&self.curves, self.references) else {
            return empty_figure(self.caption, "No samples.");
        };
        let remarks = self.series.iter().map(|one| {
            let is_empty = one.histogram.count() == 0;
            (one.name, is_empty.then_some("no samples"))
        });
        let below = legend_with(remarks, self.references, |at| range.has(at));
        let drawings = [Layout::WIDE, Layout::NARROW].map(|layout| self.drawing(&layout, &range));
        live::figure(&self.data(), drawings, &below)
    }

    fn data(&self) -> Data {
        let groups = PERCENTILES.map(|(name, _, on)| Group { name, on });
        let columns = [("latency", "ns"), (self.share_label, "share")];
        let mut data = Data::new(self.caption, columns).with_groups(groups.into());
        for (index, (one, curve)) in self.series.iter().zip(&self.curves).enumerate() {
            data.add(live::Series::new(one.name, index, curve.steps.clone()));
        }
        for (index, (one, curve)) in self.series.iter().zip(&self.curves).enumerate() {
            for (name, ns, share) in &curve.percentiles {
                data.add(live::Series {
                    group: Some(name),
                    ..live::Series::new(one.name, index, vec![vec![*ns, *share]])
                });
            }
        }
        data
    }

    fn drawing(&self, layout: &Layout, range: &Range) -> Drawing {
        Drawing {
            class: layout.class,
            width: layout.width,
            height: layout.height,
            areas: vec![Area {
                kind: Kind::Step,
                left: layout.left,
                right: layout.width - layout.right,
                top: layout.top,
                bottom: layout.height - layout.bottom,
                span: Some([range.latency_from, range.latency_to]),
                logarithmic: true,
                map: None,
                series: (0..self.curves.len()).collect(),
            }],
            content: layout.plot(range, self),
        }
    }
}

/// Which line is which: the names in the order of the lines, each with a remark where there is one; and references.
pub(crate) fn legend_with<'a>(
    names: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    references: &[Reference],
    is_drawn: impl Fn(f64) -> bool,
) -> Markup {
    html! {
        ul.legend {
            @for (index, (name, remark)) in names.enumerate() {
                li data-line=(index) {
                    svg width="30" height="10" aria-hidden="true" {
                        line.line x1="0" y1="5" x2="30" y2="5" style=(stroke(index)) {}
                    }
                    span { (name) @if let Some(remark) = remark { ": " (remark) } }
                }
            }
            (reference::legend(references, is_drawn))
        }
    }
}

pub(crate) fn stroke(index: usize) -> String {
    dashed(index, index + index / COLOUR_COUNT)
}

/// The stroke of a colour and a dash.
pub(crate) fn dashed(colour: usize, dash: usize) -> String {
    let colour = colour % COLOUR_COUNT;
    let dash = DASHES[dash % DASHES.len()];
    if dash.is_empty() {
        format!("stroke:var(--s{colour})")
    } else {
        format!("stroke:var(--s{colour});stroke-dasharray:{dash}")
    }
}

/// Ranges of the axes, in powers of ten.
struct Range {
    latency_from: f64,
    latency_to: f64,
    share_from: i32,
}

impl Range {
    fn of(curves: &[Curve], references: &[Reference]) -> Option<Range> {
        let points = || curves.iter().flat_map(|curve| &curve.outline);
        let least = points().map(|point| point.0).reduce(f64::min)?;
        let most = points().map(|point| point.0).reduce(f64::max)?;
        let rarest = points()
            .map(|point| point.1)
            .filter(|share| *share > 0.0)
            .reduce(f64::min)?;
        let near = || reference::near(references, [least, most], true);
        let (least, most) = (near().fold(least, f64::min), near().fold(most, f64::max));
        // Half a decade at the least, so that a constant latency is a line with room beside it.
        let (from, to) = (least.log10() - 0.04, most.log10() + 0.04);
        let widen = (0.5 - (to - from)).max(0.0) / 2.0;
        Some(Range {
            latency_from: from - widen,
            latency_to: to + widen,
            share_from: (rarest.log10().floor() as i32).clamp(-SHARE_DECADES_MAX, -1),
        })
    }

    fn has(&self, latency_ns: f64) -> bool {
        (self.latency_from..=self.latency_to).contains(&latency_ns.log10())
    }
}

/// Size of a plot and of the margins that its labels need, in the units of its text (12 high).
pub(crate) struct Layout {
    pub(crate) class: &'static str,
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
    /// Labels on the axis across must be this far apart.
    pub(crate) label_pitch: f64,
}

impl Layout {
    pub(crate) const WIDE: Layout = Layout {
        class: "plot wide",
        width: 920.0,
        height: 400.0,
        left: 78.0,
        right: 20.0,
        top: 30.0,
        bottom: 46.0,
        label_pitch: 64.0,
    };
    pub(crate) const NARROW: Layout = Layout {
        class: "plot narrow",
        width: 360.0,
        height: 300.0,
        left: 66.0,
        right: 14.0,
        top: 30.0,
        bottom: 44.0,
        label_pitch: 50.0,
    };

    fn plot(&self, range: &Range, plot: &Plot<'_>) -> Markup {
        let bottom = self.height - self.bottom;
        let down = |at: f64| range.has(at).then(|| self.x(range, at));
        let labels = self.percentile_labels(range, &plot.curves);
        html! {
            (self.latency_axis(range))
            (self.share_axis(range, plot.share_label))
            @if plot.filled {
                @for (index, curve) in plot.curves.iter().enumerate() {
                    path.area data-line=(index) d=(self.path(range, &curve.outline)) style=(format!("fill:var(--s{})", index % COLOUR_COUNT)) {}
                }
            }
            @for (index, curve) in plot.curves.iter().enumerate() {
                path.line data-line=(index) d=(self.path(range, &curve.outline)) style=(stroke(index)) {}
            }
            (reference::down(plot.references, down, [self.top, bottom]))
            @for (index, (curve, labels)) in plot.curves.iter().zip(&labels).enumerate() {
                @for ((name, ns, share), label) in curve.percentiles.iter().zip(labels) {
                    @let (x, y) = (self.x(range, *ns), self.y(range, *share));
                    g.percentile.off[!is_shown(name)] data-group=(name) data-line=(index) style=(format!("--own:var(--s{})", index % COLOUR_COUNT)) {
                        line x1=(format!("{x:.1}")) x2=(format!("{x:.1}")) y1=(format!("{y:.1}")) y2=(bottom) {}
                        circle cx=(format!("{x:.1}")) cy=(format!("{y:.1}")) r="3.5" {}
                        text x=(format!("{:.1}", label.x)) y=(format!("{:.1}", label.y)) { (name) }
                    }
                }
            }
        }
    }

    /// Places of the percentiles' names, so that none hides another as long as there is room. Those that are shown at
    /// first choose first.
    fn percentile_labels(&self, range: &Range, curves: &[Curve]) -> Vec<Vec<Label>> {
        let mut taken = Vec::new();
        let mut labels: Vec<Vec<Label>> = curves
            .iter()
            .map(|curve| vec![Label::default(); curve.percentiles.len()])
            .collect();
        for shown in [true, false] {
            for (curve, labels) in curves.iter().zip(&mut labels) {
                for ((name, ns, share), label) in curve.percentiles.iter().zip(labels) {
                    if is_shown(name) == shown {
                        let (x, y) = (self.x(range, *ns), self.y(range, *share));
                        *label = self.free_label(&taken, name, x, y);
                        taken.push(*label);
                    }
                }
            }
        }
        labels
    }

    /// A place beside a mark that no other label has: right above it if all are taken.
    fn free_label(&self, taken: &[Label], name: &str, x: f64, y: f64) -> Label {
        /// Width of a letter of this size.
        const LETTER: f64 = 6.5;
        let width = name.len() as f64 * LETTER;
        let (right, left) = (x + 5.0, x - 5.0 - width);
        let places = [
            (right, y - 5.0),
            (left, y - 5.0),
            (right, y + 13.0),
            (left, y + 13.0),
            (right, y - 5.0 - Label::HEIGHT),
            (left, y - 5.0 - Label::HEIGHT),
        ];
        let mut labels = places.into_iter().map(|(x, y)| Label { x, y, width });
        let is_free = |label: &Label| {
            let is_inside = label.x >= self.left && label.x + width <= self.width;
            is_inside && !taken.iter().any(|other| other.overlaps(label))
        };
        labels.find(is_free).unwrap_or(Label {
            x: right,
            y: y - 5.0,
            width,
        })
    }

    fn x(&self, range: &Range, latency_ns: f64) -> f64 {
        let share =
            (latency_ns.log10() - range.latency_from) / (range.latency_to - range.latency_from);
        self.left + share * (self.width - self.left - self.right)
    }

    fn y(&self, range: &Range, share: f64) -> f64 {
        let floor = f64::from(range.share_from);
        let height = (share.log10().max(floor) - floor) / -floor;
        self.height - self.bottom - height * (self.height - self.top - self.bottom)
    }

    fn path(&self, range: &Range, line: &[(f64, f64)]) -> String {
        use std::fmt::Write;
        let mut path = String::new();
        let mut last = (f64::NAN, f64::NAN);
        for &(latency, share) in line {
            let point = (self.x(range, latency), self.y(range, share));
            // Points closer than a tenth of a unit cannot be seen and would only make the file large.
            if (point.0 - last.0).abs() < 0.1 && (point.1 - last.1).abs() < 0.1 {
                continue;
            }
            let command = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", point.0, point.1);
            last = point;
        }
        path
    }

    fn latency_axis(&self, range: &Range) -> Markup {
        let bottom = self.height - self.bottom;
        let ticks = latency_ticks(range);
        let labelled = self.labelled(range, &ticks);
        html! {
            @for (tick, rank) in &ticks {
                @let x = format!("{:.1}", self.x(range, *tick));
                line class=(if *rank == 0 { "grid" } else { "minor" }) x1=(x) x2=(x) y1=(self.top) y2=(bottom) {}
            }
            @for tick in &labelled {
                text x=(format!("{:.1}", self.x(range, *tick))) y=(bottom + 17.0) text-anchor="middle" { (tick_text(*tick)) }
            }
            line.axis x1=(self.left) x2=(self.width - self.right) y1=(bottom) y2=(bottom) {}
            text x=((self.left + self.width - self.right) / 2.0) y=(self.height - 6.0) text-anchor="middle" { "latency (logarithmic)" }
        }
    }

    /// The ticks that get a label: decades first, then 1-2-5 as long as there is room.
    fn labelled(&self, range: &Range, ticks: &[(f64, u8)]) -> Vec<f64> {
        let mut chosen: Vec<f64> = Vec::new();
        for wanted in 0..=1 {
            for (tick, _) in ticks.iter().filter(|(_, rank)| *rank == wanted) {
                let x = self.x(range, *tick);
                // Half a label must fit before either edge of the drawing.
                let inside =
                    x + self.label_pitch / 2.0 <= self.width && x >= self.label_pitch / 2.0;
                let free = chosen
                    .iter()
                    .all(|other| (self.x(range, *other) - x).abs() >= self.label_pitch);
                if inside && free {
                    chosen.push(*tick);
                }
            }
        }
        chosen
    }

    fn share_axis(&self, range: &Range, label: &str) -> Markup {
        html! {
            text x="4" y="14" { (label) }
            @for power in range.share_from..=0 {
                @let y = self.y(range, 10f64.powi(power));
                line.grid x1=(self.left) x2=(self.width - self.right) y1=(format!("{y:.1}")) y2=(format!("{y:.1}")) {}
                text x=(self.left - 7.0) y=(format!("{:.1}", y + 4.0)) text-anchor="end" { (share_text(power)) }
            }
        }
    }
}

fn is_shown(percentile: &str) -> bool {
    let mut all = PERCENTILES.iter();
    all.any(|(name, _, on)| *name == percentile && *on)
}

/// Positions on the latency axis with their rank: 0 decades, 1 twos and fives, 2 the rest.
fn latency_ticks(range: &Range) -> Vec<(f64, u8)> {
    let mut ticks = Vec::new();
    for decade in range.latency_from.floor() as i32..=range.latency_to.ceil() as i32 {
        for digit in 1..=9u8 {
            let tick = f64::from(digit) * 10f64.powi(decade);
            if (range.latency_from..=range.latency_to).contains(&tick.log10()) {
                let rank = match digit {
                    1 => 0,
                    2 | 5 => 1,
                    _ => 2,
                };
                ticks.push((tick, rank));
            }
        }
    }
    ticks
}

pub(crate) fn tick_text(latency_ns: f64) -> String {
    let (value, unit) = match latency_ns {
        ns if ns < 999.0 => (ns, "ns"),
        ns if ns < 999e3 => (ns / 1e3, "µs"),
        ns if ns < 999e6 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{} {unit}", (value * 1000.0).round() / 1000.0)
}

fn share_text(power: i32) -> String {
    match power {
        0 => "all".to_owned(),
        -2..=-1 => format!("1 in {}", 10u32.pow(power.unsigned_abs())),
        -5..=-3 => format!("1 in {}k", 10u32.pow(power.unsigned_abs() - 3)),
        -8..=-6 => format!("1 in {}M", 10u32.pow(power.unsigned_abs() - 6)),
        _ => format!(
            "1 in {}G",
            10u32.pow(power.unsigned_abs().saturating_sub(9))
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(latencies: &[u64]) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::new();
        for latency in latencies {
            histogram.record(*latency);
        }
        histogram
    }

    fn text(block: Block) -> String {
        block.0.into_string()
    }

    #[test]
    fn latencies_have_three_digits_and_a_unit() {
        for (ns, expected) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (2_254, "2.25 µs"),
            (9_996, "10.0 µs"),
            (12_345, "12.3 µs"),
            (123_456, "123 µs"),
            (7_000_000, "7.00 ms"),
            (60_000_000_000, "60.0 s"),
        ] {
            assert_eq!(latency_text(ns), expected);
        }
    }

    #[test]
    fn axis_texts() {
        assert_eq!(tick_text(200.0), "200 ns");
        assert_eq!(tick_text(1e3), "1 µs");
        assert_eq!(tick_text(5e5), "500 µs");
        assert_eq!(tick_text(1e9), "1 s");
        let shares: Vec<String> = (-9..=0).map(share_text).collect();
        assert_eq!(shares[0], "1 in 1G");
        assert_eq!(shares[3], "1 in 1M");
        assert_eq!(shares[5], "1 in 10k");
        assert_eq!(shares[9], "all");
    }

    #[test]
    fn the_tail_falls_from_all_to_the_maximum() {
        let points = tail(&histogram(&[100, 200, 200, 4_000]));
        assert_eq!(points.first(), Some(&(100.0, 1.0)));
        assert_eq!(points.last(), Some(&(4_000.0, 0.25)));
        assert!(
            points
                .windows(2)
                .all(|pair| pair[1].1 <= pair[0].1 && pair[1].0 >= pair[0].0)
        );
    }

    #[test]
    fn plots_without_samples_say_so() {
        let empty = LatencyHistogram::new();
        let series = [Series {
            name: "quiet",
            histogram: &empty,
        }];
        assert!(text(histograms("h", &series, &[])).contains("No samples"));
        assert!(text(tails("t", &[], &[])).contains("No samples"));
        let full = histogram(&[5]);
        let both = [
            Series {
                name: "quiet",
                histogram: &empty,
            },
            Series {
                name: "busy",
                histogram: &full,
            },
        ];
        let html = text(tails("t", &both, &[]));
        assert!(
            html.contains("quiet: no samples") && !html.contains("NaN") && !html.contains("inf")
        );
    }

    #[test]
    fn every_point_lies_inside_the_drawing() {
        let spread = histogram(&[0, 1, 300, 2_000, 2_100, 55_000, 8_000_000, 70_000_000_000]);
        let constant = histogram(&[1_000; 50]);
        for chosen in [vec![&spread], vec![&constant], vec![&spread, &constant]] {
            let curve = |one: &&LatencyHistogram| Curve {
                outline: tail(one),
                steps: Vec::new(),
                percentiles: percentiles(one, |_, quantile| 1.0 - quantile),
            };
            let curves: Vec<Curve> = chosen.iter().map(curve).collect();
            let deadline = [Reference::deadline("d", 500.0)];
            let range = Range::of(&curves, &deadline).unwrap();
            assert!(range.has(500.0));
            for layout in [Layout::WIDE, Layout::NARROW] {
                for (latency, share) in curves.iter().flat_map(|curve| &curve.outline) {
                    let (x, y) = (layout.x(&range, *latency), layout.y(&range, *share));
                    assert!(x >= layout.left && x <= layout.width - layout.right, "{x}");
                    assert!(y >= layout.top && y <= layout.height - layout.bottom, "{y}");
                }
                let labels = layout.labelled(&range, &latency_ticks(&range));
                assert!(!labels.is_empty());
            }
        }
    }

    #[test]
    fn names_of_percentiles_do_not_hide_each_other() {
        let all = [1_000, 1_010, 1_000].map(|ns| histogram(&[ns; 50]));
        let curves = all.each_ref().map(|one| Curve {
            outline: tail(one),
            steps: Vec::new(),
            percentiles: percentiles(one, |_, quantile| 1.0 - quantile),
        });
        let range = Range::of(&curves, &[]).unwrap();
        for layout in [Layout::WIDE, Layout::NARROW] {
            let labels = layout.percentile_labels(&range, &curves);
            let of_curves = curves.iter().zip(&labels);
            let shown: Vec<Label> = of_curves
                .flat_map(|(curve, labels)| curve.percentiles.iter().zip(labels))
                .filter(|((name, _, _), _)| is_shown(name))
                .map(|(_, label)| *label)
                .collect();
            assert_eq!(shown.len(), 6);
            for (index, label) in shown.iter().enumerate() {
                assert!(label.x >= layout.left && label.x + label.width <= layout.width);
                let hidden = shown[..index].iter().any(|other| other.overlaps(label));
                assert!(!hidden, "{shown:?}");
            }
        }
    }

    #[test]
    fn percentiles_deadlines_and_values_are_in_the_plot() {
        let one = histogram(&[1_000, 1_000, 1_000, 9_000]);
        let series = [Series {
            name: "path",
            histogram: &one,
        }];
        let references = [
            Reference::deadline("deadline 20 µs", 20e3),
            Reference::paper("the paper: 7 s", 7e9),
        ];
        for html in [
            text(histograms("h", &series, &references)),
            text(tails("t", &series, &references)),
        ] {
            let marks = |of: &str| html.matches(of).count();
            assert_eq!(marks("data-group=\"p99.9\""), 2, "one for each width");
            assert_eq!(marks("class=\"percentile off\""), 4, "{html}");
            assert_eq!(marks("reference deadline"), 3, "two drawings, legend");
            assert_eq!(marks("reference paper"), 1, "far away: the legend");
            assert!(html.contains("the paper: 7 s (beyond the plot)"));
            assert!(html.contains("&quot;points&quot;:[[1000,"), "{html}");
        }
    }

    #[test]
    fn names_are_escaped_and_lines_told_apart() {
        let one = histogram(&[10, 20]);
        let names: Vec<String> = (0..10).map(|index| format!("<{index}>")).collect();
        let series: Vec<Series<'_>> = names
            .iter()
            .map(|name| Series {
                name,
                histogram: &one,
            })
            .collect();
        let html = text(histograms("h", &series, &[]));
        assert!(html.contains("&lt;9&gt;") && !html.contains("<9>"));
        let strokes: std::collections::BTreeSet<String> = (0..16).map(stroke).collect();
        assert_eq!(strokes.len(), 16);
    }
}
