//! Authenticated frames: the vectors of `docs/vectors/wire/authenticated.jsonl`, answered here and by a program in
//! Python, and strangers, restarts and new keys beside honest traffic.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};
use tautline_proto::authentication::*;
use tautline_proto::wire::{HEADER_BYTES, Header, MacAddress, PortNumber, Priority};

/// Frames of each kind that a stranger sends.
const HOSTILE: usize = 100_000;
const SECOND: u64 = 1_000_000_000;

fn vectors_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/vectors")
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    let places = (0..hex.len()).step_by(2);
    places
        .map(|place| u8::from_str_radix(&hex[place..place + 2], 16).unwrap())
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn number(hex: &Value) -> u64 {
    u64::from_str_radix(hex.as_str().unwrap(), 16).unwrap()
}

fn station(text: &Value) -> Station {
    let text = text.as_str().unwrap();
    match text.parse::<MacAddress>() {
        Ok(mac) => Station::Ethernet(mac),
        Err(_) => Station::Udp(text.parse().unwrap()),
    }
}

fn answer(vector: &Value) -> Value {
    let cipher = Cipher::named(vector["cipher"].as_str().unwrap()).unwrap();
    let epoch = u16::try_from(vector["epoch"].as_u64().unwrap()).unwrap();
    let secret = bytes(&vector["secret"]).try_into().unwrap();
    let ring = KeyRing::new([Key::new(epoch, cipher, 0, secret)]).unwrap();
    let way = Way {
        source: station(&vector["source"]),
        destination: station(&vector["destination"]),
    };
    let head: [u8; HEADER_BYTES] = bytes(&vector["header"]).try_into().unwrap();
    let header = Header::from_bytes(&head).unwrap();
    let payload = bytes(&vector["payload"]);
    let (opened, tolerance) = (number(&vector["opened"]), number(&vector["tolerance"]));
    let mut receiver = Receiver::new(Discipline::InWindow, opened, tolerance);
    let mut space = Space::new();
    let now = number(&vector["now"]);
    match receiver.open(now, &ring, way, &header, &payload, &mut space) {
        Ok((plain, message)) => {
            assert_eq!(usize::from(plain.length), message.len());
            assert!(!plain.is_authenticated());
            let (_, trailer) = Trailer::split(&payload).unwrap();
            json!({
                "message": hex(message),
                "encrypted": trailer.is_encrypted,
                "run": format!("{:016x}", trailer.run),
                "time": format!("{:016x}", trailer.time_ns),
            })
        }
        Err(refusal) => json!({"error": refusal.name()}),
    }
}

#[test]
fn every_vector_has_its_answer_and_good_ones_are_sealed_to_the_same_bytes() {
    let path = vectors_folder().join("wire/authenticated.jsonl");
    let text = fs::read_to_string(path).unwrap();
    for line in text.lines() {
        let vector: Value = serde_json::from_str(line).unwrap();
        assert_eq!(answer(&vector), vector["expect"], "{}", vector["name"]);
        let expect = &vector["expect"];
        if expect.get("error").is_some() {
            continue;
        }
        let cipher = Cipher::named(vector["cipher"].as_str().unwrap()).unwrap();
        let epoch = vector["epoch"].as_u64().unwrap() as u16;
        let secret = bytes(&vector["secret"]).try_into().unwrap();
        let mut keys = SendKey::new(KeyRing::new([Key::new(epoch, cipher, 0, secret)]).unwrap());
        let way = Way {
            source: station(&vector["source"]),
            destination: station(&vector["destination"]),
        };
        let protection = match expect["encrypted"] == true {
            true => Protection::Encrypted,
            false => Protection::Authenticated,
        };
        let head: [u8; HEADER_BYTES] = bytes(&vector["header"]).try_into().unwrap();
        let header = Header::from_bytes(&head).unwrap();
        let mut space = Space::new();
        let sealed = Sender::new(number(&expect["run"]), protection).seal(
            number(&expect["time"]),
            &mut keys,
            way,
            header,
            &bytes(&expect["message"]),
            &mut space,
        );
        let payload = bytes(&vector["payload"]);
        assert_eq!(sealed, Some((header, &payload[..])), "{}", vector["name"]);
    }
}

#[test]
fn a_program_in_python_answers_them_too() {
    let python = |arguments: &[&str]| Command::new("python3").args(arguments).output();
    match python(&["-c", "import cryptography"]) {
        Ok(output) if output.status.success() => {}
        _ => {
            println!("SKIPPED: there is no python3 with the package cryptography");
            return;
        }
    }
    let program = vectors_folder().join("authenticated.py");
    let output = python(&[program.to_str().unwrap()]).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}

