// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The demux: decides whose frame this is and puts it there, no more. It runs in the driver's poll (XDP) or at traffic
 * control (hook.bpf.h), copies once, into the memory of the port's own process, and stamps the arrival. Everything
 * that is not ours passes to Linux untouched.
 *
 * It is not a protocol stack: no reassembly, no reply, no waiting. Work per frame is bounded by the
 * verifier, TL_CLAIM_ATTEMPTS and TL_PEER_COUNT.
 *
 * The algorithms are those of crates/tautline-shm (queue.rs, sample.rs, police.rs, peer.rs, doorbell.rs,
 * deliver.rs), which is where they are explained and model-checked; keep the two in step. Memory
 * order: the atomics below are full barriers; a plain store before an atomic is not reordered after
 * it.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "tautline.h"
#include "node.bpf.h"
#include "tap.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct port_memory {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, TL_SLOT_BYTES);
};

struct doorbell {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

/* Place of a port to its memory. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, TL_PLACES);
	__type(key, __u32);
	__array(values, struct port_memory);
} ports SEC(".maps");

/* The same to the doorbell of that port: a ring buffer, because epoll understands it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, TL_PLACES);
	__type(key, __u32);
	__array(values, struct doorbell);
} doorbells SEC(".maps");

/* Head of a frame without a header of ours: the fields that both have lie in the same places. */
union tl_plain_head {
	struct tl_udp_head udp;
	struct tl_raw_head raw;
};

/* A frame of ours, found and checked. */
struct frame {
	struct tl_header *header;
	__u64 source;
	/* Of the header; of the payload where there is no header of ours. */
	__u32 header_offset;
	/* Head that is stored in the header's place then, and its bytes: the payload begins behind them. */
	const union tl_plain_head *plain;
	__u32 plain_bytes;
};

/* Checks a header against the wire format, docs/reference/wire.md. Returns a counter, or -1 for a good one. */
static __always_inline int check_header(const struct tl_header *header, __u32 available)
{
	__u32 length = bpf_ntohs(header->length);
	__u32 destination = bpf_ntohs(header->destination_port);
	__u32 source = bpf_ntohs(header->source_port);

	if (header->version != TL_VERSION)
		return TL_UNKNOWN_VERSION;
	if (header->flags & TL_FLAGS_CRITICAL & ~(TL_FLAG_BUNDLE | TL_FLAG_AUTHENTICATED))
		return TL_UNKNOWN_FLAGS;
	if (destination == 0 || destination > TL_PORT_MAX || source == 0 || source > TL_PORT_MAX)
		return TL_INVALID_PORT;
	if (header->priority > TL_PRIORITY_MAX)
		return TL_INVALID_PRIORITY;
	if (length > available)
		return TL_LENGTH_BEYOND_FRAME;
	if (header->fragment_count == 1)
		return header->fragment_index == 0 && length <= TL_WHOLE_BYTES_MAX ? -1 :
										    TL_INVALID_FRAGMENT;
	if (header->fragment_count > TL_FRAGMENT_COUNT_MAX ||
	    header->fragment_index >= header->fragment_count || header->flags & TL_FLAG_BUNDLE)
		return TL_INVALID_FRAGMENT;
	/* A trailer comes on top. Too short for one, the length wraps and is too large. Without a branch, which the
	 * compiler would copy all that follows for.
	 */
	length -= (header->flags & TL_FLAG_AUTHENTICATED) * (TL_TRAILER_BYTES / TL_FLAG_AUTHENTICATED);
	if (header->fragment_index + 1 < header->fragment_count)
		return length == TL_FRAGMENT_BYTES ? -1 : TL_INVALID_FRAGMENT;
	if (length == 0 || length > TL_FRAGMENT_BYTES ||
	    header->fragment_index * TL_FRAGMENT_BYTES + length > TL_MESSAGE_BYTES_MAX)
		return TL_INVALID_FRAGMENT;
	return -1;
}

/* tautline_proto::loss, whose table says what happens to which sequence number. */
static __always_inline void begin_run(struct tl_peer *peer, __u32 sequence)
{
	peer->highest = sequence;
	peer->span = 1;
	peer->window = 1;
	peer->expected++;
	peer->received++;
}

static __always_inline void advance(struct tl_peer *peer, __u32 sequence, __u32 ahead)
{
	__u64 span = (__u64)peer->span + ahead;

	peer->highest = sequence;
	peer->span = span < TL_LOSS_WINDOW ? span : TL_LOSS_WINDOW;
	peer->window = (ahead < TL_LOSS_WINDOW ? peer->window << ahead : 0) | 1;
	peer->expected += ahead;
	peer->received++;
}

static __always_inline void fill_gap(struct tl_peer *peer, __u32 behind)
{
	__u32 span = peer->span > behind ? peer->span : behind + 1;

	peer->expected += span - peer->span;
	peer->span = span;
	peer->window |= 1ULL << behind;
	peer->received++;
}

static __always_inline void record_loss(struct tl_peer *peer, __u32 sequence)
{
	__u32 ahead = sequence - peer->highest;
	__u32 behind = peer->highest - sequence;

	if (peer->received == 0) {
		begin_run(peer, sequence);
	} else if (ahead != 0 && ahead <= 0x7fffffff) {
		advance(peer, sequence, ahead);
	} else if (behind < TL_LOSS_WINDOW && !(peer->window >> behind & 1)) {
		fill_gap(peer, behind);
	} else if (sequence == 0 || behind > TL_RESTART_BEHIND) {
		peer->restarts++;
		begin_run(peer, sequence);
	} else {
		peer->duplicates++;
	}
}

static __always_inline __u64 peer_key(__u64 source, __u32 port)
{
	union {
		__u64 word;
		struct {
			__u8 address[6];
			__u16 form_and_port;
		} part;
	} key = { .word = source };

	key.part.form_and_port = key.part.form_and_port << 12 | (port & 0x0fff);
	return key.word;
}

static __always_inline __u32 first_place(__u64 key, __u32 places)
{
	return ((key * 0x9e3779b97f4a7c15ULL >> 32) * places) >> 32;
}

/* The key in a place. The number is tested and used at once, in one register: before Linux 6.3 the verifier forgets
 * the bound of a 32-bit number that clang puts onto the stack.
 */
static __always_inline __u64 *key_at(struct tl_control *control, __u32 place)
{
	__u64 *key;

	asm volatile("" : "+r"(place));
	if (place >= TL_PEER_COUNT)
		return NULL;
	key = &control->key[place];
	asm volatile("" : "+r"(key));
	return key;
}

/* The place of a peer, found or taken, or -1. Not static, so that the verifier goes through the loop once and not
 * on every way to it.
 */
__noinline int search_place(struct tl_control *control, __u64 key, __u32 places, __u32 search_max)
{
	__u32 first = first_place(key, places);

	if (!control)
		return -1;
	for (__u32 step = 0; step < TL_PEER_COUNT && step < search_max; step++) {
		__u32 place = first + step, end = places;
		__u64 found, *held;

		/* Changes nothing, but the verifier no longer knows that this is a sum: it would learn
		 * more of `first` in each step, and call every step a new state.
		 */
		asm volatile("%0 &= 127" : "+r"(place));
		/* The same: it would learn more of `places`. */
		asm volatile("%0 ^= 0" : "+r"(end));
		if (place >= end)
			place -= end;
		held = key_at(control, place);
		if (!held)
			break;
		found = *(volatile __u64 *)held;
		if (found == 0) {
			found = __sync_val_compare_and_swap(held, 0, key);
			if (found == 0)
				return place;
		}
		if (found == key)
			return place;
	}
	return -1;
}

/* Mostly it is the first one. */
static __always_inline int find_place(struct tl_control *control, __u64 key, __u32 places,
				      __u32 search_max)
{
	__u32 first = first_place(key, places);
	__u64 *held = key_at(control, first);
	int place;

	if (held && *(volatile __u64 *)held == key)
		return first;
	place = search_place(control, key, places, search_max);
	/* clang must not use bounds that it has found in there: the verifier does not know them. */
	asm volatile("" : "+r"(place));
	return place;
}

/* `first` is the element of the first peers, once it has been looked up for this frame. */
static __always_inline struct tl_peer *peer_at(void *memory, __u32 place, struct tl_peer_element **first)
{
	__u32 element = TL_FIRST_PEER;
	struct tl_peer_element *peers;
	struct tl_peer *peer;

	if (place >= TL_PEERS_PER_ELEMENT) {
		place -= TL_PEERS_PER_ELEMENT;
		element++;
		peers = bpf_map_lookup_elem(memory, &element);
	} else {
		if (!*first)
			*first = bpf_map_lookup_elem(memory, &element);
		peers = *first;
	}
	/* The verifier does not know the bound any more. The asm lines keep the number in the register that is tested,
	 * and clang from computing the address elsewhere.
	 */
	asm volatile("" : "+r"(place));
	if (!peers || place >= TL_PEERS_PER_ELEMENT)
		return NULL;
	peer = &peers->peer[place];
	asm volatile("" : "+r"(peer));
	return peer;
}

/* The number of a source of a port that keeps a value of each, or -1: one too many. */
static __always_inline int source_place(struct tl_control *control, __u64 source, __u32 port,
					__u32 sources)
{
	__u32 places = sources < TL_PEER_COUNT ? sources : TL_PEER_COUNT;
	int place = find_place(control, peer_key(source, port), places, places);

	if (place < 0)
		__sync_fetch_and_add(&control->producer.sources_refused, 1);
	return place;
}

/* The peer whose losses are counted. */
static __always_inline struct tl_peer *tracked_peer(void *memory, struct tl_control *control,
						    __u64 source, __u32 port,
						    struct tl_peer_element **peers)
{
	__u64 key = peer_key(source, port);
	int place = find_place(control, key, TL_PEER_COUNT, TL_PEER_SEARCH_MAX);
	__u32 first = first_place(key, TL_PEER_COUNT);
	struct tl_peer *peer;
	__u64 *held;

