//! The processor on aarch64: what is saved of a task that does not run, and interrupts.
//!
//! The kit's vectors (`tlg_vectors`, weak) are replaced by some that change stacks on an interrupt and on `svc`;
//! everything else is a fault, as before.

use core::arch::{asm, global_asm};

/// Registers of a task as they lie on its stack.
#[repr(C, align(16))]
pub(super) struct Saved {
    /// x0 to x30.
    registers: [u64; 31],
    instruction: u64,
    state: u64,
    unused: u64,
    float_control: u64,
    float_status: u64,
    floats: [u128; 32],
}

/// At EL1 with its own stack, interrupts enabled; fast ones, errors and debugging masked, as from the start.
const STATE: u64 = 0x345;
const INTERRUPTS_MASKED: u64 = 1 << 7;

const _: () = assert!(size_of::<Saved>() == 800);

global_asm!(
    ".balign 2048",
    ".global tlg_vectors",
    "tlg_vectors:",
    ".rept 4",
    ".balign 128",
    "b tlg_fault",
    ".endr",
    ".balign 128",
    "b tlk_call",
    ".balign 128",
    "b tlk_change",
    ".rept 10",
    ".balign 128",
    "b tlg_fault",
    ".endr",
    // `svc` is a task that lets others run.
    "tlk_call:",
    "stp x0, x1, [sp, #-16]!",
    "mrs x0, esr_el1",
    "lsr x0, x0, #26",
    "cmp x0, #0x15",
    "ldp x0, x1, [sp], #16",
    "b.ne tlg_fault",
    "tlk_change:",
    "sub sp, sp, #800",
    "stp x0, x1, [sp]",
    "stp x2, x3, [sp, #16]",
    "stp x4, x5, [sp, #32]",
    "stp x6, x7, [sp, #48]",
    "stp x8, x9, [sp, #64]",
    "stp x10, x11, [sp, #80]",
    "stp x12, x13, [sp, #96]",
    "stp x14, x15, [sp, #112]",
    "stp x16, x17, [sp, #128]",
    "stp x18, x19, [sp, #144]",
    "stp x20, x21, [sp, #160]",
    "stp x22, x23, [sp, #176]",
    "stp x24, x25, [sp, #192]",
    "stp x26, x27, [sp, #208]",
    "stp x28, x29, [sp, #224]",
    "mrs x0, elr_el1",
    "mrs x1, spsr_el1",
    "stp x30, x0, [sp, #240]",
    "str x1, [sp, #256]",
    "mrs x0, fpcr",
    "mrs x1, fpsr",
    "stp x0, x1, [sp, #272]",
    "add x2, sp, #288",
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "str q\\n, [x2], #16",
    ".endr",
    "mov x0, sp",
    "bl {change}",
    "mov sp, x0",
    "add x2, sp, #288",
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "ldr q\\n, [x2], #16",
    ".endr",
    "ldp x0, x1, [sp, #272]",
    "msr fpcr, x0",
    "msr fpsr, x1",
    "ldr x1, [sp, #256]",
    "ldp x30, x0, [sp, #240]",
    "msr elr_el1, x0",
    "msr spsr_el1, x1",
    "ldp x28, x29, [sp, #224]",
    "ldp x26, x27, [sp, #208]",
    "ldp x24, x25, [sp, #192]",
    "ldp x22, x23, [sp, #176]",
    "ldp x20, x21, [sp, #160]",
    "ldp x18, x19, [sp, #144]",
    "ldp x16, x17, [sp, #128]",
    "ldp x14, x15, [sp, #112]",
    "ldp x12, x13, [sp, #96]",
    "ldp x10, x11, [sp, #80]",
    "ldp x8, x9, [sp, #64]",
    "ldp x6, x7, [sp, #48]",
    "ldp x4, x5, [sp, #32]",
    "ldp x2, x3, [sp, #16]",
    "ldp x0, x1, [sp]",
    "add sp, sp, #800",
    "eret",
    change = sym super::tasks::change,
);

/// Lets others run; returns when this task is chosen again.
pub(super) fn give_up() {
    // SAFETY: every register is kept.
    unsafe { asm!("svc #0") };
}

impl Saved {
    /// A task that begins with `entry(argument)`. Its stack ends where this lies.
    pub(super) fn new(
        entry: extern "C" fn(usize) -> !,
        argument: usize,
        _stack_end: usize,
    ) -> Self {
        let mut registers = [0; 31];
        registers[0] = argument as u64;
        Saved {
            registers,
            instruction: entry as usize as u64,
            state: STATE,
            unused: 0,
            float_control: 0,
            float_status: 0,
            floats: [0; 32],
        }
    }
}

/// No interrupt from now on. Whether they were enabled.
pub(super) fn mask() -> bool {
    let masked: u64;
    // SAFETY: reads a register, and masks interrupts.
    unsafe { asm!("mrs {}, daif", "msr daifset, #2", out(reg) masked) };
    masked & INTERRUPTS_MASKED == 0
}

pub(super) fn unmask() {
    // SAFETY: the handler keeps every register.
    unsafe { asm!("msr daifclr, #2") };
}

/// Sleeps until an interrupt, which is served.
pub(super) fn sleep() {
    // SAFETY: as above.
    unsafe { asm!("wfi") };
}
