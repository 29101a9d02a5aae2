//! The camera and its pictures: drawn from the world, with the flight data around them, and the door found in them.
//!
//! | module | holds |
//! |---|---|
//! | `scene` | [`Camera`]: the picture that the world gives |
//! | `overlay` | [`draw_flight_data`]: phase, attitude, height and speed, drawn into the picture's margin |
//! | `door` | [`DoorFinder`]: image processing, which knows nothing but the picture and the estimated attitude |

use serde::{Deserialize, Serialize};

use crate::message::{decode, encode};
use crate::vector::{Rotation, Vector, vector};

mod door;
mod overlay;
mod scene;

pub use door::DoorFinder;
pub use overlay::draw_flight_data;
pub use scene::Camera;

/// Width and height of a picture, in pixels of one byte: from black to white. More: a picture does not fit into one
/// message. Less: the door is found later.
pub const WIDTH: usize = 256;
/// Height of a picture.
pub const HEIGHT: usize = 192;
/// Bytes of the pixels, row after row from the top.
pub const PIXELS: usize = WIDTH * HEIGHT;
/// Margin that belongs to the flight data. Lower: letters do not fit. Higher: the camera sees less.
pub const MARGIN: usize = 12;
/// Bytes before the pixels in a message.
pub const HEAD_BYTES: usize = 64;
/// Bytes of a picture's message.
pub const PICTURE_BYTES: usize = HEAD_BYTES + PIXELS;
/// Pictures in a second.
pub const PICTURES_PER_SECOND: u64 = 30;
/// Distance of the picture's plane in pixels: the camera sees a right angle from left to right.
const FOCAL: f64 = WIDTH as f64 / 2.0;

/// Head of a picture's message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PictureHead {
    /// Pictures so far, of this process.
    pub count: u32,
    /// World's time, microseconds.
    pub time_us: u64,
    /// Attitude as the controller estimated it then.
    pub attitude: Rotation,
}

impl PictureHead {
    /// Writes the head to the start of a message of [`PICTURE_BYTES`].
    pub fn write(&self, message: &mut [u8]) {
        // The largest head has 52 bytes.
        let _ = encode(self, &mut message[..HEAD_BYTES]);
    }

    /// Head and pixels of a message, which may come from anybody.
    pub fn read(message: &[u8]) -> Option<(PictureHead, &[u8])> {
        let (head, pixels) = message.split_at_checked(HEAD_BYTES)?;
        let head = decode(head)?;
        (pixels.len() == PIXELS).then_some((head, pixels))
    }
}

/// Rays of the pixels in the world's axes: that of a pixel is `ahead + left * l + up * u`.
#[derive(Clone, Copy, Debug)]
struct Rays {
    ahead: Vector,
    left: Vector,
    up: Vector,
}

impl Rays {
    /// Rays of a camera that looks ahead from a craft in this attitude.
    fn of(attitude: Rotation) -> Rays {
        Rays {
            ahead: attitude.rotate(vector(1.0, 0.0, 0.0)),
            left: attitude.rotate(vector(0.0, 1.0, 0.0)),
            up: attitude.up(),
        }
    }

    fn ray(&self, column: usize, row: usize) -> Vector {
        let (left, up) = slopes(column, row);
        self.ahead + self.left * left + self.up * up
    }
}

/// Tangents of a pixel's angles to the left and up, from the camera's axis.
fn slopes(column: usize, row: usize) -> (f64, f64) {
    (
        (WIDTH as f64 / 2.0 - 0.5 - column as f64) / FOCAL,
        (HEIGHT as f64 / 2.0 - 0.5 - row as f64) / FOCAL,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn the_largest_head_fits_and_a_strangers_message_is_no_picture() {
        let head = PictureHead {
            count: u32::MAX,
            time_us: u64::MAX,
            attitude: Rotation::from_euler(0.1, 0.2, 0.3),
        };
        let mut message = vec![7; PICTURE_BYTES];
        head.write(&mut message);
        let (read, pixels) = PictureHead::read(&message).unwrap();
        assert_eq!((read, pixels[0]), (head, 7));
        assert!(PictureHead::read(&message[1..]).is_none());
        assert!(PictureHead::read(&[0xff; 20]).is_none());
        assert!(PictureHead::read(&[0xff; PICTURE_BYTES]).is_none());
    }
}
