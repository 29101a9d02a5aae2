/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A lamp that goes on and off: every millisecond the guest publishes its state on port 10, to port 20 of the node
 * `viewer`. On port 11 it takes the period of the blinking, in milliseconds, as the newest value of a 32-bit integer.
 */
#include "tautline_guest.h"

#define PERIOD_NS 1000000

struct state {
	uint64_t time_ns;
	uint32_t count;
	uint32_t is_on;
};

void guest_main(void)
{
	struct tlw_window window;
	struct tlw_port lamp;
	struct tlw_port period;
	struct tlw_address viewer;
	struct tlw_address from;
	struct tlb_message value;
	struct state state = { 0, 0, 0 };
	uint32_t blink_ms = 500;
	uint64_t due;

	if (!tlg_join(&window) || !tlw_port_open(&lamp, &window, 10) || !tlw_port_open(&period, &window, 11))
		tlg_fail("no window with ports 10 and 11");
	if (!tlw_find_peer(&window, "viewer", 20, &viewer))
		tlg_fail("Linux names no peer `viewer`");
	due = tlg_now_ns();
	for (;;) {
		if (tlw_read(&period, &value, &from) && value.fresh && value.length == sizeof(blink_ms))
			TLB_COPY(&blink_ms, value.payload, sizeof(blink_ms));
		state.time_ns = due;
		state.count += 1;
		state.is_on = blink_ms != 0 && state.count / blink_ms % 2;
		tlw_send(&lamp, viewer, 5, &state, sizeof(state), 0);
		if (tlw_wanted(&lamp))
			tlg_ring();
		tlw_beat(&window);
		due += PERIOD_NS;
		while (tlg_now_ns() < due)
			tlg_wait(due);
	}
}
