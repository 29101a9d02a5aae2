//! The ways of a port of plain UDP to its peers: destinations, which stay, and those that answers took lately.

use std::net::SocketAddrV4;

use tautline_proto::ip::send::Route;

use crate::error::{PortError, SendError};
use crate::limits::DESTINATIONS_MAX;
use crate::message::{Destination, PortIdentity};

/// Ways to peers that are not destinations and were sent to lately. Lower: a program that answers several peers in turn
/// looks up their MAC addresses more often. Higher: finding one takes longer, about 1 ns each.
const ANSWERED_MAX: usize = 64;

/// Ways to peers.
#[derive(Debug)]
pub(super) struct Routes {
    identity: PortIdentity,
    destinations: Vec<Route>,
    /// Ways of answers. If there is no room for another, it replaces the one that is here for longest.
    answered: Vec<Route>,
    /// Place of the next replacement.
    oldest: usize,
    /// Place of the way that was used last.
    last: usize,
}

impl Routes {
    pub(super) fn new() -> Self {
        Self {
            identity: PortIdentity::new(),
            destinations: Vec::with_capacity(DESTINATIONS_MAX),
            answered: Vec::with_capacity(ANSWERED_MAX),
            oldest: 0,
            last: 0,
        }
    }

    /// The destination at an address, if it is one.
    pub(super) fn destination_at(&self, to: SocketAddrV4) -> Option<Destination> {
        let found = self.destinations.iter().position(|route| route.to() == to);
        found.map(|place| self.identity.destination(place))
    }

    pub(super) fn add(&mut self, route: Route) -> Result<Destination, PortError> {
        if self.destinations.len() == DESTINATIONS_MAX {
            return Err(PortError::TooManyDestinations);
        }
        self.destinations.push(route);
        Ok(self.identity.destination(self.destinations.len() - 1))
    }

    /// The way to a destination.
    #[inline]
    pub(super) fn get(&self, destination: Destination) -> Result<&Route, SendError> {
        let place = self.identity.index_of(destination)?;
        self.destinations.get(place).ok_or(SendError::OtherPort)
    }

    /// The way of an answer to an address: a destination's, or one that is remembered; else `resolve` finds it.
    #[inline]
    pub(super) fn back<E>(
        &mut self,
        to: SocketAddrV4,
        resolve: impl FnOnce() -> Result<Route, E>,
    ) -> Result<&Route, E> {
        if let Some(known) = self.destination_at(to) {
            return Ok(&self.destinations[known.index()]);
        }
        let is_last = self
            .answered
            .get(self.last)
            .is_some_and(|route| route.to() == to);
        if !is_last {
            self.last = match self.answered.iter().position(|route| route.to() == to) {
                Some(place) => place,
                None => self.remember(resolve()?),
            };
        }
        Ok(&self.answered[self.last])
    }

    /// Keeps a way; its place.
    fn remember(&mut self, route: Route) -> usize {
        if self.answered.len() < ANSWERED_MAX {
            self.answered.push(route);
            return self.answered.len() - 1;
        }
        let place = self.oldest;
        self.answered[place] = route;
        self.oldest = (place + 1) % ANSWERED_MAX;
        place
    }
}
