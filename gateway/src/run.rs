//! A running gateway: its ports, its session, its threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tautline::{Instant, QueuingPort, now};
use tautline_bridge::activity::Activity;
use tautline_bridge::destinations::look;
use tautline_bridge::port::Port;
use tautline_bridge::program::{Failure, join, say, start};
use tautline_bridge::standby::{LastShown, Votes, open_node, process_number};
use tautline_bridge::status::{self, Standing};
use zenoh::sample::SampleKind;
use zenoh::{Session, Wait};

use crate::config::Config;
use crate::fleet;
use crate::publication::{Declared, Outbound};
use crate::request::{Answering, Asking, Waiting};
use crate::status::{FAMILY, GatewayStatus};
use crate::subscription::Inbound;

/// Time between two looks at connections and declarations.
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// Pause before another attempt to open the session.
const SESSION_PAUSE: Duration = Duration::from_secs(1);
/// Gateways below the same prefix that are remembered. Lower: fewer are shown. Higher: a hostile participant takes more
/// memory.
const NEIGHBOURS_MAX: usize = 64;

/// A thread, and how it ended.
type Thread = thread::JoinHandle<Result<(), Failure>>;

/// State that the threads share.
struct Shared {
    name: String,
    prefix: String,
    activity: Arc<Activity>,
    shown: LastShown,
    connections: AtomicUsize,
    /// Cell and process of each gateway below the prefix.
    neighbours: Mutex<Vec<(u64, u64)>>,
    outbound: Vec<Arc<Outbound>>,
    inbound: Vec<Arc<Inbound>>,
    answering: Vec<Arc<Answering>>,
    asking: Vec<Arc<Asking>>,
}

impl Shared {
    fn status(&self) -> GatewayStatus {
        let shown = self.shown.last();
        let neighbours = self
            .neighbours
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let cell = self.activity.cell();
        GatewayStatus {
            name: self.name.clone(),
            prefix: self.prefix.clone(),
            standing: Standing::now(&self.activity, shown),
            gateways_standing_by: shown.others,
            foreign_gateways: neighbours
                .iter()
                .filter(|(other, _)| *other != cell)
                .count(),
            connections: self.connections.load(Relaxed),
            publications: self.outbound.iter().map(|one| one.status()).collect(),
            subscriptions: self.inbound.iter().map(|one| one.status()).collect(),
            answers: self.answering.iter().map(|one| one.status()).collect(),
            asks: self.asking.iter().map(|one| one.status()).collect(),
        }
    }
}

/// Runs a gateway until `stop` is set.
///
/// # Errors
/// Its node or one of its ports cannot be opened, or Zenoh refuses a declaration.
pub(crate) fn run(config: Config, stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let gateway = process_number()?;
    let own_key = config.own_key();
    let program = format!("gateway {}", config.name);
    let node = open_node(&program, config.node, config.standby.as_ref())?;
    let activity = Arc::new(Activity::new(gateway));
    let mut ports = Vec::new();
    let mut outbound = Vec::new();
    for publication in config.publications {
        ports.push(Port::open(&node, &publication.port)?);
        outbound.push(Outbound::new(publication, Arc::clone(&activity)));
    }
    let mut inbound = Vec::new();
    for subscription in config.subscriptions {
        let port = Port::open(&node, &subscription.port)?;
        inbound.push(Inbound::new(subscription, port, Arc::clone(&activity)));
    }
    let queue = |port: &tautline::config::PortConfig| node.queuing(&port.name).open();
    let (mut answering, mut asking) = (Vec::new(), Vec::new());
    let (mut answering_ports, mut asking_ports) = (Vec::new(), Vec::new());
    for answer in config.answers {
        let port = queue(&answer.port)?;
        let (one, waiting) = Answering::new(answer, Arc::clone(&activity));
        answering_ports.push((port, waiting));
        answering.push(one);
    }
    for ask in config.asks {
        asking_ports.push(queue(&ask.port)?);
        asking.push(Asking::new(ask, Arc::clone(&activity)));
    }
    let shared = Arc::new(Shared {
        answering,
        asking,
        shown: LastShown::new(program, "connecting"),
        name: config.name,
        prefix: config.prefix,
        activity,
        connections: AtomicUsize::new(0),
        neighbours: Mutex::new(Vec::new()),
        outbound,
        inbound,
    });
    let telling = Arc::clone(&shared);
    let status = status::tell(FAMILY, Arc::clone(stop), move || telling.status())?;
    say(&format!("gateway {}: connecting", shared.name));
    let Some(session) = open_session(&config.zenoh, &shared.name, stop) else {
        return Ok(());
    };
    let votes = match &config.standby {
        Some(standby) => Some(Votes::open(&node, standby, gateway, Duration::ZERO)?),
        None => None,
    };
    let election = start("election", stop, {
        let (shared, stop) = (Arc::clone(&shared), Arc::clone(stop));
        move || decide(votes, &shared, &stop)
    })?;
    let destinations = start("destinations", stop, {
        let (shared, stop) = (Arc::clone(&shared), Arc::clone(stop));
        move || {
            let all = shared.inbound.iter().map(|one| one.destinations());
            look(&all.collect::<Vec<_>>(), &stop);
            Ok(())
        }
    })?;
    let mut threads = vec![election, destinations];
    if let Some(settings) = config.fleet {
        let (shared, session, ending) = (Arc::clone(&shared), session.clone(), Arc::clone(stop));
        threads.push(start("fleet", stop, move || {
            let id = fleet::Id {
                prefix: shared.prefix.clone(),
                gateway: shared.name.clone(),
                number: gateway,
            };
            fleet::tell::run(&session, &settings, id, || shared.status(), &ending)
        })?);
    }
    for (port, outbound) in ports.into_iter().zip(&shared.outbound) {
        let (outbound, session) = (Arc::clone(outbound), session.clone());
        let ending = Arc::clone(stop);
        threads.push(start("publication", stop, move || {
            outbound.run(port, &session, &ending)
        })?);
    }
    threads.extend(requests(
        &shared,
        (answering_ports, asking_ports),
        &session,
        stop,
    )?);
    let kept = keep_house(&session, &shared, &own_key, stop);
    stop.store(true, Relaxed);
    let ended = threads.into_iter().map(join);
    let ended = ended.fold(kept, |before, ended| before.and(ended));
    let ended = ended.and(tautline_bridge::status::end(status));
    session.close().wait()?;
    ended
}

