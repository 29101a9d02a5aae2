//! The neighbour table of a control process: who may change it, what the network is asked for its clients, and
//! what its successor finds.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::Duration;

use tautline_proto::neighbour::{NEIGHBOUR_COUNT_MAX, Neighbour};

use super::super::policy::AnyPort;
use super::{ASKING, Granted, QUESTIONS_OF_USER_MAX, Server, no};
use crate::client::protocol::{Entry, Reason, Refusal, Reply};
use crate::link::bpf::entry;
use crate::neighbours::{ArpInterface, AskedBy, LockedBy, NeighbourTableError, Origin, Question};
use crate::sys::unix;

/// Places of the table that are kept for root and the control process's own user. Lower: operators leave them none.
/// Higher: operators have fewer.
const NEIGHBOURS_KEPT: usize = 32;

/// A question that the network has been asked for a client.
#[derive(Debug)]
pub(super) struct PendingQuestion {
    client: u64,
    /// Number of the client's request.
    serial: u32,
    question: Question,
}

impl PendingQuestion {
    pub(super) fn is_of(&self, client: u64) -> bool {
        self.client == client
    }
}

impl Server {
    /// One entry of the table, and how the table is.
    pub(super) fn tell_neighbour(&self, index: u16) -> Granted {
        let table = &self.neighbours;
        let answer = Reply::Neighbour {
            state: table.state(),
            count: table.entries().len() as u16,
            changes: table.changes(),
            entry: table
                .entries()
                .nth(index.into())
                .map(|(entry, origin)| Entry {
                    neighbour: entry.clone(),
                    origin,
                }),
        };
        (answer, Vec::new())
    }

    pub(super) fn add_neighbour(
        &mut self,
        number: u64,
        neighbour: Neighbour,
        origin: Origin,
    ) -> Result<Granted, Refusal> {
        self.may_change_neighbours(number)?;
        let uid = self.has_room_for_neighbour(number)?;
        self.neighbours
            .add(neighbour, origin)
            .map_err(|error| not_entered(&error))?;
        if let Some(uid) = uid {
            *self.entered.entry(uid).or_default() += 1;
        }
        self.keep_neighbours();
        Ok((Reply::NeighbourAdded, Vec::new()))
    }

    pub(super) fn set_lock(&mut self, number: u64, locked: bool) -> Result<Granted, Refusal> {
        self.may_change_neighbours(number)?;
        if locked {
            self.neighbours.lock();
        } else {
            self.neighbours.unlock();
        }
        Ok((Reply::LockSet, Vec::new()))
    }

    /// Whether one more neighbour can be had for the client; the user whom it counts towards, if any.
    fn has_room_for_neighbour(&self, number: u64) -> Result<Option<u32>, Refusal> {
        let asker = &self.greeted(number)?.asker;
        let Some(quota) = self.policy.neighbours(asker) else {
            return Ok(None);
        };
        let entered = self.entered.get(&asker.uid).copied().unwrap_or_default();
        let left = NEIGHBOUR_COUNT_MAX - self.neighbours.entries().len();
        let why = if entered >= quota.max {
            format!(
                "{} has entered {entered} neighbours, as many as {quota} gives; raise its neighbours_max",
                self.policy.name(asker.uid)
            )
        } else if left <= NEIGHBOURS_KEPT {
            format!(
                "the table has {left} places left of {NEIGHBOUR_COUNT_MAX}, which are kept for root; it is emptied \
                 when the control process and all clients have ended"
            )
        } else {
            return Ok(Some(asker.uid));
        };
        Err(no(Reason::Full, why))
    }

    fn may_change_neighbours(&self, number: u64) -> Result<(), Refusal> {
        let asker = &self.greeted(number)?.asker;
        self.policy
            .may_change_neighbours(asker)
            .map_err(|why| no(Reason::NotAllowed, why))
    }

