/* Sending frames in every way, and the errors of it. */
#include "packets.h"

static long sized(int fd, int way, const void *start, long size, struct sockaddr_ll *to)
{
	struct iovec parts[3] = { { (void *)start, size / 3 }, { (char *)start + size / 3, size / 3 },
				  { (char *)start + size / 3 * 2, size - size / 3 * 2 } };
	socklen_t length = to ? sizeof(*to) : 0;
	struct msghdr message = { .msg_name = to, .msg_namelen = length, .msg_iov = parts, .msg_iovlen = 3 };
	struct iovec whole = { (void *)start, size };
	struct mmsghdr messages[1] = {
		{ .msg_hdr = { .msg_name = to, .msg_namelen = length, .msg_iov = &whole, .msg_iovlen = 1 } }
	};

	switch (way) {
	case 0:
		return R(send(fd, start, size, 0));
	case 1:
		return R(sendto(fd, start, size, 0, (void *)to, length));
	case 2:
		return R(sendmsg(fd, &message, 0));
	case 3:
		return R(write(fd, start, size));
	case 4:
		return R(writev(fd, parts, 3));
	default:
		R(sendmmsg(fd, messages, 1, 0));
		value("length", messages[0].msg_len);
		return messages[0].msg_len;
	}
}

/* The peer sends back what does not begin with a question mark, inside of another frame if it fits. */
static void came_back(int fd, int kind)
{
	int inside = kind == SOCK_DGRAM ? 0 : HEADER;
	long got;

	came(fd);
	memset(buffer, 0, 2000);
	got = R(recv(fd, buffer, 2000, MSG_DONTWAIT));
	if (got < inside + HEADER)
		return;
	bytes("destination", buffer + inside, 6);
	value("own source", memcmp(buffer + inside + 6, own_mac, 6) == 0);
	bytes("rest", buffer + inside + HEADER, got - inside - HEADER);
}

static void send_in_a_way(long argument)
{
	int fd = packet_socket(SOCK_RAW), way = argument / 100000;
	struct sockaddr_ll to = link_address(TYPE, interface_index);
	long size = argument % 100000;

	framed("\xff\xff\xff\xff\xff\xff", size > HEADER ? size - HEADER : 0);
	if (sized(fd, way, frame, size, way % 2 ? &to : NULL) >= 0 && size >= HEADER)
		came_back(fd, SOCK_RAW);
	close(fd);
}

static void send_cooked(long argument)
{
	int fd = packet_socket(SOCK_DGRAM), way = argument / 100000;
	struct sockaddr_ll to = link_address(TYPE, interface_index);
	long size = argument % 100000;

	to.sll_halen = 6;
	memcpy(to.sll_addr, "\x01\x80\xc2\x00\x00\x0e", 6);
	if (sized(fd, way, large, size, &to) >= 0)
		came_back(fd, SOCK_DGRAM);
	close(fd);
}

static void with_names(long kind)
{
	struct sockaddr_ll to = link_address(TYPE, interface_index);
	int fd = packet_socket(kind);

	to.sll_halen = 6;
	memset(to.sll_addr, 0xff, 6);
	framed("\xff\xff\xff\xff\xff\xff", 100);
	R(sendto(fd, frame, 114, 0, (void *)&to, 3));
	R(sendto(fd, frame, 114, 0, (void *)&to, 19));
	R(sendto(fd, frame, 114, 0, (void *)&to, 20));
	came_back(fd, kind);
	R(sendto(fd, frame, 114, 0, NULL, 20));
	to.sll_halen = 9;
	R(sendto(fd, frame, 114, 0, (void *)&to, 20));
	to.sll_halen = 0;
	R(sendto(fd, frame, 114, 0, (void *)&to, 20));
	came_back(fd, kind);
	to.sll_halen = 6;
	to.sll_family = 0;
	R(sendto(fd, frame, 114, 0, (void *)&to, 20));
	came_back(fd, kind);
	to.sll_ifindex = 0;
	R(sendto(fd, frame, 114, 0, (void *)&to, 20));
	to.sll_ifindex = 99999;
	R(sendto(fd, frame, 114, 0, (void *)&to, 20));
	to.sll_ifindex = if_nametoindex("lo");
	R(sendto(fd, frame, 114, 0, (void *)&to, 20));
	/* The EtherType of a frame with a header is in the header. */
	to = link_address(TYPE, interface_index);
	to.sll_halen = 6;
	to.sll_protocol = htons(0x88b7);
	R(sendto(fd, frame, 114, 0, (void *)&to, 20));
	came_back(fd, kind);
	close(fd);
}

static void tagged(long tag)
{
	static const int sizes[] = { 18, 60, 1000, 1518, 1519 };
	int fd = packet_socket(SOCK_RAW);

	for (unsigned index = 0; index < sizeof(sizes) / sizeof(*sizes); index++) {
		framed("\xff\xff\xff\xff\xff\xff", 1600);
		memmove(frame + 16, frame + 12, 1600);
		frame[12] = 0x81;
		frame[13] = 0;
		frame[14] = tag >> 8;
		frame[15] = tag;
		if (R(send(fd, frame, sizes[index], 0)) > 0)
			came_back(fd, SOCK_RAW);
	}
	close(fd);
}

