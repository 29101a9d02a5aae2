/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * How a C program on Linux comes to a port on a bus (docs/reference/vbus.md, "Handshake"): it connects to the port's
 * socket, exchanges memories, and is a producer of that port until it hangs up. tautline_vbus.h does everything that
 * follows. An example to start from rather than a library: it connects once, and says on standard error what went
 * wrong.
 */
#ifndef TAUTLINE_VBUS_LINUX_H
#define TAUTLINE_VBUS_LINUX_H

#include "tautline_vbus.h"

#define TLH_MAGIC UINT32_C(0x544c4831) /* "TLH1" */
#define TLH_VERSION 1

enum tlh_step {
	TLH_CONNECT = 1,  /* a producer wants to send to the port */
	TLH_OFFER = 2,    /* the consumer's memory and its event descriptor */
	TLH_HERE = 3,     /* the producer's memory, made for that epoch */
	TLH_ACCEPTED = 4, /* the consumer has mapped it */
	TLH_REFUSED = 5
};

/* A message of the handshake. */
struct tlh_message {
	uint32_t magic;
	uint16_t version;
	uint16_t step;
	uint64_t epoch;
	uint32_t index;
	uint32_t reason;
	uint16_t port;
	uint16_t peer_port;
	uint32_t process;
	uint64_t memory_bytes;
	uint8_t node[TLB_NAME_BYTES];
};
TLB_ASSERT(handshake, sizeof(struct tlh_message) == 72);

/* A connection to a port: the producer's side. */
struct tlh_connection {
	struct tlb_producer producer;
	int socket; /* readable when the port is gone */
	int presence; /* keeps the node's name on the bus ours */
	char presence_path[108];
	int event;
	void *own;
	void *peer;
	size_t own_bytes;
	size_t peer_bytes;
};

/* Connects to port `peer_port` of node `peer_node` on the bus in this directory, as port `port` of node `node`.
 * 0, or -1 with the reason on standard error.
 */
int tlh_connect(struct tlh_connection *connection, const char *bus, const char *peer_node, uint16_t peer_port,
		const char *node, uint16_t port);

/* Wakes the consumer as tlb_wanted said. */
void tlh_kick(struct tlh_connection *connection, enum tlb_kick kick);

/* Hangs up. Messages that were published stay until the port has taken them. */
void tlh_close(struct tlh_connection *connection);

#endif
