//! Wrong use of each command: exit status, and words of the answer. Nothing here needs a privilege or another process.

use std::fs;
use std::process::{Command, Stdio};

use crate::common::Scratch;

/// Words after `taut`, exit status, words of the answer. `$D` is a directory of the test's own.
#[rustfmt::skip] // a table: one line each
const WRONG: [(&str, i32, &str); 74] = [
    ("", 2, "Usage"),
    ("frobnicate", 2, "frobnicate"),
    // exec
    ("exec --watch --interface lo -- true", 2, "cannot be used with"),
    ("exec --fifo 100 -- true", 2, "100"),
    ("exec --interface lo", 2, "PROGRAM"),
    ("exec --interface no-such-if -- true", 2, "there is no interface"),
    // send, recv, ping, echo
    ("send 127.0.13.9 7 x --field a=1 --address 127.0.13.1", 2, "cannot be used with"),
    ("send 127.0.13.9 7 --hex 02:07 --address 127.0.13.1", 2, "cannot be used with"),
    ("send 127.0.13.9 7 x --priority 8 --address 127.0.13.1", 2, "0 to 7"),
    ("send 02:00:00:00:00:01 --raw 0x88cc --hex 0 --address 127.0.13.1", 2, "bytes in hexadecimal"),
    ("recv --address 127.0.13.1", 2, "<PORT>"),
    ("recv 4096 --address 127.0.13.1", 2, "1 to 4095"),
    ("recv --raw 0x0800 --address 127.0.13.1", 2, "Linux's own"),
    ("recv --raw 0x88cc --timeout 1s --address 127.0.13.1", 1, "link `udp` has no raw frames"),
    ("recv 7 --raw 0x88cc --address 127.0.13.1", 2, "cannot be used with"),
    ("recv 7 --timeout 50ms --address 127.0.13.1", 1, "0 of 1 messages came"),
    ("recv 7 --timeout 5 --address 127.0.13.1", 2, "a time with its unit"),
    ("ping '\u{1b}[31mred' --address 127.0.13.1", 2, "`\u{fffd}[31mred`"),
    ("ping motor --address 127.0.13.1", 2, "no neighbour `motor`"),
    ("ping ff:ff:ff:ff:ff:ff --count 0 --address 127.0.13.1", 2, "--count"),
    ("ping 127.0.13.9 --count 1 --timeout 50ms --address 127.0.13.1", 1, "no answer from 127.0.13.9 port"),
    ("ping 127.0.13.9 --size 3B --address 127.0.13.1", 2, "expected 8 to 65536 bytes"),
    ("ping 127.0.13.9 --size 64 --address 127.0.13.1", 2, "a size with its unit"),
    ("ping 127.0.13.9", 2, "no node is described"),
    ("ping 127.0.13.9 --interface nope", 2, "no interface `nope`"),
    ("ping 02:00:00:00:00:01 --address 127.0.13.1", 1, "has no IPv4 address"),
    ("echo --count 0 --address 127.0.13.1", 2, "1 or more"),
    ("echo --port 0 --address 127.0.13.1", 2, "1 to 4095"),
    ("echo --link pigeon --address 127.0.13.1", 2, "xdp, xsk, packet or udp"),
    ("echo --link packet --address 127.0.13.1", 2, "needs an interface"),
    ("echo --bus .hidden", 2, "a dot first"),
    ("echo --config /dev/zero", 2, "it is a device"),
    ("echo --config /no/such.toml", 2, "cannot read /no/such.toml"),
    ("echo --config $D/bad.toml", 2, "$D/bad.toml:2:1: there is no key `speed`"),
    ("echo --config $D/bad.toml --interface lo", 2, "cannot be used with"),
    // capture, record, replay
    ("capture -w - --json", 2, "cannot have both"),
    ("capture --port udp:0", 2, "udp:PORT"),
    ("capture --port 4096", 2, "expected a port number from 1 to 4095"),
    ("capture --port motor", 2, "NODE.NUMBER on a bus"),
    ("capture --port motor.7 -i lo", 2, "a port of a bus"),
    ("capture --port 7 --bus motor", 2, "has the name of its node too"),
    ("capture --bus /nowhere/bus", 1, "there is no bus"),
    ("capture --ethertype 0x88", 2, "expected an EtherType"),
    ("capture --count 0", 2, "expected a whole number"),
    ("capture --for -1", 2, "a time with its unit"),
    ("record", 2, "required"),
    ("record -", 2, "not standard output"),
    ("record $D/none.mcap --bus /nowhere/bus", 1, "there is no bus"),
    ("record /dev/null --bus /nowhere/bus", 1, "there is no bus"),
    ("replay $D/none.mcap", 2, "required"),
    ("replay $D/none.mcap --sim", 2, "No such file"),
    ("replay $D --sim", 2, "directory"),
    ("replay $D/none.mcap --sim --write -", 2, "not standard output"),
    ("replay $D/none.mcap --sim --to x", 2, "cannot be used with"),
    ("replay $D/none.mcap --to x --write y", 2, "add --sim"),
    // top, task, bus
    ("top --kind vbus", 2, "task, bus, guest"),
    ("top --interval 0", 2, "a time above zero"),
    ("task check /no/such.toml", 2, "/no/such.toml"),
    ("bus show /nowhere/bus", 1, "there is no bus"),
    // node
    ("node", 2, "show"),
    ("node run", 2, "--config"),
    ("node run --config /nonexistent.toml", 2, "/nonexistent.toml"),
    ("node show --interface taut-none", 2, "taut-none"),
    ("node tune", 2, "--interface"),
    ("node tune --interface lo --priority 100", 2, "1..=99"),
    ("node tune --interface taut-none", 2, "taut-none"),
    ("node tune --undo --interface taut-none", 2, "taut-none"),
    ("node tune --undo --threaded", 2, "cannot be used with"),
    // smooth
    ("smooth", 2, "show"),
    ("smooth run", 2, "--config"),
    ("smooth run --config $D/unsmoothed.toml", 2, "[smoother]"),
    ("smooth run --config $D/unknown.toml", 2, "`leg`"),
    ("smooth stop", 2, "INTERFACE"),
    ("smooth stop nosuch0", 2, "no interface `nosuch0`"),
];

#[test]
fn wrong_use_is_answered_with_what_is_possible() {
    let scratch = Scratch::new("usage");
    for (name, text) in [
        ("bad.toml", "address = \"127.0.13.1\"\nspeed = 3\n"),
        ("unsmoothed.toml", "interface = \"lo\"\n"),
        (
            "unknown.toml",
            "interface = \"lo\"\n[smoother]\ncapacity_bps = 100_000_000\nneighbours = [\"leg\"]\n",
        ),
    ] {
        fs::write(scratch.0.join(name), text).unwrap();
    }
    let directory = scratch.0.to_str().unwrap();
    for (words, status, expected) in WRONG {
        let words = words.replace("$D", directory);
        let output = Command::new(crate::PROGRAM)
            .args(shell_words::split(&words).unwrap())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words}: {said}");
        let expected = expected.replace("$D", directory);
        assert!(said.contains(&expected), "{words}: {said}");
        assert!(
            ["what to do", "--help", "Usage"]
                .iter()
                .any(|words| said.contains(words)),
            "{words}: {said}"
        );
    }
}
