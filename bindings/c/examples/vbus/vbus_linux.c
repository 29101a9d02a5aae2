/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include "vbus_linux.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* F_SEAL_FUTURE_WRITE is younger than some C libraries. */
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define DESCRIPTORS_MAX 2
#define ANSWER_SECONDS_MAX 2

static int failed(const char *what)
{
	fprintf(stderr, "vbus: %s: %s\n", what, strerror(errno));
	return -1;
}

static int refused(const char *what)
{
	fprintf(stderr, "vbus: %s\n", what);
	return -1;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

/* Descriptors ride on a message in this. */
union ancillary {
	struct cmsghdr header;
	char space[CMSG_SPACE(sizeof(int) * DESCRIPTORS_MAX)];
};

static int send_message(int socket, const struct tlh_message *message, int descriptor)
{
	struct iovec bytes = {(void *)(uintptr_t)message, sizeof(*message)};
	union ancillary ancillary;
	struct msghdr header;

	memset(&header, 0, sizeof(header));
	memset(&ancillary, 0, sizeof(ancillary));
	header.msg_iov = &bytes;
	header.msg_iovlen = 1;
	if (descriptor >= 0) {
		ancillary.header.cmsg_level = SOL_SOCKET;
		ancillary.header.cmsg_type = SCM_RIGHTS;
		ancillary.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&ancillary.header), &descriptor, sizeof(int));
		header.msg_control = &ancillary;
		header.msg_controllen = CMSG_SPACE(sizeof(int));
	}
	return sendmsg(socket, &header, MSG_NOSIGNAL) == (ssize_t)sizeof(*message) ? 0 : failed("cannot send");
}

/* Receives one message and up to two descriptors; returns their number, or -1. */
static int receive_message(int socket, struct tlh_message *message, int descriptors[DESCRIPTORS_MAX])
{
	struct iovec bytes = {message, sizeof(*message)};
	union ancillary ancillary;
	struct msghdr header;
	struct cmsghdr *rights;
	int count = 0;

	memset(&header, 0, sizeof(header));
	header.msg_iov = &bytes;
	header.msg_iovlen = 1;
	header.msg_control = &ancillary;
	header.msg_controllen = sizeof(ancillary);
	if (recvmsg(socket, &header, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*message))
		return failed("no answer");
	for (rights = CMSG_FIRSTHDR(&header); rights != NULL; rights = CMSG_NXTHDR(&header, rights))
		if (rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
			count = (int)((rights->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(descriptors, CMSG_DATA(rights), sizeof(int) * (size_t)count);
		}
	if (message->magic != TLH_MAGIC || message->version != TLH_VERSION) {
		while (count > 0)
			close(descriptors[--count]);
		return refused("an answer of another version");
	}
	return count;
}

static struct tlh_message greeting(enum tlh_step step, const char *node, uint16_t port, uint16_t peer_port)
{
	struct tlh_message message;

	memset(&message, 0, sizeof(message));
	message.magic = TLH_MAGIC;
	message.version = TLH_VERSION;
	message.step = (uint16_t)step;
	message.port = port;
	message.peer_port = peer_port;
	message.process = (uint32_t)getpid();
	memcpy(message.node, node, strlen(node));
	return message;
}

/* The owner of a node's name on a bus: the user who owns the directory of that name, which others must not be able to
 * write. 0, or -1. */
static int owner_of(const char *bus, const char *node, uid_t *owner)
{
	char path[108];
	struct stat found;
	int length = snprintf(path, sizeof(path), "%s/%s", bus, node);

	if (length < 0 || (size_t)length >= sizeof(path) || lstat(path, &found) != 0)
		return -1;
	if (!S_ISDIR(found.st_mode) || (found.st_mode & (S_IWGRP | S_IWOTH)) != 0)
		return -1;
	*owner = found.st_uid;
	return 0;
}

/* Removes a socket that a dead process left under this name. Nothing else that has the name is ours. */
static void remove_socket(const char *path)
{
	struct stat found;

	if (lstat(path, &found) == 0 && S_ISSOCK(found.st_mode))
		unlink(path);
}

/* Whether a directory carries the mark of a bus: in another one nothing may be made. */
static int is_bus(const char *bus)
{
	char path[108];
	struct stat found;
	int length = snprintf(path, sizeof(path), "%s/.tautline-bus", bus);

	return length > 0 && (size_t)length < sizeof(path) && lstat(path, &found) == 0 && S_ISREG(found.st_mode);
}

/* Takes the name of a node on the bus, which the port checks: its directory, and in it a socket that shows that this
 * process is there. Without the socket, a process that leaves the bus would remove the directory. */
static int claim_name(struct tlh_connection *connection, const char *bus, const char *node)
{
	struct sockaddr_un address;
	char directory[108];
	uid_t owner;
	int attempt;
	int length = snprintf(directory, sizeof(directory), "%s/%s", bus, node);

	memset(&address, 0, sizeof(address));
	address.sun_family = AF_UNIX;
	if (length < 0 || (size_t)length >= sizeof(directory))
		return refused("the path of the bus is too long");
	if (!is_bus(bus))
		return refused("there is no bus: the directory has no mark");
	length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/.%ld.%d", directory, (long)getpid(),
			  connection->socket);
	if (length < 0 || (size_t)length >= sizeof(address.sun_path))
		return refused("the path of the bus is too long");
	connection->presence = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connection->presence < 0)
		return failed("cannot make a socket");
	/* A process that leaves the bus may remove the directory before the socket is in it. */
	for (attempt = 0; attempt < 8; attempt++) {
		if (mkdir(directory, 0755) != 0 && errno != EEXIST)
			return failed(directory);
		if (owner_of(bus, node, &owner) != 0)
			continue;
		if (owner != geteuid())
			return refused("the node's name on the bus belongs to another user");
		remove_socket(address.sun_path);
		if (bind(connection->presence, (const struct sockaddr *)&address, sizeof(address)) == 0) {
			strcpy(connection->presence_path, address.sun_path);
			return listen(connection->presence, 1) == 0 ? 0 : failed("cannot listen");
		}
	}
	return failed(address.sun_path);
}

