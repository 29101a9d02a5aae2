//! Types of a port's messages and its newest value, as its node tells them, in words.

use serde_json::Value;
use tautline::status::told_type;

use crate::look::NodeFigures;
use crate::peers::peer_name;

/// A type as it is declared: `State { position: f64[2], mode: u16 }`. `None` if the node tells none.
#[must_use]
pub fn declaration(told: &Value) -> Option<String> {
    let fields = told["fields"].as_array()?.iter();
    let fields: Vec<&str> = fields.filter_map(Value::as_str).collect();
    let name = told["name"].as_str()?;
    Some(format!("{name} {{ {} }}", fields.join(", ")))
}

/// The newest value of a typed sampling port: its fields by name, and its sender, by the name that the node has for it.
/// Bytes in hexadecimal where they are not of the type's size. `None` if the node tells none.
#[must_use]
pub(crate) fn newest_value(node: &NodeFigures, port: &Value) -> Option<String> {
    let told = &port["value"];
    let payload = told["payload"].as_str()?;
    let bytes = bytes_of(payload)?;
    let declared = told_type(&port["receives"])?;
    let said = match declared.text(&bytes) {
        Some(fields) => format!("{} {fields}", declared.name()),
        None => format!("not a {}: {payload}", declared.name()),
    };
    let address = told["address"].as_str().unwrap_or_default();
    let from = peer_name(node, address);
    Some(format!("{said}, from {from} port {}", told["port"]))
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8; 2]| u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok();
    pairs
        .iter()
        .map(byte)
        .collect::<Option<_>>()
        .filter(|_| rest.is_empty())
}

/// A sentence for each peer that declares another type than the port.
#[must_use]
pub fn differences(port: &Value) -> Vec<String> {
    let told = port["type_differences"].as_array().into_iter().flatten();
    let sentence = |told: &Value| {
        format!(
            "{} port {} declares another type: {}",
            told["address"].as_str().unwrap_or_default(),
            told["port"],
            told["difference"]
                .as_str()
                .unwrap_or("it has not told which")
        )
    };
    told.map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::Neighbour;
    use serde_json::json;

    #[test]
    fn values_have_names_where_they_are_what_the_type_says() {
        let mut port = json!({
            "receives": {"name": "T", "fields": ["a: u8", "b: i16"], "bytes": 3},
            "value": {"address": "02:0a", "port": 9, "payload": "07ffff"},
        });
        let mut node = NodeFigures::default();
        let value = newest_value(&node, &port);
        assert_eq!(value.as_deref(), Some("T a=7 b=-1, from 02:0a port 9"));
        node.neighbours.push(Neighbour {
            name: "arm".to_owned(),
            mac: Some("02:0a".to_owned()),
            ip: None,
        });
        port["value"]["payload"] = "07".into();
        let value = newest_value(&node, &port);
        assert_eq!(value.as_deref(), Some("not a T: 07, from arm port 9"));
        for wrong in ["7", "0x", "µµ"] {
            port["value"]["payload"] = wrong.into();
            assert_eq!(newest_value(&node, &port), None, "{wrong}");
        }
        assert_eq!(newest_value(&node, &json!({})), None);
    }

    #[test]
    fn types_and_differences_are_told_in_words() {
        let port = json!({
            "receives": {"name": "T", "fields": ["a: u8", "b: f32[3]"], "bytes": 13},
            "sends": null,
            "type_differences": [
                {"address": "arm", "port": 9, "difference": "field `a` is missing there"},
                {"address": "eye", "port": 8, "difference": null},
            ],
        });
        let declared = declaration(&port["receives"]);
        assert_eq!(declared.as_deref(), Some("T { a: u8, b: f32[3] }"));
        assert_eq!(declaration(&port["sends"]), None);
        assert_eq!(
            differences(&port),
            [
                "arm port 9 declares another type: field `a` is missing there",
                "eye port 8 declares another type: it has not told which"
            ]
        );
    }
}
