//! A node on a kernel that lacks what link `xdp` needs: it says so in one sentence, and takes link `packet`. On a
//! kernel that has all of it the node takes `xdp`.

use crate::common::{XDP, config, hosts};
use tautline::{LinkKind, Node, OpenError};
use tautline_testbed::hosts::Host;

/// The first release with `bpf_xdp_load_bytes`.
const NEEDED: (u32, u32) = (5, 18);

/// Major and minor number of the running kernel.
fn release() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = text.split(['.', '-']).map(|part| part.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn a_node_takes_the_best_link_of_this_kernel() {
    let Some(hosts) = hosts() else { return };
    let mut config = config(&hosts, Host::A, XDP);
    (config.link, config.xdp_mode) = (None, None);
    let node = hosts.inside(Host::A, || Node::open(config)).unwrap();
    let node = node.unwrap();
    let report = node.report();
    println!("{report}");
    if release() >= NEEDED {
        assert_eq!(report.link, LinkKind::Xdp);
        assert!(report.not_better.is_empty());
        return;
    }
    assert_eq!(report.link, LinkKind::Packet);
    assert!(!report.not_better.is_empty());
    for better in &report.not_better {
        assert!(better.link.starts_with("xdp"), "{report}");
        is_one_sentence(&better.why);
    }
}

#[test]
fn link_xdp_by_name_is_had_or_refused_in_one_sentence() {
    let Some(hosts) = hosts() else { return };
    let config = config(&hosts, Host::A, XDP);
    let opened = hosts.inside(Host::A, || Node::open(config)).unwrap();
    match opened {
        Ok(node) => assert!(release() >= NEEDED && node.report().link == LinkKind::Xdp),
        Err(error) => {
            assert!(release() < NEEDED, "{error}");
            assert!(!matches!(error, OpenError::NotPermitted { .. }), "{error}");
            println!("{error}");
            is_one_sentence(&error.to_string());
        }
    }
}

/// Not the verifier's log, and with the kernel that has what is missing.
fn is_one_sentence(text: &str) {
    assert!(text.lines().count() == 1 && text.len() < 300, "{text}");
    assert!(text.contains("5.18"), "{text}");
}
