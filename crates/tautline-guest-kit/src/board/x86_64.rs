//! The processor on x86-64: what is saved of a task that does not run, and interrupts.
//!
//! The kit's handlers of doorbell and timer (`tlg_interrupt`, weak) are replaced by one that changes stacks. Only
//! registers of 64 bits are saved: the program has no others (`x86_64-unknown-none`).

use core::arch::{asm, global_asm};

/// Registers of a task as they lie on its stack, the last that was saved first.
#[repr(C)]
pub(super) struct Saved {
    /// r15 to r8, rbp, rdi, rsi, rdx, rcx, rbx, rax.
    registers: [u64; 15],
    instruction: u64,
    code_segment: u64,
    flags: u64,
    stack: u64,
    stack_segment: u64,
}

/// Place of rdi, the first argument of a function.
const ARGUMENT: usize = 9;
/// Interrupts are enabled, and the bit that is always set.
const FLAGS: u64 = 0x202;
const INTERRUPTS_ENABLED: u64 = 1 << 9;

global_asm!(
    ".global tlg_interrupt",
    "tlg_interrupt:",
    "push rax",
    "push rbx",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push rbp",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov rdi, rsp",
    // The processor has aligned the stack before it pushed five words; with fifteen more it is aligned again.
    "call {change}",
    "mov rsp, rax",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rbp",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "pop rbx",
    "pop rax",
    "iretq",
    // As an interrupt would enter, and return behind the call.
    "tlk_give_up:",
    "pop rcx",
    "mov rdx, rsp",
    "mov eax, ss",
    "push rax",
    "push rdx",
    "pushfq",
    "cli",
    "mov eax, cs",
    "push rax",
    "push rcx",
    "jmp tlg_interrupt",
    change = sym super::tasks::change,
);

unsafe extern "C" {
    fn tlk_give_up();
}

/// Lets others run; returns when this task is chosen again.
pub(super) fn give_up() {
    // SAFETY: interrupts are enabled and every register that a function may change is declared so; the stack is
    // aligned at calls.
    unsafe { asm!("call {}", sym tlk_give_up, clobber_abi("C")) };
}

impl Saved {
    /// A task that begins with `entry(argument)`.
    pub(super) fn new(entry: extern "C" fn(usize) -> !, argument: usize, stack_end: usize) -> Self {
        let (code_segment, stack_segment): (u64, u64);
        // SAFETY: reads two registers.
        unsafe {
            asm!("mov {0:e}, cs", "mov {1:e}, ss", out(reg) code_segment, out(reg) stack_segment);
        };
        let mut registers = [0; 15];
        registers[ARGUMENT] = argument as u64;
        Saved {
            registers,
            instruction: entry as usize as u64,
            code_segment,
            flags: FLAGS,
            // As a function finds it: its return address is behind it.
            stack: stack_end as u64 - 8,
            stack_segment,
        }
    }
}

/// No interrupt from now on. Whether they were enabled.
pub(super) fn mask() -> bool {
    let flags: u64;
    // SAFETY: a word on the stack and back.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    flags & INTERRUPTS_ENABLED != 0
}

pub(super) fn unmask() {
    // SAFETY: the handler keeps every register.
    unsafe { asm!("sti") };
}

/// Sleeps until an interrupt, which is served.
pub(super) fn sleep() {
    // SAFETY: as above.
    unsafe { asm!("hlt") };
}
