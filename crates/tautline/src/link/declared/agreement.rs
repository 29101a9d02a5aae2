//! Declarations of one port and of its peers: which are to be told, what peers have said, and where they differ. Reads
//! no socket and no clock.

use std::time::{Duration, Instant};

use tautline_proto::authentication::Station;
use tautline_proto::wire::PortNumber;
use tautline_proto::wire::declaration::{Kind, PART_BYTES, Part, TEXT_BYTES_MAX};
use tautline_types::{DECLARATION_BYTES_MAX, Declaration};

use super::address_of;
use crate::types::{Direction, PortTypes, TypeDifference};

const _: () = assert!(DECLARATION_BYTES_MAX <= TEXT_BYTES_MAX);

/// Time after which the first announcement is repeated; it doubles each time. Lower: a peer that starts at the same
/// time is told more often than need be. Higher: the loss of a frame is felt.
pub(super) const REPEAT_FIRST: Duration = Duration::from_millis(250);
/// Longest time between announcements that nobody has answered. Lower: a peer that knows no declarations gets more
/// frames for nothing. Higher: one that starts later learns later of a difference.
const REPEAT_UNANSWERED: Duration = Duration::from_secs(4);
/// Time between announcements that were answered. Lower: more frames. Higher: a receiver that comes back with another
/// type is noticed later.
const REPEAT_ANSWERED: Duration = Duration::from_secs(60);
/// Peers that differ that a port remembers. Lower: one of a fleet is not named. Higher: up to 5 KiB for each more.
const PEERS_MAX: usize = 48;
/// Of these, those that are no neighbours. Lower: clients without an entry are not named. Higher: strangers leave
/// neighbours less room.
const STRANGERS_MAX: usize = PEERS_MAX / 2;
/// Replies a second, for neighbours and for strangers each, and how many at once. Lower: a fleet that starts at once
/// waits for its replies. Higher: who forges a source has more frames sent there.
const REPLIES_PER_SECOND: f64 = 8.0;
const REPLIES_AT_ONCE: f64 = 32.0;

/// Declarations that came and went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// Announcements that were sent, of whatever length.
    pub(crate) announced: u64,
    /// Destinations.
    pub(crate) destinations: u64,
    /// Of these, the ones that have replied.
    pub(crate) answered: u64,
    /// Replies that were sent.
    pub(crate) replied: u64,
    /// Replies that were not sent because there were too many.
    pub(crate) withheld: u64,
    /// Frames that were no declarations, or whose text was none.
    pub(crate) malformed: u64,
    /// Replies to nothing that this port has said.
    pub(crate) unasked: u64,
    /// Frames of peers for which there was no room.
    pub(crate) crowded_out: u64,
    /// Frames that the port's protection refused.
    pub(crate) unproven: u64,
}

/// Frames to be sent to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) to: Station,
    pub(super) port: PortNumber,
    pub(super) kind: Kind,
    pub(super) about: u64,
    /// Whether the text goes along.
    pub(super) with_text: bool,
}

/// A destination that is told what this port sends.
#[derive(Debug)]
struct Told {
    station: Station,
    port: PortNumber,
    is_group: bool,
    due: Instant,
    interval: Duration,
    is_answered: bool,
}

/// A peer that declares another type.
#[derive(Debug)]
struct Peer {
    station: Station,
    port: PortNumber,
    direction: Direction,
    is_neighbour: bool,
    heard: Instant,
    hash: u64,
    /// The text as far as it has come, and a bit for each part of it.
    text: Vec<u8>,
    come: u8,
    difference: Option<String>,
    times: u64,
}

/// Tokens for replies.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

/// The declarations of one port and of its peers.
#[derive(Debug)]
pub(super) struct Agreement {
    types: PortTypes,
    told: Vec<Told>,
    peers: Vec<Peer>,
    /// For strangers, for neighbours.
    buckets: [Bucket; 2],
    pub(super) figures: Figures,
}

/// Sender of a declaration.
#[derive(Clone, Copy, Debug)]
pub(super) struct From {
    pub(super) station: Station,
    pub(super) port: PortNumber,
    pub(super) is_neighbour: bool,
}

impl Agreement {
    pub(super) fn new(types: PortTypes, now: Instant) -> Self {
        let bucket = || Bucket {
            tokens: REPLIES_AT_ONCE,
            filled: now,
        };
        Self {
            types,
            told: Vec::new(),
            peers: Vec::new(),
            buckets: [bucket(), bucket()],
            figures: Figures::default(),
        }
    }

