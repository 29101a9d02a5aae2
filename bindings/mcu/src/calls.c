/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The header's functions with symbols of their own, so that Rust can call them. Only for tests and fuzz targets.
 */
#define TLM_FRAGMENTS 1
#include "tautline_wire.h"

/* As `Parsed` in lib.rs. */
struct call_frame {
	struct tlm_header header;
	uint64_t payload_offset;
	uint32_t destination_ip;
	uint32_t source_ip;
	uint8_t destination_mac[TLM_MAC_BYTES];
	uint8_t source_mac[TLM_MAC_BYTES];
	uint8_t udp_checksum;
};

enum call_form { CALL_ETHERNET, CALL_UDP, CALL_DATAGRAM, CALL_HEADER };

int call_parse(int form, const uint8_t *bytes, size_t count, uint16_t number, struct call_frame *out);
size_t call_write_ethernet(uint8_t *at, const struct call_frame *fields, uint16_t ethertype, bool with_tag);
size_t call_write_udp(uint8_t *at, const struct call_frame *fields, uint8_t type_of_service);
int call_loss(struct tlm_loss *loss, uint32_t sequence);
int call_bundle_step(const uint8_t *payload, size_t count, size_t *at, size_t *offset, size_t *bytes);
bool call_bundle_is_valid(const uint8_t *payload, size_t count);
uint32_t call_fragment_count(size_t message_bytes, size_t whole_bytes_max);
uint16_t call_fragment_length(size_t message_bytes, uint32_t index, uint32_t count);
size_t call_collector_bytes(void);
int call_collect(struct tlm_reassembler *reassembler, uint64_t now_ns, uint32_t source, const struct call_frame *fields,
		 const uint8_t *payload, const uint8_t **message, uint32_t *bytes);
void call_expire(struct tlm_reassembler *reassembler, uint64_t now_ns);
void call_forget_flow(struct tlm_reassembler *reassembler, uint32_t source, uint16_t from, uint16_t to);

int call_parse(int form, const uint8_t *bytes, size_t count, uint16_t number, struct call_frame *out)
{
	struct tlm_frame frame;
	enum tlm_verdict verdict;

	tlm_zero(&frame, sizeof(frame));
	switch (form) {
	case CALL_ETHERNET:
		verdict = tlm_parse_ethernet(bytes, count, number, &frame);
		break;
	case CALL_UDP:
		verdict = tlm_parse_udp(bytes, count, &frame);
		break;
	case CALL_DATAGRAM:
		verdict = tlm_parse_datagram(bytes, count, number, &frame);
		break;
	default:
		verdict = tlm_parse_header(bytes, count, &frame);
		break;
	}
	if (verdict == TLM_ACCEPTED) {
		out->header = frame.header;
		out->payload_offset = (uint64_t)(frame.payload - bytes);
		out->destination_ip = frame.destination_ip;
		out->source_ip = frame.source_ip;
		TLM_COPY(out->destination_mac, frame.destination_mac, TLM_MAC_BYTES);
		TLM_COPY(out->source_mac, frame.source_mac, TLM_MAC_BYTES);
		out->udp_checksum = frame.udp_checksum;
	}
	return (int)verdict;
}

size_t call_write_ethernet(uint8_t *at, const struct call_frame *fields, uint16_t ethertype, bool with_tag)
{
	return tlm_write_ethernet(at, fields->destination_mac, fields->source_mac, ethertype, with_tag, &fields->header);
}

size_t call_write_udp(uint8_t *at, const struct call_frame *fields, uint8_t type_of_service)
{
	return tlm_write_udp(at, fields->destination_mac, fields->source_mac, fields->destination_ip, fields->source_ip,
			     type_of_service, &fields->header);
}

int call_loss(struct tlm_loss *loss, uint32_t sequence)
{
	return (int)tlm_loss_record(loss, sequence);
}

int call_bundle_step(const uint8_t *payload, size_t count, size_t *at, size_t *offset, size_t *bytes)
{
	const uint8_t *message = payload;
	int step = tlm_bundle_step(payload, count, at, &message, bytes);

	*offset = (size_t)(message - payload);
	return step;
}

bool call_bundle_is_valid(const uint8_t *payload, size_t count)
{
	return tlm_bundle_is_valid(payload, count);
}

uint32_t call_fragment_count(size_t message_bytes, size_t whole_bytes_max)
{
	return tlm_fragment_count(message_bytes, whole_bytes_max);
}

uint16_t call_fragment_length(size_t message_bytes, uint32_t index, uint32_t count)
{
	return tlm_fragment_length(message_bytes, index, count);
}

size_t call_collector_bytes(void)
{
	return sizeof(struct tlm_collector);
}

static struct tlm_address address_of(uint32_t source, uint16_t port)
{
	struct tlm_address address;

	tlm_zero(&address, sizeof(address));
	address.form = TLM_UDP;
	address.ip = source;
	address.port = port;
	return address;
}

int call_collect(struct tlm_reassembler *reassembler, uint64_t now_ns, uint32_t source, const struct call_frame *fields,
		 const uint8_t *payload, const uint8_t **message, uint32_t *bytes)
{
	struct tlm_address from = address_of(source, fields->header.source);
	struct tlm_frame frame;

	tlm_zero(&frame, sizeof(frame));
	frame.header = fields->header;
	frame.payload = payload;
	return (int)tlm_collect(reassembler, now_ns, &from, &frame, message, bytes);
}

void call_expire(struct tlm_reassembler *reassembler, uint64_t now_ns)
{
	tlm_expire(reassembler, now_ns);
}

void call_forget_flow(struct tlm_reassembler *reassembler, uint32_t source, uint16_t from, uint16_t to)
{
	struct tlm_address address = address_of(source, from);

	tlm_forget_flow(reassembler, &address, to);
}
