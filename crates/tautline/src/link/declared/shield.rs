//! Declarations of a protected port: sealed with the keys that its node shares with the neighbour, under a run of their
//! own. What is not authentic is as if it had not come.

use std::sync::Arc;

use tautline_proto::authentication::{
    Discipline, Protection, Receiver, SendKey, Sender, Space, Station, Way,
};
use tautline_proto::wire::Header;

use crate::keys::{Keys, OwnStations, runs};
use crate::link::authenticated::follow_clock;
use crate::sys::clock;

/// Protection of one port's declarations.
#[derive(Debug)]
pub(super) struct Shield {
    keys: Arc<Keys>,
    generation: u64,
    own: OwnStations,
    sender: Sender,
    receiver: Receiver,
    space: Space,
}

impl Shield {
    /// # Errors
    /// If the kernel gives no random number, or the run cannot be noted.
    pub(super) fn new(
        protection: Protection,
        keys: &Arc<Keys>,
        own: OwnStations,
    ) -> std::io::Result<Self> {
        Ok(Self {
            keys: Arc::clone(keys),
            generation: keys.generation(),
            own,
            sender: Sender::new(runs::first_run()?, protection),
            receiver: Receiver::new(
                Discipline::InWindow,
                clock::realtime_ns(),
                keys.clock_tolerance_ns(),
            ),
            space: Space::new(),
        })
    }

    /// Header and sealed payload of a declaration; `None` without a key.
    pub(super) fn seal(
        &mut self,
        destination: Station,
        header: Header,
        payload: &[u8],
    ) -> Option<(Header, &[u8])> {
        let place = self.place_of(destination)?;
        let way = Way {
            source: self.own.like(destination)?,
            destination,
        };
        // A key for each frame: the sender sees to it that no two frames of its run have one time.
        let mut key = SendKey::new(self.keys.rings().nth(place)?);
        let now = clock::realtime_ns();
        follow_clock(&mut self.sender, now, self.keys.clock_tolerance_ns());
        self.sender
            .seal(now, &mut key, way, header, payload, &mut self.space)
    }

    /// Payload of a declaration if it is authentic.
    pub(super) fn open(
        &mut self,
        source: Station,
        header: &Header,
        payload: &[u8],
    ) -> Option<&[u8]> {
        if self.generation != self.keys.generation() {
            self.generation = self.keys.generation();
            self.receiver.forget_keys();
        }
        let place = self.place_of(source)?;
        let way = Way {
            source,
            destination: self.own.like(source)?,
        };
        let ring = self.keys.rings().nth(place)?;
        let now = clock::realtime_ns();
        let opened = self
            .receiver
            .open(now, &ring, way, header, payload, &mut self.space);
        opened.ok().map(|(_, payload)| payload)
    }

    fn place_of(&self, sought: Station) -> Option<usize> {
        let mut stations = self.keys.stations();
        stations.find_map(|(station, place)| (station == sought).then_some(place))
    }
}
