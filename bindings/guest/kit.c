/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The part of a guest's kit that is the same on all processors.
 */
#include "kit.h"

/* The compiler makes calls of these. */
void *memcpy(void *to, const void *from, size_t bytes)
{
	uint8_t *out = to;
	const uint8_t *in = from;

	if ((((uintptr_t)out | (uintptr_t)in) & 7) == 0) {
		/* While a message is copied, a more urgent one waits: few instructions for each word. */
		for (; bytes >= 32; bytes -= 32) {
			uint64_t a = ((const uint64_t *)in)[0];
			uint64_t b = ((const uint64_t *)in)[1];
			uint64_t c = ((const uint64_t *)in)[2];
			uint64_t d = ((const uint64_t *)in)[3];

			/* Or clang takes them through the stack into larger registers, against -mstrict-align. */
			__asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
			((uint64_t *)out)[0] = a;
			((uint64_t *)out)[1] = b;
			((uint64_t *)out)[2] = c;
			((uint64_t *)out)[3] = d;
			out += 32;
			in += 32;
		}
		for (; bytes >= 8; bytes -= 8) {
			*(uint64_t *)out = *(const uint64_t *)in;
			out += 8;
			in += 8;
			__asm volatile("" ::: "memory"); /* or the loop becomes one of larger registers */
		}
	}
	while (bytes-- > 0) {
		*out++ = *in++;
		__asm volatile("" ::: "memory"); /* or the loop becomes a call of itself */
	}
	return to;
}

void *memset(void *to, int value, size_t bytes)
{
	uint8_t *out = to;

	while (bytes-- > 0) {
		*out++ = (uint8_t)value;
		__asm volatile("" ::: "memory");
	}
	return to;
}

static void print_number(uint64_t number, uint64_t base)
{
	char digits[24];
	uint32_t at = sizeof(digits) - 1;

	digits[at] = 0;
	do {
		digits[--at] = "0123456789abcdef"[number % base];
		number /= base;
	} while (number != 0);
	tlg_print(digits + at);
}

void tlg_print_number(uint64_t number)
{
	print_number(number, 10);
}

void tlg_print_failure(const char *why)
{
	tlg_print("guest: ");
	tlg_print(why);
	tlg_print("\n");
}

uint64_t tlg_now_ns(void)
{
	uint64_t ticks = tlg_ticks();
	uint64_t hz = tlg_ticks_per_second();

	return ticks / hz * 1000000000 + ticks % hz * 1000000000 / hz;
}

uint64_t tlg_ticks_at(uint64_t time_ns)
{
	uint64_t hz = tlg_ticks_per_second();

	return time_ns / 1000000000 * hz + time_ns % 1000000000 * hz / 1000000000;
}

void tlg_faulted(uint64_t cause, uint64_t address, uint64_t data)
{
	tlg_print("guest: fault ");
	print_number(cause, 16);
	tlg_print(" at ");
	print_number(address, 16);
	tlg_print(", data ");
	print_number(data, 16);
	tlg_print("\n");
	tlg_fail("fault");
}

bool tlg_join(struct tlw_window *window)
{
	enum tlb_result result;
	uint64_t bytes = 0;
	void *memory = tlg_window(&bytes);

	if (memory == NULL)
		return false;
	do {
		result = tlw_join(window, memory, bytes);
	} while (result == TLB_NOT_BUS);
	return result == TLB_OK;
}

/* The question is "TLTI" and a number; the answer has both, and when it came and went. */
#define TIME_QUESTION_BYTES 8

bool tlg_tell_time(struct tlw_port *port, const struct tlb_message *message, struct tlw_address from)
{
	uint64_t answer[3];

	answer[1] = tlg_now_ns();
	if (message->length != TIME_QUESTION_BYTES)
		return false;
	memcpy(answer, message->payload, TIME_QUESTION_BYTES);
	if ((uint32_t)answer[0] != 0x49544c54) /* "TLTI" */
		return false;
	answer[2] = tlg_now_ns();
	tlw_send(port, from, message->priority, answer, sizeof(answer), 0);
	if (tlw_wanted(port))
		tlg_ring();
	return true;
}
