/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * IP fragments of plain UDP, for the demux and the program of link `xsk`: whose they are, which only the first
 * one of a datagram says. The fragments go into the port's memory as they are, on `xsk` by way of the process;
 * putting them together is the receiving thread's work (tautline_proto::ip::reassembly).
 *
 * A first fragment notes its datagram in a table of fixed size, for Linux's ports too, so that those after it
 * follow it. One that comes before its first goes to Linux: a datagram of ours that does is lost, and Linux gives up
 * what it has of it after its own time limit.
 */
#ifndef TAUTLINE_FRAGMENT_BPF_H
#define TAUTLINE_FRAGMENT_BPF_H

#include "ip.bpf.h"

#define TL_FLOW_UNKNOWN (-1)
#define TL_FLOW_BUSY 1
#define TL_FLOW_BUSY_ALL (~0ULL)
#define TL_FLOW_PLACE 0xffffULL

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TL_FLOW_SETS);
	__type(key, __u32);
	__type(value, struct tl_flow_set);
} flows SEC(".maps");

/* Whether a fragment noted at `stamp` is younger than the limit. Another CPU may have stamped it after this one has
 * read `now`: the age is then negative, and not a huge one.
 */
static __always_inline bool is_recent(__u64 stamp, __u64 now)
{
	return (__s64)(now - stamp) < (__s64)TL_FRAGMENT_NS;
}

static __always_inline __u64 flow_key(__be32 source, __be16 identification)
{
	return (__u64)source << 16 | identification;
}

/* By the peer alone, so that one that floods displaces few others' datagrams. */
static __always_inline struct tl_flow_set *flow_set(__u64 key)
{
	__u32 index = (((key >> 16) * 0x9e3779b97f4a7c15ULL >> 32) * TL_FLOW_SETS) >> 32;

	return bpf_map_lookup_elem(&flows, &index);
}

/* The place of the port that a datagram is for, 0 for Linux's, or TL_FLOW_UNKNOWN.
 *
 * Not static, like the next function: the verifier goes through the loop once and not on every way to it.
 */
__noinline int find_flow(struct tl_flow_set *set, __u64 key, __u64 now)
{
	if (!set)
		return TL_FLOW_UNKNOWN;
	for (__u32 way = 0; way < TL_FLOW_WAYS; way++) {
		struct tl_flow *flow = &set->flow[way];
		__u64 state;

		if (*(volatile __u64 *)&flow->key != key)
			continue;
		/* A barrier on both sides: the state belongs to the key if that is still there. */
		state = __sync_fetch_and_add(&flow->state, 0);
		if (*(volatile __u64 *)&flow->key == key &&
		    is_recent(state & ~TL_FLOW_PLACE, now))
			return state & TL_FLOW_PLACE;
	}
	return TL_FLOW_UNKNOWN;
}

/* The flow to replace: that of the same datagram, an empty one, or the oldest. Its arrival, or 0 for the first two,
 * with its number in the lower bits. TL_FLOW_BUSY_ALL if other CPUs are writing all of them.
 */
__noinline __u64 oldest_flow(struct tl_flow_set *set, __u64 key)
{
	__u64 oldest = TL_FLOW_BUSY_ALL;

	if (!set)
		return oldest;
	for (__u32 way = 0; way < TL_FLOW_WAYS; way++) {
		__u64 held = *(volatile __u64 *)&set->flow[way].key;
		__u64 state = *(volatile __u64 *)&set->flow[way].state & ~TL_FLOW_PLACE;

		if (held == TL_FLOW_BUSY)
			continue;
		if (held == key)
			state = 0;
		if ((state | way) < oldest)
			oldest = state | way;
	}
	return oldest;
}

/* Notes whose a datagram is. If another CPU has just taken the flow that was to be replaced, the datagram's
 * fragments are Linux's.
 */
static __always_inline void note_flow(struct tl_flow_set *set, __u64 key, __u64 now, __u32 place)
{
	__u64 oldest = oldest_flow(set, key), arrival = oldest & ~TL_FLOW_PLACE, replaced;
	struct tl_flow *flow;

	if (oldest == TL_FLOW_BUSY_ALL)
		return;
	/* clang must not leave the mask out: the verifier knows no bound of the number. */
	asm volatile("" : "+r"(oldest));
	flow = &set->flow[oldest & (TL_FLOW_WAYS - 1)];
	replaced = *(volatile __u64 *)&flow->key;
	if (arrival ? (*(volatile __u64 *)&flow->state & ~TL_FLOW_PLACE) != arrival :
		      replaced != key && replaced != 0)
		return;
	if (replaced == TL_FLOW_BUSY ||
	    __sync_val_compare_and_swap(&flow->key, replaced, TL_FLOW_BUSY) != replaced)
		return;
	*(volatile __u64 *)&flow->state = (now & ~TL_FLOW_PLACE) | place;
	__sync_lock_test_and_set(&flow->key, key);
}

/* The place of the port that a fragment belongs to, or 0 for Linux. `port_place`: of the port that the first fragment
 * names; -1 for another one.
 *
 * Not static, so that the verifier looks at it once and not on every way to it, and away from whole datagrams.
 */
__noinline int place_fragment(__u64 key, int port_place)
{
	__u64 now = bpf_ktime_get_ns();
	struct tl_flow_set *set = flow_set(key);
	int place;

	if (!set)
		return 0;
	if (port_place >= 0) {
		note_flow(set, key, now, port_place);
		return port_place;
	}
	place = find_flow(set, key, now);
	return place == TL_FLOW_UNKNOWN ? count(TL_OUT_OF_ORDER_FRAGMENT, 0) : place;
}

/* The same for a packet. `fragment`: as ip_fragment says. `place`: of the port that a first one names; 0: Linux's. */
static __always_inline __u32 whose_fragment(const struct iphdr *ip, __u16 fragment, __u32 place)
{
	int port_place = fragment & IP_FRAGMENT_OFFSET ? -1 : (int)place;

	return place_fragment(flow_key(ip->saddr, ip->id), port_place) & TL_FLOW_PLACE;
}

#endif
