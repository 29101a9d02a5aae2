//! The door in a picture: the largest dark area with the shape of a door.
//!
//! Each dark pixel is projected onto a plane before a camera that looks to the east from a level craft. On that plane
//! the door is an upright rectangle whatever the craft's attitude, and its distance follows from its width.

use alloc::vec;
use alloc::vec::Vec;

use libm::sqrt;

use crate::scenery::Sighting;

use super::{FOCAL, HEIGHT, MARGIN, PIXELS, PictureHead, Rays, WIDTH};

/// Pixels are dark below this share of the brightness that nine of ten do not exceed. Lower: noise makes holes.
/// Higher: tiles of the ground are dark.
const DARK_SHARE: f64 = 0.4;
/// Fewest pixels of a door. Lower: a speck is one. Higher: it is found later.
const PIXELS_MIN: u32 = 60;
/// Height for a width, least and most. A window is wider than high.
const SHAPE: (f64, f64) = (1.1, 2.4);
/// Least share of its bounding rectangle that it fills.
const FILL_MIN: f64 = 0.75;
/// Rays that hardly lead to the east are far from the picture's plane.
const EAST_MIN: f64 = 0.2;

/// Finds the door in pictures. Takes no memory after it is made.
#[derive(Clone, Debug)]
pub struct DoorFinder {
    /// Pixels that are dark and belong to no area yet.
    dark: Vec<bool>,
    /// Pixels of the area under way whose neighbours have not been looked at.
    open: Vec<u32>,
    count: u32,
}

impl Default for DoorFinder {
    fn default() -> DoorFinder {
        DoorFinder {
            dark: vec![false; PIXELS],
            open: Vec::with_capacity(PIXELS),
            count: 0,
        }
    }
}

impl DoorFinder {
    /// Looks for the door; `pixels` has [`PIXELS`] bytes.
    pub fn find(&mut self, head: &PictureHead, pixels: &[u8]) -> Option<Sighting> {
        assert_eq!(pixels.len(), PIXELS);
        self.mark_dark(pixels);
        let rays = Rays::of(head.attitude);
        let mut best: Option<Area> = None;
        for row in MARGIN..HEIGHT - MARGIN {
            for column in MARGIN..WIDTH - MARGIN {
                if self.dark[row * WIDTH + column] {
                    let area = self.area(column, row, &rays);
                    let is_larger = best.as_ref().is_none_or(|best| area.sums[0] > best.sums[0]);
                    if area.is_door() && is_larger {
                        best = Some(area);
                    }
                }
            }
        }
        let (left, width) = best?.middle_and_width();
        self.count = self.count.wrapping_add(1);
        Some(Sighting {
            count: self.count,
            time_us: head.time_us,
            left,
            width,
        })
    }

    fn mark_dark(&mut self, pixels: &[u8]) {
        let mut counts = [0u32; 256];
        let inside = |row: usize| row * WIDTH + MARGIN..(row + 1) * WIDTH - MARGIN;
        for row in MARGIN..HEIGHT - MARGIN {
            pixels[inside(row)]
                .iter()
                .for_each(|pixel| counts[usize::from(*pixel)] += 1);
        }
        let tenth = counts.iter().sum::<u32>() / 10;
        let mut brighter = 0;
        let bright = (0..=255u8).rev().find(|value| {
            brighter += counts[usize::from(*value)];
            brighter > tenth
        });
        let limit = (f64::from(bright.unwrap_or(0)) * DARK_SHARE) as u8;
        for row in MARGIN..HEIGHT - MARGIN {
            for at in inside(row) {
                self.dark[at] = pixels[at] < limit;
            }
        }
    }

    /// Takes the area around a dark pixel out of the picture and measures it.
    fn area(&mut self, column: usize, row: usize, rays: &Rays) -> Area {
        let mut area = Area::default();
        self.push(row * WIDTH + column);
        while let Some(at) = self.open.pop() {
            let at = at as usize;
            area.add(at % WIDTH, at / WIDTH, rays);
            // The margin is never dark, so that no neighbour is outside.
            for next in [at - 1, at + 1, at - WIDTH, at + WIDTH] {
                if self.dark[next] {
                    self.push(next);
                }
            }
        }
        area
    }

    fn push(&mut self, at: usize) {
        self.dark[at] = false;
        self.open.push(at as u32);
    }
}

/// Measures of a dark area, on the plane.
#[derive(Clone, Debug)]
struct Area {
    pixels: u32,
    /// Sums over its parts: area, area by distance to the left, and area by the square of that.
    sums: [f64; 3],
    left: (f64, f64),
    up: (f64, f64),
    columns: (usize, usize),
    rows: (usize, usize),
}

impl Default for Area {
    fn default() -> Area {
        Area {
            pixels: 0,
            sums: [0.0; 3],
            left: (f64::MAX, f64::MIN),
            up: (f64::MAX, f64::MIN),
            columns: (usize::MAX, 0),
            rows: (usize::MAX, 0),
        }
    }
}

