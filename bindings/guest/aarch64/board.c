/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The virtual machine that `taut guest run` gives to a guest on aarch64. On KVM it is that of our own monitor, which
 * describes it: memory from 0x40000000, a GICv2 or a GICv3, a serial line, the window, and registers for the doorbell
 * and for a failure. Elsewhere it is QEMU's "virt" with a GICv2 at the same addresses, and on its PCI bus the window
 * (ivshmem) and a device by which a guest says that it has failed (pvpanic).
 *
 * Or one processor of such a machine whose others are Linux's (`taut lab kernels --beside`): serial line and PCI bus
 * are Linux's too, and a mailbox in memory takes their place. There is no window.
 */
#include "kit.h"

#define UART 0x09000000UL
#define GIC_DISTRIBUTOR 0x08000000UL
#define GIC_CPU 0x08010000UL
#define GIC_REDISTRIBUTOR 0x080a0000UL
#define GIC_MESSAGES 0x08020040UL /* a write of a number raises that interrupt */
#define PCI_CONFIGURATION 0x3f000000UL
#define PCI_SLOTS 32
#define PCI_WINDOW 0x11101af4U  /* ivshmem */
#define PCI_PANIC 0x00111b36U   /* pvpanic-pci */
/* Addresses that we give to the devices, and where our own monitor has them: layout/aarch64.rs of tautline-kvm. */
#define WINDOW_REGISTERS 0x10000000UL
#define WINDOW_MESSAGES 0x10001000UL
#define PANIC_REGISTER 0x10002000UL
#define WINDOW_MEMORY 0x20000000UL
#define WINDOW_MEMORY_MAX 0x10000000UL

/* Registers of a GICv3's side of the processor. */
#define ICC_PMR "S3_0_C4_C6_0"
#define ICC_IAR1 "S3_0_C12_C12_0"
#define ICC_EOIR1 "S3_0_C12_C12_1"
#define ICC_CTLR "S3_0_C12_C12_4"
#define ICC_SRE "S3_0_C12_C12_5"
#define ICC_IGRPEN1 "S3_0_C12_C12_7"
#define WRITE_SYSTEM_REGISTER(name, value) __asm volatile("msr " name ", %0\n\tisb" : : "r"((uint64_t)(value)) : "memory")

/* Functions of the firmware (PSCI). */
#define CPU_OFF 0x84000002
#define SYSTEM_OFF 0x84000008
#define SYSTEM_RESET 0x84000009
/* How often a processor beside Linux looks for an order. More often: nothing is gained. Less often: Linux waits. */
#define ORDER_LOOK_NS 1000000U

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define REGISTER8(address) (*(volatile uint8_t *)(uintptr_t)(address))

/* Between Linux and a processor beside it. measure/tautline-lab/src/kernels/beside.rs has the same. */
struct mailbox {
	uint32_t magic;
	uint32_t version;
	uint32_t orders;  /* of Linux: how many it has given */
	uint32_t state;   /* of this processor, as all that follows */
	uint32_t done;    /* the last order that is done */
	uint32_t printed; /* bytes of text since that order came */
	char text[0x10000 - 24];
};

#define MAILBOX_MAGIC 0x42474c54 /* "TLGB" */
#define MAILBOX_VERSION 1
#define MAILBOX_RUNS 1
#define MAILBOX_OFF 2
#define MAILBOX_FAILED 3

/* NULL: this is no processor beside Linux. */
static volatile struct mailbox *mailbox;

/* As our own monitor describes the machine. crates/tautline-kvm/src/layout has the same. */
struct machine {
	uint32_t magic;
	uint32_t version;
	uint64_t ram_bytes;
	uint64_t window;
	uint64_t window_bytes;
	uint64_t gic_version;
};

#define MACHINE_MAGIC 0x4d474c54 /* "TLGM" */
#define MACHINE_VERSION 1

/* NULL: it is QEMU's machine. */
static const volatile struct machine *machine;

uint32_t tlg_gic_version = 2;

void tlg_start(void *description);

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

