//! The control process's side: one thread, one epoll, nothing that waits for a client or for what a client handed over.

mod clients;
mod ports;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::SocketType;
use tautline_proto::wire::PortKey;

use self::clients::{Client, Clients};
use self::ports::OpenPort;
use super::policy::Policy;
use crate::claim::{Claim, ClaimError, Holder};
use crate::client::protocol::{
    Entry, Malformed, REQUEST_BYTES_MAX, Reason, Refusal, Reply, Request,
};
use crate::config::ServiceConfig;
use crate::error::{OpenError, ServeError};
use crate::link::bpf::DemuxOwner;
use crate::link::bpf::demux::{Demux, Setup};
use crate::link::bpf::taps::Taps;
use crate::link::xdp::modes_on;
use crate::link::{LinkKind, XdpMode};
use crate::node::{Attachment, check_ethernet};
use crate::runtime::{self, Room};
use crate::status::{InterfaceStatus, OpenReport, gone};
use crate::sys::interface::InterfaceWatch;
use crate::sys::pin::BpfPin;
use crate::sys::unix;
use crate::sys::wait;
use tautline_proto::neighbour::NeighbourTable;
use tautline_proto::wire::ethernet::Vlan;
use tautline_state::fork::OwnerProcess;
use tautline_state::untrusted::{UntrustedListener, UntrustedSocket};

/// Connections that wait to be accepted. Lower: strangers who connect without end fill the queue, and a client has to
/// try again. Higher: more kernel memory while this process is stopped.
const BACKLOG: i32 = 4096;
/// Connections accepted between two rounds of requests. Lower: the queue empties more slowly than strangers fill it.
/// Higher: clients wait longer for their turn, about 20 microseconds for each stranger who is refused.
const ACCEPTED_AT_ONCE: usize = 64;
/// Events taken at once. Lower than the connections that there can be: those beyond it get no turn in a round.
const EVENTS_MAX: usize = 2048;
/// How often clients that belonged to a predecessor are looked for. Lower: more wake-ups. Higher: the
/// ports of one that died stay taken for longer; they are to be free within a second.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Ports taken from the demux between two looks at who asks. Each waits for the kernel to be done with the old state
/// (RCU), milliseconds twice. Lower: more looks. Higher: a client waits behind one that died with many ports.
const LEAVING_AT_ONCE: usize = 4;
/// How long the demux of a predecessor whose last client died may take to be gone.
const DETACH_TIME_LIMIT: Duration = Duration::from_secs(2);
const DETACH_INTERVAL: Duration = Duration::from_millis(20);

/// Epoll's number for new clients; clients have theirs from [`FIRST_CLIENT`] on.
const LISTENER: u64 = 0;
const STATUS: u64 = 1;
const STOP: u64 = 2;
const INTERFACE: u64 = 3;
const FIRST_CLIENT: u64 = 4;

/// The control process of an interface: owns its demux, and hands out what ports consist of.
///
/// ```no_run
/// use tautline::config::ServiceConfig;
/// use tautline::control::Server;
///
/// let mut server = Server::open(ServiceConfig::from_file("node.toml")?)?;
/// println!("{}", server.report());
/// let (_until_closed, stop) = std::os::unix::net::UnixStream::pair()?;
/// server.run(&stop)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Server {
    watch: Arc<InterfaceWatch>,
    demux: Demux,
    keeper: BpfPin,
    taps: Taps,
    policy: Policy,
    neighbours: NeighbourTable,
    report: OpenReport,
    taken_over: usize,
    replaced: Option<OpenError>,
    listener: UntrustedListener,
    status: UntrustedListener,
    _claim: Claim,
    epoll: OwnedFd,
    /// Whether the listeners are looked at: not while there is no descriptor for one more connection.
    accepting: bool,
    clients: Clients,
    ports: BTreeMap<PortKey, OpenPort>,
    /// Ports that have no owner any more and have not been taken from the demux yet.
    leaving: BTreeSet<PortKey>,
    looked: Instant,
    process: OwnerProcess,
}

