//! Help of `taut-lab` around its grammar: groups of commands, and examples.

use taut::help::Help;

/// Headings, and two examples for each command. `taut demo`, `bench`, `lab` and `experiment` run this program; `task`
/// is its own.
#[rustfmt::skip] // a table: a line for each part
pub(crate) const HELP: Help = Help {
    groups: &[
        ("Show", &["demo"]),
        ("Measure", &["lab", "bench", "task"]),
        ("Repeat", &["experiment"]),
    ],
    examples: &[
        ("demo", [
            ("Hold a loop at 1 kHz beside a gigabit of TCP for 10 seconds", "taut demo"),
            ("Try it for a second over loopback, without any privilege", "taut demo --unprivileged --for 1s"),
        ]),
        ("lab run", [
            ("Judge this machine in a minute, as it is", "sudo taut lab run --for 1min --untouched-only"),
            ("Find what delays one CPU by more than 500us, and write a page",
              "sudo taut lab run --cpus 1 --trace-above 500us --html lab.html"),
        ]),
        ("lab interrupt", [
            ("Measure interrupt latency on the last CPU, idle and with all loads", "sudo taut lab interrupt"),
            ("Measure ten thousand events beside a busy CPU, without a partition",
              "sudo taut lab interrupt --load cpu --count 10000 --untouched-only"),
        ]),
        ("lab network", [
            ("Measure a card for a minute; at the peer, `taut echo --interface eth1 --udp 7` answers",
              "sudo taut lab network --interface eth1 --peer 10.0.0.2"),
            ("Measure for a day, alone and alongside iperf3 to the peer, and write a page",
              "sudo taut lab network --interface eth1 --peer 10.0.0.2 --for 24h --load idle,iperf3 --html network.html"),
        ]),
        ("lab report", [
            ("Write the page lab.html of a result", "taut lab report machine.json"),
            ("Write one page of this result and of a file of cyclictest", "taut lab report machine.json cyclictest.json --html both.html"),
        ]),
        ("lab compare", [
            ("Check that a result is not worse than an earlier one", "taut lab compare before.json after.json"),
            ("Allow each percentile to be half as high again", "taut lab compare before.json after.json --tolerance 0.5"),
        ]),
        ("lab kernels", [
            ("Measure the kernel of Debian's standard package for a second of its time",
              "taut lab kernels --kernel amd64 --for 1s"),
            ("Compare it with PREEMPT_RT under one load", "taut lab kernels --kernel amd64 rt-amd64 --load combined"),
        ]),
        ("lab paths", [
            ("Measure round trips over two emulated cards", "taut lab paths --driver igb"),
            ("Measure two paths with messages of one size", "taut lab paths --paths udp-poll,queuing --sizes 64B"),
        ]),
        ("bench rtt", [
            ("Compare all paths between two hosts of its own", "sudo taut bench rtt"),
            ("Compare two paths in a few seconds, as JSON", "sudo taut bench rtt --paths udp-block,queuing --count 1000 --json"),
        ]),
        ("bench loop", [
            ("Measure a loop at 1 kHz, idle and beside busy CPUs", "sudo taut bench loop --beside idle,cpu --for 220s"),
            ("Compare the socket with a port for a short time", "sudo taut bench loop --paths udp-block,queuing --for 20s"),
        ]),
        ("bench flood", [
            ("Measure one port while a third host floods another", "sudo taut bench flood"),
            ("Do so with a message each millisecond", "sudo taut bench flood --interval 1ms --count 5000"),
        ]),
        ("bench send", [
            ("Measure the cost of a send, copied and lent", "sudo taut bench send"),
            ("Measure it for two sizes", "sudo taut bench send --sizes 64B,8KiB"),
        ]),
        ("bench ordinary", [
            ("Measure what a demux costs ordinary traffic", "sudo taut bench ordinary"),
            ("Measure it on a bridge", "sudo taut bench ordinary --over bridge"),
        ]),
        ("bench turns", [
            ("Measure round trips whose ends take turns", "sudo taut bench turns"),
            ("Measure over two network cards that a cable joins", "sudo taut bench turns --interfaces eth1,eth2"),
        ]),
        ("bench bus", [
            ("Measure ports between processes", "taut bench bus"),
            ("Measure publishing to eight subscribers", "taut bench bus --subscribers 8 --publish-size 64KiB"),
        ]),
        ("task compare", [
            ("Run a task set idle and beside loads, without a partition and in one", "sudo taut-lab task compare tasks.toml"),
            ("Do so beside one load for a minute each", "sudo taut-lab task compare tasks.toml --load memory --for 1min"),
        ]),
        ("experiment list", [
            ("List names and figures", "taut experiment list"),
            ("Write the list as JSON", "taut experiment list --json"),
        ]),
        ("experiment run", [
            ("Repeat one figure in about a minute", "sudo taut experiment run rtdip-fig3 --quick"),
            ("Repeat all figures into a directory", "sudo taut experiment run all --out results"),
        ]),
    ],
};

#[cfg(test)]
mod tests {
    use super::HELP;

    #[test]
    fn each_command_stands_in_one_group_and_has_two_examples() {
        assert!(HELP.checked(&crate::grammar()) > 10);
    }
}
