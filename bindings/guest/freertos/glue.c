/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * FreeRTOS and the board: the tick, and the doorbell as a notification of a task.
 */
#include "FreeRTOS.h"
#include "task.h"

#include "doorbell.h"
#include "tautline_guest.h"

#define GIC_REDISTRIBUTOR 0x080a0000UL

void FreeRTOS_Tick_Handler(void);
void vApplicationIRQHandler(uint32_t acknowledged);
void vApplicationIdleHook(void);

static uint64_t tick;
static TaskHandle_t listener;

void doorbell_wakes(TaskHandle_t task)
{
	listener = task;
}

void start_tick(void)
{
	uintptr_t registers = GIC_VERSION == 2 ? configINTERRUPT_CONTROLLER_BASE_ADDRESS : GIC_REDISTRIBUTOR + 0x10000;
	volatile uint8_t *priorities = (volatile uint8_t *)(registers + 0x400);
	uint64_t now;

	/* FreeRTOS wants its tick below all other interrupts. */
	priorities[TLG_TIMER_IRQ] = portLOWEST_USABLE_INTERRUPT_PRIORITY << portPRIORITY_SHIFT;
	__asm volatile("mrs %0, cntfrq_el0" : "=r"(tick));
	tick /= configTICK_RATE_HZ;
	__asm volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(now));
	__asm volatile("msr cntv_cval_el0, %0\n\tmsr cntv_ctl_el0, %1\n\tisb" : : "r"(now + tick), "r"(1UL));
}

/* From the due time and not from now, so that ticks do not drift. */
void next_tick(void)
{
	uint64_t due;

	__asm volatile("mrs %0, cntv_cval_el0" : "=r"(due));
	__asm volatile("msr cntv_cval_el0, %0\n\tisb" : : "r"(due + tick));
}

void vApplicationIRQHandler(uint32_t acknowledged)
{
	BaseType_t wakes = pdFALSE;
	uint32_t number = acknowledged & 0x3ff;

	if (number == TLG_TIMER_IRQ) {
		FreeRTOS_Tick_Handler();
	} else if (number == TLG_DOORBELL_IRQ && listener != NULL) {
		vTaskNotifyGiveFromISR(listener, &wakes);
		portYIELD_FROM_ISR(wakes);
	}
}

void vApplicationIdleHook(void)
{
	__asm volatile("wfi");
}
