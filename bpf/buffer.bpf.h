/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Facts about a frame that the kernel keeps with its packet buffer and XDP's context does not tell.
 *
 * A buffer may hold several datagrams: a sender let the kernel cut them apart (UDP_SEGMENT), or the kernel has joined
 * what came (GRO). The first IP and UDP header stands for all of them, so they look like one long datagram. And a frame
 * of a VLAN may have its tag in the buffer alone, so that it looks like one without.
 */
#ifndef TAUTLINE_BUFFER_BPF_H
#define TAUTLINE_BUFFER_BPF_H

#include "node.bpf.h"

#ifdef TL_AT_TRAFFIC_CONTROL

static __always_inline bool holds_several(const struct tl_context *ctx)
{
	return ctx->gso_size != 0;
}

#else

#include <bpf/bpf_core_read.h>

/* Parts of structures of the kernel, which the loader finds in the kernel's description of its types. Without one
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

/* Without the kernel's description nothing of this one is read. */
struct sk_buff {
	__be16 vlan_proto;
	__u16 vlan_tci;
} __attribute__((preserve_access_index));

/* Bytes to which the kernel aligns `skb_shared_info`: a cache line, of 64 bytes on x86-64 and most others. */
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

/* A VLAN tag, its control information in this machine's byte order. */
struct tl_tag {
	__be16 type;
	__u16 control;
};

/* Tag in the packet buffer of a frame on a veth; all 0: none. The driver keeps the buffer's address behind the context
 * (`struct veth_xdp_buff`, since Linux 6.3); it is 0 for frames without a buffer.
 */
static __always_inline struct tl_tag tag_in_buffer(struct tl_context *ctx)
{
	struct tl_tag tag = {};
	const struct sk_buff *buffer = NULL;

	bpf_probe_read_kernel(&buffer, sizeof(buffer), (void *)ctx + bpf_core_type_size(struct xdp_buff));
	if (buffer) {
		bpf_core_read(&tag.type, sizeof(tag.type), &buffer->vlan_proto);
		bpf_core_read(&tag.control, sizeof(tag.control), &buffer->vlan_tci);
	}
	return tag;
}

#endif

#endif
