//! Queues, filters and limits of an interface: made, each noted in the journal before.

use std::fs;

use tautline_state::journal::Journal;
use tautline_state::netlink::Route;
use tautline_state::network::{
    NetworkObject, PREFIX, QUEUE_HANDLE, Side, has_default_queues, has_filter_place, segment_limit,
    set_segment_limit,
};

use crate::program::Programs;
use crate::queue::{self, Class};
use crate::{Setup, SmootherError};

/// Names of our filters.
const HOLD: &str = "taut-hold";
const CLASS: &str = "taut-class";
const COUNT: &str = "taut-count";

/// Rate of a class before its first grant, and of those whose frames are let go.
pub(crate) const OPEN_BPS: u64 = 10_000_000_000;

/// Capacity for each segment that the stack may hand over at once: a segment then takes half a millisecond at most.
const SEGMENT_BPS: u64 = 250_000_000;

/// Most segments. More make bursts that fill the queue of a small switch.
const SEGMENTS_MAX: u64 = 8;

/// Place where other traffic is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    /// The root of the interface. Sockets know how much of theirs waits there, and write no more than they may.
    Root,
    /// An interface of kind `ifb`, because the root has a queueing discipline of the user's. Frames are copies there:
    /// a socket takes what waits there for sent.
    Aside,
}

impl Holding {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Aside => "ifb",
        }
    }
}

/// Makes everything.
pub(crate) fn set_up(
    route: &mut Route,
    journal: &mut Journal,
    setup: &Setup,
    interface: u32,
    programs: &Programs,
) -> Result<(Holding, Vec<Class>), SmootherError> {
    limit_segments(route, journal, setup, interface)?;
    let is_default =
        has_default_queues(route, interface).map_err(SmootherError::of("list queues"))?;
    if !has_filter_place(route, interface).map_err(SmootherError::of("list queues"))? {
        journal.will_make_network_object(NetworkObject::FilterPlace { interface })?;
        queue::make_filter_place(route, interface)
            .map_err(SmootherError::of_part("make a place for filters", FILTERS))?;
    }
    let mut making = Making {
        route,
        journal,
        interface,
        programs,
    };
    making.filter(Side::Ingress, (COUNT, "count"), None)?;
    if is_default {
        let classes = making.root(setup)?;
        Ok((Holding::Root, classes))
    } else {
        let classes = making.aside(setup)?;
        Ok((Holding::Aside, classes))
    }
}

/// Part of the kernel that filters need.
const FILTERS: &str = "BPF filters (CONFIG_NET_CLS_BPF) or action mirred (CONFIG_NET_ACT_MIRRED)";

/// Things that making an object needs.
struct Making<'a> {
    route: &'a mut Route,
    journal: &'a mut Journal,
    interface: u32,
    programs: &'a Programs,
}

impl Making<'_> {
    /// Holds at the root of the interface.
    fn root(&mut self, setup: &Setup) -> Result<Vec<Class>, SmootherError> {
        let interface = self.interface;
        self.journal
            .will_make_network_object(NetworkObject::Root { interface })?;
        self.classes(interface, setup, "sort")
    }

    /// Holds in an interface of kind `ifb`.
    fn aside(&mut self, setup: &Setup) -> Result<Vec<Class>, SmootherError> {
        let name = format!("{PREFIX}q{}", self.interface);
        self.journal
            .will_make_network_object(NetworkObject::Queue { name: name.clone() })?;
        let queue = queue::make_queue_interface(self.route, &name).map_err(
            SmootherError::of_part(
                "make a queue interface",
                "interfaces of kind ifb (CONFIG_IFB), and the interface has a queueing discipline of its own, beside \
                 which nothing can be held without them",
            ),
        )?;
        let classes = self.classes(queue, setup, "class")?;
        self.filter(Side::Egress, (HOLD, "hold"), Some(queue))?;
        Ok(classes)
    }

    /// Makes an HTB with a class for each node, and the filter that finds the class.
    fn classes(
        &mut self,
        interface: u32,
        setup: &Setup,
        program: &str,
    ) -> Result<Vec<Class>, SmootherError> {
        queue::make_htb(self.route, interface).map_err(SmootherError::of_part(
            "make an HTB",
            "queueing discipline HTB (CONFIG_NET_SCH_HTB)",
        ))?;
        let mut classes = Vec::new();
        for node in 0..setup.nodes.len() {
            let class = Class::make(self.route, interface, node, OPEN_BPS)
                .map_err(SmootherError::of("make a class"))?;
            classes.push(class);
        }
        let filter = (CLASS, self.programs.descriptor(program)?);
        queue::add_filter(self.route, interface, QUEUE_HANDLE, filter, None)
            .map_err(SmootherError::of_part("add a filter", FILTERS))?;
        Ok(classes)
    }

    /// Adds a filter to a side of the interface.
    fn filter(
        &mut self,
        side: Side,
        (name, program): (&str, &str),
        redirect: Option<u32>,
    ) -> Result<(), SmootherError> {
        let interface = self.interface;
        self.journal
            .will_make_network_object(NetworkObject::Filter {
                interface,
                side,
                name: name.to_owned(),
            })?;
        let filter = (name, self.programs.descriptor(program)?);
        queue::add_filter(self.route, interface, side.parent(), filter, redirect)
            .map_err(SmootherError::of_part("add a filter", FILTERS))
    }
}

/// A segment of TCP is up to 64 KiB, and leaves as one burst of frames.
fn limit_segments(
    route: &mut Route,
    journal: &mut Journal,
    setup: &Setup,
    interface: u32,
) -> Result<(), SmootherError> {
    let before =
        segment_limit(route, interface).map_err(SmootherError::of("read the segment limit"))?;
    let after = segments(setup.capacity_bps);
    if before > after {
        journal.will_make_network_object(NetworkObject::SegmentLimit {
            interface,
            before,
            after,
        })?;
        set_segment_limit(route, interface, after).map_err(SmootherError::of("limit segments"))?;
    }
    Ok(())
}

fn segments(capacity_bps: u64) -> u32 {
    (capacity_bps / SEGMENT_BPS).clamp(1, SEGMENTS_MAX) as u32
}

/// Has connections that are open look up their routes, and with them the limit, again. Whether that was possible.
pub(crate) fn flush_routes() -> bool {
    let _no_ipv6 = fs::write("/proc/sys/net/ipv6/route/flush", "1");
    fs::write("/proc/sys/net/ipv4/route/flush", "1").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_one_frame_at_a_hundred_megabits_and_a_few_above() {
        let of = |megabits: u64| segments(megabits * 1_000_000);
        assert_eq!(
            [10, 100, 499, 500, 1000, 10_000].map(of),
            [1, 1, 1, 2, 4, 8]
        );
    }
}
