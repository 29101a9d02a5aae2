/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Two tasks of FreeRTOS: one answers every message that comes to port 4095, woken by the doorbell; the other one gives
 * the sign of life.
 */
#include "FreeRTOS.h"
#include "task.h"

#include "doorbell.h"
#include "kit.h"

#define PORT 4095
#define BEAT_MS 10
#define STACK_WORDS 2048

static struct tlw_window window;

static void echo(void *unused)
{
	struct tlw_port port;
	struct tlw_address from;
	struct tlb_message message;

	(void)unused;
	if (!tlw_port_open(&port, &window, PORT))
		tlg_fail("no port 4095");
	for (;;) {
		bool found = tlw_receive(&port, &message, &from);

		if (!found) {
			/* Nothing: sleep, but only if there is still nothing once Linux knows. */
			tlw_arm(&port);
			found = tlw_receive(&port, &message, &from);
			if (!found)
				(void)ulTaskNotifyTake(pdTRUE, pdMS_TO_TICKS(BEAT_MS));
			tlw_disarm(&port);
		}
		if (found) {
			tlw_send(&port, from, message.priority, message.payload, message.length, 0);
			tlw_release(&port, &message);
			if (tlw_wanted(&port))
				tlg_ring();
		}
	}
}

static void beat(void *unused)
{
	TickType_t last = xTaskGetTickCount();

	(void)unused;
	for (;;) {
		tlw_beat(&window);
		(void)xTaskDelayUntil(&last, pdMS_TO_TICKS(BEAT_MS));
	}
}

void guest_main(void)
{
	static StackType_t stacks[2][STACK_WORDS] __attribute__((aligned(16)));
	static StaticTask_t tasks[2];

#ifdef GIC_VERSION
	/* Before FreeRTOS touches the interrupt controller, as each of its calls may. */
	if (tlg_gic_version != GIC_VERSION)
		tlg_fail("this FreeRTOS is for another interrupt controller: run freertos_echo.elf on a GICv2, "
			 "freertos_echo-gicv3.elf on a GICv3");
#endif
	if (!tlg_join(&window))
		tlg_fail("no window");
	tlg_print("guest: FreeRTOS, echo on port 4095\n");
	doorbell_wakes(xTaskCreateStatic(echo, "echo", STACK_WORDS, NULL, 9, stacks[0], &tasks[0]));
	(void)xTaskCreateStatic(beat, "beat", STACK_WORDS, NULL, 12, stacks[1], &tasks[1]);
	vTaskStartScheduler();
	tlg_fail("FreeRTOS did not start");
}
