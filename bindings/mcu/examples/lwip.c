/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Two nodes beside lwIP, on one network interface: one speaks the Ethernet form, whose frames are taken before lwIP
 * sees them, one the UDP form through lwIP's own UDP. Port 4095 of each answers every message, as `taut echo` does.
 *
 * Firmware has the interface of its board; this program has lwIP's interface for Linux, a tap device, so it runs here:
 *
 *   PRECONFIGURED_TAPIF=board0 lwip 10.77.9.2
 */
#include "tautline_wire.h"

#include <lwip/netif.h>
#include <lwip/tcpip.h>
#include <lwip/udp.h>
#include <netif/tapif.h>

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define ECHO_PORT 4095
#define MESSAGE_BYTES_MAX TLM_WHOLE_BYTES_MAX_ETHERNET

TLM_QUEUING_MEMORY(ethernet_memory, 8, MESSAGE_BYTES_MAX, 4);
TLM_QUEUING_MEMORY(udp_memory, 8, MESSAGE_BYTES_MAX, 4);

static struct tlm_node ethernet, udp;
static struct tlm_port ethernet_echo, udp_echo;
static uint8_t sent[TLM_FRAME_BYTES_MAX], received[TLM_FRAME_BYTES_MAX];
static struct netif interface;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static struct pbuf *copied(pbuf_layer layer, const uint8_t *bytes, size_t count)
{
	struct pbuf *buffer = pbuf_alloc(layer, (u16_t)count, PBUF_RAM);

	if (buffer != NULL)
		pbuf_take(buffer, bytes, (u16_t)count);
	return buffer;
}

static bool send_frame(struct tlm_node *node, const struct tlm_port *from, const struct tlm_address *to,
		       const uint8_t *bytes, size_t count)
{
	struct pbuf *frame = copied(PBUF_RAW, bytes, count);
	err_t result;

	(void)node;
	(void)from;
	(void)to;
	if (frame == NULL)
		return false;
	result = interface.linkoutput(&interface, frame);
	pbuf_free(frame);
	return result == ERR_OK;
}

static bool send_datagram(struct tlm_node *node, const struct tlm_port *from, const struct tlm_address *to,
			  const uint8_t *bytes, size_t count)
{
	struct pbuf *datagram = copied(PBUF_TRANSPORT, bytes, count);
	ip_addr_t address;
	err_t result;

	(void)node;
	if (datagram == NULL)
		return false;
	ip_addr_set_ip4_u32_val(address, lwip_htonl(to->ip));
	result = udp_sendto((struct udp_pcb *)from->context, datagram, &address, (u16_t)(TLM_UDP_PORT_BASE + to->port));
	pbuf_free(datagram);
	return result == ERR_OK;
}

static void answer(struct tlm_port *echo)
{
	struct tlm_message message;

	while (tlm_receive(echo, &message))
		tlm_send(echo, &message.from, message.priority, message.payload, message.bytes);
}

/* In place of tcpip_input, by the thread of the driver. lwIP's lock is the one that both nodes are used under. */
static err_t take_frame(struct pbuf *frame, struct netif *from)
{
	enum tlm_verdict verdict = TLM_NOT_OURS;

	LOCK_TCPIP_CORE();
	if (frame->tot_len <= sizeof(received)) {
		pbuf_copy_partial(frame, received, frame->tot_len, 0);
		verdict = tlm_input(&ethernet, received, frame->tot_len, now_ns());
		answer(&ethernet_echo);
	}
	UNLOCK_TCPIP_CORE();
	if (verdict == TLM_NOT_OURS)
		return tcpip_input(frame, from);
	pbuf_free(frame);
	return ERR_OK;
}

/* Called by lwIP, which holds its lock then. */
static void take_datagram(void *context, struct udp_pcb *socket, struct pbuf *datagram, const ip_addr_t *from,
			  u16_t from_port)
{
	(void)context;
	(void)from_port;
	if (datagram->tot_len <= sizeof(received)) {
		pbuf_copy_partial(datagram, received, datagram->tot_len, 0);
		tlm_input_datagram(&udp, received, datagram->tot_len, socket->local_port,
				   lwip_ntohl(ip_addr_get_ip4_u32(from)), now_ns());
		answer(&udp_echo);
	}
	pbuf_free(datagram);
}

static bool open_nodes(void)
{
	struct udp_pcb *socket = udp_new();

	TLM_COPY(ethernet.mac, interface.hwaddr, TLM_MAC_BYTES);
	ethernet.frame = udp.frame = sent;
	ethernet.frame_bytes = udp.frame_bytes = sizeof(sent);
	ethernet.send = send_frame;
	udp.send = send_datagram;
	udp.sockets = true;
	if (socket == NULL || udp_bind(socket, IP_ANY_TYPE, TLM_UDP_PORT_BASE + ECHO_PORT) != ERR_OK ||
	    !tlm_open_queuing(&ethernet_echo, &ethernet, ECHO_PORT, &ethernet_memory) ||
	    !tlm_open_queuing(&udp_echo, &udp, ECHO_PORT, &udp_memory))
		return false;
	udp_echo.context = socket;
	udp_recv(socket, take_datagram, NULL);
	return true;
}

int main(int count, char **arguments)
{
	ip4_addr_t address, mask, gateway;
	bool is_open;

	if (count != 2 || !ip4addr_aton(arguments[1], &address)) {
		fprintf(stderr, "usage: PRECONFIGURED_TAPIF=DEVICE lwip ADDRESS\n");
		return 2;
	}
	IP4_ADDR(&mask, 255, 255, 255, 0);
	ip4_addr_set_zero(&gateway);
	tcpip_init(NULL, NULL);
	LOCK_TCPIP_CORE();
	is_open = netif_add(&interface, &address, &mask, &gateway, NULL, tapif_init, take_frame) != NULL && open_nodes();
	netif_set_up(&interface);
	netif_set_link_up(&interface);
	UNLOCK_TCPIP_CORE();
	if (!is_open) {
		fprintf(stderr, "lwip: cannot open the interface or its UDP port 25664\n");
		return 1;
	}
	fprintf(stderr, "lwip: port 4095 of %02x:%02x:%02x:%02x:%02x:%02x and of %s is open\n", interface.hwaddr[0],
		interface.hwaddr[1], interface.hwaddr[2], interface.hwaddr[3], interface.hwaddr[4], interface.hwaddr[5],
		arguments[1]);
	for (;;)
		pause();
}