    /// Asks the network for a client, who is answered when it has answered or the time is over. Any client may: any
    /// user makes the kernel ask by sending a datagram there. The kernel asks, so that this process needs no socket
    /// for whole frames.
    pub(super) fn solicit(
        &mut self,
        number: u64,
        serial: u32,
        (ip, timeout): (Ipv4Addr, Duration),
    ) -> Result<(), Refusal> {
        let uid = self.greeted(number)?.asker.uid;
        if self.asked.iter().any(|asked| asked.client == number) {
            return Err(no(Reason::Full, "a client asks one question at a time"));
        }
        let of_user = self.clients.of_user(uid);
        let asking = of_user.filter(|client| self.asked.iter().any(|asked| asked.is_of(*client)));
        if asking.count() >= QUESTIONS_OF_USER_MAX {
            let why = format!("a user asks {QUESTIONS_OF_USER_MAX} questions at a time");
            return Err(no(Reason::Full, why));
        }
        let setup = self.demux.setup();
        let place = ArpInterface {
            name: &setup.name,
            interface: &setup.interface,
            own: self.neighbours.own(),
        };
        let question = Question::ask(place, ip, timeout, AskedBy::Kernel)
            .map_err(|error| not_entered(&error))?;
        self.watch(question.descriptor(), ASKING | number)
            .map_err(|error| no(Reason::Kernel, error.to_string()))?;
        self.asked.push(PendingQuestion {
            client: number,
            serial,
            question,
        });
        Ok(())
    }

    /// How long the next question has yet.
    pub(super) fn question_left(&self) -> Option<Duration> {
        self.asked.iter().map(|asked| asked.question.left()).min()
    }

    /// Answers those whose question has been answered, or will not be.
    pub(super) fn look_for_answers(&mut self) {
        let mut answered = Vec::new();
        self.asked.retain(|asked| {
            let answer = match asked.question.look() {
                Ok(Some(mac)) => Reply::Station { mac },
                Ok(None) if asked.question.left().is_zero() => {
                    Reply::Refused(no(Reason::NoAnswer, "nobody answered in time"))
                }
                Ok(None) => return true,
                Err(error) => Reply::Refused(no(Reason::Kernel, error.to_string())),
            };
            answered.push((asked.client, asked.serial, answer));
            false
        });
        for (number, serial, answer) in answered {
            let heard = self.clients.get(number).is_some_and(|client| {
                unix::send(client.socket.as_fd(), &answer.encode(serial), &[]).is_ok()
            });
            if !heard {
                self.forget(number);
            }
        }
    }

    /// Leaves what was entered at run time to a successor: in a map that lives as long as the demux.
    fn keep_neighbours(&self) {
        let made_here = self
            .neighbours
            .entries()
            .filter(|(_, origin)| *origin != Origin::Configured)
            .filter_map(|(entry, origin)| entry::to_bytes(entry, origin));
        for (index, bytes) in made_here.enumerate() {
            // A table that is full here is full there; what is not kept is missing after this process only.
            let _kept = self.demux.keep_neighbour(index as u32, &bytes);
        }
    }

    /// Takes over what a predecessor was given, after the configuration's own.
    pub(super) fn take_neighbours_over(&mut self) {
        for bytes in self.demux.kept_neighbours() {
            if let Some((entry, origin)) = entry::from_bytes(&bytes) {
                let _configured_stands = self.neighbours.enter(entry, origin);
            }
        }
        self.keep_neighbours();
        if let Some(port) = self.ports.keys().next() {
            self.neighbours.port_opened(match port {
                AnyPort::Port(port) => LockedBy::Port(port.get()),
                AnyPort::Udp(port) => LockedBy::UdpPort(*port),
                AnyPort::Raw(ethertype) => LockedBy::RawPort(ethertype.get()),
            });
        }
    }
}

fn not_entered(error: &NeighbourTableError) -> Refusal {
    match error {
        NeighbourTableError::Locked { by } => no(Reason::Locked, by.clone()),
        other => no(Reason::NotEntered, other.to_string()),
    }
}