	if (place >= 0)
		return peer_at(memory, place, peers);
	held = key_at(control, first);
	if (!held)
		return NULL;
	__sync_fetch_and_add(&control->producer.peers_evicted, 1);
	*(volatile __u64 *)held = key;
	peer = peer_at(memory, first, peers);
	if (peer) {
		peer->received = peer->expected = peer->window = peer->duplicates = 0;
		peer->highest = peer->span = peer->restarts = 0;
	}
	return peer;
}

/* The same for a port that is policed. Not static, so that the verifier looks at it once. */
__noinline int is_beyond(struct tl_control *control, __u64 now)
{
	__u64 paid, seen;

	if (!control)
		return 1;
	paid = *(volatile __u64 *)&control->police.paid_ns;
	for (int attempt = 0; attempt < TL_CLAIM_ATTEMPTS; attempt++) {
		__s64 ahead = paid - now;

		if (ahead > (__s64)control->identity.police_tolerance_ns)
			break;
		seen = __sync_val_compare_and_swap(&control->police.paid_ns, paid,
						   (ahead > 0 ? paid : now) +
							   control->identity.police_interval_ns);
		if (seen == paid)
			return 0;
		paid = seen;
	}
	__sync_fetch_and_add(&control->police.policed, 1);
	return 1;
}

/* Whether the frame is one too many for the port; then it has been counted. */
static __always_inline bool is_policed(struct tl_control *control, __u64 now)
{
	return control->identity.police_interval_ns != 0 && is_beyond(control, now);
}

/* Bytes of a slot that are left behind the head of a frame without a header of ours. */
static __always_inline __u32 plain_payload_max(const struct frame *frame)
{
	return TL_HEADER_BYTES + TL_SLOT_PAYLOAD_BYTES - frame->plain_bytes;
}

/* Copies header and payload into the slot: the one copy of a receive. */
static __always_inline void fill(struct tl_context *ctx, struct tl_slot *slot, const struct frame *frame,
				 __u32 length, __u64 now)
{
	slot->arrival_ns = now;
	slot->source = frame->source;
	if (frame->plain) {
		__builtin_memcpy(&slot->header, frame->plain, sizeof(*frame->plain));
		if (length && !load_bytes(ctx, frame->header_offset, (void *)&slot->header + frame->plain_bytes,
					  length, plain_payload_max(frame)))
			slot->source = TL_SOURCE_VOID;
		return;
	}
	if (!load_bytes(ctx, frame->header_offset, &slot->header, TL_HEADER_BYTES + length,
			TL_HEADER_BYTES + TL_SLOT_PAYLOAD_BYTES))
		slot->source = TL_SOURCE_VOID; /* the consumer skips it */
}

static __always_inline void push(struct tl_context *ctx, void *memory, struct tl_control *control,
				 const struct frame *frame, __u32 class, __u32 length, __u64 now)
{
	__u32 depth = control->identity.depth;
	struct tl_class *line;
	__u64 position;

	/* clang must not leave the mask out: the verifier may have forgotten the bound. */
	asm volatile("" : "+r"(class));
	line = &control->class[class & (TL_CLASS_COUNT - 1)];
	position = *(volatile __u64 *)&line->head;
	for (int attempt = 0; attempt < TL_CLAIM_ATTEMPTS; attempt++) {
		__u32 element = TL_FIRST_SLOT + (position & (depth - 1)) * TL_CLASS_COUNT + class;
		struct tl_slot *slot = bpf_map_lookup_elem(memory, &element);
		__u64 turn, seen;

		if (!slot)
			return;
		turn = *(volatile __u64 *)&slot->turn;
		if (turn == position) {
			seen = __sync_val_compare_and_swap(&line->head, position, position + 1);
			if (seen == position) {
				fill(ctx, slot, frame, length, now);
				__sync_lock_test_and_set(&slot->turn, position + 1);
				return;
			}
			position = seen;
		} else if (turn < position) {
			__sync_fetch_and_add(&line->dropped_full, 1);
			return;
		} else {
			position = *(volatile __u64 *)&line->head;
		}
	}
	__sync_fetch_and_add(&control->producer.contended, 1);
}

static __always_inline void write(struct tl_context *ctx, void *memory, struct tl_control *control,
				  struct tl_peer *peer, __u32 source, const struct frame *frame,
				  __u32 length, __u64 now)
{
	__u32 back, element, *middle;
	struct tl_slot *cell;
	__u64 number;

	/* The address at once, and not where it is needed: the verifier may have forgotten the bound by then. */
	asm volatile("" : "+r"(source));
	if (source >= TL_PEER_COUNT)
		return;
	middle = &control->middle[source];
	asm volatile("" : "+r"(middle));
	if (__sync_val_compare_and_swap(&peer->lock, 0, 1) != 0) {
		__sync_fetch_and_add(&control->producer.contended, 1);
		return;
	}
	back = peer->back & TL_SAMPLE_INDEX;
	/* 3 is no cell. Brought into range without a division, which takes the processor longer than all the rest. */
	element = TL_FIRST_SLOT + source * TL_CELL_COUNT + (back < TL_CELL_COUNT ? back : 0);
	cell = bpf_map_lookup_elem(memory, &element);
	if (cell) {
		number = peer->written + 1;
		fill(ctx, cell, frame, length, now);
		cell->turn = number;
		peer->written = number;
		peer->back = __sync_lock_test_and_set(middle, back | TL_SAMPLE_FRESH) &
			     TL_SAMPLE_INDEX;
	}
	__sync_lock_test_and_set(&peer->lock, 0);
}

/* Rings. Not static, so that the verifier looks at it once. */
__noinline int ring(struct tl_control *control, __u32 port)
{
	void *doorbell = bpf_map_lookup_elem(&doorbells, &port);
	__u64 note = 0;

	if (!control || !doorbell)
		return 0;
	if (__sync_lock_test_and_set(&control->consumer.waiting, 0) == 0)
		return 0;
	__sync_fetch_and_add(&control->producer.doorbells, 1);
	bpf_ringbuf_output(doorbell, &note, sizeof(note), BPF_RB_FORCE_WAKEUP);
	return 0;
}

/* After publishing, which was a full barrier: does the consumer sleep? */
static __always_inline void ring_if_wanted(struct tl_control *control, __u32 port)
{
	if (*(volatile __u32 *)&control->consumer.waiting != 0)
		ring(control, port);
}

static __always_inline int deliver(struct tl_context *ctx, const struct frame *frame)
{
	const struct tl_header *header = frame->header;
	__u32 port = bpf_ntohs(header->destination_port);
	__u32 length = bpf_ntohs(header->length);
	__u32 sequence = bpf_ntohl(header->sequence);
	__u32 source_port = bpf_ntohs(header->source_port);
	__u32 class = header->priority;
	/* A value is one message in one frame. Ports that take authenticated ones queue them until they are checked. */
	__u32 unfit = (header->fragment_count ^ 1) |
		      (header->flags & (TL_FLAG_BUNDLE | TL_FLAG_AUTHENTICATED));
	__u32 element = 0, sources;
	struct tl_peer_element *peers = NULL;
	struct tl_control *control;
	struct tl_peer *peer;
	int cells = 0;
	void *memory;
	__u64 now;

	memory = bpf_map_lookup_elem(&ports, &port);
	if (!memory)
		/* Perhaps another process of this host has it, on a packet socket. */
		return count(TL_NO_PORT, TL_PASS);
	control = bpf_map_lookup_elem(memory, &element);
	if (!control)
		return count(TL_NO_PORT, TL_PASS);
	now = bpf_ktime_get_ns();
	if (is_policed(control, now))
		return TL_TAKEN;
	sources = control->identity.sources;
	if (sources > 1)
		cells = source_place(control, frame->source, source_port, sources);
	if (cells < 0)
		return TL_TAKEN;
	if (control->identity.kind == TL_KIND_QUEUING) {
		push(ctx, memory, control, frame, class, length, now);
	} else if (unfit) {
		__sync_fetch_and_add(&control->producer.unfit, 1);
	} else {
		peer = peer_at(memory, cells, &peers);
		if (peer)
			write(ctx, memory, control, peer, cells, frame, length, now);
	}
	ring_if_wanted(control, port);
	peer = sources > 1 ? peer_at(memory, cells, &peers) :
			     tracked_peer(memory, control, frame->source, source_port, &peers);
	if (peer)
		record_loss(peer, sequence);
	return TL_TAKEN;
}

/* Ours from here on: checked, then delivered or counted. `available`: bytes after the outer headers
 * that belong to us, padding not among them in the UDP form.
 */
static __always_inline int accept(struct tl_context *ctx, void *data, void *data_end, struct frame *frame,
				  __u32 available, __u32 udp_port)
{
	struct tl_header *header = data + frame->header_offset;
	int wrong;

	if (available < TL_HEADER_BYTES || (void *)(header + 1) > data_end)
		return count(TL_TRUNCATED, TL_TAKEN);
	wrong = check_header(header, available - TL_HEADER_BYTES);
	if (wrong >= 0)
		return count(wrong, TL_TAKEN);
	if (udp_port && udp_port != bpf_ntohs(header->destination_port))
		return count(TL_PORT_MISMATCH, TL_TAKEN);
	frame->header = header;
	return deliver(ctx, frame);
}

static __always_inline int accept_ethernet(struct tl_context *ctx, void *data, void *data_end,
					   const struct ethhdr *ethernet, __u32 offset)
{
	struct frame frame = {
		.header_offset = offset,
		.source = source_word(ethernet->h_source, TL_SOURCE_ETHERNET),
	};

	struct tl_header *header = data + offset;
	__u32 bytes = first_bytes(data, data_end);

	if (ethernet->h_source[0] & 1)
		return count(TL_INVALID_SOURCE, TL_TAKEN);
	if ((void *)(header + 1) <= data_end &&
	    bytes < offset + TL_HEADER_BYTES + bpf_ntohs(header->length))
		bytes = frame_bytes(ctx);
	return accept(ctx, data, data_end, &frame, bytes - offset, 0);
}

#include "ip.bpf.h"
#include "udp.bpf.h"
#include "raw.bpf.h"
#include "buffer.bpf.h"

/* Whether a UDP port is that of a Tautline port that is open here. */
static __always_inline bool is_own_form(__be16 udp_port)
{
	__u32 port = bpf_ntohs(udp_port);

	if (port <= TL_UDP_PORT_BASE || port > TL_UDP_PORT_BASE + TL_PORT_MAX)
		return false;
	port -= TL_UDP_PORT_BASE;
	return bpf_map_lookup_elem(&ports, &port);
}

/* Counts a packet buffer with several datagrams for a UDP port of this node. Not static, so that the verifier looks at
 * it once.
 */
__noinline int count_several(struct tl_context *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	const struct ethhdr *ethernet = data;
	const struct iphdr *ip = data + sizeof(*ethernet);
	const struct tl_udp_table *table = udp_table();
	const struct udphdr *udp;

	if (!config.ip || !table || (const void *)(ip + 1) > data_end ||
	    ethernet->h_proto != bpf_htons(ETH_P_IP) || !is_for_us(ethernet->h_dest) ||
	    ip->protocol != IPPROTO_UDP || ip->daddr != config.ip)
		return TL_PASS;
	udp = (const void *)ip + ip->ihl * 4;
	if ((const void *)&udp->len > data_end)
		return TL_PASS;
	if (udp_place(table, udp->dest) || is_own_form(udp->dest))
		count(TL_JOINED_DATAGRAMS, 0);
	return TL_PASS;
}

/* The UDP checksum is not verified: a frame from the other end of a virtual link may carry only the
 * pseudo-header's sum, and summing a full frame here would cost more than all the rest.
 */
static __always_inline int accept_udp(struct tl_context *ctx, void *data, void *data_end,
				      const struct ethhdr *ethernet, __u32 offset)
{
	struct frame frame = {};
	struct iphdr *ip = data + offset;
	struct udphdr *udp;
	__u32 header_bytes, packet_bytes, udp_bytes, port;
	int plain = accept_plain(ctx, data, data_end, ethernet, offset);

	if (plain != TL_NOT_PLAIN)
		return plain;
	if ((void *)(ip + 1) > data_end || ip->protocol != IPPROTO_UDP || ip->version != 4 ||
	    ip->daddr != config.ip || ip_fragment(ip))
		return TL_PASS;
	header_bytes = ip->ihl * 4;
	packet_bytes = bpf_ntohs(ip->tot_len);
	if (header_bytes < sizeof(*ip) || packet_bytes < header_bytes + 2 * sizeof(udp->dest))
		return TL_PASS;
	/* Asking for the length of a frame in several buffers is a call, seldom needed. */
	if (offset + packet_bytes > first_bytes(data, data_end) &&
	    offset + packet_bytes > frame_bytes(ctx))
		return TL_PASS;
	packet_bytes -= header_bytes;
	udp = (void *)ip + header_bytes;
	if ((void *)&udp->len > data_end)
		return TL_PASS;
	port = bpf_ntohs(udp->dest);
	if (port <= TL_UDP_PORT_BASE || port > TL_UDP_PORT_BASE + TL_PORT_MAX)
		return TL_PASS;
	port -= TL_UDP_PORT_BASE;
	/* A port that this node has not opened stays with Linux, whatever the datagram holds. */
	if (!bpf_map_lookup_elem(&ports, &port) || !is_undamaged(ip, ip->ihl, data_end))
		return TL_PASS;
	if (ethernet->h_source[0] & 1)
		return count(TL_INVALID_SOURCE, TL_TAKEN);
	if (packet_bytes < 6 || (void *)&udp->check > data_end)
		return count(TL_TRUNCATED, TL_TAKEN);
	udp_bytes = bpf_ntohs(udp->len);
	if (udp_bytes > packet_bytes)
		return count(TL_LENGTH_BEYOND_FRAME, TL_TAKEN);
	if (udp_bytes < sizeof(*udp))
		return count(TL_TRUNCATED, TL_TAKEN);
	frame.source = udp_source_word(ip->saddr, udp->source, TL_SOURCE_UDP);
	frame.header_offset = offset + header_bytes + sizeof(*udp);
	return accept(ctx, data, data_end, &frame, udp_bytes - sizeof(*udp), port);
}

static __always_inline int accept_ip(struct tl_context *ctx, void *data, void *data_end,
				     const struct ethhdr *ethernet, __u32 offset, bool is_generic)
{
	const struct iphdr *ip = data + offset;

	if (!config.ip)
		return TL_PASS;
	if (is_generic && (void *)(ip + 1) <= data_end && ip->protocol == IPPROTO_UDP && holds_several(ctx))
		return count_several(ctx);
	return accept_udp(ctx, data, data_end, ethernet, offset);
}

/* `vlan` and `priority` are those of a tag that is no longer in the frame. */
static __always_inline int demux(struct tl_context *ctx, __be16 vlan, __u8 priority, bool is_generic)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *ethernet = data;
	__u32 offset = sizeof(*ethernet);
	__be16 type;

