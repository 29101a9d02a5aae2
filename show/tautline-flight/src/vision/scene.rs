//! The picture that a camera on the craft takes: ground, sky, way-points, and a wall with windows and a door.

use alloc::vec::Vec;

use libm::sqrt;

use crate::scenery::{Door, Wall};
use crate::vector::{Rotation, Vector};

use super::{FOCAL, HEIGHT, MARGIN, PIXELS, Rays, WIDTH, slopes};

const SKY: f64 = 205.0;
/// The two kinds of tiles of the ground, and the haze that hides them far away.
const TILES: [f64; 2] = [108.0, 132.0];
const HAZE: f64 = 150.0;
const HAZE_METRES: f64 = 25.0;
/// Length of a tile, metres.
const TILE: f64 = 1.0;
const WALL: f64 = 178.0;
const JOINT: f64 = 160.0;
/// Height and length of the wall's stones, and width of the joints, metres.
const STONE: (f64, f64) = (0.5, 1.0);
const JOINT_METRES: f64 = 0.04;
/// Behind windows and door it is dark.
const DARK: f64 = 28.0;
/// Windows: distances of their middles from the door's, half of their width, lower and upper edge, metres.
const WINDOWS: [f64; 3] = [-5.0, -2.6, 2.8];
const WINDOW_HALF: f64 = 0.7;
const WINDOW_EDGES: (f64, f64) = (1.1, 2.1);
/// Way-points are white balls.
const BALL: u8 = 250;
const BALL_RADIUS: f64 = 0.12;
/// Farther than this a wall, or a tile, is behind the camera.
const AHEAD_MIN: f64 = 1e-6;

/// A camera that looks ahead from the craft.
#[derive(Clone, Debug)]
pub struct Camera {
    wall: Option<Wall>,
    balls: Vec<Vector>,
    /// State of the noise.
    noise: u32,
}

impl Camera {
    /// A camera that sees this wall and balls at these places. The noise repeats with its seed.
    pub fn new(wall: Option<Wall>, balls: &[Vector], seed: u64) -> Camera {
        Camera {
            wall,
            balls: balls.to_vec(),
            // Zero would stay zero.
            noise: seed as u32 | 1,
        }
    }

    /// Takes a picture inside the margin; `pixels` has [`PIXELS`] bytes.
    pub fn take(&mut self, place: Vector, attitude: Rotation, pixels: &mut [u8]) {
        assert_eq!(pixels.len(), PIXELS);
        let rays = Rays::of(attitude);
        for row in MARGIN..HEIGHT - MARGIN {
            let start = row * WIDTH;
            let line = &mut pixels[start + MARGIN..start + WIDTH - MARGIN];
            let mut ray = rays.ray(MARGIN, row);
            let step = rays.left * (-1.0 / FOCAL);
            for pixel in line {
                *pixel = self.noisy(self.brightness(place, ray));
                ray += step;
            }
        }
        for index in 0..self.balls.len() {
            self.draw_ball(index, place, attitude, pixels);
        }
    }

    /// Adds noise of a few steps of brightness.
    fn noisy(&mut self, brightness: f64) -> u8 {
        // Marsaglia's xorshift with 32 bits.
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 17;
        self.noise ^= self.noise << 5;
        (brightness + f64::from(self.noise >> 28) - 7.5) as u8
    }

    fn brightness(&self, place: Vector, ray: Vector) -> f64 {
        if let Some(wall) = &self.wall {
            let ahead = (wall.east - place.x) / ray.x;
            let (north, up) = (place.y + ahead * ray.y, place.z + ahead * ray.z);
            if ahead > AHEAD_MIN && wall.covers(north, up) {
                return of_wall(&wall.door, north - wall.door.place.y, up);
            }
        }
        if ray.z >= 0.0 {
            return SKY + 30.0 * ray.z.min(1.0);
        }
        let away = place.z / -ray.z;
        let tile = tile(place.x + away * ray.x) ^ tile(place.y + away * ray.y);
        let share = (away / HAZE_METRES).min(1.0);
        TILES[tile as usize] * (1.0 - share) + HAZE * share
    }

    fn draw_ball(&self, index: usize, place: Vector, attitude: Rotation, pixels: &mut [u8]) {
        let way = self.balls[index] - place;
        if self.is_behind_wall(place, way) {
            return;
        }
        let seen = attitude.inverse().rotate(way);
        if seen.x < BALL_RADIUS * 2.0 {
            return;
        }
        let (left, up, radius) = (seen.y / seen.x, seen.z / seen.x, BALL_RADIUS / seen.x);
        let (column, row) = (
            WIDTH as f64 / 2.0 - 0.5 - left * FOCAL,
            HEIGHT as f64 / 2.0 - 0.5 - up * FOCAL,
        );
        let reach = radius * FOCAL + 1.0;
        let range = |middle: f64, end: usize| {
            let first = (middle - reach).max(MARGIN as f64) as usize;
            first..((middle + reach).max(0.0) as usize).min(end - MARGIN)
        };
        for y in range(row, HEIGHT) {
            for x in range(column, WIDTH) {
                let (l, u) = slopes(x, y);
                if sqrt((l - left) * (l - left) + (u - up) * (u - up)) < radius {
                    pixels[y * WIDTH + x] = BALL;
                }
            }
        }
    }

    fn is_behind_wall(&self, place: Vector, way: Vector) -> bool {
        self.wall.is_some_and(|wall| {
            let share = (wall.east - place.x) / way.x;
            let at = place + way * share;
            (0.0..1.0).contains(&share) && wall.covers(at.y, at.z)
        })
    }
}

/// Brightness of the wall, by the distance to the left of the door's middle and the height.
fn of_wall(door: &Door, left: f64, up: f64) -> f64 {
    let is_door = left.abs() < door.width / 2.0 && up < door.height;
    let is_window = (WINDOW_EDGES.0..WINDOW_EDGES.1).contains(&up)
        && WINDOWS.iter().any(|at| (left - at).abs() < WINDOW_HALF);
    if is_door || is_window {
        return DARK;
    }
    let course = (up / STONE.0) as i64;
    // Stones of each second course begin in the middle of those below. The offset keeps the argument positive.
    let along = left + 100.0 + (course % 2) as f64 * STONE.1 / 2.0;
    let in_joint =
        |value: f64, pitch: f64| value - (value / pitch) as i64 as f64 * pitch < JOINT_METRES;
    if in_joint(up, STONE.0) || in_joint(along, STONE.1) {
        JOINT
    } else {
        WALL
    }
}

/// Number of a tile along one axis, even or odd. The offset keeps tiles on both sides of the start alike.
fn tile(metres: f64) -> bool {
    ((metres / TILE + 100_000.0) as i64) & 1 == 1
}
