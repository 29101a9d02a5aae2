//! The live view as a page that updates by itself, and as metrics for Prometheus.
//!
//! The machine is looked at while somebody asks, at most once in an interval; a page that nobody has open costs
//! nothing. The page loads nothing from elsewhere and puts what nodes say into text only.

mod connection;
mod document;
mod guard;
mod metrics;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, LOCATION,
    REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Value, json};
use tautline_testbed::{child, interrupt};
use tokio::sync::Mutex;

use self::connection::BoundedListener;
use self::guard::{COOKIE_NAME, Guard, is_same};
use crate::look::{Look, Wishes};
use crate::row::{Kind, Row, rows};

/// Time between two looks, however many ask. Lower: nodes are asked more often than a page shows. Higher: rates are
/// older.
const INTERVAL: Duration = Duration::from_millis(900);
/// Age of a look beyond which rates are not taken from it: nobody has asked since.
const LOOK_AGE_MAX: Duration = Duration::from_secs(10);
/// Time between two looks at whether the server is to end.
const SIGNAL_WAIT: Duration = Duration::from_millis(100);

/// The page's policy: nothing from elsewhere, nothing inline, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Wishes of whoever starts the server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Names by which the server may be called, beside addresses and `localhost`.
    pub names: Vec<String>,
    /// Token that each request must carry.
    pub token: Option<String>,
    /// Result of a lab run whose verdict is shown.
    pub lab: Option<PathBuf>,
    /// Network namespace whose nodes are shown, if it is another than the one that is listened in.
    pub namespace: Option<Arc<File>>,
}

/// A machine at a moment, with its lines.
#[derive(Debug)]
pub(crate) struct Picture {
    pub(crate) now: Arc<Look>,
    pub(crate) rows: Vec<Row>,
    pub(crate) lab: Value,
}

/// State of the server.
struct Server {
    guard: Guard,
    lab: Option<PathBuf>,
    last: Mutex<Option<Arc<Picture>>>,
    /// Whether somebody has looked into a port since the last look.
    wants_latency: AtomicBool,
}

/// Serves until a signal ends the program. `ready` is told the address.
///
/// # Errors
/// The address cannot be listened on, or the network namespace not entered.
pub fn run(options: Options, ready: impl FnOnce(SocketAddr)) -> io::Result<()> {
    let listener = std::net::TcpListener::bind(options.listen)?;
    listener.set_nonblocking(true)?;
    // The socket stays where it was made. All threads are started from this one, hence in the namespace.
    if let Some(namespace) = &options.namespace {
        child::enter(namespace)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(options, listener, ready))?;
    // A look that is under way is not waited for.
    runtime.shutdown_background();
    Ok(())
}

async fn serve(
    options: Options,
    listener: std::net::TcpListener,
    ready: impl FnOnce(SocketAddr),
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    ready(listener.local_addr()?);
    let server = Arc::new(Server {
        guard: Guard {
            names: options.names,
            token: options.token,
        },
        lab: options.lab,
        last: Mutex::new(None),
        wants_latency: AtomicBool::new(false),
    });
    let router = Router::new()
        .route(
            "/",
            get(|| file("text/html; charset=utf-8", include_str!("view.html"))),
        )
        .route(
            "/view.js",
            get(|| file("text/javascript; charset=utf-8", include_str!("view.js"))),
        )
        .route(
            "/view.css",
            get(|| file("text/css; charset=utf-8", include_str!("view.css"))),
        )
        .route("/look.json", get(look))
        .route("/port.json", get(port))
        .route("/status.json", get(status))
        .route("/metrics", get(metrics))
        .layer(from_fn_with_state(Arc::clone(&server), checked))
        .with_state(server);
    tokio::select! {
        ended = axum::serve(BoundedListener::new(listener), router).into_future() => ended,
        () = interrupted() => Ok(()),
    }
}

async fn interrupted() {
    while interrupt::interrupted().is_none() {
        tokio::time::sleep(SIGNAL_WAIT).await;
    }
}

/// Refuses what is not to be answered, and says how browsers are to treat the rest.
async fn checked(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let mut response = match server.guard.check(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err((StatusCode::UNAUTHORIZED, why)) => match logged_in(&server, &request) {
            Some(response) => response,
            None => (StatusCode::UNAUTHORIZED, why).into_response(),
        },
        Err(refused) => refused.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET"));
    }
    response
}

