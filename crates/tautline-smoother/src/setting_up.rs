//! Queue, filter and limits of an interface: made, each noted in the journal before.

use std::fs;

use tautline_state::journal::Journal;
use tautline_state::netlink::Route;
use tautline_state::network::{
    NetworkObject, QUEUE_HANDLE, Side, has_default_queues, has_filter_place, segment_limit,
    set_segment_limit,
};

use crate::program::Programs;
use crate::queue::{self, Class};
use crate::{Setup, SmootherError};

/// Names of our filters.
const CLASS: &str = "taut-class";
const COUNT: &str = "taut-count";

/// Rate of a class before its first grant, and of those whose frames are let go.
pub(crate) const OPEN_BPS: u64 = 10_000_000_000;

/// Capacity for each segment that the stack may hand over at once: a segment then takes half a millisecond at most.
const SEGMENT_BPS: u64 = 250_000_000;

/// Most segments. More make bursts that fill the queue of a small switch.
const SEGMENTS_MAX: u64 = 8;

/// Makes everything.
pub(crate) fn set_up(
    route: &mut Route,
    journal: &mut Journal,
    setup: &Setup,
    interface: u32,
    programs: &Programs,
) -> Result<Vec<Class>, SmootherError> {
    if !has_default_queues(route, interface).map_err(SmootherError::of("list queues"))? {
        return Err(SmootherError::OwnQueue(setup.interface.clone()));
    }
    limit_segments(route, journal, setup, interface)?;
    if !has_filter_place(route, interface).map_err(SmootherError::of("list queues"))? {
        journal.will_make_network_object(NetworkObject::FilterPlace { interface })?;
        queue::make_filter_place(route, interface)
            .map_err(SmootherError::of_part("make a place for filters", FILTERS))?;
    }
    journal.will_make_network_object(NetworkObject::Filter {
        interface,
        side: Side::Ingress,
        name: COUNT.to_owned(),
    })?;
    let count = (COUNT, programs.descriptor("count")?);
    queue::add_filter(route, interface, Side::Ingress.parent(), count)
        .map_err(SmootherError::of_part("add a filter", FILTERS))?;
    journal.will_make_network_object(NetworkObject::Root { interface })?;
    queue::make_htb(route, interface).map_err(SmootherError::of_part(
        "make an HTB",
        "queueing discipline HTB (CONFIG_NET_SCH_HTB)",
    ))?;
    let classes = (0..setup.nodes.len())
        .map(|node| Class::make(route, interface, node, OPEN_BPS))
        .collect::<Result<_, _>>()
        .map_err(SmootherError::of("make a class"))?;
    let sort = (CLASS, programs.descriptor("sort")?);
    queue::add_filter(route, interface, QUEUE_HANDLE, sort)
        .map_err(SmootherError::of_part("add a filter", FILTERS))?;
    Ok(classes)
}

/// Part of the kernel that filters need.
const FILTERS: &str = "BPF filters (CONFIG_NET_CLS_BPF)";

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