impl Server {
    /// Attaches the demux, or takes over the one that a predecessor's clients hold, and begins to listen.
    ///
    /// # Errors
    /// [`OpenError::ControlTaken`] if the interface has a control process, [`OpenError::NotShared`],
    /// [`OpenError::RuleUnknown`], [`OpenError::InterfaceMissing`], and as
    /// [`Node::open`](crate::Node::open) of link `xdp`.
    pub fn open(config: ServiceConfig) -> Result<Self, OpenError> {
        let ServiceConfig {
            node: config,
            allow,
            tune,
            replace,
            ..
        } = config;
        if let Some(other) = config.link.filter(|link| *link != LinkKind::Xdp) {
            return Err(OpenError::NotShared { link: other.name() });
        }
        let attachment = Attachment::find(&config)?;
        let (Some(name), Some(interface), Some(watch)) = (
            attachment.name.clone(),
            attachment.interface.clone(),
            attachment.watch.clone(),
        ) else {
            return Err(OpenError::InterfaceMissing { link: "xdp" });
        };
        if let Some(why) = watch.tells_nothing() {
            let error = io::Error::other(why.to_owned());
            return Err(refused("listening for the end of the interface", error));
        }
        let ethernet = config.ethernet_form();
        check_ethernet(LinkKind::Xdp, &name, &interface)?;
        let policy = Policy::new(&allow)?;
        let claim = claim_interface(&name, interface.index)?;
        if let Some(holder) = serves_elsewhere(interface.index) {
            return Err(OpenError::ControlTaken {
                interface: name,
                holder: Some(holder),
            });
        }
        let index = interface.index;
        let setup = Setup {
            name,
            interface,
            ip: attachment.ip,
            ethernet,
            mode: config.xdp_mode.unwrap_or(XdpMode::Native),
            shared: true,
        };
        let has_poll_threads = tune.is_some_and(|tune| tune.threaded == Some(true));
        let modes = match config.xdp_mode {
            Some(asked) => vec![asked],
            None => modes_on(&setup.interface, has_poll_threads).to_vec(),
        };
        let ((demux, not_better), replaced) = own_demux(&setup, config.xdp_mode, &modes, replace)?;
        let link = demux.link().expect("the demux was set up to be shared");
        let keeper = keep_attached(link, index)?;
        let taps = Taps::new(demux.setup(), demux.id())?;
        let report = report::opened(&demux, attachment, not_better);
        // From here on requests are answered soon.
        let listener = listen(&crate::client::socket_name(index), SocketType::SEQPACKET)?;
        let status = listen(&super::status_name(index), SocketType::STREAM)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let mut server = Self {
            watch,
            demux,
            keeper,
            taps,
            policy,
            neighbours: config.neighbours,
            report,
            taken_over: 0,
            replaced,
            listener,
            status,
            _claim: claim,
            epoll: epoll.map_err(|error| refused("making an epoll", error.into()))?,
            accepting: true,
            clients: Clients::new(FIRST_CLIENT),
            ports: BTreeMap::new(),
            leaving: BTreeSet::new(),
            looked: Instant::now(),
            process: OwnerProcess::current(),
        };
        server.take_ports_over();
        server.taken_over = server.ports.len();
        Ok(server)
    }

    /// Link, mode and address, as of a node.
    #[must_use]
    pub fn report(&self) -> &OpenReport {
        &self.report
    }

    /// Open ports that a predecessor had given out.
    #[must_use]
    pub fn taken_over(&self) -> usize {
        self.taken_over
    }

    /// The demux that was detached for this one, as it was in the way, if one was.
    #[must_use]
    pub fn replaced(&self) -> Option<&OpenError> {
        self.replaced.as_ref()
    }

    /// Serves until `stop` is readable or closed at its other end. What clients have open works on
    /// afterwards, until each of them ends.
    ///
    /// # Errors
    /// [`ServeError`]: the interface is gone, and with it the demux; or the kernel refuses to wait for events.
    pub fn run(&mut self, stop: impl AsFd) -> Result<(), ServeError> {
        self.process.check().map_err(std::io::Error::from)?;
        self.watch(self.listener.as_fd(), LISTENER)?;
        self.watch(self.status.as_fd(), STATUS)?;
        self.watch(stop.as_fd(), STOP)?;
        if let Some(end) = self.watch.end() {
            self.watch(end, INTERFACE)?;
        }
        loop {
            let mut events = wait::places::<EVENTS_MAX>();
            let tokens = wait::tokens(self.epoll.as_fd(), &mut events, self.patience())?;
            for token in tokens {
                match token {
                    LISTENER => self.accept(),
                    STATUS => self.tell_status(),
                    STOP => return Ok(()),
                    INTERFACE => return Err(self.interface_gone()),
                    client => self.serve(client),
                }
            }
            self.look();
            self.withdraw(LEAVING_AT_ONCE);
        }
    }

