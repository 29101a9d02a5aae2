/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * FreeRTOS on the virtual machines of `taut guest run`: one processor, a tick of 1 kHz, no heap.
 */
#ifndef FREERTOS_CONFIG_H
#define FREERTOS_CONFIG_H

#define configTICK_RATE_HZ 1000
#define configUSE_16_BIT_TICKS 0
#define configUSE_PREEMPTION 1
#define configUSE_PORT_OPTIMISED_TASK_SELECTION 1
#define configUSE_TASK_NOTIFICATIONS 1
#define configUSE_TASK_FPU_SUPPORT 2 /* every task may use floating point */
#define configUSE_IDLE_HOOK 1
#define configUSE_TICK_HOOK 0
#define configUSE_TIMERS 0
#define configUSE_MUTEXES 1
#define configMAX_PRIORITIES 16
#define configMAX_TASK_NAME_LEN 12
#define configMINIMAL_STACK_SIZE 1024
#define configSUPPORT_STATIC_ALLOCATION 1
#define configSUPPORT_DYNAMIC_ALLOCATION 0
#define configKERNEL_PROVIDED_STATIC_MEMORY 1
#define configCHECK_FOR_STACK_OVERFLOW 0

#define INCLUDE_vTaskDelay 1
#define INCLUDE_vTaskSuspend 1
#define INCLUDE_xTaskDelayUntil 1

/* Interrupts of the board have priority 20 of 32, so their handlers may call FreeRTOS. */
#define configINTERRUPT_CONTROLLER_BASE_ADDRESS 0x08000000UL
#define configINTERRUPT_CONTROLLER_CPU_INTERFACE_OFFSET 0x10000UL
#define configUNIQUE_INTERRUPT_PRIORITIES 32
#define configMAX_API_CALL_INTERRUPT_PRIORITY 18
#define configSETUP_TICK_INTERRUPT() start_tick()
#define configCLEAR_TICK_INTERRUPT() next_tick()

#ifndef __ASSEMBLER__
void start_tick(void);
void next_tick(void);
void tlg_fail(const char *why) __attribute__((noreturn));
#define configASSERT(condition) ((condition) ? (void)0 : tlg_fail("FreeRTOS: " #condition))
#endif

#endif
