//! Surfaces: one figure over two quantities, drawn as a heat map; several of them share one scale of colours, so that
//! they can be compared side by side. Each cell also says its value, since few readers can read a value off a shade.

use maud::{Markup, html};

use crate::chart::standalone;
use crate::live::{self, Area, Data, Drawing, Kind, empty_figure};
use crate::page::Block;
use crate::plot::latency_text;

/// One surface: a latency in nanoseconds for each row (up) and column (across), or nothing.
#[derive(Clone, Debug)]
pub struct Surface {
    /// Its name.
    pub name: String,
    /// Rows of columns. Missing ones are holes.
    pub rows_ns: Vec<Vec<Option<f64>>>,
}

/// Surfaces over the same quantities.
#[derive(Clone, Debug)]
pub struct Surfaces {
    /// Quantity that the surfaces show.
    pub caption: String,
    /// Horizontal quantity, and its values.
    pub across: (&'static str, Vec<String>),
    /// Vertical quantity, and its values from the bottom.
    pub up: (&'static str, Vec<String>),
    /// One drawing each.
    pub surfaces: Vec<Surface>,
    /// Sentences below, such as values of a paper.
    pub notes: Vec<String>,
}

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 6.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 44.0;
/// Room for a name above a drawing in a file.
const HEADING: f64 = 24.0;

/// Shades of the least and the greatest value, as shares of the full colour. Lower would be lost on the background.
const SHADES: (f64, f64) = (0.08, 0.95);
/// Above this shade the page's ink is harder to read than its background.
const SHADE_OF_LIGHT_TEXT: f64 = 0.55;

impl Surfaces {
    /// Renders it as part of a page: side by side where there is room, else below each other.
    pub fn html(&self) -> Block {
        let Some(scale) = self.scale() else {
            return empty_figure(&self.caption, "No samples.");
        };
        let drawing = |(index, surface): (usize, &Surface)| Drawing {
            class: "plot",
            width: WIDTH,
            height: HEIGHT,
            areas: vec![Area {
                kind: Kind::Grid,
                left: LEFT,
                right: WIDTH - RIGHT,
                top: TOP,
                bottom: HEIGHT - BOTTOM,
                span: None,
                logarithmic: false,
                map: None,
                series: vec![index],
            }],
            content: self.drawing(surface, &scale),
        };
        let drawings = html! {
            div.multiples {
                @for (index, surface) in self.surfaces.iter().enumerate() {
                    div {
                        h3 { (surface.name) }
                        (drawing((index, surface)).svg(&surface.name))
                    }
                }
            }
        };
        let caption = format!("{}. {}", self.caption, scale.text());
        let notes = html! {
            @for note in &self.notes { p.caption { (note) } }
        };
        live::figure_of(&self.data(), &caption, &drawings, &notes)
    }

    fn data(&self) -> Data {
        let columns = [(self.across.0, ""), (self.up.0, ""), ("latency", "ns")];
        let mut data = Data::new(&self.caption, columns).with_grid(&self.across.1, &self.up.1);
        for (index, surface) in self.surfaces.iter().enumerate() {
            let cells = surface.rows_ns.iter().enumerate().flat_map(|(row, cells)| {
                let cells = cells.iter().enumerate();
                cells.filter_map(move |(column, value)| {
                    Some(vec![column as f64, row as f64, (*value)?])
                })
            });
            data.add(live::Series::new(&surface.name, index, cells.collect()));
        }
        data
    }

    /// Renders it as a separate file.
    pub fn svg(&self) -> String {
        let Some(scale) = self.scale() else {
            return standalone(
                WIDTH,
                HEADING,
                &html! { text x="4" y="14" { "No samples." } },
            );
        };
        let width = WIDTH * self.surfaces.len() as f64;
        standalone(
            width,
            HEIGHT + 2.0 * HEADING,
            &html! {
                text x="4" y="14" { (self.caption) ". " (scale.text()) }
                @for (index, surface) in self.surfaces.iter().enumerate() {
                    g transform=(format!("translate({} {})", WIDTH * index as f64, 2.0 * HEADING)) {
                        text x="4" y="-6" { (surface.name) }
                        (self.drawing(surface, &scale))
                    }
                }
            },
        )
    }

    fn scale(&self) -> Option<Scale> {
        let values = self
            .surfaces
            .iter()
            .flat_map(|surface| surface.rows_ns.iter().flatten().flatten().copied());
        values.fold(None, |scale: Option<Scale>, value| {
            let Scale { least, most } = scale.unwrap_or(Scale {
                least: value,
                most: value,
            });
            Some(Scale {
                least: least.min(value),
                most: most.max(value),
            })
        })
    }

    fn drawing(&self, surface: &Surface, scale: &Scale) -> Markup {
        let (columns, rows) = (self.across.1.len(), self.up.1.len());
        let cell_width = (WIDTH - LEFT - RIGHT) / columns.max(1) as f64;
        let cell_height = (HEIGHT - TOP - BOTTOM) / rows.max(1) as f64;
        let bottom = HEIGHT - BOTTOM;
        let x = |column: usize| LEFT + column as f64 * cell_width;
        let y = |row: usize| bottom - (row + 1) as f64 * cell_height;
        html! {
            text x="4" y="13" { (self.up.0) }
            @for (row, label) in self.up.1.iter().enumerate() {
                text x=(LEFT - 5.0) y=(format!("{:.1}", y(row) + cell_height / 2.0 + 4.0)) text-anchor="end" { (label) }
                @for column in 0..columns {
                    @let value = surface.rows_ns.get(row).and_then(|cells| cells.get(column)).copied().flatten();
                    (cell(value, scale, [x(column), y(row), cell_width, cell_height]))
                }
            }
            @for (column, label) in self.across.1.iter().enumerate() {
                text x=(format!("{:.1}", x(column) + cell_width / 2.0)) y=(bottom + 15.0) text-anchor="middle" { (label) }
            }
            text x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 8.0) text-anchor="middle" { (self.across.0) }
        }
    }
}

fn cell(value: Option<f64>, scale: &Scale, [x, y, width, height]: [f64; 4]) -> Markup {
    let one = |number: f64| format!("{number:.1}");
    let (inner_width, inner_height) = (one(width - 1.0), one(height - 1.0));
    match value {
        None => {
            html! { rect.hole x=(one(x)) y=(one(y)) width=(inner_width) height=(inner_height) {} }
        }
        Some(value) => {
            let shade = scale.shade(value);
            let class = if shade > SHADE_OF_LIGHT_TEXT {
                "cell on"
            } else {
                "cell"
            };
            html! {
                rect.surface x=(one(x)) y=(one(y)) width=(inner_width) height=(inner_height) style=(format!("opacity:{shade:.2}")) {
                    title { (latency_text(value as u64)) }
                }
                text class=(class) x=(one(x + width / 2.0)) y=(one(y + height / 2.0 + 3.5)) text-anchor="middle" { (microseconds(value)) }
            }
        }
    }
}

/// Microseconds in at most four characters.
fn microseconds(ns: f64) -> String {
    match ns / 1e3 {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// The values that all surfaces span.
struct Scale {
    least: f64,
    most: f64,
}

impl Scale {
    /// By factors: a difference of a factor of two looks the same anywhere.
    fn shade(&self, value: f64) -> f64 {
        let (least, most) = (self.least.max(1.0), self.most.max(1.0));
        let share = if most > least {
            (value.max(1.0) / least).ln() / (most / least).ln()
        } else {
            0.5
        };
        SHADES.0 + share.clamp(0.0, 1.0) * (SHADES.1 - SHADES.0)
    }

    fn text(&self) -> String {
        format!(
            "Microseconds; shades by factors, from {} to {}",
            latency_text(self.least as u64),
            latency_text(self.most as u64)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surfaces(rows: Vec<Vec<Option<f64>>>) -> Surfaces {
        Surfaces {
            caption: "<caption>".into(),
            across: ("sent every", vec!["1 ms".into(), "<2> ms".into()]),
            up: ("read every", vec!["1 ms".into(), "2 ms".into()]),
            surfaces: vec![Surface {
                name: "<tcp>".into(),
                rows_ns: rows,
            }],
            notes: vec!["<note>".into()],
        }
    }

    #[test]
    fn every_cell_says_its_value_and_missing_ones_are_holes() {
        let all = surfaces(vec![vec![Some(120.0), Some(4_200.0)], vec![Some(99_900.0)]]);
        for text in [all.html().0.into_string(), all.svg()] {
            for value in [">0.12<", ">4.20<", ">99.9<"] {
                assert!(text.contains(value), "{value}: {text}");
            }
            assert_eq!(text.matches("class=\"hole\"").count(), 1);
            assert!(text.contains("&lt;tcp&gt;") && !text.contains("<tcp>"));
            assert!(!text.contains("NaN") && !text.contains("inf"));
        }
    }

    #[test]
    fn shades_rise_with_the_value_and_stay_within_bounds() {
        let scale = Scale {
            least: 100.0,
            most: 100_000.0,
        };
        let shades: Vec<f64> = [0.0, 100.0, 1_000.0, 10_000.0, 100_000.0, 1e9]
            .map(|value| scale.shade(value))
            .into();
        assert!(shades.is_sorted());
        assert_eq!((shades[0], shades[5]), SHADES);
        let constant = Scale {
            least: 7.0,
            most: 7.0,
        };
        assert!((SHADES.0..=SHADES.1).contains(&constant.shade(7.0)));
    }

    #[test]
    fn nothing_is_no_trouble() {
        assert!(
            surfaces(Vec::new())
                .html()
                .0
                .into_string()
                .contains("No samples")
        );
        assert!(surfaces(Vec::new()).svg().contains("No samples"));
    }
}
