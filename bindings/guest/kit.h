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

/* The memory that may be a window, and its bytes; NULL: there is none. It is mapped, and its doorbell works. */
void *tlg_window(uint64_t *bytes);

/* An interrupt of TLG_TIMER_IRQ at a time; 0: none. */
void tlg_set_timer(uint64_t until_ns);

/* Ends all interrupts that are being served. True: the doorbell was one. For handlers of a program's own, which take
 * the place of tlg_interrupt or, on aarch64, of tlg_vectors.
 */
bool tlg_acknowledge(void);

#ifdef __aarch64__
/* Version of the interrupt controller: 2, or 3 on our own monitor where the host has no other. */
extern uint32_t tlg_gic_version;
#endif

/* True if the program shall do its work: once; but beside Linux it waits for Linux's next order each time. */
bool tlg_next_order(void);

void tlg_print_failure(const char *why);

/* Ends the guest after a fault: its cause and its place, and an address or a code that the processor adds. */
void tlg_faulted(uint64_t cause, uint64_t address, uint64_t data);

#endif
