/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Copying from a frame, which may lie in several buffers.
 */
#ifndef TAUTLINE_LOAD_BPF_H
#define TAUTLINE_LOAD_BPF_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include "hook.bpf.h"

/* Bytes of the frame that are in its first buffer. The asm line keeps clang from subtracting halves of the
 * addresses, which the verifier refuses.
 */
static __always_inline __u32 first_bytes(const void *data, const void *data_end)
{
	__u64 bytes = data_end - data;

	asm volatile("" : "+r"(bytes));
	return bytes;
}

/* Copies `length` bytes of the frame, 1 to `max`. Returns whether it could.
 *
 * The verifier must see both bounds on the very register that is passed on. Before Linux 6.3 a test for zero
 * does not raise a lower bound there, so the bounds of `length - 1` are tested; the asm lines keep clang from
 * folding that back into `length`.
 */
static __always_inline bool load_bytes(struct tl_context *ctx, __u32 offset, void *to, __u32 length,
				       __u32 max)
{
	__u32 last = length - 1;

	asm volatile("" : "+r"(last));
	if (last >= max)
		return false;
	asm volatile("" : "+r"(last));
	return copy_from_frame(ctx, offset, to, last + 1) == 0;
}

#endif
