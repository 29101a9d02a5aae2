/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Packet buffers that hold several datagrams: a sender let the kernel cut them apart (UDP_SEGMENT), or the kernel has
 * joined what came (GRO). The first IP and UDP header stands for all of them, so they look like one long datagram. They
 * are Linux's, which cuts them apart; what the ports of this node miss thereby is counted.
 */
#ifndef TAUTLINE_SEGMENTS_BPF_H
#define TAUTLINE_SEGMENTS_BPF_H

#include "hook.bpf.h"

#ifdef TL_AT_TRAFFIC_CONTROL

static __always_inline bool holds_several(const struct tl_context *ctx)
{
	return ctx->gso_size != 0;
}

#else

#include <bpf/bpf_core_read.h>

/* Parts of two structures of the kernel, which the loader finds in the kernel's description of its types. Without one
 * they are taken to lie as on 64-bit Linux 5.18 to 6.18.
 */
struct xdp_buff {
	void *data;
	void *data_end;
	void *data_meta;
	void *data_hard_start;
	void *rxq;
	void *txq;
	__u32 frame_sz;
} __attribute__((preserve_access_index));

struct skb_shared_info {
	__u8 flags[4];
	__u16 gso_size;
	__u16 rest[157];
} __attribute__((preserve_access_index));

/* Bytes to which the kernel aligns the second structure: a cache line, of 64 bytes on x86-64 and most others. */
#define TL_CACHE_LINE_BYTES 64

/* Whether the packet buffer that generic mode runs on holds several datagrams. XDP's context does not tell, so this
 * reads it where the kernel keeps it: behind the buffer's end.
 */
static __always_inline bool holds_several(struct tl_context *ctx)
{
	const struct xdp_buff *buffer = (const void *)ctx;
	const struct skb_shared_info *shared;
	__u32 bytes = bpf_core_type_size(struct skb_shared_info) + TL_CACHE_LINE_BYTES - 1;
	void *start = NULL;
	__u32 frame_bytes = 0;
	__u16 segment_bytes = 0;

	bpf_core_read(&start, sizeof(start), &buffer->data_hard_start);
	bpf_core_read(&frame_bytes, sizeof(frame_bytes), &buffer->frame_sz);
	shared = start + frame_bytes - (bytes & ~(TL_CACHE_LINE_BYTES - 1));
	bpf_core_read(&segment_bytes, sizeof(segment_bytes), &shared->gso_size);
	return segment_bytes != 0;
}

#endif

#endif
