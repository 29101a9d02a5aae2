/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * The hook that the demux runs at: the driver's poll (XDP), or, with TL_AT_TRAFFIC_CONTROL, where a packet buffer
 * comes in (tcx). The two have different contexts, helpers and results, and nothing else.
 */
#ifndef TAUTLINE_HOOK_BPF_H
#define TAUTLINE_HOOK_BPF_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#ifdef TL_AT_TRAFFIC_CONTROL

/* A name for the verifier too: it knows the argument of a function that it looks at once by its type. */
#define tl_context __sk_buff
/* On to the next program there, and to Linux. */
#define TL_PASS (-1)
#define TL_TAKEN 2

static __always_inline __u32 frame_bytes(const struct tl_context *ctx)
{
	return ctx->len;
}

static __always_inline long copy_from_frame(struct tl_context *ctx, __u32 offset, void *to, __u32 length)
{
	return bpf_skb_load_bytes(ctx, offset, to, length);
}

#else

#define tl_context xdp_md
#define TL_PASS XDP_PASS
#define TL_TAKEN XDP_DROP

/* A call, seldom needed: most frames lie in one buffer. */
static __always_inline __u32 frame_bytes(struct tl_context *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

static __always_inline long copy_from_frame(struct tl_context *ctx, __u32 offset, void *to, __u32 length)
{
	return bpf_xdp_load_bytes(ctx, offset, to, length);
}

#endif
#endif
