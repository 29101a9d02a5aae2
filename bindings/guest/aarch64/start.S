/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * First instructions of a guest on aarch64: one processor, at EL1 or EL2, everything off. Others, if there are any, are
 * off as well, or Linux's.
 */
	.section .text.start, "ax"
	.global _start
_start:
	mov x19, x0 /* of whoever started the processor: 0, or a description of the machine or of the place beside Linux */
	mrs x0, CurrentEL
	cmp x0, #(2 << 2)
	b.lo 1f
	/* From EL2 to EL1, with the timers as they are. */
	mov x0, #(1 << 31)
	msr hcr_el2, x0
	mov x0, #3
	msr cnthctl_el2, x0
	msr cntvoff_el2, xzr
	mov x0, #0x3c5
	msr spsr_el2, x0
	adr x0, 1f
	msr elr_el2, x0
	eret
1:	mov x0, #(3 << 20) /* floating point */
	msr cpacr_el1, x0
	msr spsel, #1
	ldr x0, =tlg_vectors
	msr vbar_el1, x0
	isb
	ldr x0, =tlg_stack_end
	mov sp, x0
	ldr x0, =tlg_bss
	ldr x1, =tlg_bss_end
2:	cmp x0, x1
	b.hs 3f
	str xzr, [x0], #8
	b 2b
3:	mov x0, x19
	bl tlg_start
4:	wfi
	b 4b

	/* Whatever comes here is a fault, but for interrupts of a program that lets them through. */
	.balign 2048
	.weak tlg_vectors
tlg_vectors:
	.rept 5
	.balign 128
	b tlg_fault
	.endr
	.balign 128
	b tlg_interrupt
	.rept 10
	.balign 128
	b tlg_fault
	.endr

	/* Interrupts stay masked, unless a program has a handler of its own. */
	.weak tlg_interrupt
tlg_interrupt:
	b tlg_fault

	.global tlg_fault
tlg_fault:
	ldr x0, =tlg_stack_end
	mov sp, x0
	mrs x0, esr_el1
	mrs x1, elr_el1
	mrs x2, far_el1
	b tlg_faulted
