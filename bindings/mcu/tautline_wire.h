/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Tautline's wire protocol for microcontrollers: queuing and sampling ports over an Ethernet controller, or over UDP
 * sockets of lwIP or Zephyr. One header, C99, no libc, no allocation, no clock and no operating system. The format is
 * that of docs/reference/wire.md; docs/how-to/microcontrollers.md shows how to use this. Three layers, each usable
 * without those below:
 *
 *   frames   tlm_parse_..., tlm_write_..., tlm_bundle_..., tlm_fragment_...: bytes in, fields out. They keep nothing.
 *   flows    tlm_loss_record: which frames of a peer are missing. tlm_collect: messages put together from fragments.
 *   ports    tlm_input takes a frame that has come; tlm_receive and tlm_read hand out messages and values; tlm_send.
 *
 * All memory is the program's, and static: TLM_QUEUING_MEMORY and TLM_SAMPLING_MEMORY take that of a port. Every call
 * returns after a number of steps that is bounded by the frame's length and by the sizes that the program chose.
 *
 * A node and its ports have one user at a time. If tlm_input is called by an interrupt, the program masks that
 * interrupt around its own calls; with threads, one lock is around all.
 *
 * Times are nanoseconds of any clock that does not go back; the caller passes them.
 */
#ifndef TAUTLINE_WIRE_H
#define TAUTLINE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 1: messages of more than one frame are sent, and received where a port has collectors. 0: they are refused, and the
 * code for them is left out.
 */
#ifndef TLM_FRAGMENTS
#define TLM_FRAGMENTS 0
#endif

/* Copy of bytes that do not overlap. */
#ifndef TLM_COPY
#if defined(__GNUC__)
#define TLM_COPY(to, from, bytes) ((void)__builtin_memcpy((to), (from), (bytes)))
#else
#define TLM_COPY(to, from, bytes) tlm_copy_bytes((to), (from), (bytes))
#endif
#endif

/* ---- Limits of the format ---------------------------------------------------------------------------------------- */

#define TLM_HEADER_BYTES 16
#define TLM_VERSION 1
#define TLM_ETHERTYPE 0x88b5 /* unless a node is given another */
#define TLM_PORT_MAX 4095
#define TLM_PRIORITY_MAX 7
#define TLM_FLAG_BUNDLE 0x01
#define TLM_FLAGS_CRITICAL 0x0f
#define TLM_FRAGMENT_BYTES 1408
#define TLM_FRAGMENT_COUNT_MAX 47
#define TLM_MESSAGE_BYTES_MAX 65536
#define TLM_WHOLE_BYTES_MAX_ETHERNET 1484
#define TLM_WHOLE_BYTES_MAX_UDP 1456
#define TLM_UDP_PORT_BASE 21569 /* plus the port's number */

#define TLM_MAC_BYTES 6
#define TLM_ETHERNET_HEADER_BYTES 14
#define TLM_TAG_BYTES 4
#define TLM_OUTER_UDP_BYTES 42 /* Ethernet, IPv4 and UDP headers */
#define TLM_FRAME_BYTES_MIN 60 /* a shorter one is padded with zeros */
/* Buffer that holds every frame of both forms, with a tag. */
#define TLM_FRAME_BYTES_MAX 1518
/* Buffer that holds whole messages of up to so many bytes, in either form. */
#define TLM_FRAME_BYTES(message_bytes) \
	((message_bytes) < 2 ? TLM_FRAME_BYTES_MIN : TLM_OUTER_UDP_BYTES + TLM_HEADER_BYTES + (message_bytes))

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

/* Answers to a frame. Those below TLM_MALFORMED_COUNT are errors and indices of counters, numbered as in Rust. */
enum tlm_verdict {
	TLM_TRUNCATED = 0,
	TLM_UNKNOWN_VERSION = 1,
	TLM_UNKNOWN_FLAGS = 2,
	TLM_INVALID_PORT = 3,
	TLM_INVALID_PRIORITY = 4,
	TLM_LENGTH_BEYOND_FRAME = 5,
	TLM_INVALID_FRAGMENT = 6,
	TLM_PORT_MISMATCH = 7,
	TLM_BAD_CHECKSUM = 8,
	TLM_INVALID_SOURCE = 9,
	TLM_MALFORMED_COUNT = 10,
	TLM_NOT_OURS = 10, /* the rest of the system's */
	TLM_ACCEPTED = 11
};

enum tlm_form { TLM_ETHERNET = 1, TLM_UDP = 2 };

/* State of the UDP checksum. Partial: left to a network card that the frame never met. */
enum tlm_checksum { TLM_CHECKSUM_ABSENT = 0, TLM_CHECKSUM_VALID = 1, TLM_CHECKSUM_PARTIAL = 2 };

struct tlm_header {
	uint16_t destination; /* ports, 1 to TLM_PORT_MAX */
	uint16_t source;
	uint16_t length; /* payload bytes in this frame */
	uint8_t priority;
	uint8_t flags;
	uint8_t fragment_index;
	uint8_t fragment_count; /* 1: the frame holds the whole message */
	uint8_t type_byte;      /* of the message's type, 1 to 255; 0: untyped */
	uint32_t sequence;
};

struct tlm_frame {
	struct tlm_header header;
	const uint8_t *payload; /* header.length bytes, within the frame */
	uint8_t form;           /* TLM_ETHERNET or TLM_UDP */
	uint8_t udp_checksum;   /* of the UDP form on a raw link */
	uint16_t udp_port;      /* it was sent to, as soon as it is known; else 0 */
	uint8_t destination_mac[TLM_MAC_BYTES];
	uint8_t source_mac[TLM_MAC_BYTES];
	uint32_t destination_ip; /* 10.0.0.1 is 0x0a000001 */
	uint32_t source_ip;
};

static inline void tlm_copy_bytes(void *to, const void *from, size_t bytes)
{
	uint8_t *out = (uint8_t *)to;
	const uint8_t *in = (const uint8_t *)from;

	while (bytes-- > 0)
		*out++ = *in++;
}

static inline void tlm_zero(void *memory, size_t bytes)
{
	uint8_t *out = (uint8_t *)memory;

	while (bytes-- > 0)
		*out++ = 0;
}

