//! A client library of Foxglove's own, from npm, at `taut serve`: it connects, subscribes, and reads the values by the
//! schema that came with the channel.

use serde_json::{Value, json};

use crate::common::text;
use crate::served_types::{TOKEN, TOPIC_END, with_served};
use crate::typed::node_script;

const CLIENT: &str = r#"
import ws_protocol from "@foxglove/ws-protocol";
import { parse } from "@foxglove/rosmsg";
import { MessageReader } from "@foxglove/rosmsg-serialization";
import WebSocket from "ws";
const { FoxgloveClient } = ws_protocol;
const [url, topicEnd] = process.argv.slice(2);
const client = new FoxgloveClient({ ws: new WebSocket(url, [FoxgloveClient.SUPPORTED_SUBPROTOCOL]) });
const readers = new Map();
const found = [];
let info;
client.on("error", (error) => { console.error(String(error)); process.exit(1); });
client.on("serverInfo", (told) => { info = told; });
client.on("advertise", (channels) => {
    for (const channel of channels) {
        if (channel.topic.endsWith(topicEnd) && channel.encoding === "ros1") {
            readers.set(client.subscribe(channel.id), new MessageReader(parse(channel.schema)));
        }
    }
});
client.on("message", ({ subscriptionId, timestamp, data }) => {
    const fields = readers.get(subscriptionId).readMessage(data);
    found.push({ age_s: Math.abs(Date.now() / 1e3 - Number(timestamp) / 1e9),
                 position: [...fields.position], mode: fields.mode });
    if (found.length === 5) {
        console.log(JSON.stringify({ name: info.name, found }));
        client.close();
    }
});
client.on("close", () => process.exit(found.length >= 5 ? 0 : 1));
setTimeout(() => { console.error("nothing came"); process.exit(1); }, 60000);
"#;

#[test]
fn the_client_library_of_foxglove_reads_typed_values() {
    let packages = [
        "@foxglove/ws-protocol@0.8.0",
        "@foxglove/rosmsg@5.0.5",
        "@foxglove/rosmsg-serialization@2.0.4",
        "ws@8.23.0",
    ];
    let Some(mut client) = node_script("foxglove-client", &packages, CLIENT) else {
        return;
    };
    with_served("foxglove-client", |address| {
        client.arg(format!("ws://{address}/foxglove?token={TOKEN}"));
        let output = client.arg(TOPIC_END).output().unwrap();
        let (said, complaints) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{said}{complaints}");
        let told: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(told["name"], "taut serve");
        let found = told["found"].as_array().unwrap();
        assert_eq!(found.len(), 5);
        for value in found {
            assert_eq!(value["mode"], 65_535);
            let position = [0, 1].map(|place| value["position"][place].as_f64());
            assert_eq!(position, [Some(0.5), Some(-1.0)], "{}", json!(found));
            assert!(
                value["age_s"].as_f64().unwrap() < 60.0,
                "seconds since 1970"
            );
        }
    });
}