    /// Runs something on this process's other thread.
    pub(super) fn taps_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.taps.on_thread(work)
    }

    /// Nothing arrives at the demux any more. Frames that a client writes would disappear, so it gets an error from now
    /// on: its tap is deleted.
    fn interface_gone(&mut self) -> ServeError {
        let ports: Vec<PortKey> = self.ports.keys().copied().collect();
        for port in ports {
            // One that cannot be deleted goes with its last descriptor.
            let _deleted = self.taps.close(self.place(port));
        }
        ServeError::InterfaceGone(gone(&self.watch))
    }

    fn watch(&self, descriptor: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(
            &self.epoll,
            descriptor,
            data,
            epoll::EventFlags::IN,
        )?)
    }

    /// How long nothing needs to be looked at: for ever, unless a predecessor's client has ports, or something is left
    /// to be done.
    fn patience(&self) -> Option<Duration> {
        let someone = self.ports.values().any(|port| port.client.is_none());
        if self.leaving.is_empty() {
            (someone || !self.accepting).then_some(LOOK_INTERVAL)
        } else {
            Some(Duration::ZERO)
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.listener.accept() {
                Ok(Some(socket)) => self.admit(socket),
                Ok(None) => return,
                Err(_) => return self.set_accepting(false),
            }
        }
    }

    /// Takes a connection, or says why not. A user whom no entry names never counts.
    fn admit(&mut self, socket: UntrustedSocket) {
        let Ok(client) = Client::new(socket) else {
            return;
        };
        let admitted = self.policy.admit(&client.user);
        let admitted = admitted.map_err(|why| no(Reason::NotAllowed, why));
        let has_room = || {
            self.clients
                .check_room()
                .map_err(|why| no(Reason::Full, why))
        };
        if let Err(refusal) = admitted.and_then(|()| has_room()) {
            // Answers the request that it is about to make, which has the client's first number.
            return client.socket.dismiss(&Reply::Refused(refusal).encode(1));
        }
        let number = self.clients.next_number();
        if self.watch(client.socket.as_fd(), number).is_ok() {
            self.clients.connected.insert(number, client);
        }
    }

    /// Stops accepting clients while there is no descriptor for one, or begins again: an event that no thread can
    /// attend to would keep this process busy.
    fn set_accepting(&mut self, accepting: bool) {
        if self.accepting == accepting {
            return;
        }
        let flags = match accepting {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::empty(),
        };
        let listeners = [(&self.listener, LISTENER), (&self.status, STATUS)];
        let set = listeners.into_iter().all(|(listener, number)| {
            let data = epoll::EventData::new_u64(number);
            epoll::modify(&self.epoll, listener, data, flags).is_ok()
        });
        if set {
            self.accepting = accepting;
        }
    }

    /// One request of a client. Whatever is wrong with it ends the client, and its ports.
    fn serve(&mut self, number: u64) {
        let Some(client) = self.clients.connected.get(&number) else {
            return;
        };
        // One byte more, so that what is too long is not taken for a request.
        let mut bytes = [0; REQUEST_BYTES_MAX + 1];
        let length = match client.socket.receive(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) | Ok(0) => return self.forget(number),
            Ok(length) => length.min(bytes.len()),
        };
        let (answer, serial) = match Request::decode(&bytes[..length]) {
            Ok((request, serial)) => (self.answer(number, request), serial),
            Err(malformed) => {
                let why = match malformed {
                    Malformed::Version(other) => format!(
                        "this process speaks version {other} of the control messages, another than it"
                    ),
                    Malformed::Rubbish => "that was no request".to_owned(),
                };
                (Err(no(Reason::BadRequest, why)), 1)
            }
        };
        let (answer, descriptors) = match answer {
            Ok(granted) => granted,
            Err(refusal) => (Reply::Refused(refusal), Vec::new()),
        };
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let stays = self.clients.connected.get(&number).is_some_and(|client| {
            let said = unix::send(client.socket.as_fd(), &answer.encode(serial), &descriptors);
            // One that does not read its answers, or has not been taken for a client, is none.
            said.is_ok() && client.greeted && !is_nonsense(&answer)
        });
        if !stays {
            self.forget(number);
        }
    }

    fn answer(&mut self, number: u64, request: Request) -> Result<Granted, Refusal> {
        match request {
            Request::Hello {
                ethertype,
                vlan,
                ip,
                mode,
            } => self.welcome(number, (ethertype, vlan), ip, mode),
            Request::Open { key, shape } => self.open_port(number, key, shape),
            Request::Close { key } => Ok(self.close_of(number, key)),
            Request::Counters => Ok((Reply::Counters(self.demux.counters()), Vec::new())),
            Request::Neighbours => self.greeted(number).map(|_| self.tell_neighbours()),
        }
    }

    fn welcome(
        &mut self,
        number: u64,
        (ethertype, vlan): (u16, u16),
        ip: Option<std::net::Ipv4Addr>,
        mode: Option<XdpMode>,
    ) -> Result<Granted, Refusal> {
        let setup = self.demux.setup();
        let other = |what: &str, has: String| {
            let why = format!("its demux has {what} {has}, this node asks for another");
            Err(no(Reason::OtherSettings, why))
        };
        let own = setup.ethernet;
        if ethertype != 0 && ethertype != own.ethertype {
            return other("EtherType", format!("{:#06x}", own.ethertype));
        }
        if ethertype != 0 && vlan != own.vlan.identifier() {
            let has = match own.vlan {
                Vlan::NONE => "none".to_owned(),
                vlan => vlan.identifier().to_string(),
            };
            return other("VLAN", has);
        }
        if ip.is_some() && ip != setup.ip {
            let has = setup.ip.map_or("none".to_owned(), |ip| ip.to_string());
            return other("IPv4 address", has);
        }
        if mode.is_some_and(|mode| mode != setup.mode) {
            return other("mode", format!("{:?}", setup.mode).to_lowercase());
        }
        // Its frames would have a source that the taps refuse, and none would arrive.
        let now = InterfaceStatus::of(&self.watch);
        if let Some(difference) = now.as_ref().and_then(InterfaceStatus::difference) {
            return Err(no(Reason::OtherSettings, difference));
        }
        let kernel = |error: io::Error| no(Reason::Kernel, error.to_string());
        let keeper = self.keeper.as_fd().try_clone_to_owned().map_err(kernel)?;
        let answer = Reply::Welcome {
            demux: self.demux.id(),
            ip: setup.ip,
            mode: setup.mode,
        };
        if let Some(client) = self.clients.connected.get_mut(&number) {
            client.greeted = true;
        }
        Ok((answer, vec![keeper]))
    }

    fn tell_neighbours(&self) -> Granted {
        let entries = self.neighbours.iter().map(|(_, one)| Entry(one.clone()));
        (Reply::Neighbours(entries.collect()), Vec::new())
    }

    /// A client that has said what it needs.
    fn greeted(&self, number: u64) -> Result<&Client, Refusal> {
        let client = self
            .clients
            .connected
            .get(&number)
            .filter(|client| client.greeted);
        client.ok_or_else(|| no(Reason::BadRequest, "no greeting came first"))
    }

    /// A client that is gone, or is to be.
    fn forget(&mut self, number: u64) {
        let ports: Vec<PortKey> = self
            .ports
            .iter()
            .filter(|(_, open)| open.client == Some(number))
            .map(|(port, _)| *port)
            .collect();
        for port in ports {
            self.close(port);
        }
        // Its socket may be closed later, elsewhere.
        if let Some(client) = self.clients.connected.get(&number) {
            let _closed_already = epoll::delete(&self.epoll, client);
        }
        self.clients.connected.remove(&number);
        self.set_accepting(true);
    }

    /// Frees ports of a predecessor's clients that died.
    fn look(&mut self) {
        if self.looked.elapsed() < LOOK_INTERVAL {
            return;
        }
        self.looked = Instant::now();
        self.set_accepting(true);
        let dead: Vec<PortKey> = self
            .ports
            .iter()
            .filter(|(_, open)| open.client.is_none())
            .filter(|(port, _)| self.is_unclaimed(**port))
            .map(|(port, _)| *port)
            .collect();
        for port in dead {
            self.close(port);
        }
    }

    fn tell_status(&mut self) {
        match self.status.accept() {
            Ok(Some(asker)) => {
                let document = report::status(self);
                // It fits the socket's buffer; an asker that is gone is its own affair.
                let _told = asker.send(&document);
            }
            Ok(None) => {}
            Err(_) => self.set_accepting(false),
        }
    }
}

