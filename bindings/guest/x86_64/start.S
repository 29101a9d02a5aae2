/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * First instructions of a guest on x86-64: 64-bit mode, each address mapped to itself, interrupts masked. The address
 * of the machine's description is in rdi.
 */
#include "board.h"

	.section .text.start, "ax"
	.global _start
_start:
	lea tlg_stack_end(%rip), %rsp
	lgdt segments_pointer(%rip)
	mov %cr4, %rax
	or $(3 << 9), %rax /* floating point, for programs that are compiled with it */
	mov %rax, %cr4
	call tlg_start
1:	hlt
	jmp 1b

	/* The processor loads these when it enters a handler. Numbers are those that it has started with. */
	.balign 8
segments:
	.quad 0
	.quad 0x00af9b000000ffff /* 8: code of 64 bits */
	.quad 0x00cf93000000ffff /* 16: data */
segments_pointer:
	.word segments_pointer - segments - 1
	.quad segments

	/* A handler for each exception, of 16 bytes: its number and, where the processor has none, a code. */
	.text
	.global tlg_exceptions
	.balign 16
tlg_exceptions:
	.set number, 0
	.rept 32
	.balign 16
	.if !((number >= 10 && number <= 14) || number == 8 || number == 17 || number == 21 || number == 29 || number == 30)
	push $0
	.endif
	push $number
	jmp fault
	.set number, number + 1
	.endr

fault:
	pop %rdi
	pop %rdx /* the processor's code */
	pop %rsi /* the instruction */
	cmp $14, %rdi
	jne 1f
	mov %cr2, %rdx /* the address that is not mapped */
1:	lea tlg_stack_end(%rip), %rsp
	call tlg_faulted

	/* Doorbell and timer: it is enough that the processor no longer sleeps. A program may bring its own. */
	.global tlg_doorbell
	.balign 16
tlg_doorbell:
	movb $1, tlg_has_rung(%rip)
	jmp tlg_interrupt
	.weak tlg_interrupt
	.balign 16
tlg_interrupt:
	push %rax
	mov $APIC_END_OF_INTERRUPT, %eax
	movl $0, (%rax)
	pop %rax
	.global tlg_spurious
tlg_spurious:
	iretq
