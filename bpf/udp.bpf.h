/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Plain UDP for the demux: datagrams without our header, and their fragments, to UDP ports that this node
 * has opened. Part of demux.bpf.c, which includes it; tautline_proto::ip::receive is its twin. Every other
 * port, and whatever is damaged on the way to the port number, stays with Linux.
 *
 * The UDP checksum goes with the datagram into the port's memory, and the receiving thread judges it:
 * summing a full frame here would cost more than all the rest, and cost it for everybody.
 */
#ifndef TAUTLINE_UDP_BPF_H
#define TAUTLINE_UDP_BPF_H

#include "fragment.bpf.h"

#define TL_NOT_PLAIN (-2)
#define TL_DELIVER (-2)

/* A frame without a header of ours, to the port in a place. */
static __always_inline int deliver_plain(struct tl_context *ctx, __u32 place, const struct frame *frame)
{
	__u32 length = bpf_ntohs(frame->plain->udp.length);
	__u32 element = 0;
	struct tl_control *control;
	void *memory = bpf_map_lookup_elem(&ports, &place);
	__u64 now;

	/* Closed a moment ago. */
	if (!memory)
		return TL_PASS;
	control = bpf_map_lookup_elem(memory, &element);
	if (!control)
		return TL_PASS;
	now = bpf_ktime_get_ns();
	if (is_policed(control, now))
		return TL_TAKEN;
	if (length > plain_payload_max(frame))
		__sync_fetch_and_add(&control->producer.unfit, 1);
	else
		push(ctx, memory, control, frame, frame->plain->udp.priority, length, now);
	ring_if_wanted(control, place);
	return TL_TAKEN;
}

/* RFC 768. `bytes`: of the IP packet after its header. */
static __always_inline int check_datagram(void *data_end, const struct iphdr *ip,
					  const struct udphdr *udp, __u32 bytes,
					  struct tl_udp_head *head, struct frame *frame)
{
	__u32 udp_bytes;

	if (bytes < sizeof(*udp) || (const void *)(udp + 1) > data_end)
		return count(TL_TRUNCATED, TL_TAKEN);
	udp_bytes = bpf_ntohs(udp->len);
	if (udp_bytes < sizeof(*udp))
		return count(TL_TRUNCATED, TL_TAKEN);
	if (udp_bytes > bytes)
		return count(TL_LENGTH_BEYOND_FRAME, TL_TAKEN);
	head->length = bpf_htons(udp_bytes - sizeof(*udp));
	head->checksum = udp->check;
	frame->header_offset += sizeof(*udp);
	frame->source = udp_source_word(ip->saddr, udp->source, TL_SOURCE_DATAGRAM);
	return TL_DELIVER;
}

/* The verdict, or TL_NOT_PLAIN for what the rest of the demux may look at. */
static __always_inline int accept_plain(struct tl_context *ctx, void *data, void *data_end,
					const struct ethhdr *ethernet, __u32 offset)
{
	const struct tl_udp_table *table = udp_table();
	const struct iphdr *ip = data + offset;
	const struct udphdr *udp;
	__u32 header_bytes, packet_bytes, place = 0;
	union tl_plain_head plain = {};
	struct tl_udp_head *head = &plain.udp;
	struct frame frame = { .plain = &plain, .plain_bytes = sizeof(plain.udp) };
	__u16 fragment;
	int verdict;

	if (!table || !table->open)
		return TL_NOT_PLAIN;
	if ((const void *)(ip + 1) > data_end || ip->version != 4 || ip->daddr != config.ip ||
	    ip->protocol != IPPROTO_UDP)
		return TL_NOT_PLAIN;
	header_bytes = ip->ihl * 4;
	packet_bytes = bpf_ntohs(ip->tot_len);
	if (header_bytes < sizeof(*ip) || packet_bytes < header_bytes)
		return TL_NOT_PLAIN;
	/* Asking for the length of a frame in several buffers is a call, seldom needed. */
	if (offset + packet_bytes > first_bytes(data, data_end) &&
	    offset + packet_bytes > frame_bytes(ctx))
		return TL_NOT_PLAIN;
	packet_bytes -= header_bytes;
	offset += header_bytes;
	fragment = ip_fragment(ip);
	udp = (const void *)ip + header_bytes;
	head->priority = ip->tos >> 5;
	frame.header_offset = offset;
	if (!(fragment & IP_FRAGMENT_OFFSET)) {
		if (packet_bytes < (fragment ? sizeof(*udp) : 2 * sizeof(udp->dest)) ||
		    (const void *)&udp->len > data_end)
			return TL_NOT_PLAIN;
		head->destination_port = udp->dest;
		place = udp_place(table, udp->dest);
		if (!place && !fragment)
			return TL_NOT_PLAIN;
	}
	if (!is_undamaged(ip, ip->ihl, data_end))
		return TL_NOT_PLAIN;
	if (ethernet->h_source[0] & 1 || !is_possible_source(ip->saddr))
		return place ? count(TL_INVALID_SOURCE, TL_TAKEN) : TL_NOT_PLAIN;
	if (fragment) {
		head->length = bpf_htons(packet_bytes);
		head->fragment = bpf_htons(fragment);
		head->identification = ip->id;
		frame.source = udp_source_word(ip->saddr, 0, TL_SOURCE_DATAGRAM);
		place = whose_fragment(ip, fragment, place);
		if (!place)
			return TL_NOT_PLAIN;
	} else {
		verdict = check_datagram(data_end, ip, udp, packet_bytes, head, &frame);
		if (verdict != TL_DELIVER)
			return verdict;
	}
	return deliver_plain(ctx, place, &frame);
}

#endif
