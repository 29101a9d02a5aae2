/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Parts that the demux and the program of link `xsk` share, whatever a frame holds: their settings and counters,
 * the test whether a frame is for this node, and the encoding of a sender.
 */
#ifndef TAUTLINE_NODE_BPF_H
#define TAUTLINE_NODE_BPF_H

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

static __always_inline __u64 source_word(const __u8 address[6], __u16 form)
{
	union {
		__u64 word;
		struct {
			__u8 address[6];
			__u16 form;
		} part;
	} source;

	__builtin_memcpy(source.part.address, address, 6);
	source.part.form = form;
	return source.word;
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
	return (mac[0] & 1) || (mac[0] == config.mac[0] && mac[1] == config.mac[1] &&
				mac[2] == config.mac[2] && mac[3] == config.mac[3] &&
				mac[4] == config.mac[4] && mac[5] == config.mac[5]);
}

#endif