/// Two nodes, and what is on the cable between them.
struct Pair {
    ring: KeyRing,
    way: Way,
    sending: SendKey,
    sender: Sender,
    receiver: Receiver,
    space: Space,
    now: u64,
    sequence: u32,
}

/// A frame as it travels.
#[derive(Clone)]
struct Frame {
    header: Header,
    payload: Vec<u8>,
}

fn key(epoch: u16, begins_ns: u64) -> Key {
    let cipher = Cipher::ALL[usize::from(epoch % 2)];
    Key::new(epoch, cipher, begins_ns, [epoch as u8; SECRET_BYTES])
}

impl Pair {
    fn new(ring: KeyRing, discipline: Discipline) -> Self {
        let station = |last| Station::Ethernet(MacAddress([2, 0, 0, 0, 0, last]));
        Self {
            way: Way {
                source: station(10),
                destination: station(11),
            },
            sending: SendKey::new(ring.clone()),
            sender: Sender::new(1, Protection::Authenticated),
            receiver: Receiver::new(discipline, 1_000, SECOND),
            space: Space::new(),
            ring,
            now: 2_000,
            sequence: 0,
        }
    }

    /// The next frame; a microsecond later each time.
    fn send(&mut self) -> Frame {
        self.send_with(Priority::NORMAL)
    }

    fn send_with(&mut self, priority: Priority) -> Frame {
        self.now += 1_000;
        let port = PortNumber::MIN;
        let message = self.sequence.to_be_bytes();
        let header = Header::whole(port, port, priority, 4, self.sequence);
        self.sequence = self.sequence.wrapping_add(1);
        let sender = &mut self.sender;
        let sealed = sender.seal(
            self.now,
            &mut self.sending,
            self.way,
            header,
            &message,
            &mut self.space,
        );
        let (header, payload) = sealed.unwrap();
        Frame {
            header,
            payload: payload.to_vec(),
        }
    }

    fn receive(&mut self, frame: &Frame) -> Result<u32, Refusal> {
        let (ring, space) = (&self.ring, &mut self.space);
        let (header, payload) = (&frame.header, &frame.payload);
        let opened = self
            .receiver
            .open(self.now, ring, self.way, header, payload, space);
        opened.map(|(_, message)| u32::from_be_bytes(message.try_into().unwrap()))
    }
}

#[test]
fn of_hostile_frames_none_is_taken_and_honest_ones_beside_all_are() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut pair = Pair::new(KeyRing::new([key(2, 0)]).unwrap(), Discipline::InWindow);
    let mut stranger = Pair::new(
        KeyRing::new([Key::new(2, Cipher::Aes128Gcm, 0, [9; SECRET_BYTES])]).unwrap(),
        Discipline::InWindow,
    );
    let mut taken = Vec::new();
    for step in 0..HOSTILE {
        let honest = pair.send();
        // Before the honest frame: the same with one bit changed, cut, of another key, of a later time.
        let mut changed = honest.clone();
        let bit = random.next_u64() as usize % (changed.payload.len() * 8);
        changed.payload[bit / 8] ^= 1 << (bit % 8);
        let mut cut = honest.clone();
        cut.payload
            .truncate(random.next_u64() as usize % cut.payload.len());
        stranger.now = pair.now;
        let other_key = stranger.send();
        let mut later = honest.clone();
        let trailer = later.payload.len() - TRAILER_BYTES;
        later.payload[trailer + 19] ^= 0x10;
        // The bits of the trailer that mean nothing are sent as 0, and not covered.
        let means_nothing = (trailer * 8 + 1..trailer * 8 + 16).contains(&bit);
        for hostile in [changed, cut, other_key, later]
            .iter()
            .skip(usize::from(means_nothing))
        {
            assert!(pair.receive(hostile).is_err(), "step {step}");
        }
        let sequence = pair.receive(&honest).expect("an honest frame");
        assert_eq!(sequence as usize, step);
        taken.push(honest);
        // After it: one of the last frames once more.
        let again = taken.len() - 1 - random.next_u64() as usize % taken.len().min(200);
        assert_eq!(pair.receive(&taken[again]), Err(Refusal::Replayed));
    }
}

