#!/usr/bin/env bash
# Counts how often the library repeats itself for the kinds of port (messages, plain UDP, raw frames), in the checkout
# that this script lies in. Prints one figure a line, so that two commits can be compared with diff.
set -euo pipefail
cd "$(dirname "$0")/../crates/tautline/src"

code() { find "${1:-.}" -name '*.rs' -exec cat {} + | grep -vE '^[[:space:]]*//'; }

# Lines that contain the pattern. None is not an error.
lines() { code | grep -cE "$1" || true; }

variants=$(code | sed -E 's/RawFd|UdpChecksum|UdpSocket//g' | grep -cE '(Udp|Raw)[A-Z]' || true)
echo "lines that name a UDP or raw variant: $variants"
echo "traits of a port's half of a link: $(lines 'trait [A-Za-z]*PortLink\b')"
# Enums whose variants are the kinds: the one in tautline-proto, and others by the names that they had.
enums=$( (code; code ../../tautline-proto/src/wire) | grep -cE 'enum (AnyPort|ShownPort|Form|ReadPort|PortKey)\b' || true)
echo "enums of port kinds: $enums"
echo "lists of open ports: $(lines 'type [A-Za-z]*Ports = OpenList|struct Ports\b')"
methods=$(sed -n '/^pub(crate) trait Link:/,/^}/p' link/mod.rs | grep -cE '^    fn ' || true)
echo "methods of a link: $methods"
