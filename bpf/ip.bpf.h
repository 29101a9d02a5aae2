/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * What the demux and the program of link `xsk` ask of an IPv4 packet alike: whether it is whole, and whether
 * its UDP port is this node's for plain UDP. Needs `config`.
 */
#ifndef TAUTLINE_IP_BPF_H
#define TAUTLINE_IP_BPF_H

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
	return table->place[bpf_ntohs(port)];
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

#endif
