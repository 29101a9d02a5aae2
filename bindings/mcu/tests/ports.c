/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Ports of tautline_wire.h without a network: what one node sends, another takes in. Prints "all as documented".
 */
#define TLM_FRAGMENTS 1
#include "tautline_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

#define FRAMES_MAX 64

/* Frames that were sent and not yet taken in; and how many the driver still takes. */
static uint8_t wire[FRAMES_MAX][TLM_FRAME_BYTES_MAX];
static size_t wire_bytes[FRAMES_MAX];
static int on_wire;
static int room = FRAMES_MAX;

static bool keep(struct tlm_node *node, const struct tlm_port *from, const struct tlm_address *to, const uint8_t *bytes,
		 size_t count)
{
	(void)to;
	CHECK(from->node == node);
	if (on_wire == room)
		return false;
	memcpy(wire[on_wire], bytes, count);
	wire_bytes[on_wire++] = count;
	return true;
}

static uint8_t frame[TLM_FRAME_BYTES_MAX];
static struct tlm_node alice, bob;
static struct tlm_port talker, queue, state;
static struct tlm_address to_queue, to_state;

TLM_QUEUING_MEMORY(talker_memory, 1, 4, 4);
TLM_QUEUING_MEMORY(queue_memory, 3, 8, 2);
TLM_SAMPLING_MEMORY(state_memory, 8, 2);
TLM_QUEUING_MEMORY(large_memory, 2, 9000, 2);
TLM_COLLECTORS(parts, 4, 9000);

static void make_node(struct tlm_node *node, uint8_t number)
{
	memset(node, 0, sizeof(*node));
	node->mac[0] = 2;
	node->mac[5] = number;
	node->ip = 0x0a000000U + number;
	node->frame = frame;
	node->frame_bytes = sizeof(frame);
	node->send = keep;
}

static void make_both(void)
{
	on_wire = 0;
	room = FRAMES_MAX;
	make_node(&alice, 1);
	make_node(&bob, 2);
	CHECK(tlm_open_queuing(&talker, &alice, 1, &talker_memory));
	CHECK(tlm_open_queuing(&queue, &bob, 7, &queue_memory));
	CHECK(tlm_open_sampling(&state, &bob, 8, 1000, &state_memory));
	memset(&to_queue, 0, sizeof(to_queue));
	to_queue.form = TLM_ETHERNET;
	memcpy(to_queue.mac, bob.mac, TLM_MAC_BYTES);
	to_queue.ip = bob.ip;
	to_queue.port = 7;
	to_state = to_queue;
	to_state.port = 8;
}

/* Takes in what is on the wire; the last answer. */
static enum tlm_verdict pass(uint64_t now_ns)
{
	enum tlm_verdict verdict = TLM_NOT_OURS;
	int i;

	for (i = 0; i < on_wire; i++)
		verdict = tlm_input(&bob, wire[i], wire_bytes[i], now_ns);
	on_wire = 0;
	return verdict;
}

static void send_text(const struct tlm_address *to, uint8_t priority, const char *text)
{
	CHECK(tlm_send(&talker, to, priority, text, strlen(text)) == TLM_SENT);
}

static void expect(const char *text, uint8_t priority)
{
	struct tlm_message message;

	CHECK(tlm_receive(&queue, &message));
	CHECK(message.bytes == strlen(text) && memcmp(message.payload, text, message.bytes) == 0);
	CHECK(message.priority == priority && message.from.port == 1);
}

