/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * An ordinary firmware's use of tautline_wire.h, without the rest of the firmware: `make sizes` measures it.
 */
#include "tautline_wire.h"

TLM_QUEUING_MEMORY(commands_memory, 8, 64, 4);
TLM_SAMPLING_MEMORY(state_memory, 64, 4);
#if TLM_FRAGMENTS
TLM_COLLECTORS(parts, 2, 4096);
#endif

static uint8_t frame[TLM_FRAGMENTS ? TLM_FRAME_BYTES_MAX : TLM_FRAME_BYTES(64)];
static struct tlm_node node;
static struct tlm_port commands, state;

bool driver_send(struct tlm_node *of, const struct tlm_port *from, const struct tlm_address *to, const uint8_t *bytes,
		 size_t count);
bool firmware_start(void);
void firmware_frame(const uint8_t *bytes, size_t count, uint64_t now_ns);
bool firmware_work(uint64_t now_ns, const struct tlm_address *controller);

bool firmware_start(void)
{
	node.frame = frame;
	node.frame_bytes = sizeof(frame);
	node.send = driver_send;
	if (!tlm_open_queuing(&commands, &node, 7, &commands_memory) ||
	    !tlm_open_sampling(&state, &node, 8, 1000000, &state_memory))
		return false;
#if TLM_FRAGMENTS
	commands.reassembler = &parts;
#endif
	return true;
}

void firmware_frame(const uint8_t *bytes, size_t count, uint64_t now_ns)
{
	tlm_input(&node, bytes, count, now_ns);
}

bool firmware_work(uint64_t now_ns, const struct tlm_address *controller)
{
	struct tlm_message message;
	struct tlm_sample sample;

	if (tlm_receive(&commands, &message))
		tlm_send(&commands, &message.from, message.priority, message.payload, message.bytes);
	if (tlm_read(&state, now_ns, &sample) && sample.valid)
		tlm_send(&state, controller, 3, sample.message.payload, sample.message.bytes);
	return tlm_lost_of(&commands) == 0;
}
