#!/bin/sh
# Inside a kernel of `taut lab kernels`: interrupt latency of a guest on KVM, without a partition and in one.
#   scripts/guest-latency.sh TAUT IMAGE
set -eu
echo "SCHED_FIFO, without a partition"
/usr/bin/chrt -f 40 "$1" guest run "$2" --console -
"$1" partition create guest --cpus 1
echo "in a partition"
"$1" guest run "$2" --partition guest --console -
"$1" partition remove guest