static void urgent_messages_come_first_and_find_room(void)
{
	struct tlm_message message;

	make_both();
	send_text(&to_queue, 0, "low");
	send_text(&to_queue, 3, "one");
	send_text(&to_queue, 3, "two");
	send_text(&to_queue, 7, "high"); /* takes the place of "low" */
	send_text(&to_queue, 0, "lost");
	CHECK(pass(5) == TLM_ACCEPTED);
	expect("high", 7);
	expect("one", 3);
	send_text(&to_queue, 3, "six");
	pass(6);
	expect("two", 3);
	expect("six", 3);
	CHECK(!tlm_receive(&queue, &message));
	CHECK(queue.counters.dropped_full == 2 && queue.counters.received == 4 && queue.counters.frames == 6);
	send_text(&to_queue, 1, "nine byte");
	pass(7);
	CHECK(queue.counters.too_large == 1);
	CHECK(talker.counters.sent == 7 && tlm_lost_of(&queue) == 0);
}

static void a_lent_message_stays(void)
{
	struct tlm_message message;
	int i;

	make_both();
	send_text(&to_queue, 0, "keep");
	pass(0);
	CHECK(tlm_receive(&queue, &message));
	for (i = 0; i < 5; i++)
		send_text(&to_queue, 7, "flood");
	pass(0);
	CHECK(memcmp(message.payload, "keep", 4) == 0 && queue.counters.dropped_full == 3);
	tlm_release(&queue);
	send_text(&to_queue, 7, "more");
	pass(0);
	CHECK(queue.counters.dropped_full == 3);
}

static void a_sampling_port_keeps_the_last_value(void)
{
	struct tlm_sample sample;

	make_both();
	CHECK(!tlm_read(&state, 0, &sample));
	send_text(&to_state, 3, "a");
	send_text(&to_state, 3, "bc");
	pass(100);
	CHECK(tlm_read(&state, 300, &sample));
	CHECK(sample.fresh && sample.valid && sample.age_ns == 200 && sample.overwritten == 1);
	CHECK(sample.message.bytes == 2 && memcmp(sample.message.payload, "bc", 2) == 0);
	CHECK(tlm_read(&state, 1101, &sample));
	CHECK(!sample.fresh && !sample.valid && sample.overwritten == 0);
	CHECK(state.counters.received == 1 && state.counters.overwritten == 1);
	send_text(&to_state, 3, "d");
	pass(2000);
	CHECK(tlm_read(&state, 2000, &sample) && sample.fresh && sample.age_ns == 0);
}

static void another_type_is_refused(void)
{
	make_both();
	queue.receives = 12;
	send_text(&to_queue, 3, "any");
	talker.sends = 12;
	send_text(&to_queue, 3, "same");
	talker.sends = 164;
	send_text(&to_queue, 3, "other");
	send_text(&to_state, 3, "other");
	CHECK(wire[1][25] == 12 && wire[2][25] == 164);
	pass(0);
	expect("any", 3);
	expect("same", 3);
	CHECK(queue.counters.other_type == 1 && queue.counters.received == 2 && state.counters.other_type == 0);
}

static void frames_are_padded_and_tagged(void)
{
	make_both();
	send_text(&to_queue, 7, "hi");
	CHECK(wire_bytes[0] == 60 && wire[0][12] == 0x88 && wire[0][32] == 0);
	alice.mark_priority = true;
	send_text(&to_queue, 7, "hi");
	CHECK(wire_bytes[1] == 60 && wire[1][12] == 0x81 && wire[1][14] == 0xe0);
	to_queue.form = TLM_UDP;
	send_text(&to_queue, 7, "hi");
	CHECK(wire_bytes[2] == 60 && wire[2][15] == 0xe0);
	CHECK(pass(0) == TLM_ACCEPTED && queue.counters.frames == 3);
}

