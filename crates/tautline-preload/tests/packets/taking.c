/* Receiving: whom frames are for, short buffers, flags, control messages, timeouts. */
#include "packets.h"

/* The kind of the socket, and how the peer sends. */
static void of_kind(long argument)
{
	int fd = packet_socket(argument / 256);

	ask_frames(fd, argument % 256, 2, 123);
	taken_frame(fd);
	taken_frame(fd);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	taken_frame(fd);
	close(fd);
}

static void receive_in_a_way(int fd, int way, int room, int flags)
{
	struct sockaddr_ll from = { 0 };
	socklen_t length = sizeof(from);
	struct iovec parts[2] = { { buffer, room / 2 }, { buffer + room / 2, room - room / 2 } };
	struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = parts, .msg_iovlen = 2 };
	struct mmsghdr messages[2] = { { .msg_hdr = message }, { .msg_hdr = message } };
	long got = 0;

	memset(buffer, 0, 4096);
	switch (way) {
	case 0:
		got = R(recv(fd, buffer, room, flags));
		break;
	case 1:
		got = R(recvfrom(fd, buffer, room, flags, (void *)&from, &length));
		value("address", length);
		break;
	case 2:
		got = R(recvmsg(fd, &message, flags));
		value("address", message.msg_namelen);
		value("flags", message.msg_flags);
		value("control", message.msg_controllen);
		break;
	case 3:
		got = R(recvmmsg(fd, messages, 1, flags, NULL));
		value("flags", messages[0].msg_hdr.msg_flags);
		value("length", messages[0].msg_len);
		break;
	case 4:
		got = R(read(fd, buffer, room));
		break;
	default:
		got = R(readv(fd, parts, 2));
	}
	bytes("all", buffer, got < 0 ? 0 : 2000);
	bytes("from", from.sll_addr, 8);
}

/* A frame of 1,014 bytes and one more to a buffer that is too short for the first. */
static void cut_off(long argument)
{
	static const int all[] = { 0, MSG_TRUNC, MSG_PEEK, MSG_PEEK | MSG_TRUNC };
	int fd = packet_socket(SOCK_RAW), way = argument / 10, flags = all[argument % 10];

	ask_frames(fd, 'h', 2, 1000);
	came(fd);
	receive_in_a_way(fd, way, 600, flags);
	receive_in_a_way(fd, way, 2000, flags);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	receive_in_a_way(fd, way, 2000, 0);
	close(fd);
}

static void refused_flags(long unused)
{
	static const int all[] = { MSG_WAITALL, MSG_OOB, MSG_NOSIGNAL, MSG_CMSG_CLOEXEC, MSG_ERRQUEUE | MSG_DONTWAIT };
	struct iovec part = { buffer, 2000 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	int fd = packet_socket(SOCK_RAW);

	(void)unused;
	ask_frames(fd, 'h', 1, 50);
	came(fd);
	for (unsigned index = 0; index < sizeof(all) / sizeof(*all); index++) {
		R(recv(fd, buffer, 2000, all[index]));
		R(recvmsg(fd, &message, all[index]));
	}
	R(recv(fd, buffer, 2000, MSG_DONTWAIT));
	close(fd);
}

static void without_room(long unused)
{
	struct sockaddr_ll from;
	socklen_t length = 4;
	int fd = packet_socket(SOCK_RAW);

	(void)unused;
	memset(&from, 0, sizeof(from));
	ask_frames(fd, 'b', 6, 100);
	came(fd);
	R(read(fd, buffer, 0));
	R(recv(fd, buffer, 0, MSG_TRUNC | MSG_PEEK));
	R(recv(fd, buffer, 0, 0));
	R(recvfrom(fd, buffer, ROOM, 0, (void *)&from, &length));
	value("address", length);
	value("kind", from.sll_pkttype);
	length = -1;
	R(recvfrom(fd, buffer, ROOM, 0, (void *)&from, &length));
	length = 100;
	R(recvfrom(fd, buffer, ROOM, 0, (void *)&from, &length));
	value("address", length);
	R(recvfrom(fd, buffer, ROOM, 0, NULL, NULL));
	R(recv(fd, NULL, 0, 0));
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	close(fd);
}

static void waiting_bytes(long kind)
{
	int fd = packet_socket(kind), count = -1;

	R(ioctl(fd, FIONREAD, &count));
	value("waiting", count);
	ask_frames(fd, 'h', 2, 321);
	came(fd);
	R(ioctl(fd, FIONREAD, &count));
	value("waiting", count);
	R(recv(fd, buffer, ROOM, 0));
	R(ioctl(fd, FIONREAD, &count));
	value("waiting", count);
	R(recv(fd, buffer, ROOM, 0));
	R(ioctl(fd, FIONREAD, &count));
	value("waiting", count);
	R(ioctl(fd, TIOCOUTQ, &count));
	value("on the way out", count);
	close(fd);
}

static void non_blocking(long way)
{
	int fd = packet_socket(SOCK_RAW), on = 1;

	if (way == 0)
		R(fcntl(fd, F_SETFL, O_NONBLOCK));
	else
		R(ioctl(fd, FIONBIO, &on));
	R(recv(fd, buffer, ROOM, 0));
	R(read(fd, buffer, ROOM));
	ask_frames(fd, 'h', 1, 33);
	came(fd);
	R(read(fd, buffer, ROOM));
	R(read(fd, buffer, ROOM));
	R(fcntl(fd, F_GETFL) & O_NONBLOCK);
	R(fcntl(fd, F_SETFL, 0));
	ask_frames_later(fd, 'h', 44, 20);
	R(read(fd, buffer, ROOM));
	close(fd);
}

static long since(struct timeval *start)
{
	struct timeval now;

	gettimeofday(&now, NULL);
	return (now.tv_sec - start->tv_sec) * 1000 + (now.tv_usec - start->tv_usec) / 1000;
}

static void timeout(long unused)
{
	struct timeval limit = { .tv_usec = 40000 }, start, known;
	socklen_t length = sizeof(known);
	int fd = packet_socket(SOCK_RAW);

	(void)unused;
	R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	gettimeofday(&start, NULL);
	R(recv(fd, buffer, ROOM, 0));
	value("waited", since(&start) >= 38);
	R(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &known, &length));
	value("timeout", known.tv_usec);
	ask_frames_later(fd, 'b', 55, 10);
	R(recv(fd, buffer, ROOM, 0));
	R(recv(fd, buffer, ROOM, 0));
	close(fd);
}

