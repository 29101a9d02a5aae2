//! Messages against the bytes that Cyclone DDS makes of them (`cyclonedds` 11.0.1 from PyPI, `serialize` with version 1
//! of CDR, both orders, without the encapsulation), and against invalid bytes.

use std::collections::BTreeMap;

use super::*;
use crate::definition::Definitions;
use crate::mapping::{Declared, Direction, map};

const JOINTS: &str = "00f1536515cd5b0705000000626173650000000002000000020000006100000003000000626300000200000000000000\
    000000000000e03f000000000000f0bf0100000000000000000000000000004000000000";
const JOINTS_BIG: &str = "\
    6553f100075bcd15000000056261736500000000000000020000000261000000000000036263000000000002000000\
    003fe0000000000000bff00000000000000000000100000000400000000000000000000000";
const TWIST: &str = "000000000000f03f00000000000000c0000000000000d03f000000000000000000000000000000000000000000000840";
const TWIST_BIG: &str = "\
    3ff0000000000000c0000000000000003fd0000000000000000000000000000000000000000000004008000000000000";
const FLOATS: &str = "0100000004000000726f77000200000002000000070000000200000000000000000000000000f03f0000000000000040";
const FLOATS_BIG: &str = "\
    0000000100000004726f770000000002000000020000000700000002000000003ff00000000000004000000000000000";
const MIXED: &str = "01070000feffffff010203000400000068c3a90000000000000000000000f83f";
const MIXED_BIG: &str = "01070000fffffffe010203000000000468c3a900000000003ff8000000000000";

const STATE: &str = "State { time_ns: u64, position: f64[2], velocity: f64 }";
const STATE_MAP: &str = "fields = { 'header.stamp' = 'time_ns', position = 'position', velocity = 'velocity' }\n\
    constants = { 'header.frame_id' = 'base', name = ['a', 'bc'] }\n";
const SPEED: &str = "Speed { linear: f64[3], turn: f32 }";
const SPEED_MAP: &str = "fields = { linear = 'linear', 'angular.z' = 'turn' }\n";