/// An answer with what goes with it, or why there is none.
type Granted = (Reply, Vec<OwnedFd>);

/// Whether a client sends what is not a request.
fn is_nonsense(answer: &Reply) -> bool {
    matches!(answer, Reply::Refused(refusal) if refusal.reason == Reason::BadRequest)
}

fn no(reason: Reason, why: impl Into<String>) -> Refusal {
    Refusal {
        reason,
        holder: 0,
        why: why.into(),
    }
}

fn claim_interface(name: &str, index: u32) -> Result<Claim, OpenError> {
    Claim::of_control(index).map_err(|error| match error {
        ClaimError::Taken(holder) => OpenError::ControlTaken {
            interface: name.to_owned(),
            holder,
        },
        ClaimError::Io(error) => refused("claiming to be the control process", error),
    })
}

/// The control process of another user that serves the interface: claims of other users are not seen.
fn serves_elsewhere(index: u32) -> Option<Holder> {
    let own = runtime::make(Room::Control).ok();
    let name = super::status_name(index);
    let others = runtime::find(Room::Control).into_iter();
    let mut others = others.filter(|room| own.as_ref().is_none_or(|own| own.path() != room.path()));
    others.find_map(|room| {
        let deadline = Instant::now() + LOOK_INTERVAL;
        match runtime::connect(&room, &name, SocketType::STREAM, deadline) {
            Ok(Some(socket)) => socket.peer().ok().map(|peer| Holder::of(peer.pid)),
            Ok(None) | Err(_) => None,
        }
    })
}

