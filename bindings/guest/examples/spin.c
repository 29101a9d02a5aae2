/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Answers every message that comes to port 4095, and never sleeps: round trips through the window alone. A long message
 * holds up a more urgent one by the copy of one piece.
 */
#include "tautline_guest.h"

/* Bytes of a message that are copied between two looks for a more urgent one. Fewer: the looks, up to seven words of
 * memory each, take longer than the copy. More: an urgent message waits for longer.
 */
#ifndef PIECE_BYTES
#define PIECE_BYTES 256
#endif

/* Answers the most urgent message. False: there is none. */
static bool answer(struct tlw_port *port)
{
	struct tlw_address from;
	struct tlb_message message;
	uint32_t at;
	uint32_t bytes;
	uint8_t *place;

	if (!tlw_receive(port, &message, &from))
		return false;
	place = tlw_borrow(port, from, message.priority, message.length);
	for (at = 0; place != NULL && at < message.length; at += bytes) {
		bytes = message.length - at < PIECE_BYTES ? message.length - at : PIECE_BYTES;
		/* Each call is for a more urgent message: they nest seven deep. */
		while (at > 0 && tlw_has_more_urgent(port, message.priority))
			answer(port);
		TLB_COPY(place + at, (const uint8_t *)message.payload + at, bytes);
	}
	if (place != NULL)
		tlw_publish(port, message.priority, message.length, 0);
	tlw_release(port, &message);
	if (tlw_wanted(port))
		tlg_ring();
	return true;
}

void guest_main(void)
{
	struct tlw_window window;
	struct tlw_port port;

	if (!tlg_join(&window) || !tlw_port_open(&port, &window, 4095))
		tlg_fail("no window with port 4095");
	for (;;) {
		tlw_beat(&window);
		answer(&port);
	}
}