	if ((void *)(ethernet + 1) > data_end)
		return TL_PASS;
	type = ((const tl_half *)ethernet)[6];
	if (type == bpf_htons(TPID_8021Q)) {
		__be16 *tag = data + offset;

		/* VLAN 0 is a priority tag on untagged traffic. */
		if ((void *)(tag + 2) > data_end)
			return TL_PASS;
		type = tag[1];
		if (is_elsewhere(type, tag[0] & bpf_htons(VLAN_IDENTIFIER)))
			return TL_PASS;
		priority = bpf_ntohs(tag[0]) >> TAG_PRIORITY_SHIFT;
		offset += 4;
	} else if (is_elsewhere(type, vlan)) {
		return TL_PASS;
	}
	if (!is_for_us(ethernet->h_dest))
		return TL_PASS;
	if (type == config.ethertype)
		return accept_ethernet(ctx, data, data_end, ethernet, offset);
	if (type == bpf_htons(ETH_P_IP))
		return accept_ip(ctx, data, data_end, ethernet, offset, is_generic);
	return accept_raw(ctx, ethernet, type, priority, offset);
}

/* Frames that go on to Linux are seen there by whoever captures. */
static __always_inline int demux_and_copy(struct tl_context *ctx, __be16 vlan, __u8 priority, bool is_generic)
{
	int verdict = demux(ctx, vlan, priority, is_generic);

	if (verdict != TL_PASS)
		copy_if_wanted(ctx, TL_TAP_RECEIVED);
	return verdict;
}