fn bytes(digits: &str) -> Vec<u8> {
    let digits: Vec<char> = digits.chars().filter(|one| !one.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn mapping(message: &str, declaration: &str, entries: &str, direction: Direction) -> Part {
    let entries: toml::Table = toml::from_str(entries).unwrap();
    let table = |name: &str| {
        let table = entries.get(name).and_then(toml::Value::as_table).cloned();
        table.unwrap_or_default()
    };
    let text = |value: toml::Value| value.as_str().unwrap().to_owned();
    let optional = entries.get("optional").and_then(toml::Value::as_array);
    let declared = Declared {
        fields: table("fields")
            .into_iter()
            .map(|(path, of)| (path, text(of)))
            .collect(),
        constants: table("constants").into_iter().collect::<BTreeMap<_, _>>(),
        optional: optional.into_iter().flatten().cloned().map(text).collect(),
    };
    let mut definitions = Definitions::known();
    definitions
        .declare(
            "a/Mixed",
            "bool flag\nuint8 small\nint32 number\nuint8[3] codes\nstring text\nfloat64 real",
        )
        .unwrap();
    let (_, shape) = definitions.shape(message).unwrap();
    map(&shape, &declaration.parse().unwrap(), declared, direction).unwrap()
}

fn joints(direction: Direction) -> Part {
    mapping("sensor_msgs/msg/JointState", STATE, STATE_MAP, direction)
}

fn state() -> Vec<u8> {
    let mut value = 1_700_000_000_123_456_789_u64.to_le_bytes().to_vec();
    for number in [0.5_f64, -1.0, 2.0] {
        value.extend(number.to_le_bytes());
    }
    value
}

fn twist() -> Part {
    mapping(
        "geometry_msgs/msg/Twist",
        SPEED,
        SPEED_MAP,
        Direction::Subscribe,
    )
}

fn taken(part: &Part, message: &[u8], order: Order, bytes: usize) -> Result<Vec<u8>, Refused> {
    let mut value = vec![0xEE; bytes];
    read(part, message, order, true, &mut value).map(|()| value)
}

#[test]
fn joint_states_are_the_bytes_of_another_implementation_both_ways() {
    let part = joints(Direction::Publish);
    assert_eq!(write(&part, &state(), 0), Ok(bytes(JOINTS)));
    // The effort that is not mapped is empty, and stays out of the way.
    let part = joints(Direction::Subscribe);
    for (order, digits) in [(Order::Little, JOINTS), (Order::Big, JOINTS_BIG)] {
        assert_eq!(taken(&part, &bytes(digits), order, 32), Ok(state()));
    }
    assert!(taken(&part, &bytes(JOINTS), Order::Big, 32).is_err());
}

#[test]
fn a_twist_goes_into_fields_of_other_numbers() {
    let mut expected = Vec::new();
    for number in [1.0_f64, -2.0, 0.25] {
        expected.extend(number.to_le_bytes());
    }
    expected.extend(3.0_f32.to_le_bytes());
    for (order, digits) in [(Order::Little, TWIST), (Order::Big, TWIST_BIG)] {
        assert_eq!(
            taken(&twist(), &bytes(digits), order, 28),
            Ok(expected.clone())
        );
    }
}

#[test]
fn parts_that_are_not_mapped_are_passed_over() {
    let part = mapping(
        "std_msgs/msg/Float64MultiArray",
        "Two { data: f64[2] }",
        "",
        Direction::Subscribe,
    );
    let expected: Vec<u8> = [1.0_f64, 2.0]
        .iter()
        .flat_map(|one| one.to_le_bytes())
        .collect();
    for (order, digits) in [(Order::Little, FLOATS), (Order::Big, FLOATS_BIG)] {
        assert_eq!(
            taken(&part, &bytes(digits), order, 16),
            Ok(expected.clone())
        );
    }
}

#[test]
fn a_declared_message_with_a_text_passes_both_ways() {
    let declaration =
        "Mixed { flag: u8, small: u8, number: i32, codes: u8[3], text: u8[6], real: f64 }";
    let mut value = vec![1, 7];
    value.extend((-2_i32).to_le_bytes());
    value.extend([1, 2, 3]);
    value.extend("h\u{e9}".as_bytes());
    value.extend([0; 3]);
    value.extend(1.5_f64.to_le_bytes());
    let part = mapping("a/msg/Mixed", declaration, "", Direction::Publish);
    assert_eq!(write(&part, &value, 0), Ok(bytes(MIXED)));
    let part = mapping("a/msg/Mixed", declaration, "", Direction::Subscribe);
    for (order, digits) in [(Order::Little, MIXED), (Order::Big, MIXED_BIG)] {
        assert_eq!(
            taken(&part, &bytes(digits), order, value.len()),
            Ok(value.clone())
        );
    }
    let mut broken = value.clone();
    broken[9] = 0xff;
    let part = mapping("a/msg/Mixed", declaration, "", Direction::Publish);
    assert_eq!(
        write(&part, &broken, 0),
        Err(Refused::Malformed),
        "no UTF-8"
    );
}

#[test]
fn times_are_those_of_the_arrival_or_of_a_field() {
    let stamp = |entries: &str, declaration: &str, value: &[u8], arrival_ns: i64| {
        let part = mapping(
            "std_msgs/msg/Header",
            declaration,
            entries,
            Direction::Publish,
        );
        write(&part, value, arrival_ns).map(|bytes| {
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            (word(0).cast_signed(), word(4))
        })
    };
    let arrival = "fields = { frame_id = 'id' }";
    assert_eq!(
        stamp(arrival, "A { id: u8[4] }", b"abcd", 7_000_000_009),
        Ok((7, 9))
    );
    let field = "fields = { stamp = 't' }";
    let seconds = 1.25_f64.to_le_bytes();
    assert_eq!(
        stamp(field, "A { t: f64 }", &seconds, 0),
        Ok((1, 250_000_000))
    );
    let before = (-1_i64).to_le_bytes();
    assert_eq!(
        stamp(field, "A { t: i64 }", &before, 0),
        Ok((-1, 999_999_999))
    );
    let late = u64::MAX.to_le_bytes();
    assert_eq!(
        stamp(field, "A { t: u64 }", &late, 0),
        Err(Refused::OutOfRange)
    );
    for wild in [f64::NAN, f64::INFINITY, 1e300] {
        let refused = stamp(field, "A { t: f64 }", &wild.to_le_bytes(), 0);
        assert_eq!(refused, Err(Refused::OutOfRange), "{wild}");
    }
}

#[test]
fn wrong_contents_have_their_own_reasons() {
    let part = joints(Direction::Subscribe);
    let changed = |at: usize, byte: u8| {
        let mut message = bytes(JOINTS);
        message[at] = byte;
        taken(&part, &message, Order::Little, 32)
    };
    let offset = bytes(JOINTS)
        .windows(2)
        .position(|pair| pair == b"bc")
        .unwrap();
    assert_eq!(
        changed(offset, b'x'),
        Err(Refused::OtherValue),
        "another joint"
    );
    assert_eq!(changed(7, 0xff), Err(Refused::OutOfRange), "nanoseconds");
    assert_eq!(
        changed(3, 0xff),
        Err(Refused::OutOfRange),
        "before 1970 in a u64"
    );
    // A third position, and one only.
    let three = mapping(
        "sensor_msgs/msg/JointState",
        "Three { position: f64[3] }",
        "",
        Direction::Subscribe,
    );
    let one = mapping(
        "sensor_msgs/msg/JointState",
        "One { position: f64 }",
        "",
        Direction::Subscribe,
    );
    for (part, bytes_of_port) in [(three, 24), (one, 8)] {
        let refused = taken(&part, &bytes(JOINTS), Order::Little, bytes_of_port);
        assert_eq!(refused, Err(Refused::OtherSize));
    }
    // Not a number, unless it is allowed; too large for the smaller field.
    let mut message = bytes(TWIST);
    message[..8].copy_from_slice(&f64::NAN.to_le_bytes());
    assert_eq!(
        taken(&twist(), &message, Order::Little, 28),
        Err(Refused::NotFinite)
    );
    let mut value = [0; 28];
    assert_eq!(
        read(&twist(), &message, Order::Little, false, &mut value),
        Ok(())
    );
    let mut message = bytes(TWIST);
    message[40..].copy_from_slice(&1e300_f64.to_le_bytes());
    assert_eq!(
        taken(&twist(), &message, Order::Little, 28),
        Err(Refused::OutOfRange)
    );
}

#[test]
fn an_empty_sequence_passes_where_it_is_declared() {
    let part = |entries: &str| {
        let declaration = "Two { position: f64[2], effort: f64[2] }";
        let direction = Direction::Subscribe;
        mapping(
            "sensor_msgs/msg/JointState",
            declaration,
            entries,
            direction,
        )
    };
    let message = bytes(JOINTS);
    let refused = taken(&part(""), &message, Order::Little, 32);
    assert_eq!(refused, Err(Refused::OtherSize));
    let value = taken(&part("optional = ['effort']"), &message, Order::Little, 32).unwrap();
    assert_eq!(value[16..], [0; 16]);
}

#[test]
fn cut_off_and_too_long_messages_are_refused() {
    let cases = [
        (joints(Direction::Subscribe), bytes(JOINTS), 32),
        (twist(), bytes(TWIST), 28),
    ];
    for (part, message, bytes_of_port) in cases {
        for length in 0..message.len() {
            let refused = taken(&part, &message[..length], Order::Little, bytes_of_port);
            assert!(refused.is_err(), "{length} bytes");
        }
        let mut longer = message.clone();
        longer.extend([0; 3]);
        assert!(
            taken(&part, &longer, Order::Little, bytes_of_port).is_ok(),
            "padding"
        );
        longer.push(0);
        let refused = taken(&part, &longer, Order::Little, bytes_of_port);
        assert_eq!(refused, Err(Refused::Malformed));
        longer.resize(PAYLOAD_BYTES_MAX + 1, 0);
        assert!(taken(&part, &longer, Order::Little, bytes_of_port).is_err());
    }
}

/// The generator of Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }
}

#[test]
fn no_bytes_harm_and_lengths_take_no_memory() {
    let seed = std::env::var("TAUTLINE_FUZZ_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(7_421);
    println!("seed {seed}");
    let mut random = Random(seed);
    let floats = mapping(
        "std_msgs/msg/Float64MultiArray",
        "Two { data: f64[2] }",
        "",
        Direction::Subscribe,
    );
    let cases = [
        (joints(Direction::Subscribe), bytes(JOINTS), 32),
        (floats, bytes(FLOATS), 16),
        (twist(), bytes(TWIST), 28),
    ];
    // A length of all ones wherever one may be: a sequence or a text that is not there.
    for (part, message, bytes_of_port) in &cases {
        for at in (0..message.len() - 3).step_by(4) {
            let mut message = message.clone();
            message[at..at + 4].fill(0xff);
            for order in [Order::Little, Order::Big] {
                let _any = taken(part, &message, order, *bytes_of_port);
            }
        }
    }
    for round in 0..60_000 {
        let (part, message, bytes_of_port) = &cases[round % cases.len()];
        let mut message = message.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(message.len());
            message[at] = u8::try_from(random.next() & 0xff).unwrap();
        }
        message.truncate(
            random
                .below(message.len() + 1)
                .max(random.below(message.len() + 1)),
        );
        if round % 5 == 0 {
            message
                .iter_mut()
                .for_each(|byte| *byte = u8::try_from(random.next() & 0xff).unwrap());
        }
        let order = [Order::Little, Order::Big][round % 2];
        let _any = taken(part, &message, order, *bytes_of_port);
    }
}
