//! Protected ports on every link of frames: honest messages of every sort pass, and of what a stranger writes onto the
//! cable nothing does, nor does it change what is known of honest senders.

use std::time::{Duration, SystemTime};

use crate::common::wire::{Wire, frame};
use crate::common::{
    Give, PACKET, PATIENCE, Pair, Side, Take, UDP, XDP, XDP_TC, XSK_GENERIC, port, slowness,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tautline::keys::{KeySource, key_entry};
use tautline::port::{Outgoing, QueuingOptions, SamplingOptions};
use tautline::status::{PortStatus, ProtectionStatus};
use tautline::{
    MacAddress, Node, NodeConfig, PortError, Priority, Protection, QueuingPort, Wait, neighbour,
};
use tautline_proto::authentication::{
    Cipher, Key, KeyRing, SECRET_BYTES, SendKey, Sender, Space, Station, TRAILER_BYTES, Way,
};
use tautline_proto::wire::{Header, MESSAGE_BYTES_MAX};
use tautline_state::TemporaryDirectory;
use tautline_testbed::hosts::{Host, Hosts};

/// Rounds of a stranger on each link: five hostile frames and one honest one each.
const ROUNDS: u32 = 4_000;
const DEPTH: u32 = 512;

fn ring(secret: u8, cipher: Cipher) -> KeyRing {
    let secret = std::array::from_fn(|place| secret ^ place as u8);
    KeyRing::new([Key::new(1, cipher, 0, secret)]).unwrap()
}

fn keys() -> KeySource {
    KeySource::Ring(ring(1, Cipher::Aes128Gcm))
}

/// The nodes of two hosts with keys, the first on link `packet` unless the second is on `udp`.
fn pair(b: Side) -> Option<Pair> {
    pair_with(b, false)
}

/// Nodes like those of [`pair`], the second perhaps a client of a control process, which has no keys.
fn pair_with(b: Side, is_controlled: bool) -> Option<Pair> {
    let a = Side {
        form: b.form,
        ..if b.link == UDP.link { UDP } else { PACKET }
    };
    crate::common::pair_with((a, b), is_controlled, |config| {
        config.with_keys("peer", keys())
    })
}

fn sim_pair() -> Pair {
    crate::common::sim_pair_with(|config| config.with_keys("peer", keys()))
}

fn queue(protection: Protection, message_bytes_max: usize) -> QueuingOptions {
    QueuingOptions {
        depth: DEPTH,
        message_bytes_max,
        protection: Some(protection),
        ..QueuingOptions::default()
    }
}

fn value(sources: usize) -> SamplingOptions {
    SamplingOptions {
        sources,
        protection: Some(Protection::Authenticated),
        ..SamplingOptions::default()
    }
}

fn status(node: &Node, number: u16) -> PortStatus {
    let ports = node.status().ports.into_iter();
    let mut found = ports.filter(|status| status.key == port(number).into());
    found.next().unwrap()
}

fn protection(node: &Node, number: u16) -> ProtectionStatus {
    status(node, number).protection.unwrap()
}

fn refused(status: &ProtectionStatus) -> u64 {
    let cheap = status.unprotected + status.cut + status.unknown_sender + status.unknown_epoch;
    cheap + status.untimely + status.replayed + status.forged
}

fn receive(receiver: &mut QueuingPort) -> Vec<u8> {
    let mut buffer = vec![0; receiver.message_bytes_max()];
    let length = receiver.take_into(&mut buffer).length;
    buffer.truncate(length);
    buffer
}

/// Messages of every sort, in both protections, and what the status says of them.
fn every_message_passes(pair: &Pair) {
    for protection in Protection::ALL {
        let options = queue(protection, MESSAGE_BYTES_MAX);
        let (mut sender, mut receiver, to) = pair.ports(&options);
        let mut expected = Vec::new();
        for length in [
            0, 1, 64, 1_408, 1_420, 1_421, 1_448, 1_449, 1_484, 20_000, 65_536,
        ] {
            let message: Vec<u8> = (0..length).map(|place| (place % 251) as u8).collect();
            sender.give(to, Priority::NORMAL, &message);
            assert_eq!(receive(&mut receiver), message, "{length} bytes");
            expected.push(message);
        }
        for number in 0..40_u8 {
            sender.merge(to, Priority::LOWEST, &[number; 16]).unwrap();
        }
        sender.flush().unwrap();
        let batch = [0_u8, 1, 2].map(|number| [number; 1_400]);
        let batch = batch.each_ref().map(|message| Outgoing {
            to,
            priority: Priority::LOWEST,
            message,
        });
        assert_eq!(sender.send_batch(&batch).unwrap(), 3);
        let mut loan = sender.lend(to, Priority::LOWEST, 5).unwrap();
        loan.copy_from_slice(b"ready");
        loan.send().unwrap();
        for number in 0..40_u8 {
            assert_eq!(receive(&mut receiver), [number; 16]);
        }
        for number in 0..3_u8 {
            assert_eq!(receive(&mut receiver), [number; 1_400]);
        }
        let message = receiver
            .receive_in_place(Wait::Until(pair.soon()))
            .unwrap()
            .unwrap();
        assert_eq!(message.bytes().slice(), Some(&b"ready"[..]));
        let source = message.source;
        drop(message);
        // An answer by the address of the question.
        receiver
            .reply(source, Priority::HIGHEST, b"answer")
            .unwrap();
        assert_eq!(receive(&mut sender), b"answer");

        let (b, status) = (protection, status(&pair.b, 12));
        let checked = status.protection.unwrap();
        assert_eq!(checked.kind, b.name());
        assert_eq!(
            (refused(&checked), checked.dropped_full),
            (0, 0),
            "{checked:?}"
        );
        assert_eq!(checked.accepted, status.frames);
        assert!(
            status
                .peers
                .iter()
                .all(|peer| peer.lost == 0 && peer.restarts == 0)
        );
    }
}

fn every_value_passes(pair: &Pair) {
    let mut sender = pair
        .on_a(|node| node.sampling(port(21)).options(&value(1)).open())
        .unwrap();
    for sources in [1, 4] {
        let mut reader = pair
            .on_b(|node| node.sampling(port(22)).options(&value(sources)).open())
            .unwrap();
        let to = sender.destination("peer", port(22)).unwrap();
        let mut buffer = [0; 1_484];
        for number in 0..100_u32 {
            sender.give(
                to,
                Priority::ALL[number as usize % 8],
                &number.to_be_bytes(),
            );
            let sample = reader.take_into(&mut buffer);
            assert_eq!(buffer[..sample.length], number.to_be_bytes());
            assert!(sample.new);
        }
        let again = reader.read_into(&mut buffer).unwrap().unwrap();
        assert!(!again.new && buffer[..again.length] == 99_u32.to_be_bytes());
        drop(reader);
    }
}

#[test]
fn honest_traffic_passes_on_the_simulated_network() {
    let pair = sim_pair();
    every_message_passes(&pair);
    every_value_passes(&pair);
}

#[test]
fn honest_traffic_passes_on_every_link() {
    let sides = [
        PACKET,
        PACKET.speaking_udp(),
        UDP,
        XDP,
        XDP.speaking_udp(),
        XDP_TC,
        XSK_GENERIC,
    ];
    for side in crate::common::here(sides) {
        let Some(pair) = pair(side) else { return };
        println!("{:?} {:?}", side.link, side.form);
        every_message_passes(&pair);
        every_value_passes(&pair);
    }
}

#[test]
fn honest_traffic_passes_through_a_control_process_without_keys() {
    let Some(pair) = pair_with(XDP, true) else {
        return;
    };
    every_message_passes(&pair);
    every_value_passes(&pair);
}

/// A stranger on the cable who writes frames in the first host's name, and one who has its keys: the recorder of
/// frames that were honest once.
struct Stranger {
    wire: Wire,
    way: Way,
    macs: (MacAddress, MacAddress),
    random: Xoshiro256PlusPlus,
    sender: Sender,
    keys: SendKey,
    other_sender: Sender,
    other_keys: SendKey,
    space: Space,
}

fn mac_of(hosts: &Hosts, host: Host) -> MacAddress {
    MacAddress(hosts.end(host, 0).mac())
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_nanos() as u64
}

impl Stranger {
    fn on(hosts: &Hosts) -> Self {
        let macs = (mac_of(hosts, Host::B), mac_of(hosts, Host::A));
        Self {
            wire: Wire::on(hosts, Host::A),
            way: Way {
                source: Station::Ethernet(macs.1),
                destination: Station::Ethernet(macs.0),
            },
            macs,
            random: Xoshiro256PlusPlus::seed_from_u64(20),
            // Newer than every run of the first host: its frames are judged by their tags.
            sender: Sender::new(u64::MAX, Protection::Authenticated),
            keys: SendKey::new(ring(1, Cipher::Aes128Gcm)),
            other_sender: Sender::new(u64::MAX, Protection::Authenticated),
            other_keys: SendKey::new(ring(2, Cipher::Aes128Gcm)),
            space: Space::new(),
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.random.next_u64() as usize % end
    }

    /// A frame as the first host would send it.
    fn honest(&mut self, header: Header, message: &[u8]) -> (Header, Vec<u8>) {
        let (sender, keys, space) = (&mut self.sender, &mut self.keys, &mut self.space);
        let sealed = sender.seal(now_ns(), keys, self.way, header, message, space);
        let (header, payload) = sealed.unwrap();
        (header, payload.to_vec())
    }

    fn send(&self, header: &Header, payload: &[u8]) {
        let (to, from) = self.macs;
        while !self.wire.send(&frame(to, from, header, payload)) {}
    }

    /// Five frames that are not authentic, in the name of port `from`: without protection, of another secret, changed
    /// in one bit, cut, and random ones.
    fn attack(&mut self, to: u16, from: u16, sequence: u32) {
        let priority = Priority::ALL[self.below(8)];
        let header = Header::whole(port(to), port(from), priority, 8, sequence);
        let evil = 0xEEEE_EEEE_EEEE_EEEE_u64.to_be_bytes();
        self.send(&header, &evil);
        let (sender, keys, space) = (
            &mut self.other_sender,
            &mut self.other_keys,
            &mut self.space,
        );
        let sealed = sender.seal(now_ns(), keys, self.way, header, &evil, space);
        let (other, payload) = sealed.unwrap();
        let payload = payload.to_vec();
        self.send(&other, &payload);
        let (sealed, mut changed) = self.honest(header, &evil);
        // Not the bits of the trailer that mean nothing.
        let bit = self.below(8 * 8);
        changed[bit / 8] ^= 1 << (bit % 8);
        self.send(&sealed, &changed);
        let (sealed, mut cut) = self.honest(header, &evil);
        cut.truncate(self.below(cut.len() - 1));
        let length = cut.len() as u16;
        self.send(&Header { length, ..sealed }, &cut);
        let mut random = vec![0; TRAILER_BYTES + self.below(200)];
        self.random.fill_bytes(&mut random);
        let length = random.len() as u16;
        self.send(&Header { length, ..sealed }, &random);
    }
}

/// Beside a stranger's frames every message arrives, once and in order; what a stranger recorded arrives once.
fn no_forged_message_passes(side: Side) {
    let Some(pair) = pair(side) else { return };
    let hosts = pair.hosts.as_ref().unwrap();
    let mut stranger = Stranger::on(hosts);
    let (mut sender, mut receiver, to) = pair.ports(&queue(Protection::Encrypted, 1_000));
    let mut buffer = [0; 1_000];
    let (mut next, mut recorded_next, mut recorded) = (0_u32, 0_u32, Vec::new());
    let mut take = |receiver: &mut QueuingPort, next: &mut u32, recorded_next: &mut u32| {
        while let Some(message) = receiver.look(&mut buffer, Wait::Poll) {
            let found = u32::from_be_bytes(buffer[..message.length].try_into().unwrap());
            let expected = match message.source.port == port(11) {
                true => &mut *next,
                false => &mut *recorded_next,
            };
            assert_eq!(found, *expected, "from {}", message.source);
            *expected += 1;
        }
    };
    for round in 0..ROUNDS {
        let name = [11, 13][stranger.below(2)];
        stranger.attack(12, name, round);
        sender.give(to, Priority::NORMAL, &round.to_be_bytes());
        // A frame of port 13 that a stranger records, and one of those that it has recorded.
        let header = Header::whole(port(12), port(13), Priority::NORMAL, 4, round);
        let (header, payload) = stranger.honest(header, &round.to_be_bytes());
        stranger.send(&header, &payload);
        recorded.push((header, payload));
        let again = stranger.below(recorded.len());
        stranger.send(&recorded[again].0, &recorded[again].1);
        if round % 8 == 7 {
            take(&mut receiver, &mut next, &mut recorded_next);
        }
    }
    let deadline = tautline::now() + PATIENCE * slowness();
    while (next < ROUNDS || recorded_next < ROUNDS) && tautline::now() < deadline {
        take(&mut receiver, &mut next, &mut recorded_next);
    }
    assert_eq!((next, recorded_next), (ROUNDS, ROUNDS));
    // The last hostile frames may still be on their way.
    let rounds = u64::from(ROUNDS);
    while refused(&protection(&pair.b, 12)) < 6 * rounds && tautline::now() < deadline {
        take(&mut receiver, &mut next, &mut recorded_next);
    }
    let status = status(&pair.b, 12);
    let checked = status.protection.unwrap();
    assert_eq!(checked.accepted, 2 * rounds, "{checked:?}");
    assert_eq!(
        refused(&checked) + checked.waiting,
        6 * rounds,
        "{checked:?}"
    );
    assert!(
        checked.unprotected == rounds && checked.forged >= 2 * rounds,
        "{checked:?}"
    );
    assert!(checked.replayed >= rounds && checked.cut > 0, "{checked:?}");
    // Nothing that is counted for honest senders has moved.
    assert_eq!((status.frames, status.dropped_full), (2 * rounds, [0; 8]));
    assert_eq!(status.peers.len(), 2);
    for peer in &status.peers {
        let counts = (peer.received, peer.lost, peer.duplicates, peer.restarts);
        assert_eq!(counts, (rounds, 0, 0, 0), "{peer:?}");
    }
    // After a restart of the receiver nothing that was sent before is taken.
    drop(receiver);
    let reopen = |node: &Node| {
        node.queuing(port(12))
            .options(&queue(Protection::Encrypted, 1_000))
            .open()
    };
    let mut receiver = pair.on_b(reopen).unwrap();
    for (header, payload) in recorded.iter().rev().take(100) {
        stranger.send(header, payload);
    }
    // Nor after a restart of the sender, whose numbers begin anew.
    drop(sender);
    let reopen = |node: &Node| {
        node.queuing(port(11))
            .options(&queue(Protection::Authenticated, 1_000))
            .open()
    };
    let mut sender = pair.on_a(reopen).unwrap();
    let to = sender.destination("peer", port(12)).unwrap();
    for number in 0..100_u32 {
        sender.give(to, Priority::LOWEST, &number.to_be_bytes());
        let message = receive(&mut receiver);
        assert_eq!(message, number.to_be_bytes());
    }
    let checked = protection(&pair.b, 12);
    assert_eq!(
        (checked.accepted, checked.replayed),
        (100, 100),
        "{checked:?}"
    );
}

#[test]
fn no_forged_message_passes_on_packet() {
    no_forged_message_passes(PACKET);
}

#[test]
fn no_forged_message_passes_on_xdp_native() {
    no_forged_message_passes(XDP);
}

#[test]
fn no_forged_message_passes_on_xdp_tc() {
    no_forged_message_passes(XDP_TC);
}

/// A value stands until an honest newer one comes, whatever a stranger sends meanwhile.
fn no_forged_value_passes(side: Side, sources: usize) {
    let Some(pair) = pair(side) else { return };
    let hosts = pair.hosts.as_ref().unwrap();
    let mut stranger = Stranger::on(hosts);
    let (mut sender, mut reader, to) = pair.values(&value(sources));
    let mut buffer = [0; 1_484];
    let mut recorded: Vec<(Header, Vec<u8>)> = Vec::new();
    for round in 0..ROUNDS / 4 {
        stranger.attack(22, 21, round);
        if let Some(known) = recorded.len().checked_sub(1) {
            let again = known - stranger.below(known.min(30) + 1);
            stranger.send(&recorded[again].0, &recorded[again].1);
        }
        if round % 2 == 0 {
            sender.give(to, Priority::NORMAL, &round.to_be_bytes());
        } else {
            // One that is recorded, of another port of the host: a stranger on the cable has it as well.
            let header = Header::whole(port(22), port(23), Priority::NORMAL, 4, round);
            let (header, payload) = stranger.honest(header, &round.to_be_bytes());
            stranger.send(&header, &payload);
            recorded.push((header, payload));
        }
        stranger.attack(22, 21, round);
        let sample = reader.look(&mut buffer, Wait::Until(pair.soon()));
        let sample = sample.expect("the honest value");
        assert_eq!(buffer[..sample.length], round.to_be_bytes());
        let again = reader.read_into(&mut buffer).unwrap().unwrap();
        assert_eq!(buffer[..again.length], round.to_be_bytes());
    }
    let status = status(&pair.b, 22);
    let checked = status.protection.unwrap();
    assert_eq!(checked.accepted, u64::from(ROUNDS / 4), "{checked:?}");
    assert_eq!(status.sources_refused, 0);
    assert_eq!(status.peers.len(), 2);
}

#[test]
fn no_forged_value_passes_on_packet() {
    no_forged_value_passes(PACKET, 1);
}

#[test]
fn no_forged_value_passes_on_xdp_native() {
    no_forged_value_passes(XDP, 1);
    no_forged_value_passes(XDP, 4);
}

#[test]
fn a_flood_of_forged_frames_is_counted_and_over_when_it_ends() {
    let Some(pair) = pair(XDP) else { return };
    let hosts = pair.hosts.as_ref().unwrap();
    let mut stranger = Stranger::on(hosts);
    let (mut sender, mut receiver, to) = pair.ports(&queue(Protection::Authenticated, 1_000));
    // More than the queue holds, and no thread looks meanwhile.
    for round in 0..DEPTH * 8 {
        stranger.attack(12, 11, round);
    }
    let mut buffer = [0; 1_000];
    receiver.finds_nothing(&mut buffer);
    let checked = protection(&pair.b, 12);
    assert!(
        checked.dropped_full > 0 && checked.waiting == 0,
        "{checked:?}"
    );
    assert_eq!(checked.accepted, 0);
    for number in 0..DEPTH {
        sender.give(to, Priority::NORMAL, &number.to_be_bytes());
        assert_eq!(receive(&mut receiver), number.to_be_bytes());
    }
    assert_eq!(status(&pair.b, 12).dropped_full, [0; 8]);
}

/// Two nodes of this process on link `udp`, on addresses of loopback.
fn nodes(keys_of_a: KeySource, keys_of_b: KeySource, last: u8) -> (Node, Node) {
    let (a, b) = ([127, 0, 20, last].into(), [127, 0, 21, last].into());
    let open = |own, other, keys| {
        let config = NodeConfig::udp(own).with_neighbour(neighbour("peer", other));
        Node::open(config.unwrap().with_keys("peer", keys)).unwrap()
    };
    (open(a, b, keys_of_a), open(b, a, keys_of_b))
}

#[test]
fn other_keys_are_refused_and_say_so() {
    let other = KeySource::Ring(ring(2, Cipher::Aes128Gcm));
    let cipher = KeySource::Ring(ring(1, Cipher::ChaCha20Poly1305));
    for (last, wrong) in [(1, other), (2, cipher)] {
        let (a, b) = nodes(wrong, keys(), last);
        let options = queue(Protection::Authenticated, 1_000);
        let mut sender = a.queuing(port(11)).options(&options).open().unwrap();
        let mut receiver = b.queuing(port(12)).options(&options).open().unwrap();
        let to = sender.destination("peer", port(12)).unwrap();
        for _ in 0..100 {
            sender.give(to, Priority::NORMAL, b"stop");
        }
        let soon = tautline::now() + Duration::from_millis(200);
        assert!(receiver.receive(Wait::Until(soon)).unwrap().is_none());
        let checked = protection(&b, 12);
        assert_eq!((checked.accepted, checked.forged), (0, 100), "{checked:?}");
    }
}

#[test]
fn ports_without_protection_and_ports_with_do_not_mix() {
    let (a, b) = nodes(keys(), keys(), 3);
    let plain = QueuingOptions::default();
    let protected = queue(Protection::Encrypted, 1_000);
    let mut from_plain = a.queuing(port(30)).options(&plain).open().unwrap();
    let mut from_protected = a.queuing(port(31)).options(&protected).open().unwrap();
    let mut to_plain = b.queuing(port(32)).options(&plain).open().unwrap();
    let mut to_protected = b.queuing(port(33)).options(&protected).open().unwrap();
    let mut value = b.sampling(port(34)).open().unwrap();
    let soon = || tautline::now() + Duration::from_millis(100);
    let to = from_plain.destination("peer", port(33)).unwrap();
    from_plain.give(to, Priority::NORMAL, b"plain");
    assert!(to_protected.receive(Wait::Until(soon())).unwrap().is_none());
    assert_eq!(protection(&b, 33).unprotected, 1);
    for (number, message) in [(32, &b"protected"[..]), (34, b"protected")] {
        let to = from_protected.destination("peer", port(number)).unwrap();
        from_protected.give(to, Priority::NORMAL, message);
    }
    assert!(to_plain.receive(Wait::Until(soon())).unwrap().is_none());
    assert!(value.look(&mut [0; 1_484], Wait::Until(soon())).is_none());
    assert_eq!((status(&b, 32).protected, status(&b, 34).unfit), (1, 1));
}

#[test]
fn a_port_is_not_protected_without_keys() {
    let own = [127, 0, 20, 4].into();
    let neighbours = || {
        let config = NodeConfig::udp(own)
            .with_neighbour(neighbour("known", own))
            .unwrap();
        config
            .with_neighbour(neighbour("stranger", [127, 0, 20, 5].into()))
            .unwrap()
    };
    let options = queue(Protection::Authenticated, 1_000);
    let node = Node::open(neighbours()).unwrap();
    let refused = node.queuing(port(11)).options(&options).open().unwrap_err();
    assert!(
        matches!(refused, PortError::NoKeys { name: None }),
        "{refused}"
    );
    drop(node);
    let node = Node::open(neighbours().with_keys("known", keys())).unwrap();
    let mut opened = node.queuing(port(11)).options(&options).open().unwrap();
    opened.destination("known", port(12)).unwrap();
    let refused = opened.destination("stranger", port(12)).unwrap_err();
    assert!(
        matches!(&refused, PortError::NoKeys { name: Some(name) } if name == "stranger"),
        "{refused}"
    );
    assert!(Node::open(neighbours().with_keys("nobody", keys())).is_err());
    let bus = crate::common::bus_pair();
    let refused = bus
        .a
        .queuing(port(11))
        .options(&options)
        .open()
        .unwrap_err();
    assert!(
        matches!(
            refused,
            PortError::NotOnLink { .. } | PortError::NoKeys { name: None }
        ),
        "{refused}"
    );
}

/// A new epoch in files of both nodes, one after the other, and messages all the while.
#[test]
fn new_keys_lose_no_message() {
    let directory = TemporaryDirectory::make("taut-keys").unwrap();
    let files = ["a.key", "b.key"].map(|name| directory.path().join(name));
    let begins_s = now_ns() / 1_000_000_000 + 2;
    let entry = |epoch: u16, begins_s| {
        let secret: [u8; SECRET_BYTES] = std::array::from_fn(|place| place as u8 ^ epoch as u8);
        key_entry(
            epoch,
            Cipher::ALL[usize::from(epoch) - 1],
            begins_s,
            &secret,
        )
    };
    let write = |file: &std::path::PathBuf, text: String| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(file, text).unwrap();
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    files.iter().for_each(|file| write(file, entry(1, 0)));
    let (a, b) = nodes(
        KeySource::File(files[0].clone()),
        KeySource::File(files[1].clone()),
        6,
    );
    let options = queue(Protection::Encrypted, 1_000);
    let mut sender = a.queuing(port(11)).options(&options).open().unwrap();
    let mut receiver = b.queuing(port(12)).options(&options).open().unwrap();
    let to = sender.destination("peer", port(12)).unwrap();
    let (mut number, mut after) = (0_u32, 0);
    while after < 500 {
        for file in [(1_000, &files[1], &b), (2_000, &files[0], &a)] {
            let (at, file, node) = file;
            if number == at {
                write(file, entry(1, 0) + &entry(2, begins_s));
                node.reload_keys().unwrap();
            }
        }
        if number == 3_000 {
            // A wrong file changes nothing.
            write(&files[0], "key = 1".to_owned());
            a.reload_keys().unwrap_err();
        }
        sender.give(to, Priority::NORMAL, &number.to_be_bytes());
        assert_eq!(receive(&mut receiver), number.to_be_bytes());
        number += 1;
        if now_ns() / 1_000_000_000 > begins_s {
            after += 1;
        } else if number > 4_000 {
            // The epoch is about to begin.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let checked = protection(&b, 12);
    assert_eq!(
        (checked.accepted, refused(&checked)),
        (u64::from(number), 0),
        "{checked:?}"
    );
    // The sender forgets the old epoch: the receiver takes the new one. Without the new one it takes nothing.
    write(&files[1], entry(1, 0));
    b.reload_keys().unwrap();
    sender.give(to, Priority::NORMAL, b"new");
    let soon = tautline::now() + Duration::from_millis(200);
    assert!(receiver.receive(Wait::Until(soon)).unwrap().is_none());
    assert_eq!(protection(&b, 12).unknown_epoch, 1);
}
