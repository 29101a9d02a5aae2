/* Binding, connecting, sending in every way, errors. */
#include "cases.h"

static long sized(int fd, int way, long size)
{
	struct sockaddr_in to = peer(ASKED);
	struct iovec parts[3] = { { large, size / 3 }, { large + size / 3, size / 3 }, { large + size / 3 * 2, size - size / 3 * 2 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 3 };
	struct iovec whole = { large, size };
	struct mmsghdr messages[1] = { { .msg_hdr = { .msg_iov = &whole, .msg_iovlen = 1 } } };

	switch (way) {
	case 0:
		return R(send(fd, large, size, 0));
	case 1:
		return R(sendto(fd, large, size, 0, (void *)&to, sizeof(to)));
	case 2:
		return R(sendmsg(fd, &message, 0));
	case 3:
		return R(write(fd, large, size));
	case 4:
		return R(writev(fd, parts, 3));
	default:
		R(sendmmsg(fd, messages, 1, 0));
		value("length", messages[0].msg_len);
		return messages[0].msg_len;
	}
}

/* The peer sends back what does not begin with a question mark. */
static void send_in_a_way(long argument)
{
	int fd = connected(), way = argument / 100000;
	long size = argument % 100000;

	/* The first datagram may have to find the peer's address. */
	ask(fd, 1, 1);
	recv(fd, buffer, ROOM, 0);
	/* writev(2) of no bytes sends nothing. */
	if (sized(fd, way, size) >= 0 && size <= 65507 && !(way == 4 && size == 0)) {
		long got = R(recv(fd, buffer, ROOM, 0));

		bytes("echo", buffer, got);
	}
	close(fd);
}

static void bind_twice(long unused)
{
	struct sockaddr_in local = own(OWN);
	int first = bound(), second = socket(AF_INET, SOCK_DGRAM, 0);

	(void)unused;
	R(bind(second, (void *)&local, sizeof(local)));
	R(bind(first, (void *)&local, sizeof(local)));
	local = at("0.0.0.0", OWN);
	R(bind(second, (void *)&local, sizeof(local)));
	close(first);
	R(bind(second, (void *)&local, sizeof(local)));
	close(second);
}

static void bind_wrongly(long unused)
{
	struct sockaddr_in local = at("192.0.2.1", OWN);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	(void)unused;
	R(bind(fd, (void *)&local, sizeof(local)));
	R(bind(fd, (void *)&local, 3));
	R(bind(fd, NULL, sizeof(local)));
	local = own(OWN);
	local.sin_family = AF_INET6;
	R(bind(fd, (void *)&local, sizeof(local)));
	close(fd);
	R(bind(fd, (void *)&local, sizeof(local)));
}

static void names(long unused)
{
	struct sockaddr_in name = { 0 };
	socklen_t length = sizeof(name);
	int fd = bound();
	struct sockaddr_in to = peer(ASKED);

	(void)unused;
	R(getsockname(fd, (void *)&name, &length));
	value("port", ntohs(name.sin_port) == OWN);
	value("own", name.sin_addr.s_addr == own(0).sin_addr.s_addr);
	R(getpeername(fd, (void *)&name, &length));
	R(connect(fd, (void *)&to, sizeof(to)));
	R(getpeername(fd, (void *)&name, &length));
	value("port", ntohs(name.sin_port));
	to.sin_family = AF_UNSPEC;
	R(connect(fd, (void *)&to, sizeof(to)));
	R(getpeername(fd, (void *)&name, &length));
	R(getsockname(fd, (void *)&name, &length));
	value("port", ntohs(name.sin_port) == OWN);
	close(fd);
}

static void send_without_destination(long unused)
{
	int fd = bound();
	struct iovec part = { "x", 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	(void)unused;
	R(send(fd, "x", 1, 0));
	R(write(fd, "x", 1));
	R(sendmsg(fd, &message, 0));
	R(sendto(fd, "x", 1, 0, NULL, 0));
	close(fd);
}

static void send_wrongly(long unused)
{
	struct sockaddr_in to = peer(ASKED);
	int fd = bound();

	(void)unused;
	R(sendto(fd, "x", 1, 0, (void *)&to, 3));
	to.sin_port = 0;
	R(sendto(fd, "x", 1, 0, (void *)&to, sizeof(to)));
	to = peer(ASKED);
	to.sin_family = AF_INET6;
	R(sendto(fd, "x", 1, 0, (void *)&to, sizeof(to)));
	to = at("255.255.255.255", ASKED);
	R(sendto(fd, "x", 1, 0, (void *)&to, sizeof(to)));
	to = peer(ASKED);
	R(sendto(fd, "x", 1, MSG_OOB, (void *)&to, sizeof(to)));
	close(fd);
}

static void bad_pointers(long unused)
{
	struct sockaddr_in to = peer(ASKED);
	char *nowhere = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct iovec parts[2] = { { large, 10 }, { nowhere, 10 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	int fd = connected();

	(void)unused;
	ask(fd, 6, 100);
	arrived(fd);
	R(send(fd, nowhere, 10, 0));
	R(send(fd, (void *)-4096L, 10, 0));
	R(send(fd, NULL, 10, 0));
	R(sendto(fd, large, 10, 0, (void *)nowhere, sizeof(to)));
	R(sendmsg(fd, &message, 0));
	R(sendmsg(fd, (void *)nowhere, 0));
	R(recv(fd, nowhere, 10, 0));
	R(recv(fd, NULL, 10, 0));
	R(recvmsg(fd, (void *)nowhere, 0));
	R(recvmsg(fd, &message, 0));
	R(recvfrom(fd, buffer, 10, 0, (void *)&to, (void *)nowhere));
	R(recv(fd, buffer, 10, 0));
	close(fd);
	munmap(nowhere, 8192);
}

static void memory_ends(long unused)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = connected();

	(void)unused;
	munmap(pages + 4096, 4096);
	memset(pages, 'a', 4096);
	ask(fd, 3, 100);
	arrived(fd);
	R(send(fd, pages + 4090, 10, 0));
	R(send(fd, pages + 4090, 6, 0));
	R(recv(fd, pages + 4050, 100, 0));
	R(recv(fd, pages + 3996, 100, 0));
	bytes("got", pages + 3996, 100);
	close(fd);
	munmap(pages, 4096);
}

static void refused(long unused)
{
	struct sockaddr_in to = peer(CLOSED);
	int fd = bound(), error = 0;
	socklen_t length = sizeof(error);

	(void)unused;
	R(connect(fd, (void *)&to, sizeof(to)));
	R(send(fd, "x", 1, 0));
	usleep(20000);
	R(recv(fd, buffer, ROOM, 0));
	R(send(fd, "x", 1, 0));
	usleep(20000);
	R(send(fd, "x", 1, 0));
	R(send(fd, "x", 1, 0));
	usleep(20000);
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	R(poll(&entry, 1, 1000));
	value("revents", entry.revents);
	R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
	value("error", error);
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	close(fd);
}

static void refused_without_connection(long unused)
{
	struct sockaddr_in to = peer(CLOSED);
	int fd = bound();

	(void)unused;
	R(sendto(fd, "x", 1, 0, (void *)&to, sizeof(to)));
	usleep(20000);
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	R(sendto(fd, "x", 1, 0, (void *)&to, sizeof(to)));
	close(fd);
}

static void connection_filters(long unused)
{
	struct sockaddr_in to = peer(ASKED), none = { .sin_family = AF_UNSPEC };
	int fd = connected();

	(void)unused;
	ask_other(fd, 1, 50);
	ask(fd, 1, 60);
	bytes("from the peer", buffer, recv(fd, buffer, ROOM, 0));
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	R(connect(fd, (void *)&none, sizeof(none)));
	ask_other(fd, 1, 70);
	arrived(fd);
	bytes("from the other", buffer, recv(fd, buffer, ROOM, 0));
	/* A datagram that came before connecting is still received. */
	ask_other(fd, 1, 80);
	arrived(fd);
	R(connect(fd, (void *)&to, sizeof(to)));
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	close(fd);
}

static void shut_down(long how)
{
	int fd = connected();

	ask(fd, 1, 40);
	arrived(fd);
	signal(SIGPIPE, SIG_IGN);
	R(shutdown(fd, how));
	R(recv(fd, buffer, ROOM, 0));
	if (how != SHUT_WR) {
		R(recv(fd, buffer, ROOM, 0));
		R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	}
	R(send(fd, "x", 1, MSG_NOSIGNAL));
	struct pollfd entry = { .fd = fd, .events = POLLIN | POLLOUT };
	R(poll(&entry, 1, 0));
	value("readable and writable", entry.revents & (POLLIN | POLLOUT));
	close(fd);
	signal(SIGPIPE, SIG_DFL);
}

static void shut_down_unconnected(long unused)
{
	int fd = bound();

	(void)unused;
	R(shutdown(fd, SHUT_RD));
	R(shutdown(fd, 9));
	ask(fd, 1, 10);
	usleep(10000);
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	close(fd);
}

static void many_at_once(long unused)
{
	int fd = connected();
	struct iovec parts[4] = { { "one", 3 }, { "two", 3 }, { "three", 5 }, { large, 65508 } };
	struct mmsghdr messages[4] = { 0 };

	(void)unused;
	for (int index = 0; index < 4; index++) {
		messages[index].msg_hdr.msg_iov = &parts[index];
		messages[index].msg_hdr.msg_iovlen = 1;
	}
	R(sendmmsg(fd, messages, 4, 0));
	value("lengths", messages[0].msg_len + 10 * messages[1].msg_len + 100 * messages[2].msg_len);
	R(sendmmsg(fd, messages + 3, 1, 0));
	R(sendmmsg(fd, messages, 0, 0));
	for (int index = 0; index < 3; index++) {
		long got = recv(fd, buffer, ROOM, 0);

		bytes("echo", buffer, got);
	}
	close(fd);
}

/* A socket that nobody bound: the kernel gives it a port when it sends. */
static void unbound(long connects)
{
	struct sockaddr_in to = peer(ASKED), name = { 0 };
	socklen_t length = sizeof(name);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (connects) {
		R(connect(fd, (void *)&to, sizeof(to)));
		R(send(fd, "first", 5, 0));
	} else {
		R(sendto(fd, "first", 5, 0, (void *)&to, sizeof(to)));
	}
	bytes("echo", buffer, R(recvfrom(fd, buffer, ROOM, 0, (void *)&name, &length)));
	value("from", ntohs(name.sin_port));
	R(getsockname(fd, (void *)&name, &length));
	value("has a port", name.sin_port != 0);
	value("has an address", name.sin_addr.s_addr != 0);
	R(sendto(fd, "second", 6, 0, (void *)&to, sizeof(to)));
	bytes("echo", buffer, R(recv(fd, buffer, ROOM, 0)));
	if (connects) {
		to.sin_family = AF_UNSPEC;
		R(connect(fd, (void *)&to, sizeof(to)));
		R(getsockname(fd, (void *)&name, &length));
		value("has a port", name.sin_port != 0);
		to = peer(ASKED);
		R(sendto(fd, "third", 5, 0, (void *)&to, sizeof(to)));
		bytes("echo", buffer, R(recv(fd, buffer, ROOM, 0)));
	}
	close(fd);
}

/* On all addresses: from the node's interface and from this host. */
static void on_all_addresses(long unused)
{
	struct sockaddr_in any = at("0.0.0.0", OWN), to = peer(ASKED), name = { 0 };
	struct sockaddr_in here = at("127.0.0.1", OWN);
	socklen_t length = sizeof(name);
	int fd = socket(AF_INET, SOCK_DGRAM, 0), local = socket(AF_INET, SOCK_DGRAM, 0);

	(void)unused;
	R(bind(fd, (void *)&any, sizeof(any)));
	R(sendto(fd, "out", 3, 0, (void *)&to, sizeof(to)));
	bytes("echo", buffer, R(recvfrom(fd, buffer, ROOM, 0, (void *)&name, &length)));
	value("peer", name.sin_addr.s_addr == to.sin_addr.s_addr);
	R(sendto(local, "loop", 4, 0, (void *)&here, sizeof(here)));
	bytes("loop", buffer, R(recvfrom(fd, buffer, ROOM, 0, (void *)&name, &length)));
	value("loopback", ntohl(name.sin_addr.s_addr) == INADDR_LOOPBACK);
	here = own(OWN);
	R(sendto(local, "own", 3, 0, (void *)&here, sizeof(here)));
	bytes("own", buffer, R(recv(fd, buffer, ROOM, 0)));
	R(sendto(fd, "out", 3, 0, (void *)&to, sizeof(to)));
	R(sendto(local, "loop", 4, 0, (void *)&here, sizeof(here)));
	usleep(20000);
	value("both", recv(fd, buffer, ROOM, 0) + recv(fd, buffer, ROOM, 0));
	close(fd);
	close(local);
}

/* Datagrams of this very host are there at once, also right after a look that found nothing. */
static void spinning(long unused)
{
	int fd = bound(), other = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in here = own(OWN);
	struct pollfd entry = { .fd = fd, .events = POLLIN };

	(void)unused;
	for (int turn = 0; turn < 3; turn++) {
		R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
		R(sendto(other, "here", 4, 0, (void *)&here, sizeof(here)));
		R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	}
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	R(sendto(fd, "self", 4, 0, (void *)&here, sizeof(here)));
	R(poll(&entry, 1, 1000));
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	close(other);
	close(fd);
}

#define SIZES(name, way) \
	{ name "_0", send_in_a_way, way * 100000 + 0 }, { name "_1", send_in_a_way, way * 100000 + 1 }, \
	{ name "_1472", send_in_a_way, way * 100000 + 1472 }, { name "_1473", send_in_a_way, way * 100000 + 1473 }, \
	{ name "_65507", send_in_a_way, way * 100000 + 65507 }, { name "_65508", send_in_a_way, way * 100000 + 65508 }

const struct test basic_tests[] = {
	SIZES("send", 0),
	SIZES("sendto", 1),
	SIZES("sendmsg", 2),
	SIZES("write", 3),
	SIZES("writev", 4),
	SIZES("sendmmsg", 5),
	{ "bind_twice", bind_twice, 0 },
	{ "bind_wrongly", bind_wrongly, 0 },
	{ "names", names, 0 },
	{ "send_without_destination", send_without_destination, 0 },
	{ "send_wrongly", send_wrongly, 0 },
	{ "bad_pointers", bad_pointers, 0 },
	{ "memory_ends", memory_ends, 0 },
	{ "refused", refused, 0 },
	{ "refused_without_connection", refused_without_connection, 0 },
	{ "connection_filters", connection_filters, 0 },
	{ "shut_down_reading", shut_down, SHUT_RD },
	{ "shut_down_writing", shut_down, SHUT_WR },
	{ "shut_down_both", shut_down, SHUT_RDWR },
	{ "shut_down_unconnected", shut_down_unconnected, 0 },
	{ "many_at_once", many_at_once, 0 },
	{ "unbound_sends", unbound, 0 },
	{ "unbound_connects", unbound, 1 },
	{ "on_all_addresses", on_all_addresses, 0 },
	{ "spinning", spinning, 0 },
	{ 0 },
};
