/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * IP fragments of plain UDP, for the demux and the program of link `xsk`: whose they are, which only the first
 * one of a datagram says. The fragments go into the port's memory as they are, on `xsk` by way of the process;
 * putting them together is the receiving thread's work (tautline_proto::ip::reassembly).
 *
 * A first fragment notes its datagram in a table of fixed size, for Linux's ports too, so that those after it
 * follow it. One that comes before its first goes to Linux, and a copy is held where the receiving thread
 * looks when the first has come: if the port is Linux's, nothing was lost; if it is ours, Linux gives up an
 * incomplete datagram after its own time limit.
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

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TL_OUT_OF_ORDER_GROUPS);
	__type(key, __u32);
	__type(value, struct tl_out_of_order);
} held_groups SEC(".maps");

/* Group after group, each a ring that overwrites its oldest. A slot's turn is the number of the fragment in
 * it, from 1 on; 0 while it is written. The reader compares it before and after.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TL_OUT_OF_ORDER_GROUPS * TL_OUT_OF_ORDER_SLOTS);
	__type(key, __u32);
	__type(value, struct tl_slot);
} held_slots SEC(".maps");

/* Whether a fragment noted at `stamp` is younger than the limit. Another CPU may have stamped it after this one has
 * read `now`: the age is then negative, and not a huge one.
 */
static __always_inline bool is_recent(__u64 stamp, __u64 now)
{
	return (__s64)(now - stamp) < (__s64)TL_FRAGMENT_NS;
}

/* By the peer alone, so that one that floods spoils few others'. */
static __always_inline __u32 peer_share(__be32 source, __u32 shares)
{
	return ((source * 0x9e3779b97f4a7c15ULL >> 32) * shares) >> 32;
}

static __always_inline __u64 flow_key(__be32 source, __be16 identification)
{
	return (__u64)source << 16 | identification;
}

