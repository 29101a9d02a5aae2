//! Requests and replies through gateways: programs of cells that ask and answer, and a participant of Zenoh that nobody
//! here wrote (`peer.py`).

mod common;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use common::{Cell, Gateway, Network, eventually, participant};
use serde_json::{Value, json};
use tautline::{Message, PortNumber, Priority, QueuingPort, now};
use tautline_testbed::hosts::Host::{A, B};

/// Time within which a test looks for a message.
const LOOK: Duration = Duration::from_millis(50);

fn number(number: u16) -> PortNumber {
    PortNumber::new(number).unwrap()
}

/// A port of a node in a cell, and the node, which lives as long.
fn port(cell: &Cell, name: &str, of: u16) -> (tautline::Node, QueuingPort) {
    let node = cell.node(name, &["one", "two"]);
    let port = node.queuing(number(of)).open();
    (node, port.unwrap())
}

/// Program of a cell that reverses what it is asked; its replies wait for the test's word while there is one to wait
/// for.
fn answering(cell: &Cell, stop: &AtomicBool, words: &Receiver<()>) {
    let (_node, mut port) = port(cell, "motor", 7);
    let mut buffer = vec![0; port.message_bytes_max()];
    while !stop.load(Relaxed) {
        let Some(request) = port
            .receive_into(&mut buffer, tautline::Wait::Until(now() + LOOK))
            .unwrap()
        else {
            continue;
        };
        let bytes = &mut buffer[..request.length];
        if bytes.first() == Some(&b'!') {
            words.recv().unwrap();
        }
        bytes.reverse();
        port.reply(request.source, request.priority, bytes).unwrap();
    }
}

/// Runs a test beside that program.
fn beside_answering(cell: &Cell, test: impl FnOnce(&Sender<()>)) {
    let stop = AtomicBool::new(false);
    let (say, words) = channel();
    thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || answering(cell, stop, &words));
        // A test that fails ends the program, too.
        struct Stop<'s>(&'s AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let _stop = Stop(stop);
        let say = say;
        test(&say);
    });
}

fn next(port: &mut QueuingPort, buffer: &mut [u8]) -> Option<Message> {
    port.receive_into(
        buffer,
        tautline::Wait::Until(now() + Duration::from_secs(20)),
    )
    .unwrap()
}

/// Sends a request to a gateway's port, and returns what comes back in time.
fn asked(port: &mut QueuingPort, to: u16, request: &[u8]) -> Option<Vec<u8>> {
    let mut way = None;
    eventually("the gateway's port is there", || {
        way = port.destination("one", number(to)).ok();
        way.is_some()
    });
    port.send(way.unwrap(), Priority::NORMAL, request).unwrap();
    let mut buffer = vec![0; port.message_bytes_max()];
    let reply = next(port, &mut buffer)?;
    assert_eq!(reply.priority, Priority::NORMAL, "that of the request");
    Some(buffer[..reply.length].to_vec())
}

const PORTS: &str = "[[port]]\nname = \"pump\"\nnumber = 3\nkind = \"queuing\"\n\
    [[port]]\nname = \"desk\"\nnumber = 4\nkind = \"queuing\"\n";

/// An active gateway of the cell, and a participant of the other host that is connected to it; or says why not.
fn gateway_and_participant<'n>(
    network: &'n Network,
    cell: &Cell,
    ports: &str,
    entry: &str,
) -> Option<(Gateway<'n>, common::Foreign)> {
    let gateway = network.gateway(cell, "one", A, "site/a", ports, entry, "");
    eventually("active", || gateway.is_active());
    Some((gateway, participant(network, B, "client-of-a")?))
}