#define BLOCK 0x401UL         /* valid, accessed; a block */
#define TABLE 0x3UL
#define NORMAL (0UL << 2)     /* MAIR entry 0: cached, */
#define SHARED (3UL << 8)     /* and the same for all processors: the window is Linux's memory too */
#define DEVICE (1UL << 2)     /* MAIR entry 1 */
#define NO_CODE (3UL << 53)

/* Every address is mapped to itself: devices in the first GiB, but the window in it is memory; memory above. */
static void map_memory(void)
{
	static uint64_t gigabytes[512] __attribute__((aligned(4096)));
	static uint64_t first[512] __attribute__((aligned(4096)));
	uint64_t i;

	for (i = 0; i < 512; i++) {
		uint64_t address = i << 21;
		bool is_window = address >= WINDOW_MEMORY && address < WINDOW_MEMORY + WINDOW_MEMORY_MAX;

		first[i] = address | BLOCK | NO_CODE | (is_window ? NORMAL | SHARED : DEVICE);
	}
	gigabytes[0] = (uint64_t)(uintptr_t)first | TABLE;
	for (i = 1; i < 4; i++)
		gigabytes[i] = i << 30 | BLOCK | NORMAL | SHARED;
	/* 39 bits of address, pages of 4 KiB, tables cached and shared. */
	__asm volatile("msr mair_el1, %0\n\tmsr tcr_el1, %1\n\tmsr ttbr0_el1, %2\n\tdsb sy\n\ttlbi vmalle1\n\tdsb sy\n\tisb"
		       :
		       : "r"(0x00ffUL), "r"(25UL | 1UL << 8 | 1UL << 10 | 3UL << 12 | 1UL << 23 | 2UL << 32), "r"(gigabytes)
		       : "memory");
	__asm volatile("mrs x0, sctlr_el1\n\torr x0, x0, %0\n\tmsr sctlr_el1, x0\n\tisb" : : "r"(0x1005UL) : "x0", "memory");
}

/* ---- Console and clock ------------------------------------------------------------------------------------------- */

/* Text that does not fit is left out. */
static void print_into_mailbox(const char *text)
{
	uint32_t at = mailbox->printed;

	while (*text != 0 && at < sizeof(mailbox->text))
		mailbox->text[at++] = *text++;
	__asm volatile("dmb ish" ::: "memory"); /* Linux reads the text after its length */
	mailbox->printed = at;
}

void tlg_print(const char *text)
{
	if (mailbox != NULL) {
		print_into_mailbox(text);
		return;
	}
	while (*text != 0)
		REGISTER(UART) = (uint8_t)*text++;
}

uint64_t tlg_ticks(void)
{
	uint64_t value;

	__asm volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(value) : : "memory");
	return value;
}

uint64_t tlg_ticks_per_second(void)
{
	uint64_t value;

	__asm("mrs %0, cntfrq_el0" : "=r"(value));
	return value;
}

/* ---- Interrupts -------------------------------------------------------------------------------------------------- */

static void start_controller(void)
{
	if (tlg_gic_version == 2) {
		REGISTER(GIC_DISTRIBUTOR) = 1;
		REGISTER(GIC_CPU + 0x4) = 0xff;
		REGISTER(GIC_CPU) = 1;
		return;
	}
	REGISTER(GIC_REDISTRIBUTOR + 0x14) &= ~2U; /* awake */
	while ((REGISTER(GIC_REDISTRIBUTOR + 0x14) & 4) != 0)
		;
	/* Interrupts belong to processors by their address, and all are of group 1. */
	REGISTER(GIC_DISTRIBUTOR) = 0x10;
	REGISTER(GIC_DISTRIBUTOR) = 0x12;
	REGISTER(GIC_REDISTRIBUTOR + 0x10080) = 0xffffffff;
	WRITE_SYSTEM_REGISTER(ICC_SRE, 1);
	WRITE_SYSTEM_REGISTER(ICC_PMR, 0xff);
	WRITE_SYSTEM_REGISTER(ICC_CTLR, 0);
	WRITE_SYSTEM_REGISTER(ICC_IGRPEN1, 1);
}

