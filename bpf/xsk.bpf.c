// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The program of link `xsk`: picks the frames that are for this node's open ports, stamps their arrival
 * and hands them to the node's AF_XDP socket of the queue that they came on. The process does the
 * rest (crates/tautline/src/link/xsk). Everything else passes to Linux untouched.
 *
 * It looks no further than the port: what is wrong behind that is found, dropped and counted by
 * the process. Whose a fragment is must be decided here, because Linux's cannot be given back; the
 * decision goes with the frame.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "tautline.h"
#include "node.bpf.h"
#include "tap.bpf.h"

#define TL_NOT_OURS (-1)
#define TL_WHOLE 0
#define XSK_QUEUES_MAX 64

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Queue to the socket that has it. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, XSK_QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Port number to whether it is open. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TL_PORT_MAX + 1);
	__type(key, __u32);
	__type(value, __u64);
} open_ports SEC(".maps");

#include "fragment.bpf.h"
#include "buffer.bpf.h"

static __always_inline bool is_open(__u32 port)
{
	__u64 *open = bpf_map_lookup_elem(&open_ports, &port);

	return port != 0 && open && *open != 0;
}

/* A frame too short for a header is ours too: malformed, and to be counted. */
static __always_inline bool wants_ethernet(void *data, void *data_end, __u32 offset)
{
	struct tl_header *header = data + offset;
	__u32 port;

	if ((void *)(header + 1) > data_end)
		return true;
	port = bpf_ntohs(header->destination_port);
	if (port == 0 || port > TL_PORT_MAX || is_open(port))
		return true;
	/* Perhaps another process of this host has it, on a packet socket. */
	return count(TL_NO_PORT, false);
}

/* Owner of a fragment: the place of its port, or TL_NOT_OURS. A wrong first one for a port of ours goes
 * to the process too, which counts what is wrong with it. `bytes`: of the packet after its header.
 */
static __always_inline int wants_fragment(const struct tl_udp_table *table, const struct ethhdr *ethernet,
					  const struct iphdr *ip, void *data_end, __u32 bytes)
{
	const struct udphdr *udp = (void *)ip + ip->ihl * 4;
	__u16 fragment = ip_fragment(ip);
	__u32 place = 0;

	if (!table || !table->open)
		return TL_NOT_OURS;
	if (!(fragment & IP_FRAGMENT_OFFSET)) {
		if (bytes < sizeof(*udp) || (void *)&udp->len > data_end)
			return TL_NOT_OURS;
		place = udp_place(table, udp->dest);
	}
	if (!is_undamaged(ip, ip->ihl, data_end))
		return TL_NOT_OURS;
	if (ethernet->h_source[0] & 1 || !is_possible_source(ip->saddr))
		return place ? TL_WHOLE : TL_NOT_OURS;
	place = whose_fragment(ip, fragment, place);
	return place ? (int)place : TL_NOT_OURS;
}

/* Of plain UDP, and of the UDP form: TL_NOT_OURS, TL_WHOLE, or whose a fragment is. What is damaged before its port
 * can be believed stays with Linux.
 */
static __always_inline int wants_ip(struct xdp_md *ctx, void *data, void *data_end, __u32 offset)
{
	const struct tl_udp_table *table = udp_table();
	struct iphdr *ip = data + offset;
	__u32 header_bytes, packet_bytes, port;
	struct udphdr *udp;

	if ((void *)(ip + 1) > data_end || ip->version != 4 || ip->ihl < 5 || ip->daddr != config.ip ||
	    ip->protocol != IPPROTO_UDP)
		return TL_NOT_OURS;
	header_bytes = ip->ihl * 4;
	packet_bytes = bpf_ntohs(ip->tot_len);
	if (offset + packet_bytes > first_bytes(data, data_end) || packet_bytes < header_bytes)
		return TL_NOT_OURS;
	if (ip_fragment(ip))
		return wants_fragment(table, data, ip, data_end, packet_bytes - header_bytes);
	if (packet_bytes < header_bytes + 4)
		return TL_NOT_OURS;
	udp = (void *)ip + header_bytes;
	if ((void *)&udp->len > data_end)
		return TL_NOT_OURS;
	port = bpf_ntohs(udp->dest);
	if (!(table && table->open && udp_place(table, udp->dest)) &&
	    !(port > TL_UDP_PORT_BASE && port <= TL_UDP_PORT_BASE + TL_PORT_MAX &&
	      is_open(port - TL_UDP_PORT_BASE)))
		return TL_NOT_OURS;
	/* They look like one long datagram. Linux cuts them apart. */
	if (config.generic && holds_several(ctx))
		return count(TL_JOINED_DATAGRAMS, TL_NOT_OURS);
	return is_undamaged(ip, ip->ihl, data_end) ? TL_WHOLE : TL_NOT_OURS;
}

SEC("xdp")
int tautline_xsk(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = data;
	__u32 offset = sizeof(*ethernet);
	struct tl_note *note;
	int whose = TL_WHOLE;
	__be16 type;

	if ((void *)(ethernet + 1) > data_end)
		return XDP_PASS;
	type = ethernet->h_proto;
	if (type == bpf_htons(TPID_8021Q)) {
		__be16 *tag = data + offset;

		/* VLAN 0 is a priority tag on untagged traffic. */
		if ((void *)(tag + 2) > data_end)
			return XDP_PASS;
		type = tag[1];
		if (is_elsewhere(type, tag[0] & bpf_htons(VLAN_IDENTIFIER)))
			return XDP_PASS;
		offset += 4;
	} else if (is_elsewhere(type, 0)) {
		return XDP_PASS;
	}
	/* The process would not see that tag. */
	if (config.veth && tag_in_buffer(ctx).control & VLAN_IDENTIFIER)
		return XDP_PASS;
	if (!is_for_us(ethernet->h_dest))
		return XDP_PASS;
	if (type == config.ethertype) {
		if (!wants_ethernet(data, data_end, offset))
			return XDP_PASS;
	} else if (type == bpf_htons(ETH_P_IP)) {
		whose = config.ip ? wants_ip(ctx, data, data_end, offset) : TL_NOT_OURS;
		if (whose == TL_NOT_OURS)
			return XDP_PASS;
	} else if (!raw_place(type)) {
		return XDP_PASS;
	}
	copy_if_wanted(ctx, TL_TAP_RECEIVED);
	/* Before the frame, where the process finds it. */
	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*note)))
		return XDP_PASS;
	note = (void *)(long)ctx->data_meta;
	if ((void *)(note + 1) > (void *)(long)ctx->data)
		return XDP_PASS;
	note->arrival_ns = bpf_ktime_get_ns();
	note->fragment = whose;
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}