#ifdef TL_AT_TRAFFIC_CONTROL

/* Bytes that the demux reads in place: Ethernet with a tag, IPv4 with options, UDP, our header. */
#define TL_HEADERS_BYTES_MAX (sizeof(struct ethhdr) + 4 + 60 + sizeof(struct udphdr) + TL_HEADER_BYTES)

/* Whether a frame, of which the Ethernet and IPv4 headers can be read, may be ours. */
static __always_inline bool may_be_ours(const struct ethhdr *ethernet)
{
	const struct iphdr *ip = (void *)(ethernet + 1);

	if (ethernet->h_proto == config.ethertype)
		return true;
	return ethernet->h_proto == bpf_htons(ETH_P_IP) && config.ip && ip->protocol == IPPROTO_UDP;
}

/* Has the headers in one piece. Drivers may leave them in parts of a packet buffer; joining costs a copy, so it is not
 * done to frames that cannot be ours.
 */
static __always_inline void join_headers(struct tl_context *ctx)
{
	const __u32 readable = sizeof(struct ethhdr) + sizeof(struct iphdr);
	__u32 wanted = ctx->len < TL_HEADERS_BYTES_MAX ? ctx->len : TL_HEADERS_BYTES_MAX;
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;

	if (first_bytes(data, data_end) >= wanted)
		return;
	if (data + readable <= data_end && !may_be_ours(data))
		return;
	bpf_skb_pull_data(ctx, wanted);
}

