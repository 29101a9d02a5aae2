/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Answers every message that comes to port 4095, as `taut echo` does: ask it with `taut ping`, and for its time with
 * `taut guest show --clock`.
 */
#include "tautline_guest.h"

#define PORT 4095
#define BEAT_NS 10000000

void guest_main(void)
{
	struct tlw_window window;
	struct tlw_port port;
	struct tlw_address from;
	struct tlb_message message;

	if (!tlg_join(&window) || !tlw_port_open(&port, &window, PORT))
		tlg_fail("no window with port 4095");
	tlg_print("guest: echo on port 4095\n");
	for (;;) {
		bool found = tlw_receive(&port, &message, &from);

		tlw_beat(&window);
		if (!found) {
			/* Nothing: sleep, but only if there is still nothing once Linux knows. */
			tlw_arm(&port);
			found = tlw_receive(&port, &message, &from);
			if (!found)
				tlg_wait(tlg_now_ns() + BEAT_NS);
			tlw_disarm(&port);
		}
		if (found) {
			if (!tlg_tell_time(&port, &message, from))
				tlw_send(&port, from, message.priority, message.payload, message.length, 0);
			tlw_release(&port, &message);
			if (tlw_wanted(&port))
				tlg_ring();
		}
	}
}
