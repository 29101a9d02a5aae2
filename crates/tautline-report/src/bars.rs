//! Stacked bars: what a time is made of, several side by side on one scale.
//!
//! ```
//! use tautline_report::bars::{Bar, Bars};
//!
//! let bars = Bars {
//!     caption: "Where the time goes".into(),
//!     parts: vec!["there".into(), "back".into()],
//!     bars: vec![Bar { name: "udp".into(), parts_ns: vec![1_200.0, 900.0] }],
//! };
//! assert!(bars.svg().starts_with("<svg"));
//! ```

use maud::{Markup, html};

use crate::chart::{Axis, Span, Unit, scale_across, standalone};
use crate::live::{self, Area, Data, Drawing, empty_figure};
use crate::page::Block;
use crate::plot::{COLOUR_COUNT, Layout, latency_text};

/// A time and its parts.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// In the order of [`Bars::parts`], nanoseconds; what is below zero is drawn as nothing.
    pub parts_ns: Vec<f64>,
}

impl Bar {
    /// All parts together, as they are drawn.
    fn reach_ns(&self) -> f64 {
        self.parts_ns.iter().map(|part| part.max(0.0)).sum()
    }

    /// Each part that has a length: its index, and from where to where it goes.
    fn pieces(&self) -> impl Iterator<Item = (usize, f64, f64)> + '_ {
        let mut from = 0.0;
        let pieces = self.parts_ns.iter().enumerate().map(move |(index, part)| {
            let start = from;
            from += part.max(0.0);
            (index, start, from)
        });
        pieces.filter(|(_, from, to)| to > from)
    }
}

/// Bars on one scale.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Quantity that the bars show.
    pub caption: String,
    /// Names of the parts; as many as a bar has.
    pub parts: Vec<String>,
    /// From the top.
    pub bars: Vec<Bar>,
}

/// From one bar to the next, and a bar's own height: its name stands above it.
const PITCH: f64 = 44.0;
const THICKNESS: f64 = 20.0;
/// Room for the scale below the bars.
const BOTTOM: f64 = 26.0;
/// Room left and right, for half of a label of the scale.
const MARGIN: f64 = 24.0;
/// Height of a line of the legend in a file, and the side of its squares.
const LEGEND_PITCH: f64 = 20.0;
const SQUARE: f64 = 11.0;

impl Bars {
    /// Renders it as part of a page.
    pub fn html(&self) -> Block {
        let Some(span) = self.span() else {
            return empty_figure(&self.caption, "No samples.");
        };
        let legend = html! {
            ul.legend {
                @for (index, part) in self.parts.iter().enumerate() {
                    li {
                        svg width=(SQUARE) height=(SQUARE) aria-hidden="true" {
                            rect width=(SQUARE) height=(SQUARE) style=(fill(index)) {}
                        }
                        span { (part) }
                    }
                }
            }
        };
        let drawings = [&Layout::WIDE, &Layout::NARROW].map(|layout| Drawing {
            class: layout.class,
            width: layout.width,
            height: self.height(),
            areas: Area::rows(
                self.bars.len(),
                PITCH,
                (MARGIN, layout.width - MARGIN),
                [span.from, span.to],
            ),
            content: self.drawing(layout, &span),
        });
        live::figure(&self.data(), drawings, &legend)
    }

    fn data(&self) -> Data {
        let mut data = Data::new(&self.caption, [("from", "ns"), ("to", "ns")]);
        for (index, bar) in self.bars.iter().enumerate() {
            let points = bar.pieces().map(|(_, from, to)| vec![from, to]);
            let name = |part: usize| self.parts.get(part).map_or("", String::as_str);
            data.add(live::Series {
                names: Some(bar.pieces().map(|(part, ..)| name(part)).collect()),
                ..live::Series::new(&bar.name, index, points.collect())
            });
        }
        data
    }