/* Whether the tag that the kernel has taken out of the frame makes it somebody else's: one of 802.1Q is all that a
 * frame of ours may have.
 */
static __always_inline bool has_foreign_tag(const struct tl_context *ctx)
{
	const __be16 tag = bpf_htons(TPID_8021Q);

	return ctx->vlan_present && (ctx->vlan_proto != tag || ctx->protocol == tag);
}

static __always_inline __be16 vlan_taken_out(const struct tl_context *ctx)
{
	return ctx->vlan_present ? bpf_htons(ctx->vlan_tci & VLAN_IDENTIFIER) : 0;
}

static __always_inline __u8 priority_taken_out(const struct tl_context *ctx)
{
	return ctx->vlan_present ? (ctx->vlan_tci >> TAG_PRIORITY_SHIFT) & TL_PRIORITY_MAX : 0;
}

/* Several frames in one buffer: mostly TCP's. */
static __always_inline int pass_several(struct tl_context *ctx)
{
	join_headers(ctx);
	return ctx->vlan_present ? TL_PASS : count_several(ctx);
}

/* For traffic control, where virtual interfaces have a packet buffer anyway. */
SEC("classifier")
int tautline_tc(struct tl_context *ctx)
{
	if (holds_several(ctx))
		return pass_several(ctx);
	if (has_foreign_tag(ctx))
		return TL_PASS;
	join_headers(ctx);
	return demux_and_copy(ctx, vlan_taken_out(ctx), priority_taken_out(ctx), false);
}

#else

/* A frame of ours has one tag at most, of 802.1Q: in the buffer or in the frame. */
static __always_inline int demux_on_veth(struct tl_context *ctx)
{
	const struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct tl_tag tag = tag_in_buffer(ctx);

	if ((void *)(ethernet + 1) > (void *)(long)ctx->data_end)
		return TL_PASS;
	if (tag.type && (tag.type != bpf_htons(TPID_8021Q) || ethernet->h_proto == tag.type))
		return TL_PASS;
	return demux_and_copy(ctx, bpf_htons(tag.control & VLAN_IDENTIFIER), tag.control >> TAG_PRIORITY_SHIFT, false);
}

/* For native mode: drivers with a large MTU hand over frames in parts. */
SEC("xdp.frags")
int tautline_demux(struct tl_context *ctx)
{
	if (config.veth)
		return demux_on_veth(ctx);
	return demux_and_copy(ctx, 0, 0, false);
}

/* For generic mode, where the kernel makes the frame one piece for a program that asks for that, and
 * does so faster than it makes a frame in parts.
 */
SEC("xdp")
int tautline_linear(struct tl_context *ctx)
{
	return demux_and_copy(ctx, 0, 0, true);
}

#endif
