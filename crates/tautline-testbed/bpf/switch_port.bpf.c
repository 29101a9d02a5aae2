// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The port of a switch towards a node, for tests and experiments, at the egress of a port of a bridge.
 *
 * It computes when a port of hardware would send each frame, from the time at which the frame comes and its length, and
 * drops the frame if the queue would be full. So losses and waits are those of a port, and not those of the timer of
 * the queueing discipline behind it, which keeps the frames for about as long as the port would.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "tautline.h"

/* crates/tautline-testbed/src/hosts/switch_port.rs has the same numbers. */
#define WAIT_BINS 1024
#define SOURCES 64
#define KINDS 3
#define CONTROL 0
#define REAL_TIME 1
#define OTHER 2
#define CONTROL_PORT 4030

/* Departures that are remembered: a power of two, above the longest queue. */
#define DEPARTURES 256
/* Preamble, check sequence and gap; shortest frame with them; bytes of a tag. */
#define WIRE_OVERHEAD 24
#define WIRE_BYTES_MIN 84
#define TAG_BYTES 4
/* Priorities from this one on have the first queue. */
#define URGENT 4
/* Classes of the queueing discipline behind. */
#define URGENT_CLASS 0x10010
#define OTHER_CLASS 0x10020

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Set before the program is loaded. */
const volatile __u64 picoseconds_per_byte = 1;
const volatile __u64 queue_frames = 1;
const volatile __u64 honours_priorities = 0;
const volatile __u64 bin_ns = 1;
const volatile __u64 longest_ns = 1;
const volatile __u64 late_ns[KINDS] = {};

struct queue {
	__u64 free_at;
	__u64 count;
	__u64 departure[DEPARTURES];
};

struct port {
	struct bpf_spin_lock lock;
	struct queue queue[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct port);
} port SEC(".maps");

struct kind {
	__u64 frames;
	__u64 wire_bytes;
	__u64 dropped;
	__u64 late;
};

struct counts {
	struct kind kind[KINDS];
	/* Frames that passed, by kind and wait. */
	__u64 waits[KINDS][WAIT_BINS];
	/* Bytes of other traffic that passed, by the last byte of the sender's address. */
	__u64 source[SOURCES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

static __always_inline __u32 kind_of(struct __sk_buff *skb)
{
	__u8 head[24];
	__be16 port;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, head, sizeof(head)))
		return OTHER;
	if (skb->protocol == bpf_htons(TL_ETHERTYPE_DEFAULT)) {
		__builtin_memcpy(&port, head, sizeof(port));
		return bpf_ntohs(port) == CONTROL_PORT ? CONTROL : REAL_TIME;
	}
	if (skb->protocol != bpf_htons(ETH_P_IP) || head[9] != IPPROTO_UDP || head[0] != 0x45)
		return OTHER;
	__builtin_memcpy(&port, head + 22, sizeof(port));
	return bpf_ntohs(port) > TL_UDP_PORT_BASE &&
			       bpf_ntohs(port) <= TL_UDP_PORT_BASE + TL_PORT_MAX ?
		       REAL_TIME :
		       OTHER;
}

/* The priority that a switch sees: of the tag, or of the type of service. */
static __always_inline __u32 priority_of(struct __sk_buff *skb)
{
	__u8 service;

	if (skb->vlan_present)
		return skb->vlan_tci >> 13 & 7;
	if (skb->protocol == bpf_htons(ETH_P_IP) &&
	    !bpf_skb_load_bytes(skb, ETH_HLEN + 1, &service, sizeof(service)))
		return service >> 5;
	return 0;
}

/* Time that a frame that comes now waits before it is sent; -1: the queue is full. */
static __always_inline __s64 take(struct port *at, bool urgent, __u64 now, __u64 takes_ns)
{
	struct queue *own = &at->queue[urgent], *others = &at->queue[0];
	__u64 begin, left;
	__s64 wait = -1;

	bpf_spin_lock(&at->lock);
	/* The frame that came so many before this one must have left. */
	if (own->departure[(own->count - queue_frames - 1) % DEPARTURES] > now)
		goto out;
	begin = own->free_at > now ? own->free_at : now;
	if (urgent) {
		/* For the urgent ones before it, and the rest of one other frame. */
		left = others->free_at > now ? others->free_at - now : 0;
		left = left < longest_ns ? left : longest_ns;
		begin = begin > now + left ? begin : now + left;
		others->free_at = (others->free_at > now ? others->free_at : now) + takes_ns;
	}
	wait = begin - now;
	own->free_at = begin + takes_ns;
	own->departure[own->count % DEPARTURES] = own->free_at;
	own->count++;
out:
	bpf_spin_unlock(&at->lock);
	return wait;
}

static __always_inline void count(struct __sk_buff *skb, __u32 kind, __u64 wire_bytes, __s64 wait)
{
	__u32 first = 0;
	struct counts *all = bpf_map_lookup_elem(&counts, &first);
	__u64 bin = wait / bin_ns;
	const volatile __u64 *late_after_ns;
	struct kind *of_kind;
	__u64 *waits;
	__u8 source;

	/* The addresses at once: the verifier of Linux 6.1 may have forgotten the bound later. */
	asm volatile("" : "+r"(kind));
	if (!all || kind >= KINDS)
		return;
	of_kind = &all->kind[kind];
	waits = all->waits[kind];
	late_after_ns = &late_ns[kind];
	asm volatile("" : "+r"(of_kind), "+r"(waits), "+r"(late_after_ns));
	__sync_fetch_and_add(&of_kind->frames, 1);
	if (wait < 0) {
		__sync_fetch_and_add(&of_kind->dropped, 1);
		return;
	}
	__sync_fetch_and_add(&of_kind->wire_bytes, wire_bytes);
	if ((__u64)wait > *late_after_ns)
		__sync_fetch_and_add(&of_kind->late, 1);
	if (bin >= WAIT_BINS)
		bin = WAIT_BINS - 1;
	__sync_fetch_and_add(&waits[bin], 1);
	if (kind == OTHER && !bpf_skb_load_bytes(skb, ETH_ALEN + 5, &source, sizeof(source)) &&
	    source < SOURCES)
		__sync_fetch_and_add(&all->source[source], wire_bytes);
}

SEC("classifier") int switch_port(struct __sk_buff *skb)
{
	__u32 first = 0, kind = kind_of(skb);
	struct port *at = bpf_map_lookup_elem(&port, &first);
	bool urgent = honours_priorities && priority_of(skb) >= URGENT;
	__u64 bytes = skb->len + WIRE_OVERHEAD + (skb->vlan_present ? TAG_BYTES : 0);
	__s64 wait;

	if (!at)
		return TC_ACT_OK;
	if (bytes < WIRE_BYTES_MIN)
		bytes = WIRE_BYTES_MIN;
	wait = take(at, urgent, bpf_ktime_get_ns(), bytes * picoseconds_per_byte / 1000);
	count(skb, kind, bytes, wait);
	if (wait < 0)
		return TC_ACT_SHOT;
	skb->priority = urgent ? URGENT_CLASS : OTHER_CLASS;
	return TC_ACT_UNSPEC;
}
