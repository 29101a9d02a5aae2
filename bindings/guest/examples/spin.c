/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Answers every message that comes to port 4095, and never sleeps: round trips through the window alone.
 */
#include "tautline_guest.h"

void guest_main(void)
{
	struct tlw_window window;
	struct tlw_port port;
	struct tlw_address from;
	struct tlb_message message;

	if (!tlg_join(&window) || !tlw_port_open(&port, &window, 4095))
		tlg_fail("no window with port 4095");
	for (;;) {
		tlw_beat(&window);
		if (!tlw_receive(&port, &message, &from))
			continue;
		tlw_send(&port, from, message.priority, message.payload, message.length, 0);
		tlw_release(&port, &message);
		if (tlw_wanted(&port))
			tlg_ring();
	}
}
