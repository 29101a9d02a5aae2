//! WebSockets (RFC 6455): the answer to a request for one, and the connection afterwards.

use std::time::Duration;

use axum::extract::Request;
use axum::http::header::{
    CONNECTION, HeaderName, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::connection::Place;

/// Connection of a browser or program, as a WebSocket.
pub(crate) type Connection = WebSocketStream<TokioIo<Upgraded>>;

/// Version of the protocol that there is.
const VERSION: &str = "13";
/// Bytes that are collected before they are written. Lower: more system calls. Higher: more memory of each connection.
const WRITE_BUFFER_BYTES: usize = 16 << 10;
/// Time for the answer to a request. A peer that does not read it has no need of the connection.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);

/// Answers a request for a WebSocket of one of these protocols, the preferred one first. `work` then has the
/// connection, which keeps its place among the others. Longer messages than `message_bytes_max` end it.
pub(crate) fn accept<F: Future<Output = ()> + Send>(
    mut request: Request,
    protocols: &[&'static str],
    message_bytes_max: usize,
    work: impl FnOnce(Connection) -> F + Send + 'static,
) -> Response {
    let headers = request.headers();
    let key = headers.get(SEC_WEBSOCKET_KEY);
    let key = key.map(|key| derive_accept_key(key.as_bytes()));
    let (Some(key), true, true) = (
        key,
        lists(headers, &CONNECTION, "upgrade"),
        lists(headers, &UPGRADE, "websocket"),
    ) else {
        let why = "this address is for WebSockets\n";
        let head = [(CONNECTION, "upgrade"), (UPGRADE, "websocket")];
        return (StatusCode::UPGRADE_REQUIRED, head, why).into_response();
    };
    if !lists(headers, &SEC_WEBSOCKET_VERSION, VERSION) {
        let head = [(SEC_WEBSOCKET_VERSION, VERSION)];
        return (StatusCode::BAD_REQUEST, head).into_response();
    }
    let mut common = protocols.iter();
    let common = common.find(|protocol| lists(headers, &SEC_WEBSOCKET_PROTOCOL, protocol));
    let Some(protocol) = common else {
        let why = format!("offer one of the protocols {}\n", protocols.join(", "));
        return (StatusCode::BAD_REQUEST, why).into_response();
    };
    let Some(place) = request.extensions().get::<Place>().cloned() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let upgraded = hyper::upgrade::on(&mut request);
    place.continue_with(async move {
        if let Ok(Ok(upgraded)) = timeout(HANDSHAKE_TIME_MAX, upgraded).await {
            let config = WebSocketConfig::default()
                .write_buffer_size(WRITE_BUFFER_BYTES)
                .max_message_size(Some(message_bytes_max))
                .max_frame_size(Some(message_bytes_max));
            let stream = TokioIo::new(upgraded);
            work(WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await).await;
        }
    });
    let head = [
        (CONNECTION, "upgrade"),
        (UPGRADE, "websocket"),
        (SEC_WEBSOCKET_ACCEPT, key.as_str()),
        (SEC_WEBSOCKET_PROTOCOL, protocol),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, head).into_response()
}

/// Whether a header has a word among others.
fn lists(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let mut words = headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    words.any(|given| given.trim().eq_ignore_ascii_case(word))
}
