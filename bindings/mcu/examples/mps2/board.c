/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Start code, clock, serial line and Ethernet driver of the MPS2 board, polled. Interrupts stay masked; a pending one
 * only ends the sleep.
 */
#include "board.h"

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))

/* Cortex-M3. */
#define SYSTICK 0xe000e010U
#define NVIC_ENABLE 0xe000e100U
#define NVIC_CLEAR_PENDING 0xe000e280U
#define INTERRUPT_CONTROL 0xe000ed04U
#define SYSTICK_CLEAR_PENDING (1U << 25)
#define TICKS_PER_MS 25000

#define UART 0x40004000U

/* LAN9118: registers, those of its MAC behind an index, and bits. */
#define LAN 0x40200000U
#define LAN_RX_DATA (LAN + 0x00)
#define LAN_TX_DATA (LAN + 0x20)
#define LAN_RX_STATUS (LAN + 0x40)
#define LAN_TX_STATUS (LAN + 0x48)
#define LAN_INTERRUPT_CONFIGURATION (LAN + 0x54)
#define LAN_INTERRUPT_STATUS (LAN + 0x58)
#define LAN_INTERRUPT_ENABLE (LAN + 0x5c)
#define LAN_BYTE_TEST (LAN + 0x64)
#define LAN_FIFO_INTERRUPT (LAN + 0x68)
#define LAN_TX_CONFIGURATION (LAN + 0x70)
#define LAN_RX_FIFO (LAN + 0x7c)
#define LAN_TX_FIFO (LAN + 0x80)
#define LAN_FREE_RUN (LAN + 0x9c) /* counts at 25 MHz */
#define LAN_MAC_COMMAND (LAN + 0xa4)
#define LAN_MAC_DATA (LAN + 0xa8)
#define LAN_IRQ 13
#define MAC_CONTROL 1
#define MAC_ADDRESS_HIGH 2
#define MAC_ADDRESS_LOW 3
#define MAC_BUSY (1U << 31)
#define MAC_RECEIVES_AND_SENDS (1U << 2 | 1U << 3)
#define INTERRUPT_RX_STATUS (1U << 3) /* more frames wait than LAN_FIFO_INTERRUPT says */
#define TX_ON (1U << 1)
#define TX_FIRST_AND_LAST (1U << 13 | 1U << 12)
#define TX_COMMAND_BYTES 8
#define RX_ERROR (1U << 15)
#define CHECK_SEQUENCE_BYTES 4
#define NS_PER_COUNT 40
/* Longest wait for the MAC's registers, in looks. Lower: a slow controller is taken for none. Higher: one that hangs is
 * found later.
 */
#define LOOKS_MAX 100000

int main(void);
void board_start(void);
void board_fault(void);
void *memcpy(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
void __aeabi_memcpy(void *to, const void *from, size_t bytes);
void __aeabi_memcpy4(void *to, const void *from, size_t bytes);
void __aeabi_memcpy8(void *to, const void *from, size_t bytes);
void __aeabi_memclr(void *to, size_t bytes);
void __aeabi_memclr4(void *to, size_t bytes);
void __aeabi_memclr8(void *to, size_t bytes);

extern uint32_t board_data[], board_data_end[], board_data_image[], board_bss[], board_bss_end[], board_stack_end[];

/* The processor reads its stack and its first instruction here. */
__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
	board_stack_end, (void *)board_start, (void *)board_fault, (void *)board_fault, (void *)board_fault,
	(void *)board_fault, (void *)board_fault,
};

/* The compiler makes calls of these. */
void *memcpy(void *to, const void *from, size_t bytes)
{
	uint8_t *out = to;
	const uint8_t *in = from;

	while (bytes-- > 0) {
		*out++ = *in++;
		__asm volatile("" ::: "memory"); /* or the loop becomes a call of itself */
	}
	return to;
}

void *memset(void *to, int value, size_t bytes)
{
	uint8_t *out = to;

	while (bytes-- > 0) {
		*out++ = (uint8_t)value;
		__asm volatile("" ::: "memory");
	}
	return to;
}

void __aeabi_memcpy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

