/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A node without an operating system. Port 4095, queuing: every message goes back to its sender, as `taut echo` does.
 * Port 8, sampling: a counter of four bytes, big-endian, goes to all nodes every 10 ms. The counter grows by 1, or by
 * the first byte of a value that was sent to port 8 in the last second.
 */
#include "board.h"
#include "tautline_wire.h"

#define ECHO_PORT 4095
#define STATE_PORT 8
#define PERIOD_NS 10000000
#define REFRESH_NS 1000000000
#define MESSAGE_BYTES_MAX 4096

TLM_QUEUING_MEMORY(echo_memory, 8, MESSAGE_BYTES_MAX, 4);
TLM_SAMPLING_MEMORY(state_memory, 64, 4);
TLM_COLLECTORS(parts, 4, MESSAGE_BYTES_MAX);

static struct tlm_node node = {.mac = {0x02, 0x54, 0x4c, 0x01, 0x00, 0x01}, .ip = 0x0a4d0902}; /* 10.77.9.2 */
static struct tlm_port echo, state;
static uint8_t sent[TLM_FRAME_BYTES_MAX], received[TLM_FRAME_BYTES_MAX];
static const struct tlm_address everybody = {
	.form = TLM_ETHERNET, .mac = {255, 255, 255, 255, 255, 255}, .port = STATE_PORT};

static bool send_frame(struct tlm_node *of, const struct tlm_port *from, const struct tlm_address *to,
		       const uint8_t *frame, size_t bytes)
{
	(void)of;
	(void)from;
	(void)to;
	return board_ethernet_send(frame, bytes);
}

static void take_frames(void)
{
	size_t bytes;

	while ((bytes = board_ethernet_receive(received, sizeof(received))) > 0)
		tlm_input(&node, received, bytes, board_now_ns());
}

static void answer(void)
{
	struct tlm_message message;

	while (tlm_receive(&echo, &message))
		tlm_send(&echo, &message.from, message.priority, message.payload, message.bytes);
}

static void publish(uint64_t now_ns)
{
	static uint32_t counter;
	struct tlm_sample sample;
	uint8_t value[4];
	uint32_t step = 1;

	if (tlm_read(&state, now_ns, &sample) && sample.valid && sample.message.bytes > 0)
		step = sample.message.payload[0];
	counter += step;
	tlm_put32(value, counter);
	tlm_send(&state, &everybody, 3, value, sizeof(value));
}

int main(void)
{
	uint64_t next_ns = 0;

	node.frame = sent;
	node.frame_bytes = sizeof(sent);
	node.send = send_frame;
	if (!board_ethernet_start(node.mac) || !tlm_open_queuing(&echo, &node, ECHO_PORT, &echo_memory) ||
	    !tlm_open_sampling(&state, &node, STATE_PORT, REFRESH_NS, &state_memory)) {
		board_print("echo: no Ethernet\n");
		return 1;
	}
	echo.reassembler = &parts;
	board_print("echo: ports 4095 and 8 are open\n");
	for (;;) {
		take_frames();
		answer();
		if (board_now_ns() >= next_ns) {
			publish(board_now_ns());
			next_ns += PERIOD_NS;
		}
		board_wait();
	}
}