#[test]
fn frames_that_overtake_others_are_taken_by_queues_and_refused_as_values() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(11);
    for discipline in [Discipline::InWindow, Discipline::NewerOnly] {
        let mut pair = Pair::new(KeyRing::new([key(1, 0)]).unwrap(), discipline);
        let (mut taken, mut newest) = (0, None);
        for _ in 0..HOSTILE / 32 {
            let mut any = || Priority::ALL[random.next_u64() as usize % 8];
            let mut frames: Vec<_> = (0..32).map(|_| pair.send_with(any())).collect();
            for place in (1..32).rev() {
                frames.swap(place, random.next_u64() as usize % (place + 1));
            }
            for frame in &frames {
                let result = pair.receive(frame);
                let sequence = frame.header.sequence;
                if discipline == Discipline::NewerOnly && newest > Some(sequence) {
                    assert_eq!(result, Err(Refusal::Replayed));
                } else {
                    assert_eq!(result, Ok(sequence));
                    newest = newest.max(Some(sequence));
                    taken += 1;
                }
            }
        }
        assert!(discipline == Discipline::NewerOnly || taken == HOSTILE / 32 * 32);
    }
}

/// Frames of all priorities wait, more than a window has places, and the most urgent are checked first.
#[test]
fn urgent_frames_that_are_checked_first_cost_no_other_frame() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(13);
    let mut pair = Pair::new(KeyRing::new([key(1, 0)]).unwrap(), Discipline::InWindow);
    let mut taken: Vec<Frame> = Vec::new();
    for round in 0..100 {
        if round == 50 {
            // The sender begins anew.
            pair.sender = Sender::new(2, Protection::Encrypted);
            pair.sending = SendKey::new(pair.ring.clone());
        }
        let priorities = (0..512).map(|_| Priority::ALL[random.next_u64() as usize % 8]);
        let mut frames: Vec<_> = priorities
            .map(|priority| pair.send_with(priority))
            .collect();
        // Stable: frames of one priority stay in order.
        frames.sort_by_key(|frame| std::cmp::Reverse(frame.header.priority.get()));
        for frame in &frames {
            assert_eq!(
                pair.receive(frame),
                Ok(frame.header.sequence),
                "round {round}"
            );
        }
        taken.extend(frames);
        for _ in 0..1_000 {
            let again = &taken[random.next_u64() as usize % taken.len()];
            assert_eq!(pair.receive(again), Err(Refusal::Replayed), "round {round}");
        }
    }
}

#[test]
fn a_frame_of_one_priority_is_none_of_another() {
    for own in Priority::ALL {
        let mut pair = Pair::new(KeyRing::new([key(1, 0)]).unwrap(), Discipline::InWindow);
        let frame = pair.send_with(own);
        let others = |frame: &Frame| {
            let others = Priority::ALL.into_iter().filter(|other| *other != own);
            let changed = |priority| Frame {
                header: Header {
                    priority,
                    ..frame.header
                },
                payload: frame.payload.clone(),
            };
            others.map(changed).collect::<Vec<_>>()
        };
        // Before the frame is taken, after it, and when all priorities have a run and later frames.
        for other in others(&frame) {
            assert_eq!(pair.receive(&other), Err(Refusal::Forged));
        }
        assert!(pair.receive(&frame).is_ok());
        for other in others(&frame) {
            assert_eq!(pair.receive(&other), Err(Refusal::Forged));
        }
        for priority in Priority::ALL {
            let later = pair.send_with(priority);
            assert!(pair.receive(&later).is_ok());
        }
        for other in others(&frame) {
            assert!(pair.receive(&other).is_err());
        }
        assert_eq!(pair.receive(&frame), Err(Refusal::Replayed));
    }
}

