// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The floor: the barest way from a frame to mapped memory, with no port logic at all. `taut bench
 * rtt` runs it beside the demux, at the same two hooks, to show what this machine allows; nothing else uses it.
 *
 * One slot. The length that the benchmark expects is read from the frame; the whole frame is copied
 * and a sequence number written after it.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "load.bpf.h"

#define FLOOR_ETHERTYPE 0x88b6 /* IEEE 802 local experimental 2 */
#define FLOOR_BYTES_MAX 1514

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct floor_slot {
	__u64 sequence;
	__u8 frame[1528];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct floor_slot);
} floor_memory SEC(".maps");

static __always_inline int take(struct tl_context *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = data;
	struct floor_slot *slot;
	__u32 bytes = first_bytes(data, data_end);
	__u32 key = 0;

	if ((void *)(ethernet + 1) > data_end || ethernet->h_proto != bpf_htons(FLOOR_ETHERTYPE))
		return TL_PASS;
	slot = bpf_map_lookup_elem(&floor_memory, &key);
	if (!slot || !load_bytes(ctx, 0, slot->frame, bytes, FLOOR_BYTES_MAX))
		return TL_PASS;
	__sync_fetch_and_add(&slot->sequence, 1);
	return TL_TAKEN;
}

#ifdef TL_AT_TRAFFIC_CONTROL

SEC("classifier")
int tautline_floor_tc(struct tl_context *ctx)
{
	return take(ctx);
}

#else

SEC("xdp.frags")
int tautline_floor(struct tl_context *ctx)
{
	return take(ctx);
}

#endif
