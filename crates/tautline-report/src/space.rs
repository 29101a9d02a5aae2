//! Paths in space, drawn as seen from above and aside, on a grid of metres.

use maud::{Markup, html};

use crate::live::{self, Area, Data, Drawing, Kind, empty_figure};
use crate::page::Block;
use crate::plot::{legend_with, stroke};

/// A point: metres east, north, up.
pub type Point = [f64; 3];

/// One path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Path {
    /// Name in the legend.
    pub name: String,
    /// Points in their order.
    pub points: Vec<Point>,
    /// Marked points, such as those of missed deadlines.
    pub marks: Vec<Point>,
    /// End of the path, where it is a crash.
    pub crash: Option<Point>,
}

/// The figure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Space {
    /// Text above.
    pub caption: String,
    /// Places that the paths should pass.
    pub places: Vec<Point>,
    /// Paths.
    pub paths: Vec<Path>,
}

/// Direction of view: the east points to the lower right, the north to the upper right.
const TURN: f64 = 0.6;
/// Height of the eye, as an angle.
const RISE: f64 = 0.5;
/// Points of a path that are drawn at most: more cannot be seen.
const POINTS_MAX: usize = 800;
/// Marks that are drawn at most.
const MARKS_MAX: usize = 150;
const MARGIN: f64 = 18.0;

/// A point on the paper, before it is scaled.
fn projected([east, north, up]: Point) -> (f64, f64) {
    let (across, away) = (
        east * TURN.cos() + north * TURN.sin(),
        north * TURN.cos() - east * TURN.sin(),
    );
    (across, -(away * RISE.sin() + up * RISE.cos()))
}

struct View {
    class: &'static str,
    width: f64,
    height: f64,
}

const WIDE: View = View {
    class: "plot wide",
    width: 920.0,
    height: 480.0,
};
const NARROW: View = View {
    class: "plot narrow",
    width: 360.0,
    height: 320.0,
};

impl Space {
    /// The figure as part of a page.
    pub fn html(&self) -> Block {
        if self.paths.iter().all(|path| path.points.is_empty()) {
            return empty_figure(&self.caption, "No samples.");
        }
        let names = self.paths.iter().map(|path| {
            (
                path.name.as_str(),
                path.crash.map(|_| "crashed at the cross"),
            )
        });
        let below = legend_with(names, &[], |_| true);
        let drawings = [WIDE, NARROW].map(|view| view.drawing(self));
        live::figure(&self.data(), drawings, &below)
    }

    /// The points that are drawn.
    fn data(&self) -> Data {
        let mut data = Data::new(&self.caption, [("east", "m"), ("north", "m"), ("up", "m")]);
        for (index, path) in self.paths.iter().enumerate() {
            let points = thinned(&path.points, POINTS_MAX).chain(path.points.last());
            let points = points.map(|point| point.to_vec());
            data.add(live::Series::new(&path.name, index, points.collect()));
        }
        data
    }

    /// Ground below all paths, in whole metres: least and most east and north.
    fn ground(&self) -> [f64; 4] {
        let all = || {
            self.paths
                .iter()
                .flat_map(|path| &path.points)
                .chain(&self.places)
        };
        let least = |axis: usize| all().map(|point| point[axis]).fold(0.0, f64::min).floor();
        let most = |axis: usize| all().map(|point| point[axis]).fold(1.0, f64::max).ceil();
        [least(0), most(0), least(1), most(1)]
    }
}

impl View {
    fn drawing(&self, space: &Space) -> Drawing {
        let place = self.placer(space, space.ground());
        // The projection is linear: four points tell all of it.
        let zero = place([0.0; 3]);
        let unit = |axis: usize| {
            let mut point = [0.0; 3];
            point[axis] = 1.0;
            let (x, y) = place(point);
            (x - zero.0, y - zero.1)
        };
        let [east, north, up] = [0, 1, 2].map(unit);
        Drawing {
            class: self.class,
            width: self.width,
            height: self.height,
            areas: vec![Area {
                kind: Kind::Space,
                left: 0.0,
                right: self.width,
                top: 0.0,
                bottom: self.height,
                span: None,
                logarithmic: false,
                map: Some([east.0, north.0, up.0, zero.0, east.1, north.1, up.1, zero.1]),
                series: (0..space.paths.len()).collect(),
            }],
            content: self.draw(space),
        }
    }

