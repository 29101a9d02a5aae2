/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Between the part of the kit that all processors share (kit.c) and that of one processor (board.c, start.S). Programs
 * need tautline_guest.h alone.
 */
#ifndef TAUTLINE_GUEST_KIT_H
#define TAUTLINE_GUEST_KIT_H

#include "tautline_guest.h"

/* Of the board: a counter that runs evenly, and its ticks in a second. */
uint64_t tlg_ticks(void);
uint64_t tlg_ticks_per_second(void);

/* The counter at a time. */
uint64_t tlg_ticks_at(uint64_t time_ns);

void tlg_print_failure(const char *why);

/* Ends the guest after a fault: its cause and its place, and an address or a code that the processor adds. */
void tlg_faulted(uint64_t cause, uint64_t address, uint64_t data);

#endif