static inline uint16_t tlm_get16(const uint8_t *at)
{
	return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t tlm_get32(const uint8_t *at)
{
	return (uint32_t)tlm_get16(at) << 16 | tlm_get16(at + 2);
}

static inline void tlm_put16(uint8_t *at, uint32_t value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

static inline void tlm_put32(uint8_t *at, uint32_t value)
{
	tlm_put16(at, value >> 16);
	tlm_put16(at + 2, value);
}

static inline bool tlm_is_port(uint32_t number)
{
	return number >= 1 && number <= TLM_PORT_MAX;
}

static inline bool tlm_is_group(const uint8_t *mac)
{
	return (mac[0] & 1) != 0;
}

/* Offset of the frame's payload in its message. */
static inline uint32_t tlm_message_offset(const struct tlm_header *header)
{
	return (uint32_t)header->fragment_index * TLM_FRAGMENT_BYTES;
}

static inline bool tlm_is_last(const struct tlm_header *header)
{
	return header->fragment_index + 1 == header->fragment_count;
}

/* Whether fragment index, fragment count and length fit each other and the limits. */
static inline bool tlm_check_fragment(const struct tlm_header *header)
{
	if (header->fragment_count == 1)
		return header->fragment_index == 0 && header->length <= TLM_WHOLE_BYTES_MAX_ETHERNET;
	if ((header->flags & TLM_FLAG_BUNDLE) != 0 || header->fragment_count > TLM_FRAGMENT_COUNT_MAX ||
	    header->fragment_index >= header->fragment_count)
		return false;
	if (!tlm_is_last(header))
		return header->length == TLM_FRAGMENT_BYTES;
	return header->length >= 1 && header->length <= TLM_FRAGMENT_BYTES &&
	       tlm_message_offset(header) + header->length <= TLM_MESSAGE_BYTES_MAX;
}

/* Takes header and payload apart. Sets frame->header and frame->payload. */
static inline enum tlm_verdict tlm_parse_header(const uint8_t *bytes, size_t count, struct tlm_frame *frame)
{
	struct tlm_header *header = &frame->header;

	if (count < TLM_HEADER_BYTES)
		return TLM_TRUNCATED;
	if (bytes[6] != TLM_VERSION)
		return TLM_UNKNOWN_VERSION;
	if ((bytes[5] & TLM_FLAGS_CRITICAL & ~TLM_FLAG_BUNDLE) != 0)
		return TLM_UNKNOWN_FLAGS;
	header->destination = tlm_get16(bytes);
	header->length = tlm_get16(bytes + 2);
	header->priority = bytes[4];
	header->flags = bytes[5];
	header->fragment_index = bytes[7];
	header->source = tlm_get16(bytes + 8);
	header->fragment_count = bytes[10];
	header->type_byte = bytes[11];
	header->sequence = tlm_get32(bytes + 12);
	frame->payload = bytes + TLM_HEADER_BYTES;
	if (!tlm_is_port(header->destination) || !tlm_is_port(header->source))
		return TLM_INVALID_PORT;
	if (header->priority > TLM_PRIORITY_MAX)
		return TLM_INVALID_PRIORITY;
	if (header->length > count - TLM_HEADER_BYTES)
		return TLM_LENGTH_BEYOND_FRAME;
	return tlm_check_fragment(header) ? TLM_ACCEPTED : TLM_INVALID_FRAGMENT;
}

/* Takes a UDP payload apart that came to a socket bound to `udp_port`. The sender's UDP port does not matter. */
static inline enum tlm_verdict tlm_parse_datagram(const uint8_t *datagram, size_t bytes, uint16_t udp_port,
						  struct tlm_frame *frame)
{
	enum tlm_verdict verdict = tlm_parse_header(datagram, bytes, frame);

	frame->form = TLM_UDP;
	frame->udp_port = udp_port;
	if (verdict == TLM_ACCEPTED && TLM_UDP_PORT_BASE + frame->header.destination != udp_port)
		return TLM_PORT_MISMATCH;
	return verdict;
}

/* Reads addresses and EtherType, and skips one tag with VLAN identifier 0. The bytes before the packet; 0 if the frame
 * is too short to say what it is, or in a VLAN.
 */
static inline size_t tlm_parse_outer(const uint8_t *bytes, size_t count, struct tlm_frame *frame, uint16_t *ethertype)
{
	size_t header_bytes = TLM_ETHERNET_HEADER_BYTES;

	frame->udp_port = 0;
	frame->udp_checksum = TLM_CHECKSUM_ABSENT;
	frame->destination_ip = 0;
	frame->source_ip = 0;
	if (count < header_bytes)
		return 0;
	if (tlm_get16(bytes + 12) == 0x8100) {
		header_bytes += TLM_TAG_BYTES;
		if (count < header_bytes || (tlm_get16(bytes + 14) & 0x0fff) != 0)
			return 0;
	}
	TLM_COPY(frame->destination_mac, bytes, TLM_MAC_BYTES);
	TLM_COPY(frame->source_mac, bytes + TLM_MAC_BYTES, TLM_MAC_BYTES);
	*ethertype = tlm_get16(bytes + header_bytes - 2);
	return header_bytes;
}

/* Takes a frame of the Ethernet form apart, from the destination address on, without the check sequence. */
static inline enum tlm_verdict tlm_parse_ethernet(const uint8_t *bytes, size_t count, uint16_t ethertype,
						  struct tlm_frame *frame)
{
	uint16_t found;
	size_t outer = tlm_parse_outer(bytes, count, frame, &found);

	frame->form = TLM_ETHERNET;
	if (outer == 0 || found != ethertype)
		return TLM_NOT_OURS;
	if (tlm_is_group(frame->source_mac))
		return TLM_INVALID_SOURCE;
	return tlm_parse_header(bytes + outer, count - outer, frame);
}

/* Sum of big-endian words, carries not folded. No packet has enough of them for an overflow. */
static inline uint32_t tlm_sum(const uint8_t *bytes, size_t count)
{
	uint32_t sum = 0;

	for (; count >= 2; bytes += 2, count -= 2)
		sum += tlm_get16(bytes);
	return count == 0 ? sum : sum + ((uint32_t)bytes[0] << 8);
}

static inline uint16_t tlm_fold(uint32_t sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)sum;
}

/* The IPv4 header of a packet, if it is one of whole, undamaged UDP: bytes of the header, and of the packet. */
static inline size_t tlm_parse_ipv4(const uint8_t *packet, size_t *packet_bytes)
{
	size_t header_bytes, total_bytes;

	if (*packet_bytes < 20)
		return 0;
	header_bytes = (size_t)(packet[0] & 0x0f) * 4;
	total_bytes = tlm_get16(packet + 2);
	if (packet[0] >> 4 != 4 || header_bytes < 20 || header_bytes > *packet_bytes || total_bytes < header_bytes ||
	    total_bytes > *packet_bytes)
		return 0;
	/* A fragment, or not UDP. */
	if ((tlm_get16(packet + 6) & 0x3fff) != 0 || packet[9] != 17 ||
	    tlm_fold(tlm_sum(packet, header_bytes)) != 0xffff)
		return 0;
	*packet_bytes = total_bytes;
	return header_bytes;
}

/* Takes the UDP datagram of a packet apart, whose UDP destination port is ours. */
static inline enum tlm_verdict tlm_parse_udp_datagram(const uint8_t *udp, size_t bytes, struct tlm_frame *frame)
{
	uint32_t length, sent, pseudo;

	if (bytes < 6)
		return TLM_TRUNCATED;
	length = tlm_get16(udp + 4);
	if (length > bytes)
		return TLM_LENGTH_BEYOND_FRAME;
	if (length < 8)
		return TLM_TRUNCATED;
	sent = tlm_get16(udp + 6);
	if (sent != 0) {
		pseudo = (frame->source_ip >> 16) + (frame->source_ip & 0xffff) + (frame->destination_ip >> 16) +
			 (frame->destination_ip & 0xffff) + 17 + length;
		if (tlm_fold(pseudo + tlm_sum(udp, length)) == 0xffff)
			frame->udp_checksum = TLM_CHECKSUM_VALID;
		else if (sent == tlm_fold(pseudo))
			frame->udp_checksum = TLM_CHECKSUM_PARTIAL;
		else
			return TLM_BAD_CHECKSUM;
	}
	return tlm_parse_datagram(udp + 8, length - 8, frame->udp_port, frame);
}

/* Takes a frame of the UDP form apart, from the destination address on, without the check sequence. */
static inline enum tlm_verdict tlm_parse_udp(const uint8_t *bytes, size_t count, struct tlm_frame *frame)
{
	uint16_t ethertype, udp_port;
	size_t outer = tlm_parse_outer(bytes, count, frame, &ethertype);
	const uint8_t *packet = bytes + outer;
	size_t packet_bytes = count - outer, header_bytes;

	frame->form = TLM_UDP;
	if (outer == 0 || ethertype != 0x0800)
		return TLM_NOT_OURS;
	header_bytes = tlm_parse_ipv4(packet, &packet_bytes);
	if (header_bytes == 0 || packet_bytes - header_bytes < 4)
		return TLM_NOT_OURS;
	udp_port = tlm_get16(packet + header_bytes + 2);
	if (udp_port <= TLM_UDP_PORT_BASE || udp_port > TLM_UDP_PORT_BASE + TLM_PORT_MAX)
		return TLM_NOT_OURS;
	frame->udp_port = udp_port;
	frame->source_ip = tlm_get32(packet + 12);
	frame->destination_ip = tlm_get32(packet + 16);
	if (tlm_is_group(frame->source_mac))
		return TLM_INVALID_SOURCE;
	return tlm_parse_udp_datagram(packet + header_bytes, packet_bytes - header_bytes, frame);
}

/* Writes the header. Its fields must be within their limits (tlm_check_fragment). */
static inline void tlm_write_header(uint8_t *at, const struct tlm_header *header)
{
	tlm_put16(at, header->destination);
	tlm_put16(at + 2, header->length);
	at[4] = header->priority;
	at[5] = header->flags;
	at[6] = TLM_VERSION;
	at[7] = header->fragment_index;
	tlm_put16(at + 8, header->source);
	at[10] = header->fragment_count;
	at[11] = header->type_byte;
	tlm_put32(at + 12, header->sequence);
}

/* Writes everything before the payload in the Ethernet form, with a priority tag if wanted; its bytes, 30 or 34. */
static inline size_t tlm_write_ethernet(uint8_t *at, const uint8_t *destination_mac, const uint8_t *source_mac,
					uint16_t ethertype, bool with_tag, const struct tlm_header *header)
{
	size_t place = 2 * TLM_MAC_BYTES;

	TLM_COPY(at, destination_mac, TLM_MAC_BYTES);
	TLM_COPY(at + TLM_MAC_BYTES, source_mac, TLM_MAC_BYTES);
	if (with_tag) {
		tlm_put16(at + place, 0x8100);
		tlm_put16(at + place + 2, (uint32_t)header->priority << 13);
		place += TLM_TAG_BYTES;
	}
	tlm_put16(at + place, ethertype);
	tlm_write_header(at + place + 2, header);
	return place + 2 + TLM_HEADER_BYTES;
}

/* Writes everything before the payload in the UDP form; its bytes, 58. The type of service is 0, or the priority x 32
 * for switches.
 */
static inline size_t tlm_write_udp(uint8_t *at, const uint8_t *destination_mac, const uint8_t *source_mac,
				   uint32_t destination_ip, uint32_t source_ip, uint8_t type_of_service,
				   const struct tlm_header *header)
{
	uint8_t *packet = at + TLM_ETHERNET_HEADER_BYTES;
	uint8_t *udp = packet + 20;
	uint32_t udp_bytes = 8U + TLM_HEADER_BYTES + header->length;

	TLM_COPY(at, destination_mac, TLM_MAC_BYTES);
	TLM_COPY(at + TLM_MAC_BYTES, source_mac, TLM_MAC_BYTES);
	tlm_put16(at + 12, 0x0800);
	packet[0] = 0x45;
	packet[1] = type_of_service;
	tlm_put16(packet + 2, 20 + udp_bytes);
	tlm_put16(packet + 4, 0);
	tlm_put16(packet + 6, 0x4000); /* don't fragment */
	packet[8] = 64;
	packet[9] = 17;
	tlm_put16(packet + 10, 0);
	tlm_put32(packet + 12, source_ip);
	tlm_put32(packet + 16, destination_ip);
	tlm_put16(packet + 10, ~(uint32_t)tlm_fold(tlm_sum(packet, 20)));
	tlm_put16(udp, TLM_UDP_PORT_BASE + (uint32_t)header->source);
	tlm_put16(udp + 2, TLM_UDP_PORT_BASE + (uint32_t)header->destination);
	tlm_put16(udp + 4, udp_bytes);
	tlm_put16(udp + 6, 0); /* no checksum */
	tlm_write_header(udp + 8, header);
	return TLM_OUTER_UDP_BYTES + TLM_HEADER_BYTES;
}

/* Goes through a bundle: the next message, from *at, which is 0 at first. 1: *message has *bytes bytes. 0: there is no
 * further one. -1: the bundle is malformed, and none of its messages counts.
 */
static inline int tlm_bundle_step(const uint8_t *payload, size_t payload_bytes, size_t *at, const uint8_t **message,
				  size_t *bytes)
{
	if (*at == payload_bytes && *at != 0)
		return 0;
	if (payload_bytes - *at < 2)
		return -1;
	*bytes = tlm_get16(payload + *at);
	if (*bytes > payload_bytes - *at - 2)
		return -1;
	*message = payload + *at + 2;
	*at += 2 + *bytes;
	return 1;
}

/* Whether a bundle is well-formed to its end. */
static inline bool tlm_bundle_is_valid(const uint8_t *payload, size_t payload_bytes)
{
	const uint8_t *message;
	size_t at = 0, bytes;
	int step;

	do
		step = tlm_bundle_step(payload, payload_bytes, &at, &message, &bytes);
	while (step > 0);
	return step == 0;
}

/* Number of frames of a message, over a link whose frames hold `whole_bytes_max`; 0 if no number is enough. */
static inline uint32_t tlm_fragment_count(size_t message_bytes, size_t whole_bytes_max)
{
	if (message_bytes > TLM_MESSAGE_BYTES_MAX)
		return 0;
	if (message_bytes <= whole_bytes_max)
		return 1;
	return (uint32_t)((message_bytes + TLM_FRAGMENT_BYTES - 1) / TLM_FRAGMENT_BYTES);
}

/* Bytes of the frame `index` of `count`. */
static inline uint16_t tlm_fragment_length(size_t message_bytes, uint32_t index, uint32_t count)
{
	size_t rest = message_bytes - (size_t)index * TLM_FRAGMENT_BYTES;

	return (uint16_t)(count > 1 && rest > TLM_FRAGMENT_BYTES ? TLM_FRAGMENT_BYTES : rest);
}

/* ---- Flows: loss ------------------------------------------------------------------------------------------------- */

/* Sequence numbers of one flow. All zeros at first. */
struct tlm_loss {
	uint64_t window; /* bit i: number `highest` - i has been seen */
	uint64_t expected;
	uint64_t received;
	uint64_t duplicates;
	uint32_t highest;
	uint32_t span; /* numbers of this run that the window knows of, at most 64 */
	uint32_t restarts;
};

enum tlm_arrival { TLM_FIRST, TLM_ADVANCE, TLM_REORDERED, TLM_DUPLICATE, TLM_RESTART };

static inline uint64_t tlm_lost(const struct tlm_loss *loss)
{
	return loss->expected > loss->received ? loss->expected - loss->received : 0;
}

static inline void tlm_loss_begin_run(struct tlm_loss *loss, uint32_t sequence)
{
	loss->highest = sequence;
	loss->span = 1;
	loss->window = 1;
	loss->expected++;
	loss->received++;
}

/* Takes the number of a frame, in the order of arrival. */
static inline enum tlm_arrival tlm_loss_record(struct tlm_loss *loss, uint32_t sequence)
{
	uint32_t ahead = sequence - loss->highest;
	uint32_t behind = loss->highest - sequence;

	if (loss->received == 0) {
		tlm_loss_begin_run(loss, sequence);
		return TLM_FIRST;
	}
	if (ahead != 0 && ahead <= 0x7fffffff) {
		loss->highest = sequence;
		loss->span = ahead >= 64 || loss->span + ahead >= 64 ? 64 : loss->span + ahead;
		loss->window = (ahead >= 64 ? 0 : loss->window << ahead) | 1;
		loss->expected += ahead;
		loss->received++;
		return TLM_ADVANCE;
	}
	if (behind < 64 && (loss->window >> behind & 1) == 0) {
		if (loss->span < behind + 1) {
			loss->expected += behind + 1 - loss->span;
			loss->span = behind + 1;
		}
		loss->window |= (uint64_t)1 << behind;
		loss->received++;
		return TLM_REORDERED;
	}
	if (sequence == 0 || behind > 1024) {
		loss->restarts++;
		tlm_loss_begin_run(loss, sequence);
		return TLM_RESTART;
	}
	loss->duplicates++;
	return TLM_DUPLICATE;
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

/* A port of a peer. In the Ethernet form the MAC address tells the node, in the UDP form the IPv4 address; the MAC
 * address there is the neighbour's or the router's, and is not needed with sockets.
 */
struct tlm_address {
	uint8_t form; /* TLM_ETHERNET or TLM_UDP; 0: nobody */
	uint8_t mac[TLM_MAC_BYTES];
	uint16_t port;
	uint32_t ip; /* 10.0.0.1 is 0x0a000001 */
};

static inline bool tlm_same_mac(const uint8_t *one, const uint8_t *other)
{
	uint8_t difference = 0;
	int i;

	for (i = 0; i < TLM_MAC_BYTES; i++)
		difference |= (uint8_t)(one[i] ^ other[i]);
	return difference == 0;
}

static inline bool tlm_same_address(const struct tlm_address *one, const struct tlm_address *other)
{
	if (one->form != other->form || one->port != other->port)
		return false;
	return one->form == TLM_UDP ? one->ip == other->ip : tlm_same_mac(one->mac, other->mac);
}

/* ---- Flows: messages put together from fragments ----------------------------------------------------------------- */

#if TLM_FRAGMENTS

/* In the order in which collectors are given away. */
enum tlm_collector_state { TLM_FREE = 0, TLM_COMPLETE = 1, TLM_COLLECTING = 2 };

/* A message under way. */
struct tlm_collector {
	uint64_t deadline_ns; /* given up then, or forgotten if it is complete */
	uint64_t arrived;     /* bit i: fragment i is there */
	struct tlm_address from;
	uint32_t message_sequence;
	uint32_t message_bytes; /* once the last fragment is there */
	uint16_t to;
	uint8_t priority;
	uint8_t fragment_count;
	uint8_t state;
};

enum tlm_outcome {
	TLM_INCOMPLETE,   /* kept */
	TLM_MESSAGE,      /* the message is complete */
	TLM_SEEN,         /* was there already */
	TLM_NO_COLLECTOR, /* the rest: dropped */
	TLM_QUOTA_REACHED,
	TLM_INCONSISTENT,
	TLM_LARGER_THAN_COLLECTORS
};

/* Collectors of one or several ports, made by TLM_COLLECTORS. */
struct tlm_reassembler {
	struct tlm_collector *collectors;
	uint8_t *bytes; /* message_bytes_max for each */
	uint32_t collector_count;
	uint32_t message_bytes_max;
	uint64_t time_limit_ns; /* from a message's first frame to its last */
	/* Counters: messages, then frames. */
	uint32_t completed, expired, forgotten;
	uint32_t duplicates, no_collector, quota_reached, inconsistent, too_large;
};

/* Time limit of docs/reference/wire.md: 64 KiB take 5.4 ms at 100 Mbit/s. Lower loses messages when the network
 * reorders; higher lets a lost frame block a collector for longer.
 */
#define TLM_TIME_LIMIT_NS UINT64_C(50000000)

/* Memory for `count` messages under way of up to `message_bytes_max` bytes. One sender has at most half of them. */
#define TLM_COLLECTORS(name, count, message_bytes_max) \
	static struct tlm_collector name##_collectors[count]; \
	static uint8_t name##_bytes[(size_t)(count) * (message_bytes_max)]; \
	static struct tlm_reassembler name = {name##_collectors, name##_bytes, (count), (message_bytes_max), \
					      TLM_TIME_LIMIT_NS, 0, 0, 0, 0, 0, 0, 0, 0}

static inline uint64_t tlm_later(uint64_t time_ns, uint64_t by_ns)
{
	return time_ns > UINT64_MAX - by_ns ? UINT64_MAX : time_ns + by_ns;
}

static inline uint64_t tlm_all_fragments(uint32_t count)
{
	return UINT64_MAX >> (64 - count);
}

/* Drops the messages whose time is over. Needed only to have them counted in time. */
static inline void tlm_expire(struct tlm_reassembler *reassembler, uint64_t now_ns)
{
	uint32_t i;

	for (i = 0; i < reassembler->collector_count; i++) {
		struct tlm_collector *collector = &reassembler->collectors[i];

		if (collector->state == TLM_FREE || collector->deadline_ns > now_ns)
			continue;
		if (collector->state == TLM_COLLECTING)
			reassembler->expired++;
		collector->state = TLM_FREE;
	}
}

/* Drops all messages of a flow that has begun to count anew. */
static inline void tlm_forget_flow(struct tlm_reassembler *reassembler, const struct tlm_address *from, uint16_t to)
{
	uint32_t i;

	for (i = 0; i < reassembler->collector_count; i++) {
		struct tlm_collector *collector = &reassembler->collectors[i];

		if (collector->state == TLM_FREE || collector->to != to || !tlm_same_address(&collector->from, from))
			continue;
		if (collector->state == TLM_COLLECTING)
			reassembler->forgotten++;
		collector->state = TLM_FREE;
	}
}

static inline bool tlm_same_node(const struct tlm_address *one, const struct tlm_address *other)
{
	struct tlm_address same_port = *other;

	same_port.port = one->port;
	return tlm_same_address(one, &same_port);
}

static inline bool tlm_collects(const struct tlm_collector *collector, const struct tlm_address *from,
				const struct tlm_header *header, uint64_t now_ns)
{
	return collector->state != TLM_FREE && now_ns < collector->deadline_ns && collector->to == header->destination &&
	       collector->priority == header->priority &&
	       collector->message_sequence == header->sequence - header->fragment_index &&
	       tlm_same_address(&collector->from, from);
}

/* Of two collectors, whether the first one is given away before the other. */
static inline bool tlm_goes_first(const struct tlm_collector *one, const struct tlm_collector *other)
{
	if (one->state != other->state)
		return one->state < other->state;
	return one->state == TLM_COMPLETE && one->deadline_ns < other->deadline_ns;
}

/* A collector for a new message, or null; *outcome says why. */
static inline struct tlm_collector *tlm_new_collector(struct tlm_reassembler *reassembler, uint64_t now_ns,
						      const struct tlm_address *from, enum tlm_outcome *outcome)
{
	struct tlm_collector *chosen = reassembler->collectors;
	uint32_t quota = reassembler->collector_count / 2, held = 0, i;

	tlm_expire(reassembler, now_ns);
	for (i = 0; i < reassembler->collector_count; i++) {
		struct tlm_collector *collector = &reassembler->collectors[i];

		if (collector->state == TLM_COLLECTING && tlm_same_node(&collector->from, from))
			held++;
		if (tlm_goes_first(collector, chosen))
			chosen = collector;
	}
	if (held >= (quota == 0 ? 1 : quota)) {
		reassembler->quota_reached++;
		*outcome = TLM_QUOTA_REACHED;
		return NULL;
	}
	if (chosen->state == TLM_COLLECTING) {
		reassembler->no_collector++;
		*outcome = TLM_NO_COLLECTOR;
		return NULL;
	}
	return chosen;
}

/* The collector of a frame's message, known or new, or null. */
static inline struct tlm_collector *tlm_collector_of(struct tlm_reassembler *reassembler, uint64_t now_ns,
						     const struct tlm_address *from, const struct tlm_header *header,
						     enum tlm_outcome *outcome)
{
	struct tlm_collector *collector;
	uint32_t i;

	for (i = 0; i < reassembler->collector_count; i++)
		if (tlm_collects(&reassembler->collectors[i], from, header, now_ns))
			return &reassembler->collectors[i];
	collector = tlm_new_collector(reassembler, now_ns, from, outcome);
	if (collector == NULL)
		return NULL;
	collector->state = TLM_COLLECTING;
	collector->deadline_ns = tlm_later(now_ns, reassembler->time_limit_ns);
	collector->arrived = 0;
	collector->from = *from;
	collector->message_sequence = header->sequence - header->fragment_index;
	collector->message_bytes = 0;
	collector->to = header->destination;
	collector->priority = header->priority;
	collector->fragment_count = header->fragment_count;
	return collector;
}

/* Takes an accepted frame with more than one fragment. If the message is complete, *message has *bytes bytes, which
 * stay until the next call.
 */
static inline enum tlm_outcome tlm_collect(struct tlm_reassembler *reassembler, uint64_t now_ns,
					   const struct tlm_address *from, const struct tlm_frame *frame,
					   const uint8_t **message, uint32_t *bytes)
{
	const struct tlm_header *header = &frame->header;
	uint32_t offset = tlm_message_offset(header);
	enum tlm_outcome outcome = TLM_INCOMPLETE;
	struct tlm_collector *collector;
	uint8_t *memory;

	if (offset + header->length > reassembler->message_bytes_max ||
	    (header->fragment_count - 1U) * TLM_FRAGMENT_BYTES + 1 > reassembler->message_bytes_max) {
		reassembler->too_large++;
		return TLM_LARGER_THAN_COLLECTORS;
	}
	collector = tlm_collector_of(reassembler, now_ns, from, header, &outcome);
	if (collector == NULL)
		return outcome;
	if (collector->fragment_count != header->fragment_count) {
		reassembler->inconsistent++;
		return TLM_INCONSISTENT;
	}
	/* Of a complete message every bit is set. */
	if ((collector->arrived >> header->fragment_index & 1) != 0) {
		reassembler->duplicates++;
		return TLM_SEEN;
	}
	memory = reassembler->bytes + (size_t)(collector - reassembler->collectors) * reassembler->message_bytes_max;
	TLM_COPY(memory + offset, frame->payload, header->length);
	collector->arrived |= (uint64_t)1 << header->fragment_index;
	if (tlm_is_last(header))
		collector->message_bytes = offset + header->length;
	if (collector->arrived != tlm_all_fragments(header->fragment_count))
		return TLM_INCOMPLETE;
	collector->state = TLM_COMPLETE;
	collector->deadline_ns = tlm_later(now_ns, reassembler->time_limit_ns);
	reassembler->completed++;
	*message = memory;
	*bytes = collector->message_bytes;
	return TLM_MESSAGE;
}

#endif /* TLM_FRAGMENTS */

/* ---- Ports: memory ----------------------------------------------------------------------------------------------- */

/* Slot header; the message is in the port's bytes. */
struct tlm_slot {
	uint64_t arrival_ns;
	struct tlm_address from;
	uint32_t sequence;
	uint32_t order; /* of arrival in this port */
	uint32_t bytes;
	uint8_t priority;
	uint8_t state;
};

enum tlm_slot_state { TLM_SLOT_FREE = 0, TLM_SLOT_WAITING = 1, TLM_SLOT_LENT = 2 };

/* Port of a peer, and both flows between it and a port of this node. */
struct tlm_peer {
	struct tlm_address address;
	uint32_t sequence; /* of the next frame to it */
	uint32_t last_use;
	struct tlm_loss loss; /* of the frames from it */
};

struct tlm_memory {
	struct tlm_slot *slots;
	uint8_t *bytes; /* message_bytes_max for each */
	struct tlm_peer *peers;
	uint32_t slot_count;
	uint32_t message_bytes_max;
	uint32_t peer_count;
};

/* Memory of a queuing port with room for `depth` messages of all priorities, of up to `message_bytes_max` bytes, and
 * for the flows with `peer_count` ports of peers, at least 1. A peer more takes the place of the one silent for
 * longest; its losses are forgotten, and what is sent to it begins with sequence number 0.
 */
#define TLM_QUEUING_MEMORY(name, depth, message_bytes_max, peer_count) \
	static struct tlm_slot name##_slots[depth]; \
	static uint8_t name##_bytes[(size_t)(depth) * (message_bytes_max)]; \
	static struct tlm_peer name##_peers[peer_count]; \
	static const struct tlm_memory name = {name##_slots, name##_bytes, name##_peers, \
					       (depth), (message_bytes_max), (peer_count)}

/* Memory of a sampling port, likewise. */
#define TLM_SAMPLING_MEMORY(name, message_bytes_max, peer_count) \
	TLM_QUEUING_MEMORY(name, 1, message_bytes_max, peer_count)

/* Counters of a port, as those of the library on Linux. */
struct tlm_port_counters {
	uint32_t sent;          /* messages */
	uint32_t send_errors;   /* messages that were not sent, or not whole */
	uint32_t frames;        /* that arrived, dropped ones too */
	uint32_t received;      /* messages handed out; values seen */
	uint32_t dropped_full;  /* messages that found no free slot, or gave theirs to a more urgent one */
	uint32_t overwritten;   /* values replaced before they were seen */
	uint32_t too_large;     /* messages larger than the port takes */
	uint32_t unfit;         /* frames that a port of this kind does not take */
	uint32_t bad_bundles;
	uint32_t other_type;    /* frames with messages of another type than the port's */
	uint32_t peers_evicted; /* peers forgotten for others */
};

enum tlm_kind { TLM_QUEUING = 1, TLM_SAMPLING = 2 };

struct tlm_node;

struct tlm_port {
	struct tlm_node *node;
	struct tlm_port *next;
	struct tlm_memory memory;
	uint64_t refresh_period_ns;
	uint32_t order;       /* of the next message */
	uint32_t uses;        /* of peers, so far */
	uint32_t overwritten; /* since the value was read */
	uint16_t number;
	uint8_t kind;
	uint8_t sends;    /* type byte of the messages that are sent, which the program may set; 0: untyped */
	uint8_t receives; /* of those that are taken; 0: any */
#if TLM_FRAGMENTS
	struct tlm_reassembler *reassembler; /* for messages in fragments; null: they are unfit */
#endif
	struct tlm_port_counters counters;
	void *context; /* the program's, such as the socket of this port */
};

struct tlm_node_counters {
	uint32_t malformed[TLM_MALFORMED_COUNT]; /* by enum tlm_verdict */
	uint32_t no_port;                        /* frames for a port that is not open */
};

/* Filled by the program before the first call; what it does not need is zero. */
struct tlm_node {
	uint8_t mac[TLM_MAC_BYTES];
	uint16_t ethertype;  /* 0: TLM_ETHERTYPE */
	uint32_t ip;         /* 0: not in the UDP form. 10.0.0.1 is 0x0a000001 */
	bool mark_priority;  /* repeat the priority where switches look: in a tag, in the type of service */
	bool sockets;        /* `send` is given UDP payloads for a socket, not frames */
	uint8_t *frame;      /* where frames are built: TLM_FRAME_BYTES of the longest message that is sent whole, */
	uint32_t frame_bytes; /* and TLM_FRAME_BYTES_MAX for messages in fragments */

	/* Hands a frame, or a UDP payload for to->ip and UDP port 21569 + to->port, to the driver or socket. False if it
	 * could not be sent. `bytes` is node->frame, which is written again after the return: a driver that still reads
	 * it then puts another buffer into node->frame.
	 */
	bool (*send)(struct tlm_node *node, const struct tlm_port *from, const struct tlm_address *to,
		     const uint8_t *bytes, size_t count);
	void *context; /* the program's */

	struct tlm_port *ports;
	struct tlm_node_counters counters;
};

static inline bool tlm_open(struct tlm_port *port, struct tlm_node *node, uint16_t number, enum tlm_kind kind,
			    const struct tlm_memory *memory)
{
	struct tlm_port *other;
	uint32_t i;

	for (other = node->ports; other != NULL; other = other->next)
		if (other == port || other->number == number)
			return false;
	if (!tlm_is_port(number) || memory->slot_count == 0 || memory->peer_count == 0)
		return false;
	tlm_zero(port, sizeof(*port));
	port->node = node;
	port->memory = *memory;
	port->number = number;
	port->kind = (uint8_t)kind;
	for (i = 0; i < memory->slot_count; i++)
		memory->slots[i].state = TLM_SLOT_FREE;
	tlm_zero(memory->peers, memory->peer_count * sizeof(*memory->peers));
	port->next = node->ports;
	node->ports = port;
	return true;
}

/* Opens a queuing port: it keeps every message, the most urgent first. False: a wrong number, or it is open. */
static inline bool tlm_open_queuing(struct tlm_port *port, struct tlm_node *node, uint16_t number,
				    const struct tlm_memory *memory)
{
	return tlm_open(port, node, number, TLM_QUEUING, memory);
}

/* Opens a sampling port: it keeps the last value, which is valid while it is younger than the refresh period. */
static inline bool tlm_open_sampling(struct tlm_port *port, struct tlm_node *node, uint16_t number,
				     uint64_t refresh_period_ns, const struct tlm_memory *memory)
{
	if (!tlm_open(port, node, number, TLM_SAMPLING, memory))
		return false;
	port->refresh_period_ns = refresh_period_ns;
	return true;
}

/* The entry of a peer's port: its own, a free one, or that of the peer that was silent for longest. */
static inline struct tlm_peer *tlm_peer_of(struct tlm_port *port, const struct tlm_address *address)
{
	struct tlm_peer *oldest = port->memory.peers, *peer;
	uint32_t i;

	port->uses++;
	for (i = 0; i < port->memory.peer_count; i++) {
		peer = &port->memory.peers[i];
		if (peer->address.form != 0 && tlm_same_address(&peer->address, address)) {
			peer->last_use = port->uses;
			return peer;
		}
		if (oldest->address.form != 0 &&
		    (peer->address.form == 0 || port->uses - peer->last_use > port->uses - oldest->last_use))
			oldest = peer;
	}
	if (oldest->address.form != 0)
		port->counters.peers_evicted++;
	tlm_zero(oldest, sizeof(*oldest));
	oldest->address = *address;
	oldest->last_use = port->uses;
	return oldest;
}

/* ---- Ports: receiving -------------------------------------------------------------------------------------------- */

struct tlm_message {
	const uint8_t *payload; /* lent */
	uint32_t bytes;
	uint32_t sequence;   /* of its first frame */
	uint64_t arrival_ns; /* of its last frame */
	struct tlm_address from; /* where an answer goes; proves nothing */
	uint8_t priority;
};

struct tlm_sample {
	struct tlm_message message;
	uint64_t age_ns;
	uint32_t overwritten; /* values that came and were replaced since the last read */
	bool valid;           /* younger than the refresh period */
	bool fresh;           /* no read has seen it before */
};

/* A slot for a message: a free one, else that of the newest message of the least urgent that wait, if it is less
 * urgent. So a flood of unimportant messages does not keep urgent ones out.
 */
static inline struct tlm_slot *tlm_slot_for(struct tlm_port *port, uint8_t priority)
{
	struct tlm_slot *victim = NULL, *slot;
	uint32_t i;

	for (i = 0; i < port->memory.slot_count; i++) {
		slot = &port->memory.slots[i];
		if (slot->state == TLM_SLOT_FREE)
			return slot;
		if (slot->state != TLM_SLOT_WAITING || slot->priority >= priority)
			continue;
		if (victim == NULL || slot->priority < victim->priority ||
		    (slot->priority == victim->priority && port->order - slot->order < port->order - victim->order))
			victim = slot;
	}
	port->counters.dropped_full++;
	return victim;
}

static inline uint8_t *tlm_bytes_of(const struct tlm_port *port, const struct tlm_slot *slot)
{
	return port->memory.bytes + (size_t)(slot - port->memory.slots) * port->memory.message_bytes_max;
}

/* Writes a message into its slot: of a queuing port the one that is found for it, of a sampling port the only one. */
static inline void tlm_keep(struct tlm_port *port, const struct tlm_header *header, const struct tlm_address *from,
			    const uint8_t *payload, size_t bytes, uint64_t now_ns)
{
	struct tlm_slot *slot = port->memory.slots;

	if (bytes > port->memory.message_bytes_max) {
		port->counters.too_large++;
		return;
	}
	if (port->kind == TLM_QUEUING) {
		slot = tlm_slot_for(port, header->priority);
		if (slot == NULL)
			return;
	} else if (slot->state == TLM_SLOT_WAITING) {
		port->counters.overwritten++;
		port->overwritten++;
	}
	TLM_COPY(tlm_bytes_of(port, slot), payload, bytes);
	slot->arrival_ns = now_ns;
	slot->from = *from;
	slot->sequence = header->sequence - header->fragment_index;
	slot->order = port->order++;
	slot->bytes = (uint32_t)bytes;
	slot->priority = header->priority;
	slot->state = TLM_SLOT_WAITING;
}

static inline void tlm_keep_bundle(struct tlm_port *port, const struct tlm_frame *frame, const struct tlm_address *from,
				   uint64_t now_ns)
{
	const uint8_t *message;
	size_t at = 0, bytes;

	if (!tlm_bundle_is_valid(frame->payload, frame->header.length)) {
		port->counters.bad_bundles++;
		return;
	}
	while (tlm_bundle_step(frame->payload, frame->header.length, &at, &message, &bytes) > 0)
		tlm_keep(port, &frame->header, from, message, bytes, now_ns);
}

static inline void tlm_keep_fragment(struct tlm_port *port, const struct tlm_frame *frame,
				     const struct tlm_address *from, uint64_t now_ns)
{
#if TLM_FRAGMENTS
	const uint8_t *message;
	uint32_t bytes;

	if (port->reassembler != NULL) {
		if (tlm_collect(port->reassembler, now_ns, from, frame, &message, &bytes) == TLM_MESSAGE)
			tlm_keep(port, &frame->header, from, message, bytes, now_ns);
		return;
	}
#else
	(void)frame;
	(void)from;
	(void)now_ns;
#endif
	port->counters.unfit++;
}

/* Counts an accepted frame in its flow, and keeps its payload. */
static inline void tlm_deliver(struct tlm_port *port, const struct tlm_frame *frame, const struct tlm_address *from,
			       uint64_t now_ns)
{
	const struct tlm_header *header = &frame->header;
	bool is_bundle = (header->flags & TLM_FLAG_BUNDLE) != 0;
	enum tlm_arrival arrival = tlm_loss_record(&tlm_peer_of(port, from)->loss, header->sequence);

	port->counters.frames++;
#if TLM_FRAGMENTS
	if (arrival == TLM_RESTART && port->reassembler != NULL)
		tlm_forget_flow(port->reassembler, from, port->number);
#else
	(void)arrival;
#endif
	if (port->receives != 0 && header->type_byte != 0 && header->type_byte != port->receives)
		port->counters.other_type++;
	else if (port->kind == TLM_SAMPLING && (is_bundle || header->fragment_count > 1))
		port->counters.unfit++;
	else if (is_bundle)
		tlm_keep_bundle(port, frame, from, now_ns);
	else if (header->fragment_count > 1)
		tlm_keep_fragment(port, frame, from, now_ns);
	else
		tlm_keep(port, header, from, frame->payload, header->length, now_ns);
}

static inline struct tlm_port *tlm_find_port(const struct tlm_node *node, uint32_t number)
{
	struct tlm_port *port = node->ports;

	while (port != NULL && port->number != number)
		port = port->next;
	return port;
}

/* Counts a refused frame, or delivers an accepted one. UDP datagrams for a port that is not open are the system's. */
static inline enum tlm_verdict tlm_admit(struct tlm_node *node, enum tlm_verdict verdict, const struct tlm_frame *frame,
					 uint64_t now_ns)
{
	struct tlm_address from;
	struct tlm_port *port;

	if (verdict == TLM_NOT_OURS ||
	    (frame->form == TLM_UDP && tlm_find_port(node, (uint32_t)frame->udp_port - TLM_UDP_PORT_BASE) == NULL))
		return TLM_NOT_OURS;
	if (verdict != TLM_ACCEPTED) {
		node->counters.malformed[verdict]++;
		return verdict;
	}
	port = tlm_find_port(node, frame->header.destination);
	if (port == NULL) {
		node->counters.no_port++;
		return verdict;
	}
	from.form = frame->form;
	from.port = frame->header.source;
	from.ip = frame->source_ip;
	TLM_COPY(from.mac, frame->source_mac, TLM_MAC_BYTES);
	tlm_deliver(port, frame, &from, now_ns);
	return verdict;
}

static inline uint16_t tlm_ethertype_of(const struct tlm_node *node)
{
	return node->ethertype != 0 ? node->ethertype : TLM_ETHERTYPE;
}

/* Takes a frame that the Ethernet controller received, without its check sequence. TLM_NOT_OURS: it belongs to the
 * other protocols of the machine. Frames for another station, which a promiscuous controller receives, are not ours.
 */
static inline enum tlm_verdict tlm_input(struct tlm_node *node, const uint8_t *bytes, size_t count, uint64_t now_ns)
{
	struct tlm_frame frame;
	enum tlm_verdict verdict = tlm_parse_ethernet(bytes, count, tlm_ethertype_of(node), &frame);

	if (verdict == TLM_NOT_OURS && node->ip != 0) {
		verdict = tlm_parse_udp(bytes, count, &frame);
		if (verdict != TLM_NOT_OURS && frame.destination_ip != node->ip)
			return TLM_NOT_OURS;
	}
	if (verdict != TLM_NOT_OURS && !tlm_is_group(frame.destination_mac) &&
	    !tlm_same_mac(frame.destination_mac, node->mac))
		return TLM_NOT_OURS;
	return tlm_admit(node, verdict, &frame, now_ns);
}

/* Takes a UDP payload that a socket bound to `udp_port` received from `source_ip`. */
static inline enum tlm_verdict tlm_input_datagram(struct tlm_node *node, const uint8_t *datagram, size_t bytes,
						  uint16_t udp_port, uint32_t source_ip, uint64_t now_ns)
{
	struct tlm_frame frame;
	enum tlm_verdict verdict;

	tlm_zero(&frame, sizeof(frame));
	verdict = tlm_parse_datagram(datagram, bytes, udp_port, &frame);
	frame.source_ip = source_ip;
	return tlm_admit(node, verdict, &frame, now_ns);
}

/* Gives the message back that tlm_receive lent. */
static inline void tlm_release(struct tlm_port *port)
{
	uint32_t i;

	for (i = 0; i < port->memory.slot_count; i++)
		if (port->memory.slots[i].state == TLM_SLOT_LENT)
			port->memory.slots[i].state = TLM_SLOT_FREE;
}

static inline void tlm_show(const struct tlm_port *port, const struct tlm_slot *slot, struct tlm_message *message)
{
	message->payload = tlm_bytes_of(port, slot);
	message->bytes = slot->bytes;
	message->sequence = slot->sequence;
	message->arrival_ns = slot->arrival_ns;
	message->from = slot->from;
	message->priority = slot->priority;
}

/* Takes the most urgent message of a queuing port; of several, the one that came first. False: there is none. The
 * payload is lent until tlm_release or the next tlm_receive of this port.
 */
static inline bool tlm_receive(struct tlm_port *port, struct tlm_message *message)
{
	struct tlm_slot *first = NULL;
	uint32_t i;

	if (port->kind != TLM_QUEUING)
		return false;
	tlm_release(port);
	for (i = 0; i < port->memory.slot_count; i++) {
		struct tlm_slot *slot = &port->memory.slots[i];

		if (slot->state != TLM_SLOT_WAITING)
			continue;
		if (first == NULL || slot->priority > first->priority ||
		    (slot->priority == first->priority && port->order - slot->order > port->order - first->order))
			first = slot;
	}
	if (first == NULL)
		return false;
	first->state = TLM_SLOT_LENT;
	port->counters.received++;
	tlm_show(port, first, message);
	return true;
}

/* Reads the last value of a sampling port, seen before or not. False: there has never been one. The payload is lent
 * until the next tlm_input.
 */
static inline bool tlm_read(struct tlm_port *port, uint64_t now_ns, struct tlm_sample *sample)
{
	struct tlm_slot *slot = port->memory.slots;

	if (port->kind != TLM_SAMPLING || slot->state == TLM_SLOT_FREE)
		return false;
	tlm_show(port, slot, &sample->message);
	sample->age_ns = now_ns > slot->arrival_ns ? now_ns - slot->arrival_ns : 0;
	sample->valid = sample->age_ns <= port->refresh_period_ns;
	sample->fresh = slot->state == TLM_SLOT_WAITING;
	sample->overwritten = port->overwritten;
	if (sample->fresh)
		port->counters.received++;
	port->overwritten = 0;
	slot->state = TLM_SLOT_LENT; /* seen */
	return true;
}

/* Frames of all peers of a port that did not arrive, by their sequence numbers. */
static inline uint64_t tlm_lost_of(const struct tlm_port *port)
{
	uint64_t lost = 0;
	uint32_t i;

	for (i = 0; i < port->memory.peer_count; i++)
		lost += tlm_lost(&port->memory.peers[i].loss);
	return lost;
}

/* ---- Ports: sending ---------------------------------------------------------------------------------------------- */

enum tlm_result {
	TLM_SENT = 0,
	TLM_REFUSED,      /* the driver or socket did not take it */
	TLM_TOO_LARGE,    /* for the node's frames, or for any message */
	TLM_BAD_ADDRESS,  /* no port, or a form that the node does not speak */
	TLM_BAD_PRIORITY
};

/* Headers of a frame, written into node->frame; their bytes. */
static inline size_t tlm_write_outer(struct tlm_node *node, const struct tlm_address *to,
				     const struct tlm_header *header)
{
	uint8_t service = (uint8_t)(node->mark_priority ? header->priority << 5 : 0);

	if (node->sockets) {
		tlm_write_header(node->frame, header);
		return TLM_HEADER_BYTES;
	}
	if (to->form == TLM_UDP)
		return tlm_write_udp(node->frame, to->mac, node->mac, to->ip, node->ip, service, header);
	return tlm_write_ethernet(node->frame, to->mac, node->mac, tlm_ethertype_of(node), node->mark_priority, header);
}

static inline size_t tlm_outer_bytes(const struct tlm_node *node, const struct tlm_address *to)
{
	if (node->sockets)
		return TLM_HEADER_BYTES;
	if (to->form == TLM_UDP)
		return TLM_OUTER_UDP_BYTES + TLM_HEADER_BYTES;
	return TLM_ETHERNET_HEADER_BYTES + (node->mark_priority ? TLM_TAG_BYTES : 0) + TLM_HEADER_BYTES;
}

/* Number of frames for a message; 0 if it cannot be sent. */
static inline uint32_t tlm_frames_for(const struct tlm_node *node, const struct tlm_address *to, size_t bytes)
{
	size_t whole_max = to->form == TLM_UDP ? TLM_WHOLE_BYTES_MAX_UDP : TLM_WHOLE_BYTES_MAX_ETHERNET;
	uint32_t count = tlm_fragment_count(bytes, whole_max);
	size_t longest = count > 1 ? TLM_FRAGMENT_BYTES : bytes;

	if (count > 1 && !TLM_FRAGMENTS)
		return 0;
	if (node->frame_bytes < TLM_FRAME_BYTES_MIN || tlm_outer_bytes(node, to) + longest > node->frame_bytes)
		return 0;
	return count;
}

static inline bool tlm_send_frame(struct tlm_port *port, const struct tlm_address *to, const struct tlm_header *header,
				  const uint8_t *payload)
{
	struct tlm_node *node = port->node;
	size_t bytes = tlm_write_outer(node, to, header);

	TLM_COPY(node->frame + bytes, payload, header->length);
	bytes += header->length;
	for (; !node->sockets && bytes < TLM_FRAME_BYTES_MIN; bytes++)
		node->frame[bytes] = 0;
	return node->send(node, port, to, node->frame, bytes);
}

/* Sends a message or value to a port of a peer, with a priority of 0 to 7. */
static inline enum tlm_result tlm_send(struct tlm_port *port, const struct tlm_address *to, uint8_t priority,
				       const void *message, size_t bytes)
{
	const struct tlm_node *node = port->node;
	struct tlm_header header;
	struct tlm_peer *peer;
	uint32_t count, index;

	if (!tlm_is_port(to->port) ||
	    (to->form == TLM_UDP ? node->ip == 0 && !node->sockets : to->form != TLM_ETHERNET || node->sockets))
		return TLM_BAD_ADDRESS;
	if (priority > TLM_PRIORITY_MAX)
		return TLM_BAD_PRIORITY;
	count = tlm_frames_for(node, to, bytes);
	if (count == 0)
		return TLM_TOO_LARGE;
	peer = tlm_peer_of(port, to);
	header.destination = to->port;
	header.source = port->number;
	header.priority = priority;
	header.flags = 0;
	header.fragment_count = (uint8_t)count;
	header.type_byte = port->sends;
	for (index = 0; index < count; index++) {
		header.fragment_index = (uint8_t)index;
		header.length = tlm_fragment_length(bytes, index, count);
		header.sequence = peer->sequence;
		if (!tlm_send_frame(port, to, &header, (const uint8_t *)message + (size_t)index * TLM_FRAGMENT_BYTES)) {
			port->counters.send_errors++;
			return TLM_REFUSED;
		}
		peer->sequence++;
	}
	port->counters.sent++;
	return TLM_SENT;
}

#ifdef __cplusplus
}
#endif

#endif