/// Starts the threads of requests, with their ports and the queries that wait.
fn requests(
    shared: &Shared,
    (answering, asking): (Vec<(QueuingPort, Receiver<Waiting>)>, Vec<QueuingPort>),
    session: &Session,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<Thread>, Failure> {
    let mut threads = Vec::new();
    for ((port, waiting), one) in answering.into_iter().zip(&shared.answering) {
        let (one, ending) = (Arc::clone(one), Arc::clone(stop));
        threads.push(start("answer", stop, move || {
            one.run(port, &waiting, &ending)
        })?);
    }
    for (port, one) in asking.into_iter().zip(&shared.asking) {
        let (one, ending, session) = (Arc::clone(one), Arc::clone(stop), session.clone());
        threads.push(start("ask", stop, move || {
            one.run(port, &session, &ending)
        })?);
    }
    Ok(threads)
}

/// Opens the session, as often as it takes: a router may start later.
fn open_session(config: &zenoh::Config, name: &str, stop: &AtomicBool) -> Option<Session> {
    let mut said = false;
    while !stop.load(Relaxed) {
        match zenoh::open(config.clone()).wait() {
            Ok(session) => return Some(session),
            Err(error) if !said => {
                say(&format!(
                    "gateway {name}: no session yet, will try again: {error}"
                ));
                said = true;
            }
            Err(_) => {}
        }
        thread::sleep(SESSION_PAUSE);
    }
    None
}

/// Decides again and again whether this gateway is active.
fn decide(votes: Option<Votes>, shared: &Shared, stop: &AtomicBool) -> Result<(), Failure> {
    let activity = &shared.activity;
    let Some(votes) = votes else {
        activity.grant(activity.cell(), 1, now(), Instant::FAR_FUTURE);
        shared.shown.set_state("active");
        while !stop.load(Relaxed) {
            thread::sleep(HOUSEKEEPING);
        }
        return Ok(());
    };
    let is_connected = || shared.connections.load(Relaxed) > 0;
    votes.decide(activity, is_connected, |now| shared.shown.set(now), stop)
}

/// Declares, and counts connections, until `stop` is set.
fn keep_house(
    session: &Session,
    shared: &Arc<Shared>,
    own_key: &str,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    // Until dropped, these stand.
    let mut subscribers = Vec::new();
    for inbound in &shared.inbound {
        let taking = Arc::clone(inbound);
        let subscriber = session.declare_subscriber(inbound.key());
        subscribers.push(
            subscriber
                .callback(move |sample| taking.take(&sample))
                .wait()?,
        );
    }
    let told = Arc::clone(shared);
    let status_key = format!("{own_key}/status");
    let replied = status_key.clone();
    let _status = session
        .declare_queryable(&status_key)
        .callback(move |query| {
            let text = serde_json::to_string(&told.status()).unwrap_or_default();
            let reply = query
                .reply(&replied, text)
                .encoding(zenoh::bytes::Encoding::APPLICATION_JSON);
            let _gone = reply.wait();
        })
        .wait()?;
    let seen = Arc::clone(shared);
    let _neighbours = session
        .liveliness()
        .declare_subscriber(format!("{}/@gateway/*/cell/*/*", shared.prefix))
        .history(true)
        .callback(move |sample| note_neighbour(&seen, sample.key_expr().as_str(), sample.kind()))
        .wait()?;
    let mut declared: Vec<Declared> = shared
        .outbound
        .iter()
        .map(|_| Declared::default())
        .collect();
    let mut answered: Vec<_> = shared.answering.iter().map(|_| None).collect();
    let mut token = None;
    while !stop.load(Relaxed) {
        let info = session.info();
        let connections = info.routers_zid().wait().count() + info.peers_zid().wait().count();
        shared.connections.store(connections, Relaxed);
        let key = format!(
            "{own_key}/cell/{:016x}/{:016x}",
            shared.activity.cell(),
            shared.activity.process()
        );
        if token.as_ref().is_none_or(|(known, _)| *known != key) {
            token = Some((key.clone(), session.liveliness().declare_token(key).wait()?));
        }
        for (outbound, declared) in shared.outbound.iter().zip(&mut declared) {
            outbound.declare(session, declared)?;
        }
        for (answering, declared) in shared.answering.iter().zip(&mut answered) {
            answering.declare(session, declared)?;
        }
        thread::sleep(HOUSEKEEPING);
    }
    Ok(())
}

fn note_neighbour(shared: &Shared, key: &str, kind: SampleKind) {
    let mut parts = key.rsplit('/').map(|part| u64::from_str_radix(part, 16));
    let (Some(Ok(gateway)), Some(Ok(cell))) = (parts.next(), parts.next()) else {
        return;
    };
    let mut neighbours = shared
        .neighbours
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    neighbours.retain(|known| *known != (cell, gateway));
    if kind == SampleKind::Put
        && gateway != shared.activity.process()
        && neighbours.len() < NEIGHBOURS_MAX
    {
        neighbours.push((cell, gateway));
    }
}