static void enable_interrupt(uint32_t number)
{
	uint64_t registers = GIC_DISTRIBUTOR;

	if (tlg_gic_version == 2) {
		REGISTER8(GIC_DISTRIBUTOR + 0x800 + number) = 1; /* to this processor */
	} else if (number < 32) {
		registers = GIC_REDISTRIBUTOR + 0x10000;
	} else {
		*(volatile uint64_t *)(GIC_DISTRIBUTOR + 0x6000 + 8 * (uint64_t)number) = 0;
		REGISTER(GIC_DISTRIBUTOR + 0x80 + 4 * (number / 32)) |= 1U << (number % 32);
	}
	REGISTER8(registers + 0x400 + number) = 0xa0; /* priority: 20 of 32 */
	REGISTER(registers + 0x100 + 4 * (number / 32)) = 1U << (number % 32);
}

/* The interrupt that is served from now on; 1020 and more: none. */
static uint32_t take_interrupt(void)
{
	uint64_t number;

	if (tlg_gic_version == 2)
		return REGISTER(GIC_CPU + 0xc) & 0x3ff;
	__asm volatile("mrs %0, " ICC_IAR1 "\n\tdsb sy" : "=r"(number) : : "memory");
	return (uint32_t)number & 0xffffff;
}

static void end_interrupt(uint32_t number)
{
	if (tlg_gic_version == 2)
		REGISTER(GIC_CPU + 0x10) = number;
	else
		WRITE_SYSTEM_REGISTER(ICC_EOIR1, number);
}

void tlg_set_timer(uint64_t until_ns)
{
	uint64_t until = tlg_ticks_at(until_ns);

	if (until_ns == 0)
		__asm volatile("msr cntv_ctl_el0, %0\n\tisb" : : "r"(2UL));
	else
		__asm volatile("msr cntv_cval_el0, %0\n\tmsr cntv_ctl_el0, %1\n\tisb" : : "r"(until), "r"(1UL));
}

bool tlg_acknowledge(void)
{
	bool has_rung = false;
	uint32_t number;

	while ((number = take_interrupt()) < 1020) {
		has_rung |= number == TLG_DOORBELL_IRQ;
		end_interrupt(number);
	}
	return has_rung;
}

void tlg_wait(uint64_t until_ns)
{
	tlg_set_timer(until_ns);
	/* Ends by an interrupt that waits, though it is masked. */
	__asm volatile("dsb sy\n\twfi" ::: "memory");
	tlg_set_timer(0);
	(void)tlg_acknowledge();
}

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

static uint64_t find_device(uint32_t identity)
{
	uint64_t slot;

	for (slot = 0; slot < PCI_SLOTS; slot++)
		if (REGISTER(PCI_CONFIGURATION + (slot << 15)) == identity)
			return PCI_CONFIGURATION + (slot << 15);
	return 0;
}

/* Finds QEMU's device, maps its memory, and has it send its doorbell as an interrupt. */
static void *find_window(uint64_t *bytes)
{
	uint64_t device = find_device(PCI_WINDOW);
	volatile uint32_t *message = (volatile uint32_t *)WINDOW_MESSAGES;
	uint32_t capability;

	if (device == 0)
		return NULL;
	/* Bytes of the memory: the bits that stay zero. */
	REGISTER(device + 0x18) = 0xffffffff;
	*bytes = (~(uint64_t)(REGISTER(device + 0x18) & ~0xfU) & 0xffffffff) + 1;
	if (*bytes > WINDOW_MEMORY_MAX)
		return NULL;
	REGISTER(device + 0x10) = WINDOW_REGISTERS;
	REGISTER(device + 0x14) = WINDOW_MESSAGES;
	REGISTER(device + 0x18) = WINDOW_MEMORY;
	REGISTER(device + 0x1c) = 0;
	REGISTER(device + 0x04) |= 6; /* answers to its addresses, and sends messages */
	for (capability = REGISTER8(device + 0x34); capability != 0; capability = REGISTER8(device + capability + 1))
		if (REGISTER8(device + capability) == 0x11)
			break;
	if (capability != 0) {
		message[0] = GIC_MESSAGES;
		message[1] = 0;
		message[2] = TLG_DOORBELL_IRQ;
		message[3] = 0;
		REGISTER(device + capability) |= 0x80000000U;
	}
	return (void *)WINDOW_MEMORY;
}

