#!/bin/sh
# Inside a kernel of `taut lab kernels`: interrupt latency of a guest on KVM, without a partition, in one, and there with
# KVM's timers 14 us ahead of the guest's.
#   scripts/guest-latency.sh TAUT IMAGE
set -eu
echo "SCHED_FIFO, without a partition"
/usr/bin/chrt -f 40 "$1" guest run "$2" --console -
"$1" partition create guest --cpus 1
echo "in a partition"
"$1" guest run "$2" --partition guest --console -
# Each machine takes it when it is made.
advance=/sys/module/kvm/parameters/lapic_timer_advance_ns
before=$(cat "$advance")
echo 14000 >"$advance"
echo "in a partition, timers ahead"
"$1" guest run "$2" --partition guest --console -
echo "$before" >"$advance"
"$1" partition remove guest
