/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Copies of frames for whoever captures (`taut capture`). They lie in a ring that is written over and over: a reader
 * that is too slow loses frames, and nobody waits for a reader. Several may read at once.
 *
 * A reader says until when frames are to be copied, and says so again and again. After its death frames are copied for
 * that time at the most. The process that owns the demux writes the frames that it sends into the same ring:
 * crates/tautline/src/link/bpf/tap.rs.
 */
#ifndef TAUTLINE_TAP_BPF_H
#define TAUTLINE_TAP_BPF_H

#include "load.bpf.h"
#include "tautline.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TL_TAP_SLOTS + 1);
	__type(key, __u32);
	__type(value, struct tl_tap_slot);
} tap SEC(".maps");

/* Copies a frame into the ring. Not static, so that the verifier looks at it once. */
__noinline int copy_to_tap(struct tl_context *ctx, __u32 way)
{
	struct tl_tap_control *control;
	struct tl_tap_slot *slot;
	__u32 element = 0, length, kept;
	__u64 position, turn, now = bpf_ktime_get_ns();

	control = bpf_map_lookup_elem(&tap, &element);
	if (!control)
		return 0;
	if (now >= *(volatile __u64 *)&control->until_ns) {
		/* A reader that says so at this moment says it again a moment later. */
		*(volatile __u64 *)&control->until_ns = 0;
		return 0;
	}
	position = __sync_fetch_and_add(&control->head, 1);
	element = 1 + (position & (TL_TAP_SLOTS - 1));
	slot = bpf_map_lookup_elem(&tap, &element);
	if (!slot)
		return 0;
	turn = *(volatile __u64 *)&slot->turn;
	/* Another writer is in there, a whole round behind. The reader sees that this frame is missing. */
	if (turn & TL_TAP_BUSY || __sync_val_compare_and_swap(&slot->turn, turn, TL_TAP_BUSY) != turn)
		return 0;
	length = frame_bytes(ctx);
	kept = length < TL_TAP_BYTES ? length : TL_TAP_BYTES;
	slot->time_ns = now;
	slot->length = length;
	slot->way = way;
	if (!load_bytes(ctx, 0, slot->bytes, kept, TL_TAP_BYTES))
		kept = 0;
	slot->kept = kept;
	__sync_lock_test_and_set(&slot->turn, position + 1);
	return 0;
}

/* After everything else has been done with a frame: nobody waits for the copy. */
static __always_inline void copy_if_wanted(struct tl_context *ctx, __u32 way)
{
	__u32 zero = 0;
	struct tl_tap_control *control = bpf_map_lookup_elem(&tap, &zero);

	if (control && *(volatile __u64 *)&control->until_ns)
		copy_to_tap(ctx, way);
}

#endif