impl Area {
    fn add(&mut self, column: usize, row: usize, rays: &Rays) {
        let ray = rays.ray(column, row);
        let east = ray.x.max(EAST_MIN);
        let (left, up) = (ray.y / east, ray.z / east);
        // Area of the plane that the pixel covers.
        let weight = 1.0 / (FOCAL * FOCAL * east * east * east);
        self.pixels += 1;
        for (sum, part) in self.sums.iter_mut().zip([1.0, left, left * left]) {
            *sum += weight * part;
        }
        self.left = (self.left.0.min(left), self.left.1.max(left));
        self.up = (self.up.0.min(up), self.up.1.max(up));
        self.columns = (self.columns.0.min(column), self.columns.1.max(column));
        self.rows = (self.rows.0.min(row), self.rows.1.max(row));
    }

    fn is_door(&self) -> bool {
        let is_whole_across = self.columns.0 > MARGIN && self.columns.1 < WIDTH - MARGIN - 1;
        if self.pixels < PIXELS_MIN || !is_whole_across {
            return false;
        }
        let is_whole_upright = self.rows.0 > MARGIN && self.rows.1 < HEIGHT - MARGIN - 1;
        let (width, height) = (self.left.1 - self.left.0, self.up.1 - self.up.0);
        // One that is cut off is higher than it looks.
        let is_upright = height > SHAPE.0 * width || !is_whole_upright;
        is_upright && height < SHAPE.1 * width && self.sums[0] > FILL_MIN * width * height
    }

    /// Middle, and the width of a rectangle that is spread as far around it: better than the outermost pixels.
    fn middle_and_width(&self) -> (f64, f64) {
        let [area, first, second] = self.sums;
        let middle = first / area;
        let spread = (second / area - middle * middle).max(0.0);
        (middle, sqrt(12.0 * spread))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenery::Wall;
    use crate::vector::{Rotation, Vector, vector};
    use crate::vision::Camera;

    const DOOR: Vector = vector(6.0, 1.0, 0.0);

    fn look(place: Vector, attitude: Rotation) -> Option<Sighting> {
        let mut pixels = vec![0; PIXELS];
        let balls = [vector(3.0, 1.0, 1.2), vector(9.0, 1.0, 1.2)];
        let mut camera = Camera::new(Some(Wall::with_door(DOOR)), &balls, 5);
        camera.take(place, attitude, &mut pixels);
        let head = PictureHead {
            attitude,
            time_us: 3,
            ..PictureHead::default()
        };
        DoorFinder::default().find(&head, &pixels)
    }

    #[test]
    fn the_door_is_found_from_many_places_in_many_attitudes() {
        let mut found = 0;
        for place in [
            vector(-1.0, 1.0, 1.5),
            vector(0.0, 0.0, 1.2),
            vector(2.0, 3.0, 2.4),
            vector(4.0, 1.2, 1.2),
            vector(4.8, 0.8, 1.2),
        ] {
            for (roll, pitch, yaw) in [
                (0.0, 0.0, 0.0),
                (0.25, 0.0, 0.0),
                (-0.2, 0.15, 0.1),
                (0.1, -0.2, -0.15),
            ] {
                let Some(sighting) = look(place, Rotation::from_euler(roll, pitch, yaw)) else {
                    continue;
                };
                found += 1;
                let off = sighting.way(1.4) - (DOOR - place).level();
                let distance = DOOR.x - place.x;
                assert!(
                    off.x.abs() < 0.06 * distance,
                    "{place:?} {roll} {pitch}: {off:?}"
                );
                assert!(
                    off.y.abs() < 0.03 * distance,
                    "{place:?} {roll} {pitch}: {off:?}"
                );
                assert_eq!((sighting.count, sighting.time_us), (1, 3));
            }
        }
        assert!(found >= 18, "found {found} of 20");
    }

    #[test]
    fn nothing_else_is_a_door() {
        // Windows alone, the wall from behind it, the sky, and a picture without any light.
        assert_eq!(
            look(vector(4.0, -2.5, 1.5), Rotation::from_euler(0.0, 0.0, -0.6)),
            None
        );
        assert_eq!(look(vector(7.0, 1.0, 1.5), Rotation::NONE), None);
        assert_eq!(look(vector(0.0, 0.0, 60.0), Rotation::NONE), None);
        let head = PictureHead::default();
        assert_eq!(DoorFinder::default().find(&head, &vec![0; PIXELS]), None);
        assert_eq!(DoorFinder::default().find(&head, &vec![255; PIXELS]), None);
    }

    #[test]
    fn a_finder_is_not_confused_by_the_picture_before() {
        let mut finder = DoorFinder::default();
        let mut pixels = vec![200; PIXELS];
        for row in 60..120 {
            pixels[row * WIDTH + 100..row * WIDTH + 140].fill(10);
        }
        let head = PictureHead::default();
        let first = finder.find(&head, &pixels).unwrap();
        assert_eq!(finder.find(&head, &vec![200; PIXELS]), None);
        let second = finder.find(&head, &pixels).unwrap();
        assert_eq!((first.width, second.count), (second.width, 2));
        assert!((first.width - 40.0 / FOCAL).abs() < 0.01);
    }
}