static void frames_of_others_are_left_alone(void)
{
	struct tlm_address other;
	uint8_t short_frame[20] = {0};

	make_both();
	other = to_queue;
	other.mac[5] = 9;
	send_text(&other, 3, "x");
	CHECK(pass(0) == TLM_NOT_OURS);
	other = to_queue;
	other.form = TLM_UDP;
	other.ip++;
	send_text(&other, 3, "x");
	CHECK(pass(0) == TLM_NOT_OURS);
	/* A port that is not open: in UDP the system's, also if the datagram is none of ours. */
	other = to_queue;
	other.form = TLM_UDP;
	other.port = 9;
	send_text(&other, 3, "x");
	wire[0][48] = 9;
	CHECK(pass(0) == TLM_NOT_OURS);
	other.form = TLM_ETHERNET;
	send_text(&other, 3, "x");
	CHECK(pass(0) == TLM_ACCEPTED && bob.counters.no_port == 1);
	CHECK(tlm_input(&bob, short_frame, sizeof(short_frame), 0) == TLM_NOT_OURS);
	/* To all. */
	memset(other.mac, 0xff, TLM_MAC_BYTES);
	other.port = 7;
	send_text(&other, 3, "x");
	CHECK(pass(0) == TLM_ACCEPTED && queue.counters.frames == 1);
	send_text(&to_queue, 3, "x");
	wire[0][20] = 2; /* version */
	CHECK(pass(0) == TLM_UNKNOWN_VERSION && bob.counters.malformed[TLM_UNKNOWN_VERSION] == 1);
}

static void losses_are_counted_for_each_peer(void)
{
	int i;

	make_both();
	for (i = 0; i < 4; i++) {
		send_text(&to_queue, 3, "x");
		if (i == 1)
			on_wire--;
		pass(0);
		tlm_release(&queue);
	}
	CHECK(tlm_lost_of(&queue) == 1 && queue.counters.peers_evicted == 0);
	/* Two places for peers: the third takes that of the one that was silent for longest. */
	for (i = 3; i < 5; i++) {
		send_text(&to_queue, 3, "x");
		wire[0][11] = (uint8_t)i;
		pass(0);
	}
	CHECK(queue.counters.peers_evicted == 1 && tlm_lost_of(&queue) == 0);
}

static void bundles_are_taken_apart(void)
{
	static const uint8_t bundle[] = {0, 2, 'h', 'i', 0, 0, 0, 1, '!'};

	make_both();
	CHECK(tlm_send(&talker, &to_queue, 3, bundle, sizeof(bundle)) == TLM_SENT);
	wire[0][19] = TLM_FLAG_BUNDLE;
	pass(0);
	expect("hi", 3);
	expect("", 3);
	expect("!", 3);
	CHECK(tlm_send(&talker, &to_queue, 3, bundle, sizeof(bundle) - 1) == TLM_SENT);
	wire[0][19] = TLM_FLAG_BUNDLE;
	pass(0);
	CHECK(queue.counters.bad_bundles == 1);
	CHECK(tlm_send(&talker, &to_state, 3, bundle, sizeof(bundle)) == TLM_SENT);
	wire[0][19] = TLM_FLAG_BUNDLE;
	pass(0);
	CHECK(state.counters.unfit == 1);
}

static void large_messages_travel_in_fragments(void)
{
	static uint8_t message[9000];
	struct tlm_message received;
	size_t i;

	make_both();
	for (i = 0; i < sizeof(message); i++)
		message[i] = (uint8_t)(i * 7 >> 3);
	/* A port without collectors takes none. */
	CHECK(tlm_send(&talker, &to_queue, 3, message, 3000) == TLM_SENT && on_wire == 3);
	pass(0);
	CHECK(queue.counters.unfit == 3);
	bob.ports = NULL;
	CHECK(tlm_open_queuing(&queue, &bob, 7, &large_memory));
	queue.reassembler = &parts;
	CHECK(tlm_send(&talker, &to_queue, 5, message, sizeof(message)) == TLM_SENT && on_wire == 7);
	pass(9);
	CHECK(tlm_receive(&queue, &received));
	CHECK(received.bytes == sizeof(message) && memcmp(received.payload, message, sizeof(message)) == 0);
	CHECK(received.sequence == 3 && received.priority == 5 && received.arrival_ns == 9);
	to_queue.form = TLM_UDP;
	CHECK(tlm_send(&talker, &to_queue, 5, message, 1457) == TLM_SENT && on_wire == 2);
	wire_bytes[1] = 0; /* lost */
	pass(10);
	tlm_expire(&parts, 10 + TLM_TIME_LIMIT_NS);
	CHECK(!tlm_receive(&queue, &received) && parts.completed == 1 && parts.expired == 1);
	CHECK(tlm_send(&talker, &to_queue, 5, message, 65537) == TLM_TOO_LARGE);
	alice.frame_bytes = TLM_FRAME_BYTES(64);
	CHECK(tlm_send(&talker, &to_queue, 5, message, 64) == TLM_SENT);
	CHECK(tlm_send(&talker, &to_queue, 5, message, 65) == TLM_TOO_LARGE);
	CHECK(tlm_send(&talker, &to_queue, 5, message, 1457) == TLM_TOO_LARGE);
}

