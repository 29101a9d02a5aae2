// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The floor: the barest way from a frame to mapped memory, with no port logic at all. `taut bench
 * rtt` runs it beside the demux to show what this machine allows; nothing else uses it.
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

SEC("xdp.frags")
int tautline_floor(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = data;
	struct floor_slot *slot;
	__u32 bytes = first_bytes(data, data_end);
	__u32 key = 0;

	if ((void *)(ethernet + 1) > data_end || ethernet->h_proto != bpf_htons(FLOOR_ETHERTYPE))
		return XDP_PASS;
	slot = bpf_map_lookup_elem(&floor_memory, &key);
	if (!slot || !load_bytes(ctx, 0, slot->frame, bytes, FLOOR_BYTES_MAX))
		return XDP_PASS;
	__sync_fetch_and_add(&slot->sequence, 1);
	return XDP_DROP;
}