#[test]
fn a_cell_asks_and_another_one_answers() {
    let Some(network) = Network::create() else {
        return;
    };
    let (a, b) = (Cell::new(), Cell::new());
    let ask = "[[ask]]\nport = \"desk\"\nkey = \"site/b/pump\"\ntimeout_ms = 5000\n";
    let answer = "[[answer]]\nport = \"pump\"\nto = \"motor.7\"\npriority = 3\n";
    let first = network.gateway(&a, "one", A, "site/a", PORTS, ask, "");
    let second = network.gateway(&b, "two", B, "site/b", PORTS, answer, "");
    let connected = |one: &Gateway<'_>| one.is_connected() && one.is_active();
    eventually("they are connected", || {
        connected(&first) && connected(&second)
    });
    beside_answering(&b, |_| {
        let (_node, mut desk) = port(&a, "desk", 9);
        let mut reply = None;
        // The first ones may come before the other gateway knows of the program, or this one of the other.
        eventually("a reply", || {
            let before = first.count("desk", "answered");
            reply = asked_once(&mut desk, b"open 3");
            first.count("desk", "answered") > before
        });
        assert_eq!(reply.as_deref(), Some(&b"3 nepo"[..]));
        for request in [&b"x"[..], b"twenty", &[7; 1400]] {
            let reversed: Vec<u8> = request.iter().rev().copied().collect();
            assert_eq!(asked(&mut desk, 4, request), Some(reversed));
        }
        assert!(second.count("site/b/pump", "answered") >= 4);
        let shown = first.show();
        assert!(shown.contains("desk -> site/b/pump and back: "), "{shown}");
        let shown = second.show();
        assert!(
            shown.contains("site/b/pump -> motor.7 and back: "),
            "{shown}"
        );
    });
}

/// The same as [`asked`], and no reply may come.
fn asked_once(port: &mut QueuingPort, request: &[u8]) -> Option<Vec<u8>> {
    let to = port.destination("one", number(4)).ok()?;
    port.send(to, Priority::NORMAL, request).ok()?;
    let mut buffer = vec![0; port.message_bytes_max()];
    let wait = now() + Duration::from_millis(500);
    let reply = port
        .receive_into(&mut buffer, tautline::Wait::Until(wait))
        .unwrap()?;
    Some(buffer[..reply.length].to_vec())
}

/// Replies to one request of the participant.
fn replies(peer: &mut common::Foreign, key: &str, request: &[u8]) -> Vec<Value> {
    let digits: String = request.iter().map(|byte| format!("{byte:02x}")).collect();
    peer.tell(json!(["ask", key, digits]));
    let said = peer.wait_for("replies", |what| what["asked"] == digits);
    said["replies"].as_array().unwrap().clone()
}

/// Bytes of the only reply, in digits; empty if there is none.
fn payload(replies: &[Value]) -> &str {
    text(replies, "payload")
}

/// Error of the only reply; empty if there is none.
fn error(replies: &[Value]) -> &str {
    text(replies, "error")
}

fn text<'r>(replies: &'r [Value], of: &str) -> &'r str {
    assert!(replies.len() <= 1, "{replies:?}");
    let one = replies.first();
    one.and_then(|one| one[of].as_str()).unwrap_or_default()
}

fn refused(replies: &[Value], why: &str) {
    assert!(error(replies).contains(why), "{replies:?}");
}

#[test]
fn queries_of_a_participant_are_answered_and_a_late_reply_answers_no_other() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let answer = "[[answer]]\nport = \"pump\"\nto = \"motor.7\"\ntimeout_ms = 1500\n";
    let Some((gateway, mut peer)) = gateway_and_participant(&network, &cell, PORTS, answer) else {
        return;
    };
    let key = "site/a/pump";
    eventually("the gateway says that nobody is there", || {
        error(&replies(&mut peer, key, b"early")).contains("nobody in the cell")
    });
    beside_answering(&cell, |say| {
        let mut found = Vec::new();
        eventually("a reply", || {
            found = replies(&mut peer, key, b"abc");
            payload(&found) == "636261"
        });
        assert_eq!(found[0]["key"], key);
        assert_eq!(found[0]["encoding"], "application/octet-stream");

        // A stranger in the cell cannot answer in the program's place.
        let (_node, mut stranger) = port(&cell, "two", 7);
        let mut sent_by_stranger = || {
            let way = stranger.destination("one", number(3)).unwrap();
            stranger.send(way, Priority::NORMAL, b"lies").unwrap();
        };
        sent_by_stranger();
        assert_eq!(payload(&replies(&mut peer, key, b"abc")), "636261");
        assert_eq!(gateway.count(key, "strays"), 1);

        // A reply that does not come in time is nobody's, whenever it comes.
        refused(&replies(&mut peer, key, b"!slow"), "no reply in time");
        refused(&replies(&mut peer, key, b"abc"), "busy");
        say.send(()).unwrap();
        eventually("the late reply is counted", || {
            gateway.count(key, "late") == 1
        });
        assert_eq!(payload(&replies(&mut peer, key, b"abc")), "636261");
        assert_eq!(gateway.count(key, "unanswered"), 1);
        // Too large for the port's messages.
        refused(&replies(&mut peer, key, &[1; 70_000]), "size");
    });
    assert!(gateway.count(key, "undelivered") >= 1);
}

