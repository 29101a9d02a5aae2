//! The live page: who looks, and what was pressed.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::Value;
use tautline_watch::web::{self, CSS, File, Guard, HTML, JAVASCRIPT, Socket, as_json};

use super::{PageSettings, Press, Shared};

/// Largest press.
const PRESS_BYTES_MAX: usize = 256;

/// Files of the page.
const FILES: &[File] = &[
    ("/", HTML, include_str!("live.html")),
    ("/live.js", JAVASCRIPT, include_str!("live.js")),
    ("/live.css", CSS, include_str!("live.css")),
];

/// Answers until `ended`.
pub(super) fn serve(
    socket: Socket,
    settings: &PageSettings,
    facts: Value,
    shared: Arc<Shared>,
    ready: impl FnOnce(SocketAddr),
    ended: impl Fn() -> bool,
) -> io::Result<()> {
    let guard = Guard {
        names: Vec::new(),
        token: Some(settings.token.clone()),
        files: FILES,
        command: "taut flight --live",
        takes_orders: true,
        socket: None,
    };
    let router = Router::new()
        .route("/facts.json", get(move || async move { as_json(&facts) }))
        .route("/flight.json", get(flight))
        .route("/picture", get(picture))
        .route("/press", post(press))
        .layer(DefaultBodyLimit::max(PRESS_BYTES_MAX))
        .with_state(shared);
    web::serve(socket, guard, router, ready, ended)
}

async fn flight(State(shared): State<Arc<Shared>>) -> Response {
    let document = shared.document.lock();
    as_json(&document.unwrap_or_else(PoisonError::into_inner))
}

async fn picture(State(shared): State<Arc<Shared>>) -> Response {
    let picture = shared.picture.lock();
    let bytes = picture.unwrap_or_else(PoisonError::into_inner).clone();
    ([(CONTENT_TYPE, "application/octet-stream")], bytes).into_response()
}

async fn press(State(shared): State<Arc<Shared>>, bytes: Bytes) -> Response {
    let press = match Press::read(&bytes) {
        Ok(press) => press,
        Err(why) => return (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
    };
    let presses = shared.presses.lock();
    match presses.unwrap_or_else(PoisonError::into_inner).send(press) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "nothing flies any more\n").into_response(),
    }
}
