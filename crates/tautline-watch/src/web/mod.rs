//! Pages for browsers on this machine and others: access, permitted requests, number of connections. Other modules
//! have the pages themselves.

mod connection;
mod guard;
mod peer;
#[cfg(test)]
mod testing;
pub(crate) mod websocket;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::Value;

use self::connection::Place;
pub use self::guard::{Guard, WebSocket};
use self::peer::PeerUsers;

/// Time between two looks at whether the server is to end.
const END_WAIT: Duration = Duration::from_millis(100);

/// The pages' policy: nothing from elsewhere, nothing inline, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// File of a page: path, type and text.
pub type File = (&'static str, &'static str, &'static str);

/// Type of pages.
pub const HTML: &str = "text/html; charset=utf-8";
/// Type of scripts.
pub const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
/// Type of styles.
pub const CSS: &str = "text/css; charset=utf-8";

/// Files of every page: its requests, and the style of a light and a dark screen, of tables and drawings.
const SHARED: &[File] = &[
    ("/session.js", JAVASCRIPT, include_str!("session.js")),
    ("/style.css", CSS, include_str!("style.css")),
];

/// Bytes of a token; twice as many characters.
const TOKEN_BYTES: usize = 16;

/// Socket that is served, and the kernel's table of the users that connect to it. Both are of the network namespace
/// in which they were made.
#[derive(Debug)]
pub struct Socket {
    listener: TcpListener,
    users: Option<PeerUsers>,
}

impl Socket {
    /// Listens on an address.
    ///
    /// # Errors
    /// It cannot be listened on.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let users = PeerUsers::open(listener.local_addr()?);
        Ok(Self { listener, users })
    }
}

/// An unpredictable token.
///
/// # Errors
/// The kernel gives no random bytes.
pub fn new_token() -> io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? {
        TOKEN_BYTES => Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Answers on a socket until `ended`: with the files of the guard, and with `router`. `ready` is told the address.
///
/// # Errors
/// The socket cannot be used, or the kernel gives no random bytes.
pub fn serve(
    socket: Socket,
    guard: Guard,
    mut router: Router,
    ready: impl FnOnce(SocketAddr),
    ended: impl Fn() -> bool,
) -> io::Result<()> {
    let Socket { listener, users } = socket;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    for &(path, kind, text) in guard.files.iter().chain(SHARED) {
        router = router.route(
            path,
            get(move || async move { ([(CONTENT_TYPE, kind)], text) }),
        );
    }
    let session = new_token()?;
    let told = session.clone();
    let router = router.route("/session", get(move || async move { told }));
    let router = router.layer(from_fn_with_state(Arc::new((guard, session)), checked));
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        ready(listener.local_addr()?);
        tokio::select! {
            never = connection::serve(listener, users, router) => match never {},
            () = until(ended) => io::Result::Ok(()),
        }
    })?;
    // An answer that is under way is not waited for.
    runtime.shutdown_background();
    Ok(())
}

async fn until(ended: impl Fn() -> bool) {
    while !ended() {
        tokio::time::sleep(END_WAIT).await;
    }
}

/// Refuses what is not to be answered, and says how browsers are to treat the rest.
async fn checked(
    State(admission): State<Arc<(Guard, String)>>,
    request: Request,
    next: Next,
) -> Response {
    let (guard, session) = &*admission;
    let at = (request.method(), request.uri());
    let mut response = match guard.check(session, at, request.headers()) {
        Ok(is_shown) => {
            if let Some(place) = request.extensions().get::<Place>().filter(|_| is_shown) {
                place.trust();
            }
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if response.status() == StatusCode::METHOD_NOT_ALLOWED
        && !response.headers().contains_key(ALLOW)
    {
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET"));
    }
    response
}

/// A document.
pub fn as_json(document: &Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], document.to_string()).into_response()
}