static void give_name_up(struct tlh_connection *connection)
{
	char *slash = strrchr(connection->presence_path, '/');

	if (slash != NULL) {
		unlink(connection->presence_path);
		*slash = '\0';
		/* Refused while other processes use the name. */
		rmdir(connection->presence_path);
	}
	if (connection->presence >= 0)
		close(connection->presence);
}

static int dial(const char *bus, const char *peer_node, uint16_t peer_port)
{
	struct timeval limit = {ANSWER_SECONDS_MAX, 0};
	struct ucred listener;
	socklen_t listener_bytes = sizeof(listener);
	struct sockaddr_un address;
	uid_t owner;
	int socket_fd;
	int length;

	memset(&address, 0, sizeof(address));
	address.sun_family = AF_UNIX;
	length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s/%u", bus, peer_node, (unsigned)peer_port);
	if (length < 0 || (size_t)length >= sizeof(address.sun_path))
		return refused("the path of the port's socket is too long");
	socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (socket_fd < 0)
		return failed("cannot make a socket");
	if (setsockopt(socket_fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0 ||
	    connect(socket_fd, (const struct sockaddr *)&address, sizeof(address)) != 0) {
		failed(address.sun_path);
		close(socket_fd);
		return -1;
	}
	/* The listener, as the kernel has it, must be the owner of the name. */
	if (owner_of(bus, peer_node, &owner) != 0 ||
	    getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &listener, &listener_bytes) != 0 || listener.uid != owner) {
		refused("the port is not held by the user to whom the node's name belongs");
		close(socket_fd);
		return -1;
	}
	return socket_fd;
}

/* Maps the consumer's memory, which must be sealed, or its owner could take it away while it is read. */
static int map_peer(struct tlh_connection *connection, int memory, struct tlb_shape *shape)
{
	int seals = fcntl(memory, F_GET_SEALS);
	off_t bytes = lseek(memory, 0, SEEK_END);

	if (seals < 0 || (seals & SEALS) != SEALS || bytes != (off_t)tlb_consumer_bytes())
		return refused("the port's memory is not sealed, or of another size");
	connection->peer_bytes = (size_t)bytes;
	connection->peer = mmap(NULL, connection->peer_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, memory, 0);
	if (connection->peer == MAP_FAILED) {
		connection->peer = NULL;
		return failed("cannot map the port's memory");
	}
	if (tlb_check(connection->peer, (uint64_t)bytes, TLB_ROLE_CONSUMER, shape) != TLB_OK)
		return refused("the port's memory makes no sense");
	return 0;
}

