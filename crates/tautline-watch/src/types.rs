//! Types of a port's messages, as its node tells them, in words.

use serde_json::Value;

/// A type as it is declared: `State { position: f64[2], mode: u16 }`. `None` if the node tells none.
#[must_use]
pub fn declaration(told: &Value) -> Option<String> {
    let fields = told["fields"].as_array()?.iter();
    let fields: Vec<&str> = fields.filter_map(Value::as_str).collect();
    let name = told["name"].as_str()?;
    Some(format!("{name} {{ {} }}", fields.join(", ")))
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
    use serde_json::json;

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
