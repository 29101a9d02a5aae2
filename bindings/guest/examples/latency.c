/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Interrupt latency of a guest, of a program that has the machine for itself, or of one on a processor of its own
 * beside Linux: the timer interrupts EVENTS times, 100 us apart. From the time for which it was set to the handler, and
 * to the program that waits for it; first the program halts meanwhile, then it never does.
 */
#include "kit.h"
#ifdef __x86_64__
#include "x86_64/board.h"
#endif

#ifndef EVENTS
#define EVENTS 5000U
#endif
#define PERIOD_NS 100000U
/* Latencies beyond the last bin count as it; the maximum is exact. */
#define BIN_NS 10U
#define BINS 20000U

struct latencies {
	uint32_t bins[BINS];
	uint32_t count;
	uint64_t sum;
	uint64_t max;
};

static struct latencies handler;
static struct latencies program;
/* The counter when the handler was last entered; 0: not since the timer was set. */
static volatile uint64_t entered __attribute__((used));

/* In place of the kit's own handler, which lets the program go on without a word. */
#ifdef __x86_64__

/* It may not call other functions, so that it need not save all registers. */
__attribute__((interrupt)) void tlg_interrupt(void *frame)
{
	uint32_t low;
	uint32_t high;

	(void)frame;
	__asm volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high) : : "memory");
	entered = (uint64_t)high << 32 | low;
	*(volatile uint32_t *)(uintptr_t)APIC_END_OF_INTERRUPT = 0;
}

static void let_interrupt_through(bool halts)
{
	if (halts)
		__asm volatile("sti\n\thlt\n\tcli" : : : "memory");
	else
		/* Interrupts come between the two; `sti` lets one more instruction pass. */
		__asm volatile("sti\n\tnop\n\tnop\n\tcli" : : : "memory");
}

#else

/* Reads the counter, switches the timer off, whose interrupt would come again, and ends the interrupt at the interrupt
 * controller: number from 0x0801000c, end at 0x08010010; at a GICv3 by ICC_IAR1 and ICC_EOIR1.
 */
__asm(".text\n"
      ".global tlg_interrupt\n"
      "tlg_interrupt:\n"
      "	stp x0, x1, [sp, #-16]!\n"
      "	isb\n"
      "	mrs x0, cntvct_el0\n"
      "	adrp x1, entered\n"
      "	str x0, [x1, :lo12:entered]\n"
      "	msr cntv_ctl_el0, xzr\n"
      "	isb\n"
      "	adrp x1, tlg_gic_version\n"
      "	ldr w1, [x1, :lo12:tlg_gic_version]\n"
      "	tbnz w1, #0, 1f\n"
      "	mov x1, #0x08010000\n"
      "	ldr w0, [x1, #0xc]\n"
      "	str w0, [x1, #0x10]\n"
      "	ldp x0, x1, [sp], #16\n"
      "	eret\n"
      "1:	mrs x0, S3_0_C12_C12_0\n"
      "	msr S3_0_C12_C12_1, x0\n"
      "	ldp x0, x1, [sp], #16\n"
      "	eret\n");

static void let_interrupt_through(bool halts)
{
	/* `wfi` ends by an interrupt that is masked, too; it comes as soon as it is not. */
	if (halts)
		__asm volatile("wfi" : : : "memory");
	__asm volatile("msr daifclr, #2\n\tnop\n\tnop\n\tmsr daifset, #2" : : : "memory");
}

#endif

static void add(struct latencies *latencies, uint64_t ticks)
{
	uint64_t ns = ticks * 1000000 / (tlg_ticks_per_second() / 1000);
	uint64_t bin = ns / BIN_NS;

	latencies->bins[bin < BINS ? bin : BINS - 1]++;
	latencies->count++;
	latencies->sum += ns;
	if (ns > latencies->max)
		latencies->max = ns;
}

static uint64_t percentile(const struct latencies *latencies, uint32_t per_thousand)
{
	uint64_t wanted = ((uint64_t)latencies->count * per_thousand + 999) / 1000;
	uint64_t seen = 0;
	uint32_t bin;

	for (bin = 0; bin < BINS; bin++) {
		seen += latencies->bins[bin];
		if (seen >= wanted)
			return (uint64_t)bin * BIN_NS;
	}
	return latencies->max;
}

static void print_number(const char *name, uint64_t number)
{
	char text[24];
	char *at = text + sizeof(text) - 1;

	*at = 0;
	do {
		*--at = (char)('0' + number % 10);
		number /= 10;
	} while (number != 0);
	tlg_print(name);
	tlg_print(at);
}

static void print_latencies(const char *name, struct latencies *latencies)
{
	tlg_print(name);
	print_number(": events ", latencies->count);
	print_number(", ns: mean ", latencies->sum / latencies->count);
	print_number(", p50 ", percentile(latencies, 500));
	print_number(", p99.9 ", percentile(latencies, 999));
	print_number(", max ", latencies->max);
	tlg_print("\n");
	*latencies = (struct latencies){ 0 };
}

/* Events that are no latencies. */
struct others {
	/* Due before the timer was set for them. */
	uint64_t left_out;
	/* The interrupt came before its time: a guest that moves between CPUs can see two counters. */
	uint64_t early;
};

static struct others measure(bool halts)
{
	struct others others = { 0, 0 };
	uint64_t due_ns = tlg_now_ns() + PERIOD_NS;

	while (program.count < EVENTS) {
		uint64_t due;

		for (due_ns += PERIOD_NS; due_ns < tlg_now_ns(); due_ns += PERIOD_NS)
			others.left_out++;
		due = tlg_ticks_at(due_ns);
		entered = 0;
		tlg_set_timer(due_ns);
		while (entered == 0)
			let_interrupt_through(halts);
		if (entered < due) {
			others.early++;
			continue;
		}
		add(&program, tlg_ticks() - due);
		add(&handler, entered - due);
	}
	return others;
}

static void report(const char *how, bool halts)
{
	struct others others = measure(halts);

	tlg_print(how);
	print_number(", events left out: ", others.left_out);
	print_number(", early: ", others.early);
	tlg_print("\n");
	print_latencies("  timer to handler", &handler);
	print_latencies("  timer to program", &program);
}

void guest_main(void)
{
	struct tlw_window window;

	/* Only as a sign of life: a guest has a window, others have none. */
	(void)tlg_join(&window);
	while (tlg_next_order()) {
		report("halting", true);
		report("never halting", false);
	}
	tlg_off();
}
