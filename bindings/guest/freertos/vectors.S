/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Vectors of a guest with FreeRTOS: synchronous exceptions switch tasks, interrupts go to its handler.
 */
	.section .text.vectors, "ax"
	.global tlg_vectors
	.global _freertos_vector_table

	.macro vector target
	.balign 128
	b \target
	.endm

	.balign 2048
tlg_vectors:
_freertos_vector_table:
	/* Tasks run on the stack of EL0, */
	vector FreeRTOS_SWI_Handler
	vector FreeRTOS_IRQ_Handler
	vector fault
	vector fault
	/* interrupts within interrupts on that of EL1. */
	vector fault
	vector FreeRTOS_IRQ_Handler
	vector fault
	vector fault
	.rept 8
	vector fault
	.endr

fault:
	mrs x0, esr_el1
	mrs x1, elr_el1
	mrs x2, far_el1
	b tlg_faulted
