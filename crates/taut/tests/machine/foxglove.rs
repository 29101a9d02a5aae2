//! `taut serve` as a client of Foxglove's WebSocket protocol sees it.

use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest;
use tungstenite::{Bytes, HandshakeError, Message, WebSocket};

use crate::served_types::{TOKEN, TOPIC_END, with_served};

/// Opens the WebSocket with headers. If it is refused, the status of the answer.
fn connect(
    address: &str,
    query: &str,
    headers: &[(&'static str, &'static str)],
) -> Result<WebSocket<TcpStream>, u16> {
    let url = format!("ws://{address}/foxglove{query}");
    let mut request = url.into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    let stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    match tungstenite::client(request, stream) {
        Ok((socket, _)) => Ok(socket),
        Err(HandshakeError::Failure(tungstenite::Error::Http(answer))) => {
            Err(answer.status().as_u16())
        }
        Err(error) => panic!("{error}"),
    }
}

/// The next message in JSON.
fn told(socket: &mut WebSocket<TcpStream>) -> Value {
    loop {
        if let Message::Text(text) = socket.read().unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

/// The next message in binary.
fn data(socket: &mut WebSocket<TcpStream>) -> Bytes {
    loop {
        if let Message::Binary(bytes) = socket.read().unwrap() {
            return bytes;
        }
    }
}

const NEWEST: (&str, &str) = ("sec-websocket-protocol", "x, foxglove.sdk.v1");
const EARLIER: (&str, &str) = ("sec-websocket-protocol", "foxglove.websocket.v1");

#[test]
fn a_client_of_foxglove_sees_the_values_of_a_typed_port() {
    with_served("foxglove", |address| {
        let own = format!("?token={TOKEN}");
        for (query, headers, status) in [
            ("", &[NEWEST][..], 401),
            ("?token=0123456789abcdee", &[NEWEST], 401),
            (&own, &[], 400),
            (&own, &[NEWEST, ("host", "evil.example")], 421),
        ] {
            let refused = connect(address, query, headers).err();
            assert_eq!(refused, Some(status), "{query} {headers:?}");
        }
        for protocol in [NEWEST, EARLIER] {
            let mut socket = connect(address, &own, &[protocol]).unwrap();
            let info = told(&mut socket);
            assert_eq!(info["op"], "serverInfo");
            assert_eq!(info["capabilities"], json!([]), "read only");
            let channel = loop {
                let told = told(&mut socket);
                let channels = told["channels"].as_array().into_iter().flatten();
                let is_wanted = |channel: &&Value| {
                    let topic = channel["topic"].as_str().unwrap();
                    topic.ends_with(TOPIC_END) && channel["encoding"] == "ros1"
                };
                if let Some(channel) = { channels }.find(is_wanted) {
                    break channel.clone();
                }
            };
            assert_eq!(channel["schemaName"], "tautline/State");
            assert_eq!(channel["schemaEncoding"], "ros1msg");
            assert_eq!(channel["schema"], "float64[2] position\nuint16 mode\n");
            let wanted = json!({
                "op": "subscribe",
                "subscriptions": [{ "id": 77, "channelId": channel["id"] }],
            });
            socket.send(wanted.to_string().into()).unwrap();
            let mut before = 0;
            for _ in 0..3 {
                let bytes = data(&mut socket);
                let (head, value) = bytes.split_at(13);
                assert_eq!(head[..5], [1, 77, 0, 0, 0]);
                let time_ns = u64::from_le_bytes(head[5..].try_into().unwrap());
                assert!(time_ns > before, "messages come in their order");
                before = time_ns;
                let expected = [0.5f64.to_le_bytes(), (-1f64).to_le_bytes()].concat();
                assert_eq!(value, [&expected[..], &[0xff, 0xff]].concat());
            }
            socket.close(None).unwrap();
            while socket.read().is_ok() {}
        }
    });
}