    fn draw(&self, space: &Space) -> Markup {
        let ground = space.ground();
        let place = self.placer(space, ground);
        let [west, east, south, north] = ground;
        let lines = |from: f64, until: f64| (from as i32..=until as i32).map(f64::from);
        html! {
                @for x in lines(west, east) { (segment(place([x, south, 0.0]), place([x, north, 0.0]), "grid")) }
                @for y in lines(south, north) { (segment(place([west, y, 0.0]), place([east, y, 0.0]), "grid")) }
                @for point in &space.places {
                    (segment(place([point[0], point[1], 0.0]), place(*point), "axis"))
                    @let (x, y) = place(*point);
                    circle.place cx=(format!("{x:.1}")) cy=(format!("{y:.1}")) r="5" {}
                }
                @for (index, path) in space.paths.iter().enumerate() {
                    path.line data-line=(index) d=(outline(path, &place)) style=(stroke(index)) {}
                    @for point in thinned(&path.marks, MARKS_MAX) {
                        @let (x, y) = place(*point);
                        circle.missed cx=(format!("{x:.1}")) cy=(format!("{y:.1}")) r="3" {}
                    }
                    @if let Some(point) = path.crash {
                        @let (x, y) = place(point);
                        (segment((x - 8.0, y - 8.0), (x + 8.0, y + 8.0), "cross"))
                        (segment((x - 8.0, y + 8.0), (x + 8.0, y - 8.0), "cross"))
                    }
                }
                text x="4" y="14" { "a square is a metre" }
        }
    }

    /// Where a point lies in the drawing, so that everything has room.
    fn placer(
        &self,
        space: &Space,
        [west, east, south, north]: [f64; 4],
    ) -> impl Fn(Point) -> (f64, f64) {
        let corners = [
            [west, south, 0.0],
            [west, north, 0.0],
            [east, south, 0.0],
            [east, north, 0.0],
        ];
        let points = space.paths.iter().flat_map(|path| &path.points);
        let all: Vec<(f64, f64)> = points
            .chain(&space.places)
            .chain(&corners)
            .map(|point| projected(*point))
            .collect();
        let bounds = |of: fn(&(f64, f64)) -> f64| {
            let least = all.iter().map(of).fold(f64::MAX, f64::min);
            (least, all.iter().map(of).fold(f64::MIN, f64::max))
        };
        let ((left, right), (top, bottom)) = (bounds(|point| point.0), bounds(|point| point.1));
        let scale = ((self.width - 2.0 * MARGIN) / (right - left))
            .min((self.height - 2.0 * MARGIN) / (bottom - top));
        let (width, height) = (self.width, self.height);
        let middle = ((left + right) / 2.0, (top + bottom) / 2.0);
        move |point| {
            let (x, y) = projected(point);
            (
                width / 2.0 + (x - middle.0) * scale,
                height / 2.0 + (y - middle.1) * scale,
            )
        }
    }
}

fn segment(from: (f64, f64), to: (f64, f64), class: &str) -> Markup {
    html! {
        line class=(class) x1=(format!("{:.1}", from.0)) y1=(format!("{:.1}", from.1))
            x2=(format!("{:.1}", to.0)) y2=(format!("{:.1}", to.1)) {}
    }
}

/// Some of the points, evenly.
fn thinned(points: &[Point], count_max: usize) -> impl Iterator<Item = &Point> {
    points
        .iter()
        .step_by(points.len().div_ceil(count_max).max(1))
}

fn outline(path: &Path, place: &impl Fn(Point) -> (f64, f64)) -> String {
    let points = thinned(&path.points, POINTS_MAX).chain(path.points.last());
    let points = points.enumerate().map(|(index, point)| {
        let (x, y) = place(*point);
        format!("{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' })
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_lies_inside_the_drawing() {
        let points: Vec<Point> = (0..2_000)
            .map(|at| f64::from(at) / 100.0)
            .map(|at| [at.sin() * 5.0, at.cos() * 3.0, at / 4.0])
            .collect();
        let space = Space {
            caption: "c".to_owned(),
            places: vec![[3.0, 0.0, 2.0], [-8.0, 3.0, 2.5]],
            paths: vec![Path {
                name: "<p>".to_owned(),
                marks: points.clone(),
                crash: points.last().copied(),
                points: points.clone(),
            }],
        };
        for view in [WIDE, NARROW] {
            let place = view.placer(&space, space.ground());
            for point in points.iter().chain(&space.places) {
                let (x, y) = place(*point);
                assert!(x >= MARGIN - 0.1 && x <= view.width - MARGIN + 0.1, "{x}");
                assert!(y >= MARGIN - 0.1 && y <= view.height - MARGIN + 0.1, "{y}");
            }
        }
        let html = space.html().0.into_string();
        assert!(html.contains("&lt;p&gt;") && html.contains("crashed at the cross"));
        assert!(html.matches("class=\"missed\"").count() <= 2 * MARKS_MAX);
    }

    #[test]
    fn higher_is_higher_and_north_is_farther() {
        let at = |point| projected(point).1;
        assert!(at([0.0, 0.0, 1.0]) < at([0.0, 0.0, 0.0]));
        assert!(at([0.0, 1.0, 0.0]) < at([0.0, 0.0, 0.0]));
    }
}