/* Frames of another EtherType leave too. */
static void foreign(long unused)
{
	int fd = packet_socket(SOCK_RAW);

	(void)unused;
	framed("\xff\xff\xff\xff\xff\xff", 50);
	frame[12] = 0x88;
	frame[13] = 0xb7;
	R(send(fd, frame, 64, 0));
	frame[12] = 0;
	frame[13] = 30;
	R(send(fd, frame, 64, 0));
	ask_frames(fd, 'h', 1, 44);
	taken_frame(fd);
	close(fd);
}

static void flags(long unused)
{
	static const int all[] = { MSG_DONTWAIT, MSG_NOSIGNAL, MSG_CONFIRM, MSG_MORE, MSG_OOB, MSG_EOR, MSG_DONTROUTE };
	int fd = packet_socket(SOCK_RAW);

	(void)unused;
	for (unsigned index = 0; index < sizeof(all) / sizeof(*all); index++) {
		framed("\xff\xff\xff\xff\xff\xff", 80 + index);
		if (R(send(fd, frame, HEADER + 80 + index, all[index])) > 0)
			came_back(fd, SOCK_RAW);
	}
	close(fd);
}

static void bad_pointers(long unused)
{
	struct sockaddr_ll to = link_address(TYPE, interface_index);
	char *nowhere = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct iovec parts[2] = { { frame, 60 }, { nowhere, 10 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	int fd = packet_socket(SOCK_RAW);

	(void)unused;
	framed("\xff\xff\xff\xff\xff\xff", 100);
	R(send(fd, nowhere, 60, 0));
	R(send(fd, NULL, 60, 0));
	R(send(fd, (void *)-4096L, 60, 0));
	R(sendto(fd, frame, 60, 0, (void *)nowhere, sizeof(to)));
	R(sendmsg(fd, &message, 0));
	R(sendmsg(fd, (void *)nowhere, 0));
	ask_frames(fd, 'h', 6, 100);
	came(fd);
	R(recv(fd, nowhere, 60, 0));
	R(recv(fd, NULL, 60, 0));
	R(recvmsg(fd, &message, 0));
	R(recvmsg(fd, (void *)nowhere, 0));
	R(recvfrom(fd, buffer, 60, 0, (void *)&to, (void *)nowhere));
	R(recvfrom(fd, buffer, 60, 0, (void *)nowhere, NULL));
	R(recv(fd, buffer, 2000, MSG_DONTWAIT));
	R(recv(fd, buffer, 2000, MSG_DONTWAIT));
	close(fd);
	munmap(nowhere, 8192);
}

static void many(long unused)
{
	struct mmsghdr messages[8] = { 0 };
	struct iovec parts[8];
	int sum = 0, fd = packet_socket(SOCK_RAW);

	(void)unused;
	framed("\xff\xff\xff\xff\xff\xff", 200);
	for (int index = 0; index < 8; index++) {
		parts[index] = (struct iovec){ frame, 60 + index };
		messages[index].msg_hdr = (struct msghdr){ .msg_iov = parts + index, .msg_iovlen = 1 };
	}
	/* Too short for a header: the ones before are sent. */
	parts[6].iov_len = 5;
	R(sendmmsg(fd, messages, 8, 0));
	for (int index = 0; index < 8; index++)
		value("length", messages[index].msg_len);
	usleep(20000);
	for (int index = 0; index < 8; index++)
		parts[index] = (struct iovec){ buffer + 200 * index, 200 };
	R(recvmmsg(fd, messages, 8, MSG_DONTWAIT, NULL));
	for (int index = 0; index < 6; index++)
		sum += messages[index].msg_len;
	value("sum", sum);
	R(recvmmsg(fd, messages, 8, MSG_DONTWAIT, NULL));
	close(fd);
}

#define WAYS(size) \
	{ "send of " #size, send_in_a_way, size }, { "sendto of " #size, send_in_a_way, 100000 + size }, \
	{ "sendmsg of " #size, send_in_a_way, 200000 + size }, { "write of " #size, send_in_a_way, 300000 + size }, \
	{ "writev of " #size, send_in_a_way, 400000 + size }, { "sendmmsg of " #size, send_in_a_way, 500000 + size }

const struct test sending_tests[] = {
	WAYS(0), WAYS(13), WAYS(14), WAYS(15), WAYS(60), WAYS(1000), WAYS(1514), WAYS(1515), WAYS(2000),
	{ "send without headers", send_cooked, 60 },
	{ "sendto without headers, nothing", send_cooked, 100000 },
	{ "sendto without headers", send_cooked, 100060 },
	{ "sendmsg without headers", send_cooked, 201000 },
	{ "sendto without headers, the largest", send_cooked, 101500 },
	{ "sendto without headers, too large", send_cooked, 101501 },
	{ "sendmmsg without headers", send_cooked, 500333 },
	{ "with names, raw", with_names, SOCK_RAW },
	{ "with names, without headers", with_names, SOCK_DGRAM },
	{ "with a tag of no VLAN", tagged, 0x6000 },
	{ "with a tag of a VLAN", tagged, 0x6005 },
	{ "of another type", foreign, 0 },
	{ "flags of sending", flags, 0 },
	{ "bad pointers", bad_pointers, 0 },
	{ "many at once", many, 0 },
	{ NULL, NULL, 0 },
};
