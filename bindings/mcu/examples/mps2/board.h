/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The board of the example: Arm's MPS2 with a Cortex-M3 (AN385), which QEMU simulates as mps2-an385. A serial line, a
 * clock, and the Ethernet controller LAN9118. For another board, write these functions for it.
 */
#ifndef BOARD_H
#define BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes to the serial line. */
void board_print(const char *text);

/* Time since the start. To be called at least every two minutes: the counter behind it wraps. */
uint64_t board_now_ns(void);

/* Starts the Ethernet controller, with this MAC address. False: there is none. */
bool board_ethernet_start(const uint8_t mac[6]);

/* The next received frame without its check sequence; its bytes, 0 if there is none. A frame longer than `room`, or one
 * that arrived damaged, is dropped.
 */
size_t board_ethernet_receive(uint8_t *frame, size_t room);

/* Sends a frame. False: the controller's memory is full. */
bool board_ethernet_send(const uint8_t *frame, size_t bytes);

/* Sleeps until a frame has come, at most a millisecond. */
void board_wait(void);

#endif
