//! Connections of browsers. None waits for a place: if all are taken, a connection gives way to the new one.
//!
//! A connection is trusted if its peer is root or this process's user, or if a request of it had the token. Trusted
//! connections never give way, and have half of the places. Of the others, the peer that has most places loses its
//! oldest connection. So a peer with one connection keeps that while fewer peers than half of the places are
//! connected, however many connections they make and whatever they do with them.

use std::cmp::Reverse;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::peer::{Peer, PeerUsers};

/// Connections at a time. Lower: fewer peers are enough to displace one that has just been made. Higher: peers that
/// only hold connections take more memory, up to 400 KiB each for the head of a request.
const CONNECTIONS_MAX: usize = 64;
/// Trusted connections at a time; beyond that, the oldest is trusted no more. Lower: fewer browsers with the token keep
/// their connections. Higher: fewer places are left for a browser that has yet to show it.
const TRUSTED_MAX: usize = CONNECTIONS_MAX / 2;
/// Time for the whole head of a request, from the beginning of the connection or the end of the last answer. Lower: a
/// browser on a bad network is cut off, and one that asks seldom connects each time. Higher: memory is held for longer.
const HEAD_TIME_MAX: Duration = Duration::from_secs(5);
/// Time after which a connection is answered no more; a browser opens another. Lower: more are opened. Higher: one
/// that does not read its answers holds memory for longer.
const LIFE_MAX: Duration = Duration::from_secs(60);
/// Time from then for the answer that is under way. Lower: long answers over slow networks are cut. Higher: as above.
const LAST_ANSWER_MAX: Duration = Duration::from_secs(30);
/// Pause where the process has no descriptor for a connection.
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(250);

/// Serves connections for ever.
pub(super) async fn serve(
    listener: TcpListener,
    mut users: Option<PeerUsers>,
    router: Router,
) -> Infallible {
    let places = Arc::default();
    loop {
        let accepted = listener.accept().await;
        let Ok((stream, peer)) = accepted.and_then(|(stream, from)| {
            let peer = Peer::of(users.as_mut(), from, stream.local_addr()?);
            Ok((stream, peer))
        }) else {
            sleep(NO_DESCRIPTOR_PAUSE).await;
            continue;
        };
        let place = Place::new(&places);
        let answering = tokio::spawn(answer(stream, place.clone(), router.clone()));
        let gone = place
            .places()
            .take(place.number, peer, answering.abort_handle());
        if let Some(gone) = gone {
            gone.abort();
        }
    }
}

/// Answers the requests of a connection.
async fn answer(stream: TcpStream, place: Place, router: Router) {
    let leaving = Leaving(place.clone());
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(place.clone());
        router.call(request)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection.with_upgrades());
    if timeout(LIFE_MAX, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ended = timeout(LAST_ANSWER_MAX, connection).await;
    }
    let successor = lock(&leaving.0.successor).take();
    if let Some(successor) = successor {
        successor.await;
    }
}

/// Protocol that follows HTTP on a connection.
type Successor = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Place of a connection, which each of its requests carries.
#[derive(Clone)]
pub(super) struct Place {
    places: Arc<Mutex<Places>>,
    number: u64,
    successor: Arc<Mutex<Option<Successor>>>,
}

impl Place {
    fn new(places: &Arc<Mutex<Places>>) -> Self {
        let mut all = lock(places);
        all.next += 1;
        Self {
            places: Arc::clone(places),
            number: all.next,
            successor: Arc::default(),
        }
    }

    /// The connection has shown the token.
    pub(super) fn trust(&self) {
        self.places().trust(self.number);
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        lock(&self.places)
    }

    /// Goes on with another protocol when HTTP ends. It has no limit of time here.
    pub(super) fn continue_with(&self, successor: impl Future<Output = ()> + Send + 'static) {
        *lock(&self.successor) = Some(Box::pin(successor));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a place back when its connection ends, in whichever way.
struct Leaving(Place);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.places().leave(self.0.number);
    }
}

/// Connections that there are, the oldest first.
#[derive(Debug, Default)]
struct Places {
    held: Vec<Held>,
    next: u64,
}

#[derive(Debug)]
struct Held {
    number: u64,
    peer: Peer,
    is_trusted: bool,
    connection: AbortHandle,
}

impl Places {
    /// Takes a place. The connection that is returned has given way.
    fn take(&mut self, number: u64, peer: Peer, connection: AbortHandle) -> Option<AbortHandle> {
        let is_full = self.held.len() >= CONNECTIONS_MAX;
        let gone = is_full.then(|| self.held.remove(self.next_to_go()));
        self.held.push(Held {
            number,
            peer,
            is_trusted: false,
            connection,
        });
        if peer.is_own() {
            self.trust(number);
        }
        gone.map(|held| held.connection)
    }

