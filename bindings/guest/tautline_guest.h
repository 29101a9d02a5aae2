/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A program without an operating system as a guest of `taut guest run`: its start, console, clock, and the window
 * through which it talks to Linux (tautline_vbus.h). The program has a function `guest_main`; when that returns, the
 * guest switches itself off.
 *
 * One processor. Interrupts stay masked: a program waits for its doorbell with tlg_wait. An operating system brings its
 * own vectors, and takes the doorbell's interrupt, TLG_DOORBELL_IRQ, itself (see freertos/).
 */
#ifndef TAUTLINE_GUEST_H
#define TAUTLINE_GUEST_H

#include "tautline_vbus.h"

/* Interrupt of the doorbell, and of the timer that tlg_wait uses, as the interrupt controller numbers them. */
#define TLG_DOORBELL_IRQ 80
#ifdef __x86_64__
#define TLG_TIMER_IRQ 81
#else
#define TLG_TIMER_IRQ 27
#endif

/* The program. */
void guest_main(void);

/* Writes to the console. */
void tlg_print(const char *text);
void tlg_print_number(uint64_t number);

/* Time since the virtual machine started, in nanoseconds. */
uint64_t tlg_now_ns(void);

/* Answers a message that asks for the guest's time (`taut guest show --clock`). False: it is another message. */
bool tlg_tell_time(struct tlw_port *port, const struct tlb_message *message, struct tlw_address from);

/* Finds the window and joins it; waits for Linux if need be. False: the virtual machine has no window. */
bool tlg_join(struct tlw_window *window);

/* Rings Linux's doorbell: after tlw_wanted has said so. */
void tlg_ring(void);

/* Sleeps until the doorbell rings or until a time has come. It may end early. Call tlw_arm for each port and look at it
 * once more before.
 */
void tlg_wait(uint64_t until_ns);

/* Switches the guest off; starts it anew; ends it as failed. */
void tlg_off(void) __attribute__((noreturn));
void tlg_reset(void) __attribute__((noreturn));
void tlg_fail(const char *why) __attribute__((noreturn));

#endif