/// Puts the token of the printed address into a cookie, so that it does not stay in the browser's line.
fn logged_in(server: &Server, request: &Request) -> Option<Response> {
    let token = server.guard.token.as_deref()?;
    let given = request.uri().query()?.strip_prefix("token=")?;
    if request.method() != Method::GET || request.uri().path() != "/" || !is_same(given, token) {
        return None;
    }
    let cookie = format!("{COOKIE_NAME}={token}; Path=/; HttpOnly; SameSite=Strict");
    let headers = [(LOCATION, "/".to_owned()), (SET_COOKIE, cookie)];
    Some((StatusCode::SEE_OTHER, headers).into_response())
}

async fn file(kind: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, kind)], text).into_response()
}

fn as_json(document: &Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], document.to_string()).into_response()
}

impl Server {
    /// The machine now, or as it was a moment ago.
    async fn picture(&self) -> Result<Arc<Picture>, Response> {
        let mut last = self.last.lock().await;
        if let Some(picture) = last
            .as_ref()
            .filter(|picture| picture.now.at.elapsed() < INTERVAL)
        {
            return Ok(Arc::clone(picture));
        }
        let before = last
            .as_ref()
            .filter(|picture| picture.now.at.elapsed() < LOOK_AGE_MAX);
        let before = before.map(|picture| Arc::clone(&picture.now));
        let lab = self.lab.clone();
        let wishes = Wishes {
            latency: self.wants_latency.swap(false, Relaxed),
        };
        let looked = tokio::task::spawn_blocking(move || take(wishes, before, lab)).await;
        match looked.unwrap_or_else(|panicked| Err(io::Error::other(panicked))) {
            Ok(picture) => Ok(Arc::clone(last.insert(Arc::new(picture)))),
            Err(error) => {
                let why = format!("cannot look at the nodes: {error}\n");
                Err((StatusCode::INTERNAL_SERVER_ERROR, why).into_response())
            }
        }
    }
}

fn take(wishes: Wishes, before: Option<Arc<Look>>, lab: Option<PathBuf>) -> io::Result<Picture> {
    let now = Arc::new(Look::take(wishes)?);
    let rows = rows(&now, before.as_deref(), None);
    let lab = lab.map_or(Value::Null, |path| verdict(&path));
    Ok(Picture { now, rows, lab })
}

/// Verdict of a lab run, or why there is none.
fn verdict(path: &std::path::Path) -> Value {
    match tautline_lab::result::LabResult::read(path) {
        Ok(result) => json!({
            "label": result.label,
            "started_unix_s": result.started_unix_s,
            "sentences": result.verdict.map(|verdict| verdict.sentences()),
        }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

async fn look(State(server): State<Arc<Server>>) -> Result<Response, Response> {
    let picture = server.picture().await?;
    Ok(as_json(&document::overview(&picture)))
}

/// Identity of a port in a request.
#[derive(Deserialize)]
struct PortQuery {
    kind: String,
    place: String,
    number: u16,
}

async fn port(
    State(server): State<Arc<Server>>,
    Query(query): Query<PortQuery>,
) -> Result<Response, Response> {
    server.wants_latency.store(true, Relaxed);
    let kind = match query.kind.as_str() {
        "udp-port" => Kind::UdpPort,
        _ => Kind::Port,
    };
    let picture = server.picture().await?;
    match document::port(&picture, kind, &query.place, query.number) {
        Some(document) => Ok(as_json(&document)),
        None => Err((StatusCode::NOT_FOUND, "there is no such port\n").into_response()),
    }
}

async fn status(State(server): State<Arc<Server>>) -> Result<Response, Response> {
    let picture = server.picture().await?;
    let nodes: Vec<&Value> = picture.now.nodes.iter().map(|node| &node.said).collect();
    Ok(as_json(
        &json!({ "nodes": nodes, "silent": picture.now.silent }),
    ))
}

async fn metrics(State(server): State<Arc<Server>>) -> Result<Response, Response> {
    let picture = server.picture().await?;
    let text = metrics::text(&picture).map_err(|error| {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
    })?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}
