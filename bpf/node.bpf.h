/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Parts that the demux and the program of link `xsk` share, whatever a frame holds: their settings and counters,
 * the test whether a frame is for this node, the EtherTypes of raw ports, and the encoding of a sender.
 */
#ifndef TAUTLINE_NODE_BPF_H
#define TAUTLINE_NODE_BPF_H

#include <bpf/bpf_endian.h>
#include "load.bpf.h"

#define TPID_8021Q 0x8100
#define VLAN_IDENTIFIER 0x0fff
#define TAG_PRIORITY_SHIFT 13

const volatile struct tl_config config = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TL_NODE_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} node_counters SEC(".maps");

static __always_inline int count(__u32 counter, int verdict)
{
	__u64 *value = bpf_map_lookup_elem(&node_counters, &counter);

	if (value)
		__sync_fetch_and_add(value, 1);
	return verdict;
}

/* Two bytes at an even address. Linux declares Ethernet's header packed, and clang loads such fields byte by byte. */
typedef __u16 __attribute__((may_alias)) tl_half;

/* Four halves in the order of memory. */
static __always_inline __u64 word_of_halves(__u64 first, __u64 second, __u64 third, __u64 fourth)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return first | second << 16 | third << 32 | fourth << 48;
#else
	return first << 48 | second << 32 | third << 16 | fourth;
#endif
}

/* `address`: in an Ethernet header. */
static __always_inline __u64 source_word(const __u8 address[6], __u16 form)
{
	const tl_half *half = (const void *)address;

	return word_of_halves(half[0], half[1], half[2], form);
}

/* Whether a frame of this type is in another VLAN than the node's: the Ethernet form is in the node's, IPv4 in none.
 * The first line is all that the verifier follows where there is none.
 */
static __always_inline bool is_elsewhere(__be16 type, __be16 vlan)
{
	if (!config.vlan && !vlan)
		return false;
	return vlan != (type == config.ethertype ? config.vlan : 0);
}

/* A promiscuous interface, or a bridge, sees frames that are for others. */
static __always_inline bool is_for_us(const __u8 mac[6])
{
	const volatile __u16 *own = (const volatile void *)config.mac;
	const tl_half *half = (const void *)mac;

	if (half[0] & bpf_htons(0x0100))
		return true;
	return half[0] == own[0] && half[1] == own[1] && half[2] == own[2];
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tl_raw_table);
} raw_types SEC(".maps");

/* The place of the raw port of an EtherType, or 0: not ours. */
static __always_inline __u32 raw_place(__be16 type)
{
	__u32 zero = 0;
	const struct tl_raw_table *table = bpf_map_lookup_elem(&raw_types, &zero);

	/* A length, and in the table a free place. */
	if (!table || !type)
		return 0;
	for (__u32 index = 0; index < TL_RAW_PLACES; index++)
		if (*(volatile const __be16 *)&table->type[index] == type)
			return TL_FIRST_RAW_PLACE + index;
	return 0;
}

#endif