static void a_message_that_is_not_sent_uses_no_number(void)
{
	make_both();
	room = 0;
	CHECK(tlm_send(&talker, &to_queue, 3, "x", 1) == TLM_REFUSED && talker.counters.send_errors == 1);
	room = FRAMES_MAX;
	send_text(&to_queue, 3, "x");
	CHECK(wire[0][29] == 0);
}

static void sockets_carry_the_same_header(void)
{
	struct tlm_message message;

	make_both();
	alice.sockets = true;
	alice.ip = 0;
	CHECK(tlm_send(&talker, &to_queue, 3, "x", 1) == TLM_BAD_ADDRESS);
	to_queue.form = TLM_UDP;
	send_text(&to_queue, 3, "hi");
	CHECK(wire_bytes[0] == 18);
	CHECK(tlm_input_datagram(&bob, wire[0], 18, 21576, 0x0a000001, 4) == TLM_ACCEPTED);
	CHECK(tlm_input_datagram(&bob, wire[0], 18, 21577, 0x0a000001, 4) == TLM_PORT_MISMATCH);
	CHECK(tlm_input_datagram(&bob, wire[0], 17, 21576, 0x0a000001, 4) == TLM_LENGTH_BEYOND_FRAME);
	CHECK(tlm_receive(&queue, &message));
	CHECK(message.from.form == TLM_UDP && message.from.ip == 0x0a000001 && message.from.port == 1);
}

static void wrong_use_is_refused(void)
{
	struct tlm_port other;
	struct tlm_sample sample;
	struct tlm_message message;

	make_both();
	CHECK(!tlm_open_queuing(&other, &bob, 0, &queue_memory));
	CHECK(!tlm_open_queuing(&other, &bob, 4096, &queue_memory));
	CHECK(!tlm_open_queuing(&other, &bob, 8, &queue_memory));
	CHECK(!tlm_open_queuing(&queue, &bob, 9, &queue_memory));
	CHECK(tlm_send(&talker, &to_queue, 8, "x", 1) == TLM_BAD_PRIORITY);
	to_queue.port = 0;
	CHECK(tlm_send(&talker, &to_queue, 3, "x", 1) == TLM_BAD_ADDRESS);
	to_queue.port = 7;
	to_queue.form = 0;
	CHECK(tlm_send(&talker, &to_queue, 3, "x", 1) == TLM_BAD_ADDRESS);
	CHECK(!tlm_read(&queue, 0, &sample) && !tlm_receive(&state, &message));
}

int main(void)
{
	urgent_messages_come_first_and_find_room();
	a_lent_message_stays();
	a_sampling_port_keeps_the_last_value();
	another_type_is_refused();
	frames_are_padded_and_tagged();
	frames_of_others_are_left_alone();
	losses_are_counted_for_each_peer();
	bundles_are_taken_apart();
	large_messages_travel_in_fragments();
	a_message_that_is_not_sent_uses_no_number();
	sockets_carry_the_same_header();
	wrong_use_is_refused();
	puts("all as documented");
	return 0;
}
