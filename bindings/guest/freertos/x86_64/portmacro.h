/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * FreeRTOS on the virtual machine of `taut guest run` on x86-64: its types, and the macros that it asks of a port.
 */
#ifndef PORTMACRO_H
#define PORTMACRO_H

#include <stdint.h>

typedef uint64_t StackType_t;
typedef int64_t BaseType_t;
typedef uint64_t UBaseType_t;
typedef uint32_t TickType_t;
#define portSTACK_TYPE StackType_t
#define portBASE_TYPE BaseType_t
#define portPOINTER_SIZE_TYPE uint64_t
#define portMAX_DELAY ((TickType_t)0xffffffff)
#define portTICK_TYPE_IS_ATOMIC 1
#define portTICK_PERIOD_MS ((TickType_t)1000 / configTICK_RATE_HZ)
#define portSTACK_GROWTH (-1)
#define portBYTE_ALIGNMENT 16

/* Saves the task that runs, and goes on with the one that the kernel chooses. */
void port_yield(void);
void port_enter_critical(void);
void port_exit_critical(void);
extern BaseType_t port_wants_switch;

#define portYIELD() port_yield()
/* Handlers end with a switch if one of these was called. */
#define portYIELD_FROM_ISR(wanted) (port_wants_switch |= (wanted))
#define portEND_SWITCHING_ISR(wanted) portYIELD_FROM_ISR(wanted)

#define portDISABLE_INTERRUPTS() __asm volatile("cli" : : : "memory")
#define portENABLE_INTERRUPTS() __asm volatile("sti" : : : "memory")
#define portENTER_CRITICAL() port_enter_critical()
#define portEXIT_CRITICAL() port_exit_critical()
/* Handlers run with interrupts masked. */
#define portSET_INTERRUPT_MASK_FROM_ISR() 0
#define portCLEAR_INTERRUPT_MASK_FROM_ISR(mask) (void)(mask)

#define portRECORD_READY_PRIORITY(priority, ready) ((ready) |= 1UL << (priority))
#define portRESET_READY_PRIORITY(priority, ready) ((ready) &= ~(1UL << (priority)))
#define portGET_HIGHEST_PRIORITY(highest, ready) ((highest) = 63 - (UBaseType_t)__builtin_clzl(ready))

#define portTASK_FUNCTION_PROTO(function, parameters) void function(void *parameters)
#define portTASK_FUNCTION(function, parameters) void function(void *parameters)
#define portNOP() __asm volatile("nop")
#define portMEMORY_BARRIER() __asm volatile("" : : : "memory")

#endif
