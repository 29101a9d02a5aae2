/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Raw frames for the demux: those of EtherTypes that this node has opened raw ports for. Part of demux.bpf.c, which
 * includes it; tautline_proto::wire::raw is its twin. Nothing in a frame is looked at but its Ethernet header, and
 * every other EtherType stays with Linux.
 */
#ifndef TAUTLINE_RAW_BPF_H
#define TAUTLINE_RAW_BPF_H

#include "udp.bpf.h"

/* The sender's address may be anything: protocols write there what they like. */
static __always_inline int accept_raw(struct tl_context *ctx, const struct ethhdr *ethernet, __be16 type,
				      __u8 priority, __u32 offset)
{
	union tl_plain_head plain = {};
	struct frame frame = {
		.plain = &plain,
		.plain_bytes = sizeof(plain.raw),
		.header_offset = offset,
	};
	__u32 place = raw_place(type), bytes;

	if (!place)
		return TL_PASS;
	/* Longer ones than fit a slot are counted. */
	bytes = frame_bytes(ctx) - offset;
	plain.raw.type = type;
	plain.raw.length = bpf_htons(bytes < 0xffff ? bytes : 0xffff);
	plain.raw.priority = priority & TL_PRIORITY_MAX;
	__builtin_memcpy(plain.raw.destination, ethernet->h_dest, sizeof(plain.raw.destination));
	frame.source = source_word(ethernet->h_source, TL_SOURCE_RAW);
	return deliver_plain(ctx, place, &frame);
}

#endif
