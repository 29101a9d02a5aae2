//! Flight data in the margin of a picture: phase, time, alarms, attitude, height, speed, and the horizon at both sides.

use core::fmt::{self, Write};

use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::ascii::FONT_6X10;
use embedded_graphics::pixelcolor::Gray8;
use embedded_graphics::prelude::{
    DrawTarget, Drawable, GrayColor, OriginDimensions, Pixel, Point, Primitive, Size,
};
use embedded_graphics::primitives::{Line, PrimitiveStyle};
use embedded_graphics::text::{Baseline, Text};

use crate::message::{Phase, Status};

use super::{FOCAL, HEIGHT, MARGIN, PIXELS, PictureHead, Rays, WIDTH};

/// Letters that fit into a line: each is 6 pixels wide.
const LETTERS: usize = (WIDTH - 4) / 6;
const PAPER: u8 = 16;
const INK: Gray8 = Gray8::new(235);

/// Draws the flight data into the margin; `pixels` has [`PIXELS`] bytes.
pub fn draw_flight_data(head: &PictureHead, status: &Status, pixels: &mut [u8]) {
    assert_eq!(pixels.len(), PIXELS);
    for row in 0..HEIGHT {
        let line = &mut pixels[row * WIDTH..(row + 1) * WIDTH];
        match (MARGIN..HEIGHT - MARGIN).contains(&row) {
            true => {
                line[..MARGIN].fill(PAPER);
                line[WIDTH - MARGIN..].fill(PAPER);
            }
            false => line.fill(PAPER),
        }
    }
    let mut canvas = Canvas(pixels);
    canvas.write(1, &first_line(head, status));
    canvas.write(HEIGHT - MARGIN + 1, &last_line(status));
    canvas.draw_horizon(head);
}

fn first_line(head: &PictureHead, status: &Status) -> Letters {
    let phase = match status.phase {
        Phase::Disarmed => "DISARMED",
        Phase::Armed => "ARMED",
        Phase::TakeOff => "TAKE-OFF",
        Phase::Hold => "HOLD",
        Phase::Mission => "WAY-POINT",
        Phase::Landing => "LANDING",
    };
    let mut letters = Letters::new();
    let _ = write!(letters, "{:6.2} s  {phase}", head.time_us as f64 * 1e-6);
    if status.phase == Phase::Mission {
        let _ = write!(letters, " {}", status.waypoint + 1);
    }
    if let Some(alarm) = status.alarms.names().next() {
        let _ = write!(letters, "  {alarm}");
    }
    letters
}

fn last_line(status: &Status) -> Letters {
    let (roll, pitch, _) = status.attitude.euler();
    // Zero has no sign.
    let degrees = |angle: f64| libm::round(angle.to_degrees()) + 0.0;
    let mut letters = Letters::new();
    let _ = write!(
        letters,
        "roll{:+4.0} pitch{:+4.0}  {:4.1}m {:4.1}m/s",
        degrees(roll),
        degrees(pitch),
        status.position.z,
        status.velocity.length()
    );
    if status.is_by_door {
        let _ = write!(letters, " by door");
    }
    letters
}

/// A line of text; what does not fit is left out.
struct Letters {
    bytes: [u8; LETTERS],
    length: usize,
}

impl Write for Letters {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.bytes().filter(u8::is_ascii) {
            if self.length < LETTERS {
                self.bytes[self.length] = letter;
                self.length += 1;
            }
        }
        Ok(())
    }
}

impl Letters {
    fn new() -> Letters {
        Letters {
            bytes: [0; LETTERS],
            length: 0,
        }
    }

    fn text(&self) -> &str {
        // Only ASCII was let in.
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or("")
    }
}

struct Canvas<'p>(&'p mut [u8]);

impl Canvas<'_> {
    fn write(&mut self, row: usize, letters: &Letters) {
        let style = MonoTextStyle::new(&FONT_6X10, INK);
        let at = Point::new(2, row as i32);
        // Nothing can fail: what is outside is left out.
        let _ = Text::with_baseline(letters.text(), at, style, Baseline::Top).draw(self);
    }

    /// A mark in each side's margin where the horizon meets it.
    fn draw_horizon(&mut self, head: &PictureHead) {
        let rays = Rays::of(head.attitude);
        let style = PrimitiveStyle::with_stroke(INK, 2);
        for (from, until) in [(1, MARGIN - 2), (WIDTH - MARGIN + 1, WIDTH - 2)] {
            let left = (WIDTH as f64 / 2.0 - 0.5 - (from + until) as f64 / 2.0) / FOCAL;
            // The ray whose height does not change.
            let up = -(rays.ahead.z + rays.left.z * left) / rays.up.z;
            let row = HEIGHT as f64 / 2.0 - 0.5 - up * FOCAL;
            let row = row.clamp(MARGIN as f64, (HEIGHT - MARGIN) as f64) as i32;
            let ends = (Point::new(from as i32, row), Point::new(until as i32, row));
            let _ = Line::new(ends.0, ends.1).into_styled(style).draw(self);
        }
    }
}

impl OriginDimensions for Canvas<'_> {
    fn size(&self) -> Size {
        Size::new(WIDTH as u32, HEIGHT as u32)
    }
}

impl DrawTarget for Canvas<'_> {
    type Color = Gray8;
    type Error = core::convert::Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Gray8>>>(
        &mut self,
        pixels: I,
    ) -> Result<(), Self::Error> {
        for Pixel(Point { x, y }, colour) in pixels {
            let is_inside = (0..WIDTH as i32).contains(&x) && (0..HEIGHT as i32).contains(&y);
            if is_inside {
                self.0[y as usize * WIDTH + x as usize] = colour.luma();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Alarms;
    use crate::vector::Rotation;
    use alloc::vec;

    #[test]
    fn the_data_stay_in_the_margin_and_follow_the_attitude() {
        let status = Status {
            phase: Phase::Mission,
            waypoint: 2,
            alarms: Alarms {
                sonar: true,
                ..Alarms::default()
            },
            is_by_door: true,
            ..Status::default()
        };
        let head = PictureHead {
            time_us: 12_345_678,
            ..PictureHead::default()
        };
        assert_eq!(
            first_line(&head, &status).text(),
            " 12.35 s  WAY-POINT 3  sonar silent"
        );
        assert_eq!(
            last_line(&status).text(),
            "roll  +0 pitch  +0   0.0m  0.0m/s by door"
        );
        let mut pixels = vec![77; PIXELS];
        draw_flight_data(&head, &status, &mut pixels);
        for row in MARGIN..HEIGHT - MARGIN {
            let line = &pixels[row * WIDTH..(row + 1) * WIDTH];
            assert!(
                line[MARGIN..WIDTH - MARGIN]
                    .iter()
                    .all(|pixel| *pixel == 77)
            );
        }
        let mark = |pixels: &[u8], column: usize| {
            let row = (MARGIN + 1..HEIGHT - MARGIN - 1)
                .find(|row| pixels[row * WIDTH + column] == INK.luma());
            row.unwrap()
        };
        assert!((94..97).contains(&mark(&pixels, 5)));
        let head = PictureHead {
            attitude: Rotation::from_euler(0.2, 0.0, 0.0),
            ..head
        };
        draw_flight_data(&head, &status, &mut pixels);
        // Roll to the right: the horizon's left end is lower in the picture than its right end.
        assert!(mark(&pixels, 5) > 110 && mark(&pixels, WIDTH - 5) < 80);
    }
}