    /// Index of the connection that gives way: of those that are not trusted, the oldest of the peer with most.
    fn next_to_go(&self) -> usize {
        // There is one: not all may be trusted.
        const { assert!(TRUSTED_MAX < CONNECTIONS_MAX) };
        let others = || self.held.iter().filter(|held| !held.is_trusted);
        let share = |peer| others().filter(|held| held.peer == peer).count();
        let indexed = self.held.iter().enumerate();
        let indexed = indexed.filter(|(_, held)| !held.is_trusted);
        let next = indexed.max_by_key(|(index, held)| (share(held.peer), Reverse(*index)));
        next.map_or(0, |(index, _)| index)
    }

    fn trust(&mut self, number: u64) {
        for held in &mut self.held {
            held.is_trusted |= held.number == number;
        }
        let mut trusted = self.held.iter_mut().filter(|held| held.is_trusted);
        let oldest = trusted.next();
        if trusted.count() >= TRUSTED_MAX
            && let Some(oldest) = oldest
        {
            oldest.is_trusted = false;
        }
    }

    fn leave(&mut self, number: u64) {
        self.held.retain(|held| held.number != number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io::{self, Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread::{self, JoinHandle};
    use std::time::Instant;

    use super::super::testing::{LARGE, Served, WAIT_MAX, as_user, ask, ask_on, on_thread_of};
    use super::*;

    const STRANGER: u32 = 65_534;
    const USER: u32 = 65_533;
    /// More than there are places.
    const MANY: usize = CONNECTIONS_MAX + 16;

    /// A stranger that holds as many connections as there are places, and opens each closed one again.
    struct Siege {
        is_over: Arc<AtomicBool>,
        stranger: Option<JoinHandle<()>>,
    }

    impl Siege {
        /// Each connection begins with what `first` says for its index, and goes on with `next`, ten times a second.
        fn lay(
            address: SocketAddr,
            first: impl Fn(usize) -> String + Send + 'static,
            next: impl Fn(&mut TcpStream, usize) -> io::Result<()> + Send + 'static,
        ) -> Option<Self> {
            let is_over = Arc::new(AtomicBool::new(false));
            let ended = Arc::clone(&is_over);
            let (tell, complete) = std::sync::mpsc::channel();
            let open = move |index: usize| -> io::Result<TcpStream> {
                let mut stream = TcpStream::connect_timeout(&address, WAIT_MAX)?;
                stream.write_all(first(index).as_bytes())?;
                stream.set_nonblocking(true)?;
                Ok(stream)
            };
            let stranger = on_thread_of(STRANGER, move || {
                let mut held: Vec<Option<TcpStream>> = (0..MANY).map(|_| None).collect();
                while !ended.load(Relaxed) {
                    for (index, stream) in held.iter_mut().enumerate() {
                        let going_on = stream.as_mut().map(|stream| next(stream, index));
                        if going_on.is_none_or(|going_on| going_on.is_err()) {
                            *stream = open(index).ok();
                        }
                    }
                    let _nobody_waits = tell.send(());
                    thread::sleep(Duration::from_millis(100));
                }
            })?;
            complete.recv_timeout(WAIT_MAX).unwrap();
            Some(Self {
                is_over,
                stranger: Some(stranger),
            })
        }
    }

    impl Drop for Siege {
        fn drop(&mut self) {
            self.is_over.store(true, Relaxed);
            let stranger = self.stranger.take().map(JoinHandle::join);
            assert!(stranger.is_none_or(|ended| ended.is_ok()) || thread::panicking());
        }
    }

    /// Reads some of what has come.
    fn sip(stream: &mut TcpStream) -> io::Result<()> {
        match stream.read(&mut [0; 64 << 10]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    fn all_are_answered(address: SocketAddr) {
        for _ in 0..3 {
            assert_eq!(ask(address, "/", "").ok(), Some(200), "this process's user");
            let answered = as_user(USER, move || ask(address, "/", "").ok());
            assert_eq!(answered.unwrap(), Some(200), "another user");
        }
    }

    #[test]
    fn a_stranger_who_sends_heads_byte_by_byte_keeps_no_user_out() {
        let served = Served::start(None);
        let first = |_| "GET / HTTP/1.1\r\nx: ".to_owned();
        let next = |stream: &mut TcpStream, _| stream.write_all(b"x").and_then(|()| sip(stream));
        let Some(_siege) = Siege::lay(served.address, first, next) else {
            return;
        };
        all_are_answered(served.address);
    }

    #[test]
    fn a_stranger_who_asks_without_end_or_reads_slowly_keeps_no_user_out() {
        let served = Served::start(None);
        let request = |path| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let first = move |index| request(if index % 2 == 0 { "/" } else { LARGE });
        let next = move |stream: &mut TcpStream, index| {
            if index % 2 == 0 {
                stream.write_all(request("/").as_bytes())?;
            }
            sip(stream)
        };
        let Some(siege) = Siege::lay(served.address, first, next) else {
            return;
        };
        all_are_answered(served.address);
        // Nor does a user lose a connection to new ones.
        let address = served.address;
        let kept = as_user(USER, move || TcpStream::connect(address).unwrap());
        let mut kept = kept.unwrap();
        let crowd = move || {
            let open = |_| TcpStream::connect_timeout(&address, WAIT_MAX).unwrap();
            (0..2 * CONNECTIONS_MAX).map(open).collect::<Vec<_>>()
        };
        for _ in 0..2 {
            assert_eq!(ask_on(&mut kept, "/", "").ok(), Some(200));
            drop(as_user(STRANGER, crowd));
        }
        drop(siege);
    }

    #[test]
    fn the_head_of_a_request_has_its_time_however_often_a_byte_comes() {
        let served = Served::start(None);
        let mut stream = TcpStream::connect(served.address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nx: ").unwrap();
        stream.set_nonblocking(true).unwrap();
        let began = Instant::now();
        while stream
            .write_all(b"x")
            .and_then(|()| sip(&mut stream))
            .is_ok()
        {
            assert!(began.elapsed() < 6 * HEAD_TIME_MAX, "it is waited for");
            thread::sleep(Duration::from_millis(100));
        }
    }

    #[test]
    fn a_connection_that_has_shown_the_token_gives_way_to_nobody() {
        let served = Served::start(Some("secret"));
        let address = served.address;
        // All are of one user, as behind a proxy.
        let tried = as_user(STRANGER, move || {
            let mut connections = [
                "Authorization: Bearer secret\r\n",
                "Authorization: Bearer wrong\r\n",
            ]
            .map(|proof| (TcpStream::connect(address).unwrap(), proof));
            let first = connections.each_mut();
            let first = first.map(|(stream, proof)| ask_on(stream, "/", proof).ok());
            let open = |_| TcpStream::connect_timeout(&address, WAIT_MAX).unwrap();
            let _crowd: Vec<_> = (0..3 * CONNECTIONS_MAX).map(open).collect();
            // They have been accepted, as this one after them.
            assert_eq!(ask(address, "/", connections[0].1).ok(), Some(200));
            let then = connections.map(|(mut stream, proof)| ask_on(&mut stream, "/", proof).ok());
            (first, then)
        });
        let expected = ([Some(200), Some(401)], [Some(200), None]);
        assert!(tried.is_none_or(|tried| tried == expected), "{tried:?}");
    }

    #[test]
    fn trusted_connections_have_half_of_the_places_and_peers_share_the_others() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let mut places = Places::default();
        let mut number = 0;
        let mut take = |places: &mut Places, peer| {
            number += 1;
            places.take(number, peer, runtime.spawn(pending::<()>()).abort_handle());
            number
        };
        let of = |places: &Places, peer| {
            let held = places.held.iter().filter(|held| held.peer == peer);
            held.map(|held| held.number).collect::<Vec<_>>()
        };
        let root = Peer::User(0);
        let stranger = Peer::User(STRANGER);
        for _ in 0..CONNECTIONS_MAX {
            take(&mut places, stranger);
        }
        assert_eq!(of(&places, stranger).len(), CONNECTIONS_MAX);
        // Half of root's are trusted; with the others it is a peer like any.
        for _ in 0..2 * CONNECTIONS_MAX {
            take(&mut places, root);
        }
        let share = of(&places, stranger).len();
        let others = CONNECTIONS_MAX - TRUSTED_MAX;
        assert!(share.abs_diff(others / 2) <= 1, "{share}");
        // One of another peer stays, whatever other peers connect.
        let user = take(&mut places, Peer::User(USER));
        for _ in 0..2 * CONNECTIONS_MAX {
            take(&mut places, stranger);
            take(&mut places, root);
        }
        assert_eq!(of(&places, Peer::User(USER)), [user]);
        // Of peers with one connection each, the oldest gives way.
        for address in 0..CONNECTIONS_MAX as u32 {
            take(
                &mut places,
                Peer::Address(std::net::Ipv4Addr::from(address).into()),
            );
        }
        assert!(of(&places, Peer::User(USER)).is_empty());
        let trusted = places.held.iter().filter(|held| held.is_trusted);
        assert_eq!(trusted.count(), TRUSTED_MAX);
        assert_eq!(places.held.len(), CONNECTIONS_MAX);
    }
}