void *tlg_window(uint64_t *bytes)
{
	void *window = NULL;

	if (machine != NULL) {
		*bytes = machine->window_bytes;
		window = (void *)(uintptr_t)machine->window;
	} else if (mailbox == NULL) {
		window = find_window(bytes);
	}
	if (window == NULL)
		return NULL;
	REGISTER(GIC_DISTRIBUTOR + 0xc00 + 4 * (TLG_DOORBELL_IRQ / 16)) |= 2U << (2 * (TLG_DOORBELL_IRQ % 16)); /* edge */
	enable_interrupt(TLG_DOORBELL_IRQ);
	return window;
}

void tlg_ring(void)
{
	REGISTER(WINDOW_REGISTERS + 12) = 0; /* peer 0, vector 0 */
}

/* ---- Orders ------------------------------------------------------------------------------------------------------ */

bool tlg_next_order(void)
{
	static uint32_t count;

	if (mailbox == NULL)
		return count++ == 0;
	__asm volatile("dmb ish" ::: "memory"); /* the order is done after its text was written */
	mailbox->done = count;
	mailbox->state = MAILBOX_RUNS;
	/* No interrupt tells of an order: those are Linux's to send. */
	while (mailbox->orders == count)
		tlg_wait(tlg_now_ns() + ORDER_LOOK_NS);
	count++;
	mailbox->printed = 0;
	return true;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

static void __attribute__((noreturn)) firmware(uint64_t function)
{
	register uint64_t x0 __asm("x0") = function;

	__asm volatile("hvc #0" : "+r"(x0) : : "x1", "x2", "x3", "memory");
	for (;;)
		__asm volatile("wfi");
}

/* Beside Linux the processor alone goes off. */
static void __attribute__((noreturn)) leave_linux(uint32_t state)
{
	__asm volatile("dmb ish" ::: "memory"); /* after the text */
	mailbox->state = state;
	firmware(CPU_OFF);
}

void tlg_off(void)
{
	if (mailbox != NULL)
		leave_linux(MAILBOX_OFF);
	firmware(SYSTEM_OFF);
}

void tlg_reset(void)
{
	if (mailbox != NULL)
		leave_linux(MAILBOX_OFF); /* nobody would start it again */
	firmware(SYSTEM_RESET);
}

void tlg_fail(const char *why)
{
	uint64_t device;

	tlg_print_failure(why);
	if (mailbox != NULL)
		leave_linux(MAILBOX_FAILED);
	if (machine != NULL)
		REGISTER(PANIC_REGISTER) = 1;
	device = find_device(PCI_PANIC);
	if (device != 0) {
		REGISTER(device + 0x10) = PANIC_REGISTER;
		REGISTER(device + 0x04) |= 2;
		REGISTER8(PANIC_REGISTER) = 1;
		for (;;)
			__asm volatile("wfi");
	}
	tlg_off();
}

/* Takes the word of our own monitor, or of Linux beside, about this place. QEMU has none, and gives 0. */
static void read_description(void *description)
{
	const volatile uint32_t *words = description;

	if (words == NULL)
		return;
	if (words[0] == MAILBOX_MAGIC && words[1] == MAILBOX_VERSION) {
		mailbox = description;
	} else if (words[0] == MACHINE_MAGIC && words[1] == MACHINE_VERSION) {
		machine = description;
		tlg_gic_version = (uint32_t)machine->gic_version;
	}
}

void tlg_start(void *description)
{
	map_memory();
	read_description(description);
	start_controller();
	enable_interrupt(TLG_TIMER_IRQ);
	guest_main();
	tlg_off();
}