#[test]
fn restarts_of_either_side_let_no_old_frame_in() {
    let mut pair = Pair::new(KeyRing::new([key(1, 0)]).unwrap(), Discipline::InWindow);
    let old: Vec<_> = (0..100).map(|_| pair.send()).collect();
    for frame in &old {
        assert!(pair.receive(frame).is_ok());
    }
    let held_up: Vec<_> = (0..10).map(|_| pair.send()).collect();
    // The sender begins anew, with the first sequence number and another run.
    pair.sender = Sender::new(2, Protection::Encrypted);
    pair.sending = SendKey::new(pair.ring.clone());
    pair.sequence = 0;
    let next = pair.send();
    assert_eq!(pair.receive(&next), Ok(0));
    for frame in &old {
        assert_eq!(pair.receive(frame), Err(Refusal::Replayed));
    }
    // Those that were on the way when it did are taken, once.
    for frame in &held_up {
        assert!(pair.receive(frame).is_ok());
        assert_eq!(pair.receive(frame), Err(Refusal::Replayed));
    }
    // The receiver begins anew, and remembers nothing.
    let never_seen = pair.send();
    pair.receiver = Receiver::new(Discipline::InWindow, pair.now, SECOND);
    for frame in old.iter().chain(&held_up).chain([&next, &never_seen]) {
        assert_eq!(pair.receive(frame), Err(Refusal::Replayed));
    }
    let next = pair.send();
    assert!(pair.receive(&next).is_ok());
    // A frame that was held up for longer than the tolerance.
    let late = pair.send();
    pair.now += SECOND + 1;
    assert_eq!(pair.receive(&late), Err(Refusal::Untimely));
}

#[test]
fn a_sender_whose_clock_was_set_back_far_is_heard_in_another_run() {
    const HOUR: u64 = 3_600 * SECOND;
    let mut pair = Pair::new(KeyRing::new([key(1, 0)]).unwrap(), Discipline::InWindow);
    let mut taken = Vec::new();
    let mut used = std::collections::BTreeSet::new();
    for run in 2..50 {
        for _ in 0..100 {
            let frame = pair.send();
            assert!(pair.receive(&frame).is_ok());
            taken.push(frame);
        }
        // Its clock is an hour ahead for a frame, which the receiver, whose clock is right, does not take.
        pair.now += HOUR;
        let ahead = pair.send();
        pair.now -= HOUR;
        assert_eq!(pair.receive(&ahead), Err(Refusal::Untimely));
        let late = pair.send();
        assert_eq!(pair.receive(&late), Err(Refusal::Untimely));
        assert!(!pair.sender.is_ahead(pair.now, HOUR + SECOND));
        assert!(pair.sender.is_ahead(pair.now, SECOND));
        pair.sender.begin_run(run);
        assert!(!pair.sender.is_ahead(pair.now, 0));
        let next = pair.send();
        assert_eq!(pair.receive(&next), Ok(next.header.sequence));
        for old in &taken {
            assert_eq!(pair.receive(old), Err(Refusal::Replayed));
        }
        taken.push(next);
        for frame in taken.drain(..).chain([ahead, late]) {
            let (_, trailer) = Trailer::split(&frame.payload).unwrap();
            assert!(
                used.insert((trailer.run, trailer.time_ns)),
                "a nonce of one key twice"
            );
        }
    }
}

#[test]
fn more_flows_than_are_remembered_let_no_old_frame_in() {
    let mut pair = Pair::new(KeyRing::new([key(1, 0)]).unwrap(), Discipline::InWindow);
    let station =
        |number: usize| Station::Udp(std::net::Ipv4Addr::from(0x0A00_0000 + number as u32));
    let mut frames = Vec::new();
    for peer in 0..3 * FLOWS_MAX {
        pair.way.source = station(peer);
        // Of all priorities in turn: none is remembered for less long.
        let frame = pair.send_with(Priority::ALL[peer % 8]);
        assert!(pair.receive(&frame).is_ok(), "peer {peer}");
        frames.push(frame);
    }
    for (peer, frame) in frames.iter().enumerate() {
        pair.way.source = station(peer);
        assert_eq!(pair.receive(frame), Err(Refusal::Replayed), "peer {peer}");
    }
    for peer in 0..3 * FLOWS_MAX {
        pair.way.source = station(peer);
        let frame = pair.send();
        assert!(pair.receive(&frame).is_ok(), "peer {peer} again");
    }
}

#[test]
fn random_payloads_are_refused_in_one_word() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut pair = Pair::new(KeyRing::new([key(1, 0)]).unwrap(), Discipline::NewerOnly);
    for _ in 0..HOSTILE {
        let mut payload = vec![0; random.next_u64() as usize % 1485];
        random.fill_bytes(&mut payload);
        let mut frame = pair.send();
        frame.header.length = payload.len() as u16;
        frame.payload = payload;
        assert!(pair.receive(&frame).is_err());
    }
}

/// Order of the runs of a test.
const ORDER: u32 = 1_800_000_000;