/// Has the demux stay on the interface as long as a descriptor of the keeper is open.
fn keep_attached(link: BorrowedFd<'_>, index: u32) -> Result<BpfPin, OpenError> {
    let error = match BpfPin::mounted_nowhere(link) {
        Ok(keeper) => return Ok(keeper),
        Err(error) => error,
    };
    match runtime::bpf_directory() {
        // Not permitted to mount, as in the systemd unit.
        Some(directory) if error.kind() == io::ErrorKind::PermissionDenied => {
            let keeper = runtime::namespace_name()
                .map(|namespace| format!("{namespace}-{index}"))
                .and_then(|name| BpfPin::without_a_name(link, directory.as_fd(), &name));
            keeper.map_err(|error| refused("keeping the demux attached", error))
        }
        _ => Err(not_permitted(error, "keeping the demux attached")),
    }
}

/// Listens in the room of control sockets, to which everybody may connect.
fn listen(name: &str, kind: SocketType) -> Result<UntrustedListener, OpenError> {
    match runtime::listen(Room::Control, name, kind, 0o666, BACKLOG) {
        Ok((_room, listener)) => Ok(listener),
        Err(error) => Err(refused("listening for clients", error)),
    }
}

/// A demux, and for each better mode the reason why it is not in that one.
type Attached = (Demux, Vec<(XdpMode, OpenError)>);

/// The demux that runs, or a fresh one in the best mode that works. What a predecessor's last client held may be on its
/// way out, and is waited for. One with other settings is detached if `replace` says so, and returned last.
fn own_demux(
    setup: &Setup,
    asked: Option<XdpMode>,
    modes: &[XdpMode],
    replace: bool,
) -> Result<(Attached, Option<OpenError>), OpenError> {
    let started = Instant::now();
    let mut replaced = None;
    loop {
        match find_or_attach(setup, asked, modes) {
            Err(OpenError::XdpTaken { .. }) if started.elapsed() < DETACH_TIME_LIMIT => {
                std::thread::sleep(DETACH_INTERVAL);
            }
            Err(other @ OpenError::OtherDemux { .. }) if replace && replaced.is_none() => {
                Demux::detach_left(setup)?;
                replaced = Some(other);
            }
            result => return result.map(|attached| (attached, replaced)),
        }
    }
}

fn find_or_attach(
    setup: &Setup,
    asked: Option<XdpMode>,
    modes: &[XdpMode],
) -> Result<Attached, OpenError> {
    if let Some(demux) = Demux::take_over(setup.clone(), asked)? {
        return Ok((demux, Vec::new()));
    }
    let mut not_better = Vec::new();
    for mode in modes {
        let setup = Setup {
            mode: *mode,
            ..setup.clone()
        };
        match Demux::attach(setup) {
            Ok(demux) => return Ok((demux, not_better)),
            Err(error) => not_better.push((*mode, error)),
        }
    }
    // The first answer says most; of a mode that this kernel lacks, the next one does.
    let says_most = not_better
        .iter()
        .position(|(_, error)| !error.is_lack_of_kernel());
    let (_, error) = not_better.swap_remove(says_most.unwrap_or(0));
    Err(error)
}

fn not_permitted(error: io::Error, doing: &str) -> OpenError {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return OpenError::NotPermitted {
            link: "xdp",
            needs: "CAP_SYS_ADMIN, to share it",
        };
    }
    refused(doing, error)
}

fn refused(doing: &str, error: io::Error) -> OpenError {
    OpenError::Refused {
        doing: doing.to_owned(),
        source: error.into(),
    }
}