    /// Renders it as a separate file, with legend and caption.
    pub fn svg(&self) -> String {
        let layout = &Layout::WIDE;
        let below = self.height() + LEGEND_PITCH;
        let height = below + LEGEND_PITCH * (self.parts.len() as f64 + 0.5);
        standalone(
            layout.width,
            height,
            &html! {
                text x="4" y="14" { (self.caption) }
                g transform=(format!("translate(0 {LEGEND_PITCH})")) {
                    @if let Some(span) = self.span() { (self.drawing(layout, &span)) }
                }
                @for (index, part) in self.parts.iter().enumerate() {
                    @let y = below + LEGEND_PITCH * (index as f64 + 0.5);
                    rect x=(MARGIN) y=(y - SQUARE / 2.0) width=(SQUARE) height=(SQUARE) style=(fill(index)) {}
                    text x=(MARGIN + 20.0) y=(y + 4.0) { (part) }
                }
            },
        )
    }

    fn height(&self) -> f64 {
        PITCH * self.bars.len() as f64 + BOTTOM
    }

    fn span(&self) -> Option<Span> {
        let axis = Axis::linear("", Unit::Time);
        Span::of(&axis, self.bars.iter().map(Bar::reach_ns))
    }

    fn drawing(&self, layout: &Layout, span: &Span) -> Markup {
        let bottom = PITCH * self.bars.len() as f64;
        let x = |ns: f64| MARGIN + span.share(ns) * (layout.width - 2.0 * MARGIN);
        html! {
            (scale_across(span, Unit::Time, x, [2.0, bottom], layout))
            @for (index, bar) in self.bars.iter().enumerate() {
                @let top = PITCH * index as f64;
                text x=(MARGIN) y=(top + 14.0) { (bar.name) ": " (latency_text(bar.reach_ns() as u64)) }
                @for (part, from, to) in bar.pieces() {
                    rect x=(format!("{:.1}", x(from))) y=(top + 19.0) width=(format!("{:.1}", x(to) - x(from))) height=(THICKNESS) style=(fill(part)) {}
                }
            }
            line.axis x1=(MARGIN) x2=(layout.width - MARGIN) y1=(bottom) y2=(bottom) {}
        }
    }
}

/// More parts than colours: the later ones are shown lighter.
fn fill(index: usize) -> String {
    let colour = index % COLOUR_COUNT;
    match index / COLOUR_COUNT {
        0 => format!("fill:var(--s{colour})"),
        _ => format!("fill:var(--s{colour});opacity:.45"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(parts_ns: Vec<Vec<f64>>) -> Bars {
        let bar = |parts_ns| Bar {
            name: "<bar>".into(),
            parts_ns,
        };
        Bars {
            caption: "<caption>".into(),
            parts: vec!["<one>".into(), "two".into(), "three".into()],
            bars: parts_ns.into_iter().map(bar).collect(),
        }
    }

    #[test]
    fn parts_lie_one_after_the_other_and_nothing_is_below_zero() {
        let one = &bars(vec![vec![5.0, -2.0, 3.0]]).bars[0];
        let pieces: Vec<_> = one.pieces().collect();
        assert_eq!(pieces, [(0, 0.0, 5.0), (2, 5.0, 8.0)]);
        assert!((one.reach_ns() - 8.0).abs() < 1e-9);
    }

    #[test]
    fn drawings_have_every_piece_inside_and_name_every_part() {
        let drawn = bars(vec![vec![1000.0, 2000.0, 500.0], vec![0.0, 100.0, 0.0]]);
        let svg = drawn.svg();
        // The file's style sheet names colours too.
        let filled = svg.matches("style=\"fill:var(--s").count();
        assert_eq!(filled, 3 + 4, "legend, pieces");
        let html = drawn.html().0.into_string();
        for text in ["&lt;one&gt;", "&lt;bar&gt;", "&lt;caption&gt;", "three"] {
            assert!(svg.contains(text) && html.contains(text), "{text}");
        }
        for piece in svg.split("<rect x=\"").skip(1) {
            let mut numbers = piece.split('"').filter_map(|part| part.parse::<f64>().ok());
            let (x, _y, width) = (numbers.next(), numbers.next(), numbers.next());
            assert!(x.unwrap() >= 0.0 && x.unwrap() + width.unwrap() <= Layout::WIDE.width);
        }
        assert!(
            bars(Vec::new())
                .html()
                .0
                .into_string()
                .contains("No samples")
        );
    }
}
