/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Checks of an IPv4 packet that the demux and the program of link `xsk` share: whether it is whole, whether its
 * source is possible, and whether its UDP port is this node's for plain UDP.
 */
#ifndef TAUTLINE_IP_BPF_H
#define TAUTLINE_IP_BPF_H

#include "node.bpf.h"

#define IP_MORE_FRAGMENTS 0x2000
#define IP_FRAGMENT_OFFSET 0x1fff

/* UDP port to the place of its memory in `ports`; 0: not ours. A table and not a hash, so that a datagram
 * for Linux costs one look.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tl_udp_table);
} udp_ports SEC(".maps");

static __always_inline const struct tl_udp_table *udp_table(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&udp_ports, &zero);
}

static __always_inline __u32 udp_place(const struct tl_udp_table *table, __be16 port)
{
	__u32 index = bpf_ntohs(port);

	/* Changes nothing, but before Linux 6.3 the verifier knows no bound of a number whose bytes were swapped. */
	asm volatile("%0 &= 0xffff" : "+r"(index));
	return table->place[index];
}

/* 0: a whole packet. Otherwise whether more fragments follow, and the offset. */
static __always_inline __u16 ip_fragment(const struct iphdr *ip)
{
	return bpf_ntohs(ip->frag_off) & (IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET);
}

/* RFC 1071, over a header of 5 to 15 words. */
static __always_inline bool is_undamaged(const struct iphdr *ip, __u32 words, const void *data_end)
{
	const __u32 *word = (const void *)ip;
	__u64 sum = 0;

	for (__u32 index = 0; index < 15 && index < words; index++, word++) {
		/* Keeps clang from comparing with data_end + 1, which the verifier refuses. */
		asm volatile("" : "+r"(word));
		if ((const void *)(word + 1) > data_end)
			return false;
		sum += *word;
	}
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/* Nobody sends rightly from nowhere, loopback, a group, a broadcast address, or as us. */
static __always_inline bool is_possible_source(__be32 source)
{
	__u32 first = source & bpf_htonl(0xff000000);

	return first != 0 && first != bpf_htonl(127u << 24) &&
	       (source & bpf_htonl(0xf0000000)) != bpf_htonl(0xe0000000) && source != 0xffffffff &&
	       source != config.ip && source != config.broadcast;
}

static __always_inline __u64 udp_source_word(__be32 address, __be16 rest, __u16 form)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return word_of_halves(address & 0xffff, address >> 16, rest, form);
#else
	return word_of_halves(address >> 16, address & 0xffff, rest, form);
#endif
}

#endif
