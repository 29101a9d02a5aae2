//! Messages of this machine for Foxglove, by its WebSocket protocol: channels, their schemas, subscriptions, data.
//!
//! The channels are those of a recording, and so are the copies: the taps run while a client is connected, and no
//! program waits for a client. Nothing is taken from clients: neither messages nor parameters nor calls.

mod client;
mod hub;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::response::Response;
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{interval, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use self::client::{Client, Level, status};
pub(super) use self::hub::Hub;
use crate::web::WebSocket;
use crate::web::websocket::accept;

/// Where it is. Without a token, pages of Foxglove's own server may open it beside programs.
pub(super) const SOCKET: WebSocket = WebSocket {
    path: "/foxglove",
    origins: &["https://app.foxglove.dev"],
};

/// Names of the protocol, now and earlier. What is sent here is the same in both.
const PROTOCOLS: [&str; 2] = ["foxglove.sdk.v1", "foxglove.websocket.v1"];

/// Longest message of a client. Lower: a subscription to all channels at once is refused. Higher: each connection may
/// take more memory.
const REQUEST_BYTES_MAX: usize = 128 << 10;
/// Time in which a client must take one message. Lower: a client on a bad network is cut off. Higher: one that reads no
/// more keeps its place for longer.
const STALL_MAX: Duration = Duration::from_secs(30);
/// Time between two looks at a connection, at which the messages that are missing are reported, too.
const TICK: Duration = Duration::from_secs(1);
/// Time of silence after which a client is pinged, again each [`TICK`].
const QUIET_MAX: Duration = Duration::from_secs(15);
/// Time of silence after which a client is given up: it is gone without a word.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// Longest time of writing before requests are read again.
const TURN_MAX: Duration = Duration::from_millis(250);

/// Request of a client.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "camelCase")]
enum Asked {
    Subscribe {
        subscriptions: Vec<Subscription>,
    },
    Unsubscribe {
        #[serde(rename = "subscriptionIds")]
        subscription_ids: Vec<u32>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subscription {
    id: u32,
    channel_id: u32,
}

/// Answers a request for the WebSocket.
pub(super) fn answer(request: Request, hub: &Arc<Hub>) -> Response {
    let hub = Arc::clone(hub);
    accept(request, &PROTOCOLS, REQUEST_BYTES_MAX, |socket| {
        talk(socket, hub)
    })
}

/// Serves a client until it leaves, or is given up.
async fn talk<S: AsyncRead + AsyncWrite + Unpin>(mut socket: WebSocketStream<S>, hub: Arc<Hub>) {
    let joined = hub.join();
    let client = &*joined.client;
    let mut heard = Instant::now();
    let mut tick = interval(TICK);
    loop {
        tokio::select! {
            // Requests and answers are read before the silence is judged.
            biased;
            received = socket.next() => {
                let Some(Ok(message)) = received else { break };
                heard = Instant::now();
                take(message, &hub, client);
            }
            _ = tick.tick() => {
                if heard.elapsed() >= SILENCE_MAX {
                    break;
                }
                if heard.elapsed() >= QUIET_MAX {
                    client.tell(Message::Ping(Bytes::new()));
                }
                client.report();
            }
            () = client.woken() => {}
        }
        if write(&mut socket, client).await.is_none() {
            break;
        }
    }
    let _gone = timeout(TICK, socket.close(None)).await;
}

/// Writes messages that wait for the client, for a while; `None` if it is to be given up.
async fn write<S>(socket: &mut WebSocketStream<S>, client: &Client) -> Option<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let begin = Instant::now();
    while let Some(message) = client.next()? {
        timeout(STALL_MAX, socket.feed(message)).await.ok()?.ok()?;
        if begin.elapsed() >= TURN_MAX {
            client.wake();
            break;
        }
    }
    timeout(STALL_MAX, socket.flush()).await.ok()?.ok()
}

/// Takes a message of a client.
fn take(message: Message, hub: &Hub, client: &Client) {
    let text = match message {
        Message::Text(text) => text,
        Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => return,
        Message::Binary(_) => return client.tell(status(Level::Error, READ_ONLY)),
    };
    match serde_json::from_str(&text) {
        Ok(Asked::Subscribe { subscriptions }) => {
            for Subscription { id, channel_id } in subscriptions {
                if let Err(why) = hub.subscribe(client, id, channel_id) {
                    client.tell(status(Level::Error, why));
                }
            }
        }
        Ok(Asked::Unsubscribe { subscription_ids }) => {
            subscription_ids
                .into_iter()
                .for_each(|id| client.unsubscribe(id));
        }
        Ok(Asked::Other) => client.tell(status(Level::Error, READ_ONLY)),
        Err(_) => client.tell(status(Level::Error, "this request is malformed")),
    }
}

const READ_ONLY: &str = "this server is read only: it takes `subscribe` and `unsubscribe`";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::DuplexStream;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::client::QUEUE_BYTES_MAX;
    use super::hub::testing::{of_type, publish};
    use super::*;

    type Viewer = WebSocketStream<DuplexStream>;

    /// Runs a viewer's side of a connection over a pipe of a few bytes.
    fn with_viewer(view: impl AsyncFnOnce(&Hub, &mut Viewer)) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let hub = Hub::without_capture("session");
            let (own, other) = tokio::io::duplex(1024);
            let own = WebSocketStream::from_raw_socket(own, Role::Server, None).await;
            let mut viewer = WebSocketStream::from_raw_socket(other, Role::Client, None).await;
            let talking = talk(own, Arc::clone(&hub));
            let viewing = async {
                view(&hub, &mut viewer).await;
                viewer.close(None).await.unwrap();
                while let Some(Ok(_)) = viewer.next().await {}
            };
            timeout(Duration::from_secs(60), async {
                tokio::join!(talking, viewing)
            })
            .await
            .unwrap();
            assert_eq!(hub.clients(), 0, "it has left");
        });
    }

    async fn text(viewer: &mut Viewer) -> Value {
        loop {
            if let Message::Text(text) = viewer.next().await.unwrap().unwrap() {
                return serde_json::from_str(&text).unwrap();
            }
        }
    }

    async fn ask(viewer: &mut Viewer, request: Value) {
        viewer.send(request.to_string().into()).await.unwrap();
    }

    #[test]
    fn a_channel_is_advertised_and_its_messages_come_by_subscription() {
        with_viewer(async |hub, viewer| {
            let info = text(viewer).await;
            assert_eq!(
                (&info["op"], &info["capabilities"]),
                (&json!("serverInfo"), &json!([]))
            );
            assert_eq!(
                text(viewer).await,
                json!({"op": "advertise", "channels": []})
            );
            publish(hub, &of_type("T { a: u8 }"), 1, &[7]);
            let advertised = text(viewer).await;
            let channel = &advertised["channels"][0];
            assert_eq!(channel["encoding"], "ros1");
            assert_eq!(
                (&channel["schemaName"], &channel["schema"]),
                (&json!("tautline/T"), &json!("uint8 a\n"))
            );
            let id = &channel["id"];
            let wanted = json!({"op": "subscribe", "subscriptions": [{"id": 5, "channelId": id}, {"id": 6, "channelId": id}, {"id": 7, "channelId": 99}]});
            ask(viewer, wanted).await;
            for why in ["subscribed", "no channel"] {
                let told = text(viewer).await;
                assert!(told["message"].as_str().unwrap().contains(why), "{told}");
            }
            // Too long for the type, then right, then of another type, which is another channel.
            publish(hub, &of_type("T { a: u8 }"), 2, &[8, 8]);
            publish(hub, &of_type("T { a: u8 }"), 3, &[9]);
            let data = viewer.next().await.unwrap().unwrap().into_data();
            assert_eq!(data[..], [1, 5, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9]);
            publish(hub, &of_type("U { a: i8 }"), 4, &[9]);
            assert_eq!(
                text(viewer).await,
                json!({"op": "unadvertise", "channelIds": [id]})
            );
            let other = &text(viewer).await["channels"][0];
            assert_eq!(other["schemaName"], "tautline/U");
            assert_ne!(&other["id"], id);
            for refused in [
                json!({"op": "advertise", "channels": []}),
                json!({"op": "getParameters"}),
                json!(3),
            ] {
                ask(viewer, refused.clone()).await;
                let told = text(viewer).await;
                assert_eq!(
                    (&told["op"], &told["level"]),
                    (&json!("status"), &json!(2)),
                    "{refused}"
                );
            }
            viewer
                .send(Message::Binary(Bytes::from_static(&[1, 0, 0])))
                .await
                .unwrap();
            assert_eq!(text(viewer).await["level"], 2);
        });
    }

    #[test]
    fn a_client_that_does_not_read_loses_messages_and_is_told_how_many() {
        with_viewer(async |hub, viewer| {
            publish(hub, &of_type("T { a: u8[1000] }"), 1, &[7; 1000]);
            let channel = loop {
                let told = text(viewer).await;
                if let Some(id) = told["channels"][0]["id"].as_u64() {
                    break id;
                }
            };
            let wanted =
                json!({"op": "subscribe", "subscriptions": [{"id": 5, "channelId": channel}]});
            ask(viewer, wanted).await;
            while hub.subscriptions() == 0 {
                tokio::task::yield_now().await;
            }
            let count = 2 * QUEUE_BYTES_MAX as u64 / 1000;
            for number in 0..count {
                publish(hub, &of_type("T { a: u8[1000] }"), number, &[7; 1000]);
            }
            let (mut came, mut missing) = (0, 0);
            while came + missing < count {
                match viewer.next().await.unwrap().unwrap() {
                    Message::Binary(_) => came += 1,
                    Message::Text(text) => {
                        let told: Value = serde_json::from_str(&text).unwrap();
                        let said = told["message"].as_str().unwrap();
                        missing += said.split(' ').next().unwrap().parse::<u64>().unwrap();
                    }
                    _ => {}
                }
            }
            assert!(missing >= count / 4, "{came} came, {missing} are missing");
        });
    }
}
