/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The virtual machine that `taut guest run` gives to a guest on x86-64: one processor with its local APIC, memory from
 * 0, a serial line, the window, and ports for the doorbell and for the end. There is no other device.
 */
#include "board.h"
#include "../kit.h"

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define MSR_TSC_DEADLINE 0x6e0
#define TIMER_TO_DEADLINE (2U << 17)
#define SPURIOUS_VECTOR 255
#define EXCEPTIONS 32
#define EXCEPTION_BYTES 16

/* As the monitor describes the machine. */
struct machine {
	uint32_t magic;
	uint32_t version;
	uint64_t ram_bytes;
	uint64_t window;
	uint64_t window_bytes;
	uint64_t ticks_per_second;
};

static const struct machine *machine;

/* Set by the doorbell's handler. KVM does not always show a guest which interrupts are being served. */
volatile uint8_t tlg_has_rung;

void tlg_start(const struct machine *description);
void tlg_doorbell(void);
void tlg_interrupt(void);
void tlg_spurious(void);
extern const uint8_t tlg_exceptions[];

static void output(uint16_t port, uint8_t value)
{
	__asm volatile("outb %0, %1" : : "a"(value), "Nd"(port) : "memory");
}

static void write_register(uint32_t number, uint64_t value)
{
	__asm volatile("wrmsr" : : "c"(number), "a"((uint32_t)value), "d"((uint32_t)(value >> 32)) : "memory");
}

/* ---- Console and clock ------------------------------------------------------------------------------------------- */

void tlg_print(const char *text)
{
	while (*text != 0)
		output(PORT_CONSOLE, (uint8_t)*text++);
}

uint64_t tlg_ticks(void)
{
	uint32_t low;
	uint32_t high;

	/* Not before earlier reads of memory. */
	__asm volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high) : : "memory");
	return (uint64_t)high << 32 | low;
}

uint64_t tlg_ticks_per_second(void)
{
	return machine->ticks_per_second;
}

/* ---- Interrupts -------------------------------------------------------------------------------------------------- */

/* The table of handlers. One that is not there is a fault by itself. */
static void set_handlers(void)
{
	static uint64_t handlers[256][2] __attribute__((aligned(16)));
	struct {
		uint16_t limit;
		uint64_t base;
	} __attribute__((packed)) pointer = { sizeof(handlers) - 1, (uint64_t)(uintptr_t)handlers };
	uint32_t i;

	for (i = 0; i < 256; i++) {
		uint64_t handler;

		if (i < EXCEPTIONS)
			handler = (uint64_t)(uintptr_t)tlg_exceptions + i * EXCEPTION_BYTES;
		else if (i == TLG_DOORBELL_IRQ)
			handler = (uint64_t)(uintptr_t)tlg_doorbell;
		else if (i == TLG_TIMER_IRQ)
			handler = (uint64_t)(uintptr_t)tlg_interrupt;
		else if (i == SPURIOUS_VECTOR)
			handler = (uint64_t)(uintptr_t)tlg_spurious;
		else
			continue;
		/* An interrupt gate, in the code segment 8. */
		handlers[i][0] = (handler & 0xffff) | 8UL << 16 | 0x8eUL << 40 | (handler >> 16 & 0xffff) << 48;
		handlers[i][1] = handler >> 32;
	}
	__asm volatile("lidt %0" : : "m"(pointer), "m"(handlers));
}

void tlg_set_timer(uint64_t until_ns)
{
	/* A deadline of zero is none. */
	write_register(MSR_TSC_DEADLINE, until_ns == 0 ? 0 : tlg_ticks_at(until_ns) | 1);
}

bool tlg_acknowledge(void)
{
	bool has_rung = tlg_has_rung != 0;

	tlg_has_rung = 0;
	REGISTER(APIC_END_OF_INTERRUPT) = 0;
	return has_rung;
}

void tlg_wait(uint64_t until_ns)
{
	tlg_set_timer(until_ns);
	/* `sti` lets one more instruction pass: what has come before wakes `hlt`. */
	__asm volatile("sti\n\thlt\n\tcli" : : : "memory");
	tlg_set_timer(0);
}

/* ---- Window and doorbell ----------------------------------------------------------------------------------------- */

void *tlg_window(uint64_t *bytes)
{
	*bytes = machine->window_bytes;
	return (void *)(uintptr_t)machine->window;
}

void tlg_ring(void)
{
	output(PORT_DOORBELL, 1);
}

bool tlg_next_order(void)
{
	static bool has_worked;
	bool is_first = !has_worked;

	has_worked = true;
	return is_first;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

static void __attribute__((noreturn)) end(uint8_t how)
{
	output(PORT_END, how);
	for (;;)
		__asm volatile("hlt");
}

void tlg_off(void)
{
	end(END_OFF);
}

void tlg_reset(void)
{
	end(END_RESET);
}

void tlg_fail(const char *why)
{
	tlg_print_failure(why);
	end(END_FAILED);
}

void tlg_start(const struct machine *description)
{
	machine = description;
	set_handlers();
	if (machine->magic != MACHINE_MAGIC || machine->version != MACHINE_VERSION)
		tlg_fail("this machine is another one");
	REGISTER(APIC_SPURIOUS) = 0x100 | SPURIOUS_VECTOR; /* and the APIC is on */
	REGISTER(APIC_TIMER) = TIMER_TO_DEADLINE | TLG_TIMER_IRQ;
	/* The timer's register is memory to the processor, and its deadline is not. */
	__asm volatile("mfence" : : : "memory");
	guest_main();
	tlg_off();
}
