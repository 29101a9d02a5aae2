//! Pages for browsers on this machine and others: who is answered, what a browser may do with a page, how many
//! connections there are. The pages themselves are their owners'.

mod connection;
mod guard;
mod peer;
#[cfg(test)]
mod testing;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, LOCATION,
    REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use self::connection::Place;
pub use self::guard::Guard;
use self::guard::is_same;
use self::peer::PeerUsers;

/// Time between two looks at whether the server is to end.
const END_WAIT: Duration = Duration::from_millis(100);

/// The pages' policy: nothing from elsewhere, nothing inline, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Style of the pages: both of a light and a dark screen, of tables and drawings.
pub const STYLE: &str = include_str!("style.css");

/// Socket that is served, and the kernel's knowledge of the users who connect to it. Both are of the network namespace
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

/// Answers on a socket until `ended`. `ready` is told the address.
///
/// # Errors
/// The socket cannot be used.
pub fn serve(
    socket: Socket,
    guard: Guard,
    router: Router,
    ready: impl FnOnce(SocketAddr),
    ended: impl Fn() -> bool,
) -> io::Result<()> {
    let Socket { listener, users } = socket;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let router = router.layer(from_fn_with_state(Arc::new(guard), checked));
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
async fn checked(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let place = request.extensions().get::<Place>().cloned();
    // Without a token, being answered proves nothing.
    let trust = || {
        if let Some(place) = place.filter(|_| guard.token.is_some()) {
            place.trust();
        }
    };
    let mut response = match guard.check(request.method(), request.headers()) {
        Ok(()) => {
            trust();
            next.run(request).await
        }
        Err((StatusCode::UNAUTHORIZED, why)) => match logged_in(&guard, &request) {
            Some(response) => {
                trust();
                response
            }
            None => (StatusCode::UNAUTHORIZED, why).into_response(),
        },
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

/// Puts the token of the printed address into a cookie, so that it does not stay in the browser's line.
fn logged_in(guard: &Guard, request: &Request) -> Option<Response> {
    let token = guard.token.as_deref()?;
    let given = request.uri().query()?.strip_prefix("token=")?;
    if request.method() != Method::GET || request.uri().path() != "/" || !is_same(given, token) {
        return None;
    }
    let cookie = format!(
        "{}={token}; Path=/; HttpOnly; SameSite=Strict",
        guard.cookie
    );
    let headers = [(LOCATION, "/".to_owned()), (SET_COOKIE, cookie)];
    Some((StatusCode::SEE_OTHER, headers).into_response())
}

/// A file of the program.
pub async fn file(kind: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, kind)], text).into_response()
}

/// A document.
pub fn as_json(document: &Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], document.to_string()).into_response()
}
