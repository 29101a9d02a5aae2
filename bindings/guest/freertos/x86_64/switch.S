/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * FreeRTOS on x86-64: registers of a task to its stack and back. port.c has their order as `struct frame`; the
 * processor, or port_yield, has pushed the last five.
 */
	.macro save
	push %rax
	push %rbx
	push %rcx
	push %rdx
	push %rsi
	push %rdi
	push %rbp
	push %r8
	push %r9
	push %r10
	push %r11
	push %r12
	push %r13
	push %r14
	push %r15
	push $0
	push port_nesting(%rip)
	mov %rsp, %rdi
	.endm

	.text
	/* In the place of the kit's, for timer and doorbell. */
	.global tlg_interrupt
	.balign 16
tlg_interrupt:
	save
	call port_interrupt
	jmp restore

	/* As an interrupt would enter, and return behind the call. */
	.global port_yield
port_yield:
	pop %rcx
	mov %rsp, %rdx
	mov %ss, %eax
	push %rax
	push %rdx
	pushfq
	cli
	push $8
	push %rcx
	save
	call port_switch
restore:
	mov %rax, %rsp
	pop port_nesting(%rip)
	add $8, %rsp
	pop %r15
	pop %r14
	pop %r13
	pop %r12
	pop %r11
	pop %r10
	pop %r9
	pop %r8
	pop %rbp
	pop %rdi
	pop %rsi
	pop %rdx
	pop %rcx
	pop %rbx
	pop %rax
	iretq

	.global port_start
port_start:
	mov %rdi, %rax
	jmp restore
