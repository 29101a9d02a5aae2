/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Sends each line of its input to a port on a bus.
 *
 *   cc -std=c99 -Ibindings/c bindings/c/examples/vbus/vbus_send.c bindings/c/examples/vbus/vbus_linux.c -o vbus_send
 *   date | ./vbus_send /run/tautline/vbus/cell motor 7 7
 */
#define _GNU_SOURCE
#include "vbus_linux.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int main(int count, char **arguments)
{
	struct tlh_connection connection;
	struct timespec now;
	char line[4096];
	uint32_t sequence = 0;
	uint32_t priority;
	uint16_t port;

	if (count != 5) {
		fprintf(stderr, "usage: vbus_send BUS NODE PORT PRIORITY\n");
		return 2;
	}
	port = (uint16_t)strtoul(arguments[3], NULL, 10);
	priority = (uint32_t)strtoul(arguments[4], NULL, 10);
	if (tlh_connect(&connection, arguments[1], arguments[2], port, "c-example", 1) != 0)
		return 1;
	while (fgets(line, sizeof(line), stdin) != NULL) {
		uint32_t length = (uint32_t)strcspn(line, "\n");

		clock_gettime(CLOCK_MONOTONIC, &now);
		if (!tlb_try_send(&connection.producer, priority, line, length, sequence++,
				  (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec))
			fprintf(stderr, "vbus_send: no room, or too long: %s", line);
		tlh_kick(&connection, tlb_wanted(&connection.producer));
	}
	tlh_close(&connection);
	return 0;
}
