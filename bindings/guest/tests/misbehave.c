/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A guest that does what it is told by a message to port 1, by its first letter, and answers "done" to those orders
 * that leave it alive.
 */
#include "tautline_guest.h"

static uint64_t state = 88172645463325252;

static uint64_t random_word(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Random words over its own region: head, memories, everything; now and then a word of before is put back. */
static void scribble(struct tlw_window *window, uint64_t bytes, uint32_t words)
{
	volatile uint32_t *region = (volatile uint32_t *)window->own;
	uint64_t count = bytes / 4;

	while (words-- > 0) {
		uint64_t place = random_word() % count;

		/* Often the places that mean something: heads, and first slots. */
		if (random_word() % 2)
			place %= 1024 * 8;
		region[place] = (uint32_t)random_word() >> random_word() % 32;
	}
}

#ifdef __x86_64__
static void no_handlers(void)
{
	static const uint8_t empty[10];

	__asm volatile("lidt %0" : : "m"(empty));
}
#endif

/* Lines to port 12, which Linux writes to a file: names of other files, and characters that move a cursor. */
static void log_lines(const struct tlw_window *window)
{
	static const char line[] = "../../etc/passwd\033[2J\0\n\r/dev/sda\007";
	const struct tlw_address nobody = { 0, 0, 0 };
	static struct tlw_port port;
	static bool is_open;
	uint32_t sent = 0;

	if (!is_open && !tlw_port_open(&port, window, 12))
		tlg_fail("no window with port 12");
	is_open = true;
	while (sent < 500)
		sent += tlw_send(&port, nobody, 0, line, sizeof(line) - 1, 0);
	if (tlw_wanted(&port))
		tlg_ring();
}

static void answer(struct tlw_port *port, struct tlw_address to)
{
	tlw_send(port, to, 7, "done", 4, 0);
	if (tlw_wanted(port))
		tlg_ring();
}

void guest_main(void)
{
	struct tlw_window window;
	struct tlw_port port;
	struct tlw_address from;
	struct tlw_address nobody;
	struct tlb_message message;
	uint8_t lie[24];
	uint64_t number = 0;
	uint64_t bytes;
	uint32_t i;

	if (!tlg_join(&window) || !tlw_port_open(&port, &window, 1))
		tlg_fail("no window with port 1");
	bytes = window.own->region_bytes;
	for (;;) {
		tlw_beat(&window);
		if (!tlw_receive(&port, &message, &from))
			continue;
		char order = message.length > 0 ? *(const char *)message.payload : 0;

		if (message.length == sizeof(number))
			TLB_COPY(&number, message.payload, sizeof(number));
		tlw_release(&port, &message);
		switch (order) {
		case 'o': /* switches itself off */
			tlg_off();
		case 'r':
			tlg_reset();
		case 'f': /* faults */
			*(volatile uint32_t *)0xffff000000000000 = 1;
			break;
		case 'h': /* hangs */
			for (;;)
				;
		case 's': /* scribbles for ever, and lives */
			for (;;) {
				scribble(&window, bytes, 1000);
				tlw_beat(&window);
				tlg_ring();
			}
		case 'd': /* doorbells */
			for (i = 0; i < 200000; i++)
				tlg_ring();
			break;
		case 'a': /* addresses of nobody */
			for (i = 0; i < 50; i++) {
				nobody.peer = (uint16_t)random_word();
				nobody.turn = (uint16_t)random_word();
				nobody.port = (uint16_t)random_word();
				tlw_send(&port, nobody, 7, "x", 1, 0);
			}
			break;
		case 'j': /* joins again, as if it had begun anew */
			if (tlw_join(&window, (void *)window.linux_side, 1UL << 28) != TLB_OK)
				tlg_fail("it cannot join again");
			tlw_port_open(&port, &window, 1);
			while (!tlw_is_open(&port))
				;
			break;
		case 'l':
			log_lines(&window);
			break;
		case 'q': /* speaks to a terminal */
			tlw_send(&port, from, 7, "\033[2J\033]0;x\007\233A", 14, 0);
			break;
		case 'T': /* lies when it is asked for the time */
			for (i = 0; i < 24; i++)
				lie[i] = (uint8_t)random_word();
			TLB_COPY(lie, &number, sizeof(number));
			tlw_send(&port, from, 7, lie, sizeof(lie), 0);
			break;
		case 'c': /* a console that nobody reads so fast */
			for (i = 0; i < 3000; i++)
				tlg_print("the guest says this again and again\n");
			break;
		case 'w': /* writes to Linux's half */
			*(volatile uint32_t *)(uintptr_t)window.linux_side = 1;
			break;
		case 'n': /* reads where nothing is */
			*(volatile uint32_t *)0xe0000000;
			break;
#ifdef __aarch64__
		case 'm': /* the same into two registers */
			__asm volatile("ldp x0, x1, [%0]" : : "r"(0xe0000000UL) : "x0", "x1");
			break;
#endif
#ifdef __x86_64__
		case 't': /* faults without a handler */
			no_handlers();
			*(volatile uint32_t *)0xffff000000000000 = 1;
			break;
		case 'p': /* ports where nothing is */
			for (i = 0; i < 0x10000; i++)
				if (i != 0x700 && i != 0x701)
					__asm volatile("inb %w1, %%al\n\toutb %%al, %w1" : : "a"(0), "d"(i));
			break;
#endif
		default:
			break;
		}
		answer(&port, from);
	}
}
