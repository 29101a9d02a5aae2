// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The smoother's view of an interface. `sort` finds the class of frames that are to be held, at the root of the
 * interface. `count` counts what arrives. Neither changes or drops a frame.
 *
 * A frame is held only while the lease of its receiver lasts. A process that is dead or stopped renews no lease, so its
 * traffic leaves as if there were no smoother.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "tautline.h"

/* crates/tautline-smoother/src/program.rs has the same numbers. */
#define NODES_MAX 64
#define FOREIGN NODES_MAX
#define CLASS_HANDLE 0x7a750000
#define CLASS_FIRST 0x10
/* Preamble, check sequence and gap; headers of the segments after the first, with those. */
#define WIRE_OVERHEAD 24
#define SEGMENT_OVERHEAD 90
/* Where an untagged frame has its IPv4 header. */
#define IP_OFFSET 14
#define IP_PROTOCOL_OFFSET (IP_OFFSET + 9)
#define IP_FRAGMENT_OFFSET (IP_OFFSET + 6)
#define IP_FRAGMENT_MASK 0x1fff

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* MAC address, the first byte lowest, to the number of a node. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, NODES_MAX);
	__type(key, __u64);
	__type(value, __u32);
} nodes SEC(".maps");

/* Time up to which other traffic to a node is held. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NODES_MAX);
	__type(key, __u32);
	__type(value, __u64);
} lease SEC(".maps");

/* Bytes on the wire. One value, so that all are read at once. */
struct counts {
	/* Of other traffic from each node, and in the last place from everybody else. */
	__u64 received[NODES_MAX + 1];
	/* Of other traffic that left without being held. */
	__u64 passed;
	/* Of other traffic that came into the class of each node. */
	__u64 held[NODES_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* Whether a frame is real-time traffic: the Ethernet form, or a datagram to a port of the UDP form. */
static __always_inline bool is_real_time(struct __sk_buff *skb)
{
	__u8 version, protocol;
	__be16 fragment, port;

	if (skb->protocol == bpf_htons(TL_ETHERTYPE_DEFAULT))
		return true;
	if (skb->protocol != bpf_htons(ETH_P_IP))
		return false;
	if (bpf_skb_load_bytes(skb, IP_OFFSET, &version, sizeof(version)) ||
	    bpf_skb_load_bytes(skb, IP_PROTOCOL_OFFSET, &protocol, sizeof(protocol)) ||
	    bpf_skb_load_bytes(skb, IP_FRAGMENT_OFFSET, &fragment, sizeof(fragment)))
		return false;
	if (protocol != IPPROTO_UDP || fragment & bpf_htons(IP_FRAGMENT_MASK))
		return false;
	if (bpf_skb_load_bytes(skb, IP_OFFSET + (version & 0x0f) * 4 + 2, &port, sizeof(port)))
		return false;
	return bpf_ntohs(port) > TL_UDP_PORT_BASE &&
	       bpf_ntohs(port) <= TL_UDP_PORT_BASE + TL_PORT_MAX;
}

static __always_inline __u64 wire_bytes(struct __sk_buff *skb)
{
	__u32 segments = skb->gso_segs ? skb->gso_segs : 1;

	return skb->len + WIRE_OVERHEAD + (__u64)(segments - 1) * SEGMENT_OVERHEAD;
}

/* The number of the node that has the address at an offset of the frame. */
static __always_inline __u32 *node_at(struct __sk_buff *skb, __u32 offset)
{
	__u64 key = 0;

	if (bpf_skb_load_bytes(skb, offset, &key, ETH_ALEN))
		return NULL;
	return bpf_map_lookup_elem(&nodes, &key);
}

/* The node to which a frame goes, if frames to it are held. */
static __always_inline __u32 *held_for(struct __sk_buff *skb)
{
	__u32 *node = node_at(skb, 0);
	__u64 *until = node ? bpf_map_lookup_elem(&lease, node) : NULL;

	return until && bpf_ktime_get_ns() < *until ? node : NULL;
}

/* Counts a frame as held for a node, or as passed. */
static __always_inline void count_left(struct __sk_buff *skb, const __u32 *node)
{
	__u32 first = 0;
	struct counts *all = bpf_map_lookup_elem(&counts, &first);

	if (!all)
		return;
	if (!node)
		__sync_fetch_and_add(&all->passed, wire_bytes(skb));
	else if (*node < NODES_MAX)
		__sync_fetch_and_add(&all->held[*node], wire_bytes(skb));
}

/* The class of a frame; 0: none, it leaves at once. */
SEC("classifier") int sort(struct __sk_buff *skb)
{
	__u32 *node;

	if (is_real_time(skb))
		return 0;
	node = held_for(skb);
	count_left(skb, node);
	return node ? CLASS_HANDLE | (CLASS_FIRST + *node) : 0;
}

/* 0 always: the next filter looks. */
SEC("classifier") int count(struct __sk_buff *skb)
{
	__u32 *node, first = 0, place = FOREIGN;
	struct counts *all;

	if (is_real_time(skb))
		return 0;
	node = node_at(skb, ETH_ALEN);
	if (node)
		place = *node;
	all = bpf_map_lookup_elem(&counts, &first);
	if (all && place <= FOREIGN)
		__sync_fetch_and_add(&all->received[place], wire_bytes(skb));
	return 0;
}
