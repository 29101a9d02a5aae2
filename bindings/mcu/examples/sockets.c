/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A node over ordinary UDP sockets, with the calls that lwIP (lwip_...) and Zephyr (zsock_...) offer under the same
 * names: port 4095 answers every message, as `taut echo` does. It runs on any POSIX system:
 *
 *   sockets 127.0.0.3 &
 *   taut ping 127.0.0.3 --address 127.0.0.2
 */
#include "tautline_wire.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ECHO_PORT 4095
#define MESSAGE_BYTES_MAX 1456

TLM_QUEUING_MEMORY(echo_memory, 8, MESSAGE_BYTES_MAX, 4);

static uint8_t sent[TLM_HEADER_BYTES + MESSAGE_BYTES_MAX];

static struct sockaddr_in address_of(uint32_t ip, uint32_t port)
{
	struct sockaddr_in address;

	memset(&address, 0, sizeof(address));
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(ip);
	address.sin_port = htons((uint16_t)(TLM_UDP_PORT_BASE + port));
	return address;
}

/* Sends from the socket of the port: its UDP port is where answers go. */
static bool send_datagram(struct tlm_node *node, const struct tlm_port *from, const struct tlm_address *to,
			  const uint8_t *bytes, size_t count)
{
	struct sockaddr_in address = address_of(to->ip, to->port);
	const int *socket_of_port = (const int *)from->context;

	(void)node;
	return sendto(*socket_of_port, bytes, count, 0, (struct sockaddr *)&address, sizeof(address)) == (ssize_t)count;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void serve(struct tlm_node *node, struct tlm_port *echo, int udp)
{
	uint8_t datagram[sizeof(sent)];
	struct tlm_message message;
	struct sockaddr_in from;

	for (;;) {
		socklen_t from_bytes = sizeof(from);
		ssize_t bytes = recvfrom(udp, datagram, sizeof(datagram), 0, (struct sockaddr *)&from, &from_bytes);

		if (bytes < 0)
			continue;
		tlm_input_datagram(node, datagram, (size_t)bytes, TLM_UDP_PORT_BASE + ECHO_PORT, ntohl(from.sin_addr.s_addr),
				   now_ns());
		while (tlm_receive(echo, &message))
			tlm_send(echo, &message.from, message.priority, message.payload, message.bytes);
	}
}

int main(int count, char **arguments)
{
	static struct tlm_node node;
	static struct tlm_port echo;
	struct in_addr own;
	struct sockaddr_in address;
	int udp = socket(AF_INET, SOCK_DGRAM, 0);

	if (count != 2 || inet_pton(AF_INET, arguments[1], &own) != 1) {
		fprintf(stderr, "usage: sockets ADDRESS\n");
		return 2;
	}
	address = address_of(ntohl(own.s_addr), ECHO_PORT);
	if (udp < 0 || bind(udp, (struct sockaddr *)&address, sizeof(address)) < 0) {
		perror("sockets: cannot open UDP port 25664");
		return 1;
	}
	node.sockets = true;
	node.frame = sent;
	node.frame_bytes = sizeof(sent);
	node.send = send_datagram;
	if (!tlm_open_queuing(&echo, &node, ECHO_PORT, &echo_memory))
		return 1;
	echo.context = &udp;
	puts("sockets: port 4095 is open");
	fflush(stdout);
	serve(&node, &echo, udp);
	return 0;
}