#[test]
fn requests_are_bounded_and_the_next_one_is_served() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let ports = "[[type]]\nname = \"Pair\"\nfields = [\"a: u8\", \"b: u8\"]\n\
        [[port]]\nname = \"pump\"\nnumber = 3\nkind = \"queuing\"\ntype = \"Pair\"\n";
    let answer = "[[answer]]\nport = \"pump\"\nto = \"motor.7\"\nrate = 1\nburst = 2\n";
    let Some((gateway, mut peer)) = gateway_and_participant(&network, &cell, ports, answer) else {
        return;
    };
    let key = "site/a/pump";
    beside_answering(&cell, |_| {
        eventually("a reply", || {
            payload(&replies(&mut peer, key, b"ab")) == "6261"
        });
        eventually("the rate holds", || {
            error(&replies(&mut peer, key, b"ab")).contains("rate")
        });
        assert!(gateway.count(key, "policed") >= 1);
        thread::sleep(Duration::from_millis(1100));
        refused(&replies(&mut peer, key, b"abc"), "size");
        thread::sleep(Duration::from_millis(1100));
        let other = "application/octet-stream;tautline/Other/0123456789abcdef";
        peer.tell(json!(["ask", key, "6162", other]));
        let said = peer.wait_for("replies", |what| what["asked"] == "6162");
        refused(said["replies"].as_array().unwrap(), "type");
        thread::sleep(Duration::from_millis(1100));
        assert_eq!(payload(&replies(&mut peer, key, b"ab")), "6261");
    });
}

#[test]
fn a_participant_answers_the_cell() {
    let Some(network) = Network::create() else {
        return;
    };
    let cell = Cell::new();
    let ask = "[[ask]]\nport = \"desk\"\nkey = \"site/b/pump\"\ntimeout_ms = 700\n";
    let Some((gateway, mut peer)) = gateway_and_participant(&network, &cell, PORTS, ask) else {
        return;
    };
    let (_node, mut desk) = port(&cell, "desk", 9);
    eventually("nobody answers", || {
        assert_eq!(asked_once(&mut desk, b"abc"), None);
        gateway.count("desk", "unanswered") > 0
    });
    peer.tell(json!(["answer", "site/b/pump"]));
    peer.wait_for("the participant", |what| what["done"] == "answer");
    eventually("a reply", || {
        asked_once(&mut desk, b"abc").as_deref() == Some(b"cba")
    });
    assert_eq!(asked_once(&mut desk, b""), None, "an error is no reply");
    eventually("it is counted", || gateway.count("desk", "refused") == 1);
    let before = gateway.count("desk", "unanswered");
    assert_eq!(asked_once(&mut desk, b"\0"), None);
    eventually("it is given up", || {
        gateway.count("desk", "unanswered") == before + 1
    });
    assert_eq!(asked(&mut desk, 4, b"more").as_deref(), Some(&b"erom"[..]));
    // Killed with a request on its way, the gateway holds up nobody.
    let to = desk.destination("one", number(4)).unwrap();
    desk.send(to, Priority::NORMAL, b"\0").unwrap();
    gateway.running.kill();
    eventually("its port is gone", || {
        desk.send(to, Priority::NORMAL, b"abc").is_err()
    });
}