void __aeabi_memcpy4(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

void __aeabi_memcpy8(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

void __aeabi_memclr(void *to, size_t bytes)
{
	memset(to, 0, bytes);
}

void __aeabi_memclr4(void *to, size_t bytes)
{
	memset(to, 0, bytes);
}

void __aeabi_memclr8(void *to, size_t bytes)
{
	memset(to, 0, bytes);
}

void board_print(const char *text)
{
	while (*text != 0) {
		while ((REGISTER(UART + 4) & 1) != 0)
			;
		REGISTER(UART) = (uint8_t)*text++;
	}
}

void board_fault(void)
{
	board_print("board: fault\n");
	for (;;)
		__asm volatile("wfi");
}

void board_start(void)
{
	uint32_t *to, *from = board_data_image;

	for (to = board_data; to < board_data_end; to++)
		*to = *from++;
	for (to = board_bss; to < board_bss_end; to++)
		*to = 0;
	__asm volatile("cpsid i");
	REGISTER(UART + 16) = 16; /* divisor; the simulated line has no speed */
	REGISTER(UART + 8) = 1;
	REGISTER(SYSTICK + 4) = TICKS_PER_MS - 1;
	REGISTER(SYSTICK + 8) = 0;
	REGISTER(SYSTICK) = 7; /* the processor's clock, with an interrupt */
	main();
	board_fault();
}

uint64_t board_now_ns(void)
{
	static uint32_t last;
	static uint64_t counts;
	uint32_t now = REGISTER(LAN_FREE_RUN);

	counts += now - last;
	last = now;
	return counts * NS_PER_COUNT;
}

static bool mac_write(uint32_t index, uint32_t value)
{
	uint32_t looks = 0;

	REGISTER(LAN_MAC_DATA) = value;
	REGISTER(LAN_MAC_COMMAND) = MAC_BUSY | index;
	while ((REGISTER(LAN_MAC_COMMAND) & MAC_BUSY) != 0)
		if (++looks == LOOKS_MAX)
			return false;
	return true;
}

bool board_ethernet_start(const uint8_t mac[6])
{
	uint32_t low = (uint32_t)mac[0] | (uint32_t)mac[1] << 8 | (uint32_t)mac[2] << 16 | (uint32_t)mac[3] << 24;

	if (REGISTER(LAN_BYTE_TEST) != 0x87654321U)
		return false;
	REGISTER(LAN_TX_CONFIGURATION) = TX_ON;
	REGISTER(LAN_FIFO_INTERRUPT) = 0; /* at the first frame */
	REGISTER(LAN_INTERRUPT_ENABLE) = INTERRUPT_RX_STATUS;
	REGISTER(LAN_INTERRUPT_CONFIGURATION) = 1U << 8 | 1U << 4 | 1U; /* enabled, active high, push-pull */
	REGISTER(NVIC_ENABLE) = 1U << LAN_IRQ;
	return mac_write(MAC_ADDRESS_LOW, low) && mac_write(MAC_ADDRESS_HIGH, (uint32_t)mac[4] | (uint32_t)mac[5] << 8) &&
	       mac_write(MAC_CONTROL, MAC_RECEIVES_AND_SENDS);
}

/* Takes the frame at the head of the controller's memory out of it, keeping what has room. */
static void drain(uint8_t *frame, size_t room, size_t bytes)
{
	size_t at;

	for (at = 0; at < bytes; at += 4) {
		uint32_t word = REGISTER(LAN_RX_DATA);
		size_t i;

		for (i = at; i < at + 4 && i < room; i++)
			frame[i] = (uint8_t)(word >> 8 * (i - at));
	}
}

size_t board_ethernet_receive(uint8_t *frame, size_t room)
{
	while ((REGISTER(LAN_RX_FIFO) >> 16 & 0xff) != 0) {
		uint32_t status = REGISTER(LAN_RX_STATUS);
		size_t bytes = status >> 16 & 0x3fff;

		drain(frame, room, bytes);
		if ((status & RX_ERROR) == 0 && bytes > CHECK_SEQUENCE_BYTES && bytes - CHECK_SEQUENCE_BYTES <= room)
			return bytes - CHECK_SEQUENCE_BYTES;
	}
	return 0;
}

bool board_ethernet_send(const uint8_t *frame, size_t bytes)
{
	size_t at;

	/* Words about frames that were sent before. */
	while ((REGISTER(LAN_TX_FIFO) >> 16 & 0xff) != 0)
		(void)REGISTER(LAN_TX_STATUS);
	if ((REGISTER(LAN_TX_FIFO) & 0xffff) < bytes + 3 + TX_COMMAND_BYTES)
		return false;
	REGISTER(LAN_TX_DATA) = TX_FIRST_AND_LAST | (uint32_t)bytes;
	REGISTER(LAN_TX_DATA) = (uint32_t)bytes;
	for (at = 0; at < bytes; at += 4) {
		uint32_t word = 0;
		size_t i;

		for (i = at; i < at + 4 && i < bytes; i++)
			word |= (uint32_t)frame[i] << 8 * (i - at);
		REGISTER(LAN_TX_DATA) = word;
	}
	return true;
}

void board_wait(void)
{
	__asm volatile("dsb\n\twfi" ::: "memory");
	REGISTER(LAN_INTERRUPT_STATUS) = INTERRUPT_RX_STATUS;
	REGISTER(NVIC_CLEAR_PENDING) = 1U << LAN_IRQ;
	REGISTER(INTERRUPT_CONTROL) = SYSTICK_CLEAR_PENDING;
}
