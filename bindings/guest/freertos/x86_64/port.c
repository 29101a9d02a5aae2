/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * FreeRTOS on the virtual machine of `taut guest run` on x86-64: stacks, critical sections, the tick, and the doorbell
 * as a notification of a task. switch.S saves and restores registers. There is no floating point.
 */
#include <string.h>

#include "FreeRTOS.h"
#include "task.h"

#include "doorbell.h"
#include "kit.h"

#define TICK_NS (1000000000 / configTICK_RATE_HZ)
/* Interrupts are enabled, and the bit that is always set. */
#define FLAGS 0x202
#define CODE_SEGMENT 8

/* A task's registers on its stack, as switch.S leaves them. */
struct frame {
	uint64_t nesting;
	uint64_t unused;
	uint64_t r15_to_r8[8];
	uint64_t rbp, rdi, rsi, rdx, rcx, rbx, rax;
	uint64_t rip, cs, flags, rsp, ss;
};

_Static_assert(sizeof(struct frame) % 16 == 0, "calls find the stack aligned");

struct frame *port_interrupt(struct frame *saved);
struct frame *port_switch(struct frame *saved);
void port_start(struct frame *first) __attribute__((noreturn));
void vApplicationIdleHook(void);

/* The kernel's task that runs. Its first member is the top of its stack. */
extern struct frame **volatile pxCurrentTCB;

/* Critical sections that the task is in, saved with it. Not 0 before the scheduler runs: interrupts stay masked. */
uint64_t port_nesting = 1;
BaseType_t port_wants_switch;
static uint64_t due_ns;
static TaskHandle_t listener;

void doorbell_wakes(TaskHandle_t task)
{
	listener = task;
}

StackType_t *pxPortInitialiseStack(StackType_t *top, TaskFunction_t code, void *parameters)
{
	uintptr_t end = (uintptr_t)top & ~(uintptr_t)15;
	struct frame *frame = (struct frame *)(end - sizeof(*frame));
	uint64_t stack_segment;

	__asm volatile("mov %%ss, %0" : "=r"(stack_segment));
	memset(frame, 0, sizeof(*frame));
	frame->rdi = (uint64_t)(uintptr_t)parameters;
	frame->rip = (uint64_t)(uintptr_t)code;
	frame->cs = CODE_SEGMENT;
	frame->flags = FLAGS;
	/* As a function finds it: a return address lies there. */
	frame->rsp = end - 8;
	frame->ss = stack_segment & 0xffff;
	return (StackType_t *)frame;
}

BaseType_t xPortStartScheduler(void)
{
	due_ns = tlg_now_ns() + TICK_NS;
	tlg_set_timer(due_ns);
	port_start(*pxCurrentTCB);
}

void vPortEndScheduler(void)
{
	tlg_off();
}

void port_enter_critical(void)
{
	portDISABLE_INTERRUPTS();
	port_nesting += 1;
}

void port_exit_critical(void)
{
	port_nesting -= 1;
	if (port_nesting == 0)
		portENABLE_INTERRUPTS();
}

struct frame *port_switch(struct frame *saved)
{
	*pxCurrentTCB = saved;
	vTaskSwitchContext();
	return *pxCurrentTCB;
}

/* Timer and doorbell. */
struct frame *port_interrupt(struct frame *saved)
{
	port_wants_switch = pdFALSE;
	if (tlg_acknowledge() && listener != NULL)
		vTaskNotifyGiveFromISR(listener, &port_wants_switch);
	/* From the due time and not from now, so that ticks do not drift. */
	while (tlg_now_ns() >= due_ns) {
		due_ns += TICK_NS;
		port_wants_switch |= xTaskIncrementTick();
	}
	tlg_set_timer(due_ns);
	return port_wants_switch ? port_switch(saved) : saved;
}

void vApplicationIdleHook(void)
{
	__asm volatile("hlt");
}
