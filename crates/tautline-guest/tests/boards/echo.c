/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Answers each message that comes by a window, with the same bytes and priority: a program of `tautline_vbus.h` alone,
 * for processors of 32 bits without an operating system. The window lies in the board's memory. A message of "half"
 * and more is copied half, and the rest once a more urgent message has been answered.
 */
#include "tautline_vbus.h"

#define PORT 7

/* The compiler may call these for copies of structs. */
void *memcpy(void *to, const void *from, size_t bytes)
{
	unsigned char *out = to;
	const unsigned char *in = from;

	while (bytes-- > 0)
		*out++ = *in++;
	return to;
}

void *memset(void *to, int value, size_t bytes)
{
	unsigned char *out = to;

	while (bytes-- > 0)
		*out++ = (unsigned char)value;
	return to;
}

#if defined(__ARM_EABI__)
/* By other names there. */
void __aeabi_memcpy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

void __aeabi_memclr(void *to, size_t bytes)
{
	memset(to, 0, bytes);
}

void __aeabi_memclr4(void *to, size_t bytes) __attribute__((alias("__aeabi_memclr")));
void __aeabi_memclr8(void *to, size_t bytes) __attribute__((alias("__aeabi_memclr")));
#endif

static bool is_to_wait(const struct tlb_message *message)
{
	const volatile char *text = message->payload;

	return message->length > 4 && text[0] == 'h' && text[1] == 'a' && text[2] == 'l' && text[3] == 'f';
}

static void answer(struct tlw_port *port)
{
	struct tlw_address from;
	struct tlb_message message;
	uint32_t half;
	uint8_t *place;

	if (!tlw_receive(port, &message, &from))
		return;
	if (is_to_wait(&message)) {
		half = message.length / 2;
		place = tlw_borrow(port, from, message.priority, message.length);
		TLB_COPY(place, message.payload, half);
		tlw_send(port, from, message.priority + 1, "half", 4, 0);
		while (!tlw_has_more_urgent(port, message.priority))
			;
		answer(port);
		TLB_COPY(place + half, (const uint8_t *)message.payload + half, message.length - half);
		tlw_publish(port, message.priority, message.length, 0);
	} else {
		tlw_send(port, from, message.priority, message.payload, message.length, 0);
	}
	tlw_release(port, &message);
}

__attribute__((noreturn)) void board_main(void)
{
	struct tlw_window window;
	struct tlw_port port;

	while (tlw_join(&window, (void *)(uintptr_t)BOARD_WINDOW, BOARD_WINDOW_BYTES) != TLB_OK)
		;
	while (!tlw_port_open(&port, &window, PORT))
		;
	for (;;) {
		tlw_beat(&window);
		answer(&port);
	}
}

#if defined(__riscv)
__attribute__((section(".start"), naked, noreturn)) void board_start(void)
{
	__asm__ volatile("li sp, %0\n\tj board_main" : : "i"(BOARD_STACK));
}
#else
__attribute__((section(".start"), used)) const uintptr_t board_vectors[2] = {BOARD_STACK, (uintptr_t)board_main};
#endif
