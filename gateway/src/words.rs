//! Words of both sides for the same: priorities, and types of messages.

use std::sync::Arc;

use tautline::Priority;
use tautline::types::Declaration;
use zenoh::bytes::Encoding;
use zenoh::qos;

/// Beginning of the schema in an encoding that names a type.
const SCHEMA: &str = "tautline/";

/// Zenoh's priorities, by ours: it has seven for eight, so the two lowest share one.
const PRIORITIES: [qos::Priority; 8] = [
    qos::Priority::Background,
    qos::Priority::Background,
    qos::Priority::DataLow,
    qos::Priority::Data,
    qos::Priority::DataHigh,
    qos::Priority::InteractiveLow,
    qos::Priority::InteractiveHigh,
    qos::Priority::RealTime,
];

/// Priority in Zenoh of a message of a port.
pub(crate) fn to_zenoh(priority: Priority) -> qos::Priority {
    PRIORITIES[priority.index()]
}

/// Priority of a message of Zenoh in the cell.
pub(crate) fn from_zenoh(priority: qos::Priority) -> Priority {
    let place = PRIORITIES.iter().position(|one| *one == priority);
    let number = place.and_then(|place| u8::try_from(place).ok());
    number.and_then(Priority::new).unwrap_or(Priority::LOWEST)
}

/// Encoding of the values of a port: bytes, with the name and the number of their type if it is declared.
pub(crate) fn encoding(declared: Option<&Arc<Declaration>>) -> Encoding {
    match declared {
        None => Encoding::APPLICATION_OCTET_STREAM,
        Some(declared) => {
            let schema = format!(
                "{SCHEMA}{}/{:016x}",
                declared.name(),
                declared.fingerprint()
            );
            Encoding::APPLICATION_OCTET_STREAM.with_schema(schema)
        }
    }
}

/// Whether an encoding names a type that is not the one of `expected`. One that names none does not.
pub(crate) fn is_other_type(found: &Encoding, expected: &Encoding) -> bool {
    // Only one that differs is looked into.
    found != expected && found.to_string().contains(&format!(";{SCHEMA}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_come_back_but_for_the_lowest_two() {
        for priority in Priority::ALL {
            let back = from_zenoh(to_zenoh(priority));
            assert!(back == priority || (priority.get() == 1 && back == Priority::LOWEST));
        }
    }

    #[test]
    fn types_are_told_apart_and_plain_bytes_are_no_other_type() {
        let declared = |fields: [&str; 1]| {
            encoding(Some(&Arc::new(Declaration::new("State", fields).unwrap())))
        };
        let (one, other) = (declared(["a: f64"]), declared(["a: f32[2]"]));
        assert!(
            one.to_string()
                .starts_with("application/octet-stream;tautline/State/")
        );
        assert!(is_other_type(&other, &one));
        assert!(!is_other_type(&one, &one));
        assert!(!is_other_type(&encoding(None), &one));
        assert!(is_other_type(&one, &encoding(None)));
    }
}
