//! The live view as a page that updates by itself, as metrics for Prometheus, and messages as Foxglove shows them.
//!
//! The machine is read on request, at most once in an interval; a page that is not open costs
//! nothing. The page loads nothing from elsewhere and puts what nodes say into text only.

mod document;
mod foxglove;
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
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Value, json};
use tautline_state::{enter_network_namespace, interrupt};
use tokio::sync::Mutex;

use self::foxglove::Hub;
use crate::look::{Look, Wishes};
use crate::row::{Kind, Row, rows};
use crate::web::{self, File as PageFile, Guard, HTML, JAVASCRIPT, as_json};

/// Time between two looks, however many ask. Lower: nodes are asked more often than a page shows. Higher: rates are
/// older.
const INTERVAL: Duration = Duration::from_millis(900);
/// Age of a look beyond which rates are not taken from it: there was no request since.
const LOOK_AGE_MAX: Duration = Duration::from_secs(10);
/// Files of the page.
const FILES: &[PageFile] = &[
    ("/", HTML, include_str!("view.html")),
    ("/view.js", JAVASCRIPT, include_str!("view.js")),
];

/// Options of the server.
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
    /// Fleet whose cells are shown, too.
    pub fleet: Option<FleetSource>,
}

/// Source of the cells of a fleet at this moment: a document that is cleaned already.
#[derive(Clone)]
pub struct FleetSource(Arc<dyn Fn() -> Value + Send + Sync>);

impl FleetSource {
    /// A function that returns the newest picture and never waits.
    pub fn new(newest: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        Self(Arc::new(newest))
    }
}

impl std::fmt::Debug for FleetSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("FleetSource")
    }
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
    lab: Option<PathBuf>,
    fleet: Option<FleetSource>,
    last: Arc<Mutex<Option<Arc<Picture>>>>,
    /// Whether a client has opened a port's details since the last look.
    wants_latency: AtomicBool,
    viewers: Arc<Hub>,
}

/// Serves until a signal ends the program. `ready` is told the address.
///
/// # Errors
/// The address cannot be listened on, or the network namespace not entered.
pub fn run(options: Options, ready: impl FnOnce(SocketAddr)) -> io::Result<()> {
    let socket = web::Socket::bind(options.listen)?;
    // The socket stays where it was made. All threads are started from this one, hence in the namespace.
    if let Some(namespace) = &options.namespace {
        enter_network_namespace(namespace)?;
    }
    let guard = Guard {
        names: options.names,
        token: options.token,
        files: FILES,
        command: "taut serve",
        takes_orders: false,
        socket: Some(foxglove::SOCKET),
    };
    let ended = || interrupt::interrupted().is_some();
    web::serve(
        socket,
        guard,
        router(options.lab, options.fleet, web::new_token()?),
        ready,
        ended,
    )
}

fn router(lab: Option<PathBuf>, fleet: Option<FleetSource>, session: String) -> Router {
    let server = Server {
        lab,
        fleet,
        last: Arc::default(),
        wants_latency: AtomicBool::new(false),
        viewers: Hub::new(session),
    };
    Router::new()
        .route("/look.json", get(look))
        .route("/port.json", get(port))
        .route("/fleet.json", get(cells))
        .route("/status.json", get(status))
        .route("/metrics", get(metrics))
        .route(foxglove::SOCKET.path, get(viewer))
        .with_state(Arc::new(server))
}

impl Server {
    /// The machine now, or as it was a moment ago.
    async fn picture(&self) -> Result<Arc<Picture>, Response> {
        let mut last = Arc::clone(&self.last).lock_owned().await;
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
            only: None,
        };
        // The look has the lock: if no request waits for it any more, it is kept all the same, and no other runs.
        let look = move || -> io::Result<_> {
            let picture = take(wishes, before, lab)?;
            Ok(Arc::clone(last.insert(Arc::new(picture))))
        };
        let looked = tokio::task::spawn_blocking(look).await;
        let looked = looked.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
        looked.map_err(|error| {
            let why = format!("cannot look at the nodes: {error}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
        })
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
    match tautline_machine::verdict::Judged::read(path) {
        Ok(result) => json!({
            "label": result.label,
            "started_unix_s": result.started_unix_s,
            "sentences": result.verdict.map(|verdict| verdict.sentences()),
        }),
        Err(error) => json!({ "error": error }),
    }
}

/// The cells of the fleet; null without one.
async fn cells(State(server): State<Arc<Server>>) -> Response {
    as_json(
        &server
            .fleet
            .as_ref()
            .map_or(Value::Null, |fleet| (fleet.0)()),
    )
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
        "raw-port" => Kind::RawPort,
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

async fn viewer(State(server): State<Arc<Server>>, request: Request) -> Response {
    foxglove::answer(request, &server.viewers)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_look_that_nobody_waits_for_any_more_is_kept_and_none_runs_beside_it() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let _inside = runtime.enter();
        let server = Server {
            lab: None,
            fleet: None,
            last: Arc::default(),
            wants_latency: AtomicBool::new(false),
            viewers: Hub::new("session".to_owned()),
        };
        {
            let mut asked = pin!(server.picture());
            let polled = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "the look takes a moment");
        }
        let is_free = server.last.try_lock().is_ok_and(|last| last.is_none());
        assert!(!is_free, "another look may begin beside it");
        let last = runtime.block_on(server.last.lock());
        assert!(last.is_some(), "it was for nothing");
    }
}
