//! The plant of the demo and the law that controls it: a small motor follows an angle.
//!
//! Both messages carry the number of their cycle, so that a command is matched with the state that
//! it answers. Numbers on the wire are big-endian.

/// Bytes of a state: what fits one cache line.
pub const STATE_BYTES: usize = 64;
/// Bytes of a command.
pub const COMMAND_BYTES: usize = 32;

/// State that the motor publishes at the start of each cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct State {
    /// Number of the cycle on this path.
    pub sequence: u64,
    /// When it was sent, CLOCK_MONOTONIC.
    pub sent_ns: u64,
    /// Angle of the shaft in radians.
    pub angle: f64,
    /// Speed in radians a second.
    pub speed: f64,
    /// The angle that it should have.
    pub target: f64,
}

impl State {
    /// As it travels; the bytes after the fields are zero.
    pub fn to_bytes(self) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        put(&mut bytes, 0, self.sequence);
        put(&mut bytes, 1, self.sent_ns);
        put(&mut bytes, 2, self.angle.to_bits());
        put(&mut bytes, 3, self.speed.to_bits());
        put(&mut bytes, 4, self.target.to_bits());
        bytes
    }

    /// From what arrived; nothing if it has another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<State> {
        (bytes.len() == STATE_BYTES).then(|| State {
            sequence: take(bytes, 0),
            sent_ns: take(bytes, 1),
            angle: f64::from_bits(take(bytes, 2)),
            speed: f64::from_bits(take(bytes, 3)),
            target: f64::from_bits(take(bytes, 4)),
        })
    }
}

/// Answer of the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Command {
    /// Number of the cycle whose state it was computed from.
    pub sequence: u64,
    /// Torque in newton metres.
    pub torque: f64,
}

impl Command {
    /// As it travels; the bytes after the fields are zero.
    pub fn to_bytes(self) -> [u8; COMMAND_BYTES] {
        let mut bytes = [0; COMMAND_BYTES];
        put(&mut bytes, 0, self.sequence);
        put(&mut bytes, 1, self.torque.to_bits());
        bytes
    }

    /// From what arrived; nothing if it has another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Command> {
        (bytes.len() == COMMAND_BYTES).then(|| Command {
            sequence: take(bytes, 0),
            torque: f64::from_bits(take(bytes, 1)),
        })
    }
}

/// Writes the word of this index.
fn put(bytes: &mut [u8], word: usize, value: u64) {
    bytes[word * 8..][..8].copy_from_slice(&value.to_be_bytes());
}

/// Reads the word of this index.
fn take(bytes: &[u8], word: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[word * 8..][..8]);
    u64::from_be_bytes(value)
}

/// The controller: proportional to the angle's error, damped by the speed, within the motor's torque.
pub fn control(state: &State) -> Command {
    const STIFFNESS: f64 = 0.4;
    const DAMPING: f64 = 0.02;
    let wanted = STIFFNESS * (state.target - state.angle) - DAMPING * state.speed;
    Command {
        sequence: state.sequence,
        torque: wanted.clamp(-Motor::TORQUE_MAX, Motor::TORQUE_MAX),
    }
}

/// A motor with inertia and friction. It keeps the last torque until it is given another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Motor {
    angle: f64,
    speed: f64,
    torque: f64,
    time_s: f64,
}

impl Motor {
    /// Newton metres.
    pub const TORQUE_MAX: f64 = 0.5;
    /// Kilogram square metres.
    const INERTIA: f64 = 2e-4;
    /// Newton metre seconds.
    const FRICTION: f64 = 1e-4;

    /// Takes a command.
    pub fn command(&mut self, command: &Command) {
        if command.torque.is_finite() {
            self.torque = command.torque.clamp(-Self::TORQUE_MAX, Self::TORQUE_MAX);
        }
    }

    /// Moves on by a step and returns the state without number and time.
    pub fn step(&mut self, seconds: f64) -> State {
        self.time_s += seconds;
        let acceleration = (self.torque - Self::FRICTION * self.speed) / Self::INERTIA;
        self.speed += acceleration * seconds;
        self.angle += self.speed * seconds;
        State {
            angle: self.angle,
            speed: self.speed,
            // Half a turn to and fro, once a second.
            target: std::f64::consts::FRAC_PI_2 * (std::f64::consts::TAU * self.time_s).sin(),
            ..State::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire() {
        let state = State {
            sequence: 7,
            sent_ns: u64::MAX,
            angle: -0.5,
            speed: 2.25,
            target: 1.0,
        };
        assert_eq!(State::from_bytes(&state.to_bytes()), Some(state));
        let command = Command {
            sequence: 9,
            torque: -0.125,
        };
        assert_eq!(Command::from_bytes(&command.to_bytes()), Some(command));
        assert_eq!(State::from_bytes(&[0; 63]), None);
        assert_eq!(Command::from_bytes(&[0; 33]), None);
    }

    #[test]
    fn the_motor_follows_while_commands_come() {
        let mut motor = Motor::default();
        let mut error_max = 0f64;
        for cycle in 0..3_000 {
            let state = motor.step(1e-3);
            motor.command(&control(&state));
            if cycle > 500 {
                error_max = error_max.max((state.target - state.angle).abs());
            }
        }
        assert!(error_max < 0.6, "{error_max}");
    }

    #[test]
    fn a_command_that_is_no_number_changes_nothing() {
        let mut motor = Motor::default();
        motor.command(&Command {
            sequence: 0,
            torque: f64::NAN,
        });
        assert!(motor.step(1e-3).angle.is_finite());
    }
}