/// A pair whose sender's clock is twelve seconds ahead, and the frames that it has sent so.
fn a_sender_that_is_ahead(discipline: Discipline) -> (Pair, Vec<Frame>) {
    let mut pair = Pair::new(KeyRing::new([key(1, 0)]).unwrap(), discipline);
    pair.sender = Sender::new(first_run(ORDER, 7), Protection::Encrypted);
    let before = pair.send();
    assert!(pair.receive(&before).is_ok());
    pair.now += 12 * SECOND;
    let ahead = (0..5).map(|_| pair.send()).collect();
    pair.now -= 12 * SECOND;
    (pair, ahead)
}

/// The sender goes on with the right time: in the next run of the same opening, or opened anew.
fn set_back(pair: &mut Pair, is_opened_anew: bool) {
    let run = match is_opened_anew {
        true => first_run(ORDER + 1, 3),
        false => next_run(pair.sender.run(), 3).unwrap(),
    };
    pair.sender = Sender::new(run, Protection::Encrypted);
    pair.sending = SendKey::new(pair.ring.clone());
}

#[test]
fn frames_of_a_clock_that_was_ahead_are_not_taken_when_their_time_has_come() {
    for discipline in [Discipline::InWindow, Discipline::NewerOnly] {
        for (is_opened_anew, was_heard) in
            [(false, true), (true, true), (false, false), (true, false)]
        {
            let case = format!("{discipline:?}, opened anew {is_opened_anew}, heard {was_heard}");
            let (mut pair, ahead) = a_sender_that_is_ahead(discipline);
            for frame in ahead.iter().filter(|_| was_heard) {
                assert_eq!(pair.receive(frame), Err(Refusal::Untimely), "{case}");
            }
            set_back(&mut pair, is_opened_anew);
            for _ in 0..11 {
                pair.now += SECOND;
                let honest = pair.send();
                assert!(pair.receive(&honest).is_ok(), "{case}");
            }
            pair.now += SECOND;
            for frame in &ahead {
                assert_eq!(pair.receive(frame), Err(Refusal::Replayed), "{case}");
            }
            let honest = pair.send();
            assert!(pair.receive(&honest).is_ok(), "{case}");
        }
    }
}

#[test]
fn frames_that_were_untimely_are_not_taken_later_though_nothing_came_after_them() {
    for discipline in [Discipline::InWindow, Discipline::NewerOnly] {
        let (mut pair, ahead) = a_sender_that_is_ahead(discipline);
        // The last ones alone are heard; the first ones were recorded and held up.
        for frame in &ahead[3..] {
            assert_eq!(pair.receive(frame), Err(Refusal::Untimely));
        }
        pair.now += 12 * SECOND;
        for frame in &ahead {
            assert_eq!(
                pair.receive(frame),
                Err(Refusal::Replayed),
                "{discipline:?}"
            );
        }
    }
}

/// A board without a battery clock begins in the past, and is heard, and hears, once its clock is set.
#[test]
fn a_receiver_whose_clock_is_behind_takes_nothing_recorded_once_it_has_seen_the_present() {
    for discipline in [Discipline::InWindow, Discipline::NewerOnly] {
        let mut pair = Pair::new(KeyRing::new([key(1, 0)]).unwrap(), discipline);
        pair.now = 7_200 * SECOND;
        let recorded: Vec<_> = (0..100).map(|_| pair.send()).collect();
        // An hour later the receiver begins, with a clock of an hour ago.
        pair.now += 3_600 * SECOND;
        let present = pair.send();
        pair.now -= 3_600 * SECOND + 50_000;
        pair.receiver = Receiver::new(discipline, pair.now - SECOND, SECOND);
        assert_eq!(pair.receive(&present), Err(Refusal::Untimely));
        for frame in &recorded {
            assert_eq!(
                pair.receive(frame),
                Err(Refusal::Replayed),
                "{discipline:?}"
            );
        }
        pair.now += 3_600 * SECOND + 100_000;
        let next = pair.send();
        assert!(pair.receive(&next).is_ok(), "{discipline:?}");
    }
}

#[test]
fn numbers_of_runs_grow_whatever_is_random() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(17);
    let mut run = 0;
    for order in [ORDER, ORDER + 1, ORDER + 9, u32::MAX] {
        let first = first_run(order, random.next_u64());
        assert!(first > run);
        run = first;
        let mut count = 1;
        while let Some(next) = next_run(run, random.next_u64()) {
            assert!(next > run && next >> 32 == u64::from(order));
            (run, count) = (next, count + 1);
        }
        assert_eq!(count, 256);
    }
    assert_ne!(first_run(ORDER, 1), first_run(ORDER, 2));
}