/* Makes and seals a memory for messages of this shape; returns its descriptor, or -1. */
static int make_own(struct tlh_connection *connection, struct tlb_shape shape)
{
	int memory = memfd_create("taut-vbus", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (memory < 0)
		return failed("cannot make a memory");
	connection->own_bytes = (size_t)tlb_producer_bytes(shape);
	if (ftruncate(memory, (off_t)connection->own_bytes) == 0) {
		connection->own = mmap(NULL, connection->own_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
				       memory, 0);
		if (connection->own == MAP_FAILED)
			connection->own = NULL;
		else if (fcntl(memory, F_ADD_SEALS, SEALS) == 0)
			return memory;
	}
	failed("cannot make a memory");
	close(memory);
	return -1;
}

/* Answers an offer: maps what it shows, and shows what was made for it. */
static int answer_offer(struct tlh_connection *connection, const struct tlh_message *offer, int memory,
			const struct tlh_message *connect_message, const uint8_t *peer_node)
{
	struct tlh_message here = *connect_message;
	struct tlb_identity identity;
	struct tlb_shape shape;
	int own;
	int result;

	if (map_peer(connection, memory, &shape) != 0)
		return -1;
	if (offer->epoch == 0 || offer->index >= TLB_PRODUCERS_MAX)
		return refused("the offer makes no sense");
	own = make_own(connection, shape);
	if (own < 0)
		return -1;
	identity = tlb_identity_of(shape, TLB_ROLE_PRODUCER);
	identity.port = connect_message->port;
	identity.peer_port = connect_message->peer_port;
	identity.process = connect_message->process;
	identity.made_ns = now_ns();
	memcpy(identity.node, connect_message->node, TLB_NAME_BYTES);
	memcpy(identity.peer_node, peer_node, TLB_NAME_BYTES);
	tlb_producer_open(&connection->producer, connection->own, shape, connection->peer, offer->index);
	tlb_announce(connection->own, &identity, offer->epoch);
	here.step = TLH_HERE;
	here.epoch = offer->epoch;
	here.index = offer->index;
	here.memory_bytes = connection->own_bytes;
	result = send_message(connection->socket, &here, own);
	close(own);
	return result;
}

static int shake_hands(struct tlh_connection *connection, const char *peer_node, uint16_t peer_port, const char *node,
		       uint16_t port)
{
	struct tlh_message connect_message = greeting(TLH_CONNECT, node, port, peer_port);
	struct tlh_message answer;
	uint8_t peer_name[TLB_NAME_BYTES] = {0};
	int descriptors[DESCRIPTORS_MAX] = {-1, -1};
	int count;
	int result;

	memcpy(peer_name, peer_node, strlen(peer_node));
	if (send_message(connection->socket, &connect_message, -1) != 0)
		return -1;
	count = receive_message(connection->socket, &answer, descriptors);
	if (count != 2 || answer.step != TLH_OFFER) {
		while (count > 0)
			close(descriptors[--count]);
		if (count == 0)
			fprintf(stderr, "vbus: refused, reason %" PRIu32 "\n", answer.reason);
		return -1;
	}
	connection->event = descriptors[1];
	result = answer_offer(connection, &answer, descriptors[0], &connect_message, peer_name);
	close(descriptors[0]);
	if (result != 0)
		return -1;
	count = receive_message(connection->socket, &answer, descriptors);
	while (count > 0)
		close(descriptors[--count]);
	return count == 0 && answer.step == TLH_ACCEPTED ? 0 : refused("the port refuses our memory");
}

int tlh_connect(struct tlh_connection *connection, const char *bus, const char *peer_node, uint16_t peer_port,
		const char *node, uint16_t port)
{
	memset(connection, 0, sizeof(*connection));
	connection->event = -1;
	connection->presence = -1;
	if (strlen(node) >= TLB_NAME_BYTES || strlen(peer_node) >= TLB_NAME_BYTES)
		return refused("a node's name has at most 31 bytes");
	connection->socket = dial(bus, peer_node, peer_port);
	if (connection->socket < 0)
		return -1;
	if (claim_name(connection, bus, node) == 0 &&
	    shake_hands(connection, peer_node, peer_port, node, port) == 0)
		return 0;
	tlh_close(connection);
	return -1;
}

/* Waits if the consumer has filled the event and lets writes wait. */
static void signal_event(struct tlh_connection *connection)
{
	uint64_t one = 1;

	/* A counter that is full is readable. */
	if (write(connection->event, &one, sizeof(one)) < 0 && errno != EAGAIN)
		failed("cannot kick");
}

void tlh_kick(struct tlh_connection *connection, enum tlb_kick kick)
{
	if (kick == TLB_KICK_FUTEX)
		syscall(SYS_futex, &connection->producer.head->kick, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	else if (kick == TLB_KICK_DESCRIPTOR)
		signal_event(connection);
}

void tlh_close(struct tlh_connection *connection)
{
	if (connection->socket >= 0)
		close(connection->socket);
	if (connection->event >= 0)
		close(connection->event);
	if (connection->own != NULL)
		munmap(connection->own, connection->own_bytes);
	if (connection->peer != NULL)
		munmap(connection->peer, connection->peer_bytes);
	give_name_up(connection);
	memset(connection, 0, sizeof(*connection));
	connection->presence = -1;
	connection->socket = -1;
	connection->event = -1;
}
