//! Lines that a plot is read against: deadlines, and values of a paper.

use maud::{Markup, html};

/// A value on an axis with a line of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    name: String,
    at: f64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Deadline,
    Paper,
}

impl Reference {
    /// A deadline: beyond it, it is too late.
    pub fn deadline(name: impl Into<String>, at: f64) -> Reference {
        Reference {
            name: name.into(),
            at,
            kind: Kind::Deadline,
        }
    }

    /// A value that a paper names.
    pub fn paper(name: impl Into<String>, at: f64) -> Reference {
        Reference {
            name: name.into(),
            at,
            kind: Kind::Paper,
        }
    }

    fn class(&self) -> &'static str {
        match self.kind {
            Kind::Deadline => "reference deadline",
            Kind::Paper => "reference paper",
        }
    }
}

/// Farthest that a logarithmic axis is widened for a reference, as a factor. Lower: it is named and not drawn. Higher:
/// what was measured is pressed into a corner.
const WIDEN_MAX: f64 = 10.0;
/// Farthest that a linear axis is widened for a reference, as a factor.
const WIDEN_LINEAR_MAX: f64 = 1.5;

/// Values of references for which an axis from `least` to `most` is widened.
pub(crate) fn near(
    references: &[Reference],
    [least, most]: [f64; 2],
    logarithmic: bool,
) -> impl Iterator<Item = f64> + '_ {
    let factor = if logarithmic {
        WIDEN_MAX
    } else {
        WIDEN_LINEAR_MAX
    };
    let from = if logarithmic { least / factor } else { 0.0 };
    let near = move |value: &f64| (from..=most * factor).contains(value);
    references.iter().map(|one| one.at).filter(near)
}

/// Lines across a drawing from `left` to `right`, for references on the axis up.
pub(crate) fn across(
    references: &[Reference],
    y: impl Fn(f64) -> Option<f64>,
    [left, right]: [f64; 2],
) -> Markup {
    html! {
        @for one in references {
            @if let Some(at) = y(one.at) {
                @let at = format!("{at:.1}");
                line class=(one.class()) x1=(left) x2=(right) y1=(at) y2=(at) { title { (one.name) } }
            }
        }
    }
}

/// Lines down a drawing from `top` to `bottom`, for references on the axis across.
pub(crate) fn down(
    references: &[Reference],
    x: impl Fn(f64) -> Option<f64>,
    [top, bottom]: [f64; 2],
) -> Markup {
    html! {
        @for one in references {
            @if let Some(at) = x(one.at) {
                @let at = format!("{at:.1}");
                line class=(one.class()) x1=(at) x2=(at) y1=(top) y2=(bottom) { title { (one.name) } }
            }
        }
    }
}

/// Entries of a legend.
pub(crate) fn legend(references: &[Reference], is_drawn: impl Fn(f64) -> bool) -> Markup {
    html! {
        @for one in references {
            li {
                svg width="30" height="10" aria-hidden="true" {
                    line class=(one.class()) x1="0" y1="5" x2="30" y2="5" {}
                }
                span { (one.name) @if !is_drawn(one.at) { " (beyond the plot)" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_away_widens_no_axis() {
        let references = [1.0, 500.0, 1e6].map(|at| Reference::deadline("d", at));
        let found: Vec<f64> = near(&references, [100.0, 200.0], true).collect();
        assert_eq!(found, [500.0]);
        let found: Vec<f64> = near(&references, [100.0, 400.0], false).collect();
        assert_eq!(found, [1.0, 500.0]);
        let text = legend(&references, |at| at < 1e6).into_string();
        assert_eq!(text.matches("beyond the plot").count(), 1);
    }
}