static __always_inline struct tl_flow_set *flow_set(__be32 source)
{
	__u32 index = peer_share(source, TL_FLOW_SETS);

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
 * fragments are out of order. Returns whether one in use had to go.
 */
static __always_inline bool note_flow(struct tl_flow_set *set, __u64 key, __u64 now, __u32 place)
{
	__u64 oldest = oldest_flow(set, key), arrival = oldest & ~TL_FLOW_PLACE, replaced;
	struct tl_flow *flow;

	if (oldest == TL_FLOW_BUSY_ALL)
		return false;
	/* clang must not leave the mask out: the verifier knows no bound of the number. */
	asm volatile("" : "+r"(oldest));
	flow = &set->flow[oldest & (TL_FLOW_WAYS - 1)];
	replaced = *(volatile __u64 *)&flow->key;
	if (arrival ? (*(volatile __u64 *)&flow->state & ~TL_FLOW_PLACE) != arrival :
		      replaced != key && replaced != 0)
		return false;
	if (replaced == TL_FLOW_BUSY ||
	    __sync_val_compare_and_swap(&flow->key, replaced, TL_FLOW_BUSY) != replaced)
		return false;
	*(volatile __u64 *)&flow->state = (now & ~TL_FLOW_PLACE) | place;
	__sync_lock_test_and_set(&flow->key, key);
	return arrival != 0 && is_recent(arrival, now);
}

/* A copy for the case that the first is ours. */
static __always_inline void hold_out_of_order(struct tl_context *ctx, const struct tl_udp_head *head, __u64 source,
				       __u32 offset, __u64 now)
{
	/* The address is the first half of the word, whatever the order of bytes. */
	__u32 address, index, length = bpf_ntohs(head->length);
	struct tl_out_of_order *out_of_order;
	struct tl_slot *slot;
	__u64 number, turn;

	__builtin_memcpy(&address, &source, 4);
	index = peer_share(address, TL_OUT_OF_ORDER_GROUPS);
	out_of_order = bpf_map_lookup_elem(&held_groups, &index);
	if (!out_of_order)
		return;
	number = __sync_fetch_and_add(&out_of_order->next, 1);
	index = index * TL_OUT_OF_ORDER_SLOTS + number % TL_OUT_OF_ORDER_SLOTS;
	slot = bpf_map_lookup_elem(&held_slots, &index);
	if (!slot)
		return;
	turn = *(volatile __u64 *)&slot->turn;
	/* Another CPU writes there: so many come that this one would be lost too. */
	if ((turn == 0 && number >= TL_OUT_OF_ORDER_SLOTS) ||
	    __sync_val_compare_and_swap(&slot->turn, turn, 0) != turn)
		return;
	slot->arrival_ns = now;
	slot->source = source;
	__builtin_memcpy(&slot->header, head, sizeof(*head));
	if (!load_bytes(ctx, offset, slot->payload, length, TL_SLOT_PAYLOAD_BYTES))
		slot->source = TL_SOURCE_VOID;
	__sync_lock_test_and_set(&slot->turn, number + 1);
	__sync_lock_test_and_set(&out_of_order->last_ns, now);
}

/* Whether fragments of this peer may have come out of order. */
static __always_inline bool has_out_of_order(__be32 source, __u64 now)
{
	__u32 index = peer_share(source, TL_OUT_OF_ORDER_GROUPS);
	struct tl_out_of_order *out_of_order = bpf_map_lookup_elem(&held_groups, &index);
	__u64 last;

	if (!out_of_order)
		return false;
	last = *(volatile __u64 *)&out_of_order->last_ns;
	return last != 0 && is_recent(last, now);
}

/* Where a fragment belongs, in the lower 16 bits: the place of a port, or 0 for Linux; with TL_FRAGMENT_OUT_OF_ORDER
 * for a first one of a peer whose others may have come before. `fragment`: length, priority, fragment field and
 * identification, 16 bits each, all but the priority in network byte order. `port_place`: of the port that the first
 * fragment names; -1 for another one.
 *
 * Not static, so that the verifier looks at it once and not on every way to it, and away from whole datagrams.
 */
__noinline int place_fragment(struct tl_context *ctx, __u64 source, __u64 fragment, __u32 offset,
			      int port_place)
{
	struct tl_udp_head head = {
		.length = fragment >> 48,
		.priority = fragment >> 32 & TL_PRIORITY_MAX,
		.fragment = fragment >> 16,
		.identification = fragment,
	};
	__u64 now = bpf_ktime_get_ns();
	struct tl_flow_set *set;
	__be32 address;
	__u64 key;
	int place;

	__builtin_memcpy(&address, &source, 4);
	key = flow_key(address, head.identification);
	set = flow_set(address);
	if (!set)
		return 0;
	if (port_place >= 0) {
		if (note_flow(set, key, now, port_place))
			count(TL_FLOW_DISPLACED, 0);
		/* After the note: one out of order is held before it looks for a note again. */
		return port_place | (has_out_of_order(address, now) ? TL_FRAGMENT_OUT_OF_ORDER : 0);
	}
	place = find_flow(set, key, now);
	if (place != TL_FLOW_UNKNOWN)
		return place;
	count(TL_OUT_OF_ORDER_FRAGMENT, 0);
	hold_out_of_order(ctx, &head, source, offset, now);
	place = find_flow(set, key, now);
	return place == TL_FLOW_UNKNOWN ? 0 : place;
}

/* The same for a packet whose first bytes are there, with `bytes` after its header, from `offset` on. `fragment`: as
 * ip_fragment says. `place`: of the port that a first one names, 0 for Linux's.
 */
static __always_inline int whose_fragment(struct tl_context *ctx, const struct iphdr *ip, __u32 bytes,
					  __u16 fragment, __u32 offset, __u32 place)
{
	__u64 packed = (__u64)bpf_htons(bytes) << 48 | (__u64)(ip->tos >> 5) << 32 |
		       (__u32)bpf_htons(fragment) << 16 | ip->id;

	return place_fragment(ctx, udp_source_word(ip->saddr, 0, TL_SOURCE_DATAGRAM), packed, offset,
			      fragment & IP_FRAGMENT_OFFSET ? -1 : (int)place);
}

#endif