    /// Number and text of a declaration of this port's; number 0 where it declares nothing.
    pub(super) fn own(&self, kind: Kind) -> (u64, String) {
        let own = match kind {
            Kind::Announcement => &self.types.sends,
            Kind::Reply => &self.types.receives,
        };
        let told = own.as_ref();
        told.map_or((0, String::new()), |own| (own.hash(), own.to_string()))
    }

    /// Has a destination told what this port sends, from now on. Whether there is something to tell.
    pub(super) fn announce(
        &mut self,
        (station, is_group): (Station, bool),
        port: PortNumber,
        now: Instant,
    ) -> bool {
        if self.types.sends.is_none() || self.told_of(station, port).is_some() {
            return false;
        }
        self.told.push(Told {
            station,
            port,
            is_group,
            due: now,
            interval: REPEAT_FIRST,
            is_answered: false,
        });
        true
    }

    fn told_of(&self, station: Station, port: PortNumber) -> Option<&Told> {
        let mut told = self.told.iter();
        told.find(|told| told.station == station && told.port == port)
    }

    /// When something is to be sent next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.told.iter().map(|told| told.due).min()
    }

    /// The announcements that are due.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Outgoing> {
        let hash = self.own(Kind::Announcement).0;
        let mut out = Vec::new();
        for told in self.told.iter_mut().filter(|told| told.due <= now) {
            told.due = now + told.interval;
            // A group never answers for all of its members.
            if !told.is_answered {
                let longest = match told.is_group {
                    true => REPEAT_ANSWERED,
                    false => REPEAT_UNANSWERED,
                };
                told.interval = (told.interval * 2).min(longest);
            }
            self.figures.announced += 1;
            out.push(Outgoing {
                to: told.station,
                port: told.port,
                kind: Kind::Announcement,
                about: 0,
                with_text: hash != 0,
            });
        }
        out
    }

    /// Whether a destination has answered, and where it differs.
    pub(super) fn answer(&self, station: Station, port: PortNumber) -> (bool, Option<String>) {
        let told = self.told_of(station, port);
        let is_it = |peer: &&Peer| {
            (peer.station, peer.port, peer.direction) == (station, port, Direction::Sends)
        };
        let peer = self.peers.iter().find(is_it);
        (
            told.is_none_or(|told| told.is_answered || told.is_group),
            peer.and_then(|peer| peer.difference.clone()),
        )
    }

    /// Peers that differ.
    pub(super) fn differences(&self) -> Vec<TypeDifference> {
        let peers = self.peers.iter();
        peers
            .map(|peer| TypeDifference {
                address: address_of(peer.station, peer.port),
                port: peer.port,
                direction: peer.direction,
                difference: peer.difference.clone(),
                times: peer.times,
            })
            .collect()
    }

    pub(super) fn figures(&self) -> Figures {
        Figures {
            destinations: self.told.len() as u64,
            answered: self.told.iter().filter(|told| told.is_answered).count() as u64,
            ..self.figures
        }
    }

    /// A part of a declaration has come; the reply, if one is due.
    pub(super) fn hear(&mut self, now: Instant, from: From, part: &Part<'_>) -> Option<Outgoing> {
        match part.kind {
            Kind::Announcement => self.announced(now, from, part),
            Kind::Reply => {
                self.replied(now, from, part);
                None
            }
        }
    }

    fn announced(&mut self, now: Instant, from: From, part: &Part<'_>) -> Option<Outgoing> {
        let own = self.own(Kind::Reply).0;
        if own == 0 || part.hash == 0 || part.hash == own {
            self.agree(from, Direction::Receives);
            // One reply to an announcement, however many parts it has.
            let is_first = part.offset == 0;
            return is_first.then(|| self.reply(now, from, part.hash, false))?;
        }
        let is_complete = self.differ(now, from, Direction::Receives, part);
        is_complete.then(|| self.reply(now, from, part.hash, true))?
    }

    fn replied(&mut self, now: Instant, from: From, part: &Part<'_>) {
        let own = self.own(Kind::Announcement).0;
        let is_it = |told: &&mut Told| {
            told.port == from.port && (told.station == from.station || told.is_group)
        };
        let told = self.told.iter_mut().find(is_it);
        let Some(told) = told.filter(|_| own != 0 && part.about == own) else {
            self.figures.unasked += 1;
            return;
        };
        let is_group = told.is_group;
        let has_answered = if part.hash == own || part.hash == 0 {
            self.agree(from, Direction::Sends);
            true
        } else {
            self.differ(now, from, Direction::Sends, part)
        };
        let told = self.told.iter_mut().find(is_it);
        if let Some(told) = told.filter(|_| has_answered && !is_group) {
            told.is_answered = true;
            told.interval = REPEAT_ANSWERED;
            told.due = now + REPEAT_ANSWERED;
        }
    }

    /// The peer declares the same by now, or nothing.
    fn agree(&mut self, from: From, direction: Direction) {
        self.peers.retain(|peer| !peer.is(from, direction));
    }

    /// Takes a part of another declaration; whether it is complete.
    fn differ(&mut self, now: Instant, from: From, direction: Direction, part: &Part<'_>) -> bool {
        let Some(place) = self.place_of(now, from, direction) else {
            self.figures.crowded_out += 1;
            return false;
        };
        let own = match direction {
            Direction::Sends => self.types.sends.as_deref(),
            Direction::Receives => self.types.receives.as_deref(),
        };
        let peer = &mut self.peers[place];
        peer.heard = now;
        let Some(text) = peer.take(part) else {
            return false;
        };
        let theirs = text.parse::<Declaration>().ok();
        let theirs = theirs.filter(|theirs| theirs.hash() == part.hash);
        let difference = theirs.and_then(|theirs| own?.difference(&theirs));
        if difference.is_none() {
            self.figures.malformed += 1;
            // Its earlier declaration no longer counts, and this is none.
            self.peers.swap_remove(place);
            return false;
        }
        peer.difference = difference;
        peer.times += 1;
        true
    }

    /// The place of a peer, perhaps that of a stranger who was not heard for longest. None if there is no room.
    fn place_of(&mut self, now: Instant, from: From, direction: Direction) -> Option<usize> {
        if let Some(place) = self.peers.iter().position(|peer| peer.is(from, direction)) {
            return Some(place);
        }
        let strangers = self.peers.iter().filter(|peer| !peer.is_neighbour).count();
        let is_full = self.peers.len() == PEERS_MAX;
        if is_full || (!from.is_neighbour && strangers == STRANGERS_MAX) {
            let places = self.peers.iter().enumerate();
            let strangers = places.filter(|(_, peer)| !peer.is_neighbour);
            let (oldest, _) = strangers.min_by_key(|(_, peer)| peer.heard)?;
            self.peers.swap_remove(oldest);
        }
        self.peers.push(Peer {
            station: from.station,
            port: from.port,
            direction,
            is_neighbour: from.is_neighbour,
            heard: now,
            hash: 0,
            text: Vec::new(),
            come: 0,
            difference: None,
            times: 0,
        });
        Some(self.peers.len() - 1)
    }

    fn reply(&mut self, now: Instant, from: From, about: u64, with_text: bool) -> Option<Outgoing> {
        if !self.buckets[usize::from(from.is_neighbour)].takes(now) {
            self.figures.withheld += 1;
            return None;
        }
        self.figures.replied += 1;
        Some(Outgoing {
            to: from.station,
            port: from.port,
            kind: Kind::Reply,
            about,
            with_text,
        })
    }
}

impl Peer {
    fn is(&self, from: From, direction: Direction) -> bool {
        (self.station, self.port, self.direction) == (from.station, from.port, direction)
    }

    /// Takes a part; the text once it is whole, which ends the collection.
    fn take(&mut self, part: &Part<'_>) -> Option<String> {
        if self.hash != part.hash || self.text.len() != part.text_bytes {
            (self.hash, self.come) = (part.hash, 0);
            self.text.clear();
            self.text.resize(part.text_bytes, 0);
        }
        self.text[part.offset..part.offset + part.text.len()].copy_from_slice(part.text);
        self.come |= 1 << (part.offset / PART_BYTES);
        let all = (1u8 << part.text_bytes.div_ceil(PART_BYTES).max(1)) - 1;
        if self.come != all {
            return None;
        }
        self.come = 0;
        // Text that is none is refused as a declaration.
        Some(String::from_utf8(std::mem::take(&mut self.text)).unwrap_or_default())
    }
}

impl Bucket {
    fn takes(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.filled = now;
        self.tokens = (self.tokens + passed * REPLIES_PER_SECOND).min(REPLIES_AT_ONCE);
        let takes = self.tokens >= 1.0;
        if takes {
            self.tokens -= 1.0;
        }
        takes
    }
}
