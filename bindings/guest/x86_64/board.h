/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The machine on x86-64, in numbers that C and assembly share. `crates/tautline-kvm/src/layout/x86_64.rs` has the same.
 */
#ifndef TAUTLINE_GUEST_BOARD_H
#define TAUTLINE_GUEST_BOARD_H

#define PORT_CONSOLE 0x3f8
#define PORT_DOORBELL 0x700
#define PORT_END 0x701
#define END_OFF 0
#define END_RESET 1
#define END_FAILED 2

#define MACHINE_MAGIC 0x4d474c54 /* "TLGM" */
#define MACHINE_VERSION 1

/* Registers of the local APIC. */
#define APIC_END_OF_INTERRUPT 0xfee000b0
#define APIC_SPURIOUS 0xfee000f0
#define APIC_TIMER 0xfee00320

#endif