/* The arrival's time, within a second of now. */
static void stamps(long option)
{
	char control[256];
	struct iovec part = { buffer, 2000 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	int on = 1, fd = packet_socket(SOCK_RAW);
	struct timeval now;
	long seconds;

	R(setsockopt(fd, SOL_SOCKET, option, &on, sizeof(on)));
	ask_frames(fd, 'm', 2, 60);
	came(fd);
	R(recvmsg(fd, &message, 0));
	value("control", message.msg_controllen);
	for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); one; one = CMSG_NXTHDR(&message, one)) {
		value("level", one->cmsg_level);
		value("type", one->cmsg_type);
		memcpy(&seconds, CMSG_DATA(one), sizeof(seconds));
		gettimeofday(&now, NULL);
		value("now", now.tv_sec - seconds <= 1);
	}
	message.msg_controllen = 20;
	R(recvmsg(fd, &message, 0));
	value("control", message.msg_controllen);
	value("flags", message.msg_flags);
	close(fd);
}

/* A filter is the kernel's to run. */
static void filtered(long before)
{
	/* Frames of 14 + 61 bytes only. */
	struct {
		unsigned short code;
		unsigned char yes, no;
		unsigned int number;
	} lines[] = { { 0x80, 0, 0, 0 }, { 0x15, 0, 1, 75 }, { 0x06, 0, 0, 65535 }, { 0x06, 0, 0, 0 } };
	struct {
		unsigned short length;
		void *lines;
	} filter = { 4, lines };
	struct sockaddr_ll local = link_address(TYPE, interface_index);
	int fd = socket(AF_PACKET, SOCK_RAW, htons(TYPE));

	if (before)
		R(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)));
	R(bind(fd, (void *)&local, sizeof(local)));
	if (!before)
		R(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)));
	ask_frames(fd, 'h', 1, 60);
	usleep(10000);
	ask_frames(fd, 'h', 1, 61);
	taken_frame(fd);
	close(fd);
}

static void sizes(long kind)
{
	static const int all[] = { 0, 1, 2, 3, 4, 5, 45, 46, 47, 1484, 1485, 1499, 1500 };
	int fd = packet_socket(kind);

	for (unsigned index = 0; index < sizeof(all) / sizeof(*all); index++) {
		ask_frames(fd, 'h', 1, all[index]);
		/* Without a header nothing would be left of the first. */
		if (kind == SOCK_RAW || all[index] > 0)
			taken_frame(fd);
	}
	close(fd);
}

static void in_order(long unused)
{
	int wrong = 0, fd = packet_socket(SOCK_RAW);

	(void)unused;
	ask_frames(fd, 'h', 60, 64);
	came(fd);
	usleep(20000);
	for (int index = 0; index < 60; index++)
		if (recv(fd, buffer, 2000, MSG_DONTWAIT) != 78 || (unsigned char)buffer[HEADER] != index * 7)
			wrong++;
	value("wrong", wrong);
	R(recv(fd, buffer, 2000, MSG_DONTWAIT));
	close(fd);
}

#define KINDS(how, text) \
	{ text ", raw", of_kind, SOCK_RAW * 256 + how }, { text ", without headers", of_kind, SOCK_DGRAM * 256 + how }
#define WAYS(name, way) \
	{ name ", cut off", cut_off, way * 10 }, { name ", MSG_TRUNC", cut_off, way * 10 + 1 }, \
	{ name ", MSG_PEEK", cut_off, way * 10 + 2 }, { name ", both", cut_off, way * 10 + 3 }

const struct test taking_tests[] = {
	KINDS('h', "to this host"),
	KINDS('b', "to all"),
	KINDS('m', "to a group"),
	KINDS('o', "to another station"),
	KINDS('v', "with a tag of no VLAN"),
	KINDS('w', "in a VLAN"),
	KINDS('n', "from nobody"),
	WAYS("recv", 0),
	WAYS("recvfrom", 1),
	WAYS("recvmsg", 2),
	WAYS("recvmmsg", 3),
	{ "read, cut off", cut_off, 40 },
	{ "readv, cut off", cut_off, 50 },
	{ "refused flags", refused_flags, 0 },
	{ "without room", without_room, 0 },
	{ "waiting bytes, raw", waiting_bytes, SOCK_RAW },
	{ "waiting bytes, without headers", waiting_bytes, SOCK_DGRAM },
	{ "O_NONBLOCK", non_blocking, 0 },
	{ "FIONBIO", non_blocking, 1 },
	{ "timeout", timeout, 0 },
	{ "SO_TIMESTAMP", stamps, SO_TIMESTAMP },
	{ "SO_TIMESTAMPNS", stamps, SO_TIMESTAMPNS },
	{ "filter, before", filtered, 1 },
	{ "filter, after", filtered, 0 },
	{ "sizes, raw", sizes, SOCK_RAW },
	{ "sizes, without headers", sizes, SOCK_DGRAM },
	{ "in order", in_order, 0 },
	{ NULL, NULL, 0 },
};
