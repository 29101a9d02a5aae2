//! Plots that answer: their data lie in the page, and the page's script shows the values under the pointer, switches
//! series and percentiles, and hands the data out as files.

use maud::{Markup, html};
use serde::Serialize;
use serde_json::{Value, json};

use crate::page::Block;

/// Makes plots of a page answer. Part of the page; the browser runs nothing else.
pub(crate) const SCRIPT: &str = include_str!("page.js");

/// Significant digits of values in the page. Lower: readers see other values than tables. Higher: larger pages.
const DIGITS: i32 = 6;

/// Data of a plot.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    caption: String,
    columns: Vec<Value>,
    series: Vec<Value>,
    groups: Vec<Group>,
    /// Labels of the columns and rows of a grid.
    grid: Option<[Vec<String>; 2]>,
}

/// Lines that are switched together, such as the medians of all series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    /// Whether it is shown at first.
    pub(crate) on: bool,
}

/// One series of a plot.
#[derive(Clone, Debug)]
pub(crate) struct Series<'a> {
    pub(crate) name: &'a str,
    /// Place in the legend, which says its colour too.
    pub(crate) line: usize,
    pub(crate) group: Option<&'static str>,
    pub(crate) points: Vec<Vec<f64>>,
    /// A name for each point, where points are stretches of time.
    pub(crate) names: Option<Vec<&'a str>>,
}

impl<'a> Series<'a> {
    pub(crate) fn new(name: &'a str, line: usize, points: Vec<Vec<f64>>) -> Series<'a> {
        Series {
            name,
            line,
            group: None,
            points,
            names: None,
        }
    }
}

impl Data {
    /// Data with these columns: label and unit.
    pub(crate) fn new<'a>(
        caption: &str,
        columns: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Data {
        Data {
            caption: caption.to_owned(),
            columns: columns
                .into_iter()
                .map(|(label, unit)| json!({"label": label, "unit": unit}))
                .collect(),
            series: Vec::new(),
            groups: Vec::new(),
            grid: None,
        }
    }

    /// Data of a grid, whose first two columns are indices of these labels.
    #[cfg(feature = "drawings")]
    pub(crate) fn with_grid(mut self, across: &[String], up: &[String]) -> Data {
        self.grid = Some([across.to_vec(), up.to_vec()]);
        self
    }

    /// Sets the groups.
    pub(crate) fn with_groups(mut self, groups: Vec<Group>) -> Data {
        self.groups = groups;
        self
    }

    pub(crate) fn add(&mut self, series: Series<'_>) {
        let points: Vec<Vec<Value>> = series
            .points
            .iter()
            .map(|point| point.iter().map(|value| short(*value)).collect())
            .collect();
        let mut one = json!({
            "name": series.name,
            "line": series.line,
            "points": points,
        });
        if let Some(group) = series.group {
            one["group"] = group.into();
        }
        if let Some(names) = series.names {
            one["names"] = names.into();
        }
        self.series.push(one);
    }

    fn text(&self) -> String {
        let mut plot = json!({
            "caption": self.caption,
            "columns": self.columns,
            "groups": self.groups,
            "series": self.series,
        });
        if let Some([across, up]) = &self.grid {
            plot["across"] = json!(across);
            plot["up"] = json!(up);
        }
        plot.to_string()
    }
}

/// A number in few characters.
fn short(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return (value as i64).into();
    }
    if !value.is_finite() {
        return Value::Null;
    }
    let unit = 10f64.powi(DIGITS - 1 - value.abs().log10().floor() as i32);
    let rounded = (value * unit).round() / unit;
    serde_json::Number::from_f64(rounded).map_or(Value::Null, Value::Number)
}

/// How an area shows values.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Lines through points.
    Line,
    /// Values that hold until the next one.
    Step,
    /// Stretches of time in a row.
    Spans,
    /// Cells.
    #[cfg(feature = "drawings")]
    Grid,
    /// Points in space.
    #[cfg(feature = "drawings")]
    Space,
}

/// Part of a drawing that shows values, in the drawing's units.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Area {
    pub(crate) kind: Kind,
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
    /// Places on the axis across at the left and the right edge; of a logarithmic axis, their logarithms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) span: Option<[f64; 2]>,
    pub(crate) logarithmic: bool,
    /// Of a drawing in space: factors for east, north and up, and a constant, across and down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) map: Option<[f64; 8]>,
    /// Places of its series in the data.
    pub(crate) series: Vec<usize>,
}

impl Area {
    /// Rows of stretches of time below one another, one for each series: from the left to the right edge.
    pub(crate) fn rows(
        count: usize,
        pitch: f64,
        (left, right): (f64, f64),
        span: [f64; 2],
    ) -> Vec<Area> {
        let row = |index: usize| Area {
            kind: Kind::Spans,
            left,
            right,
            top: pitch * index as f64,
            bottom: pitch * (index + 1) as f64 - 1.0,
            span: Some(span),
            logarithmic: false,
            map: None,
            series: vec![index],
        };
        (0..count).map(row).collect()
    }
}

/// A drawing of a figure, for one width of the screen.
pub(crate) struct Drawing {
    pub(crate) class: &'static str,
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) areas: Vec<Area>,
    pub(crate) content: Markup,
}

impl Drawing {
    pub(crate) fn svg(&self, label: &str) -> Markup {
        let areas = serde_json::to_string(&self.areas).unwrap_or_default();
        html! {
            svg class=(self.class) viewBox=(format!("0 0 {} {}", self.width, self.height)) role="img" aria-label=(label) data-areas=(areas) {
                (self.content)
            }
        }
    }
}

/// A plot as part of a page: its caption, its drawings, and what stands below.
pub(crate) fn figure(
    data: &Data,
    drawings: impl IntoIterator<Item = Drawing>,
    below: &Markup,
) -> Block {
    let drawings: Vec<Markup> = drawings
        .into_iter()
        .map(|drawing| drawing.svg(&data.caption))
        .collect();
    figure_of(
        data,
        &data.caption,
        &html! { @for one in &drawings { (one) } },
        below,
    )
}

/// Figure with its own caption and arrangement of drawings.
pub(crate) fn figure_of(data: &Data, caption: &str, drawings: &Markup, below: &Markup) -> Block {
    Block(html! {
        figure data-plot=(data.text()) {
            figcaption { (caption) }
            (drawings)
            (below)
        }
    })
}

/// Figure without a drawing, with the reason.
pub(crate) fn empty_figure(caption: &str, why: &str) -> Block {
    Block(html! { figure { figcaption { (caption) } p { (why) } } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_as_exact_as_tables() {
        let texts = [
            0.0,
            4.0,
            1.0 / 3.0,
            123_456_789.0,
            1234.56789,
            -2.5e-9,
            f64::NAN,
        ];
        let texts = texts.map(|value| short(value).to_string());
        assert_eq!(
            texts,
            [
                "0",
                "4",
                "0.333333",
                "123456789",
                "1234.57",
                "-2.5e-9",
                "null"
            ]
        );
    }

    #[test]
    fn names_stay_text() {
        let mut data = Data::new("</figure><script>", [("x", "ns"), ("y", "")]);
        data.add(Series::new("\"><script>", 0, vec![vec![1.0, 2.0]]));
        let html = figure(&data, [], &html! {}).0.into_string();
        assert!(!html.contains("<script") && html.contains("&lt;script&gt;"));
    }
}
