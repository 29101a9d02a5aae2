//! Zenoh's threads in a gateway: those that wait for a connection's data are also those that read them.
//!
//! Zenoh has groups of threads. By default one group accepts or opens a connection and then waits for its data, and
//! another one reads them, so that each message from the network wakes two threads one after the other. In a gateway
//! one group does both, which spares a wake-up for each message. Zenoh takes the choice from a variable of the
//! environment only, and reads it at its first use.

use std::env;

use tautline_bridge::program::{run_again, say};

/// Variable from which Zenoh takes its groups of threads.
const VARIABLE: &str = "ZENOH_RUNTIME";
/// Groups of a gateway. The reading group has as many threads as it and the two others together have by default: some
/// of what Zenoh does in them blocks. Fewer threads: connections wait for each other. More: memory.
pub(crate) const GROUPS: &str =
    "(rx: (worker_threads: 4), acc: (handover: rx), net: (handover: rx))";

/// Runs this program again in this process, with the variable, unless its caller has set that. Returns
/// otherwise, and if that fails: Zenoh then has the threads that it has by default.
pub(crate) fn choose() {
    if env::var_os(VARIABLE).is_some() {
        return;
    }
    let error = run_again(|command| {
        command.env(VARIABLE, GROUPS);
    });
    say(&format!(
        "gateway: Zenoh keeps its own choice of threads: {error}"
    ));
}
