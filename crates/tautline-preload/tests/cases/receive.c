/* Receiving: short buffers, flags, control messages, timeouts. */
#include "cases.h"

static void receive_in_a_way(int fd, int way, int room, int flags)
{
	struct sockaddr_in from = { 0 };
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
	value("from", ntohs(from.sin_port));
}

/* A datagram of 1,000 bytes and one of 500 to a buffer that is too short for the first. */
static void cut_off(long argument)
{
	static const int all[] = { 0, MSG_TRUNC, MSG_PEEK, MSG_PEEK | MSG_TRUNC };
	int fd = bound(), way = argument / 10, flags = all[argument % 10];

	ask(fd, 2, 1000);
	arrived(fd);
	receive_in_a_way(fd, way, 600, flags);
	receive_in_a_way(fd, way, 2000, flags);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	receive_in_a_way(fd, way, 2000, 0);
	close(fd);
}

static void without_room(long unused)
{
	struct sockaddr_in from;
	socklen_t length = 4;
	int fd = bound();

	(void)unused;
	ask(fd, 6, 100);
	arrived(fd);
	R(read(fd, buffer, 0));
	R(recv(fd, buffer, 0, MSG_TRUNC | MSG_PEEK));
	R(recv(fd, buffer, 0, 0));
	R(recvfrom(fd, buffer, ROOM, 0, (void *)&from, &length));
	value("address", length);
	length = -1;
	R(recvfrom(fd, buffer, ROOM, 0, (void *)&from, &length));
	R(recvfrom(fd, buffer, ROOM, 0, NULL, NULL));
	R(recv(fd, NULL, 0, 0));
	R(recv(fd, buffer, ROOM, MSG_WAITALL));
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	close(fd);
}

static void non_blocking(long way)
{
	int fd = bound(), on = 1;

	if (way == 0)
		R(fcntl(fd, F_SETFL, O_NONBLOCK));
	else
		R(ioctl(fd, FIONBIO, &on));
	R(recv(fd, buffer, ROOM, 0));
	R(read(fd, buffer, ROOM));
	ask(fd, 1, 33);
	arrived(fd);
	R(read(fd, buffer, ROOM));
	R(read(fd, buffer, ROOM));
	R(fcntl(fd, F_GETFL) & O_NONBLOCK);
	R(fcntl(fd, F_SETFL, 0));
	ask_later(fd, 20, 44);
	R(read(fd, buffer, ROOM));
	close(fd);
}

static void waiting_bytes(long unused)
{
	int fd = bound(), count = -1;

	(void)unused;
	R(ioctl(fd, FIONREAD, &count));
	value("waiting", count);
	ask(fd, 2, 321);
	arrived(fd);
	R(ioctl(fd, FIONREAD, &count));
	value("waiting", count);
	R(recv(fd, buffer, ROOM, 0));
	R(ioctl(fd, FIONREAD, &count));
	value("waiting", count);
	R(recv(fd, buffer, ROOM, 0));
	R(ioctl(fd, FIONREAD, &count));
	value("waiting", count);
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
	struct timeval limit = { .tv_usec = 40000 }, start, told;
	socklen_t length = sizeof(told);
	int fd = bound();

	(void)unused;
	R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	gettimeofday(&start, NULL);
	R(recv(fd, buffer, ROOM, 0));
	value("waited", since(&start) >= 38);
	ask_later(fd, 10, 20);
	R(recv(fd, buffer, ROOM, 0));
	R(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &told, &length));
	value("told", told.tv_sec * 1000000 + told.tv_usec);
	close(fd);
}

static void nothing(int signal)
{
	(void)signal;
}

static void interrupted(long flags)
{
	struct sigaction action = { .sa_handler = nothing, .sa_flags = flags };
	struct itimerval soon = { .it_value = { .tv_usec = 20000 } };
	struct pollfd entry = { .events = POLLIN };
	int fd = bound();

	sigaction(SIGALRM, &action, NULL);
	ask_later(fd, 60, 77);
	setitimer(ITIMER_REAL, &soon, NULL);
	if (R(recv(fd, buffer, ROOM, 0)) < 0)
		R(recv(fd, buffer, ROOM, 0));
	ask_later(fd, 60, 77);
	setitimer(ITIMER_REAL, &soon, NULL);
	entry.fd = fd;
	R(poll(&entry, 1, 1000));
	R(poll(&entry, 1, 1000));
	R(recv(fd, buffer, ROOM, 0));
	signal(SIGALRM, SIG_DFL);
	close(fd);
}

static void several_at_once(long how)
{
	struct iovec parts[4];
	struct mmsghdr messages[4] = { 0 };
	struct timespec limit = { .tv_nsec = 200000000 };
	int fd = bound();

	for (int index = 0; index < 4; index++) {
		parts[index] = (struct iovec){ buffer + 2000 * index, 2000 };
		messages[index].msg_hdr.msg_iov = &parts[index];
		messages[index].msg_hdr.msg_iovlen = 1;
	}
	ask(fd, 3, 100);
	arrived(fd);
	switch (how) {
	case 0:
		R(recvmmsg(fd, messages, 4, MSG_DONTWAIT, NULL));
		break;
	case 1:
		R(recvmmsg(fd, messages, 4, MSG_WAITFORONE, NULL));
		break;
	case 2:
		R(recvmmsg(fd, messages, 2, 0, &limit));
		value("time is left", limit.tv_nsec > 0);
		break;
	default:
		limit.tv_nsec = 2000000000;
		R(recvmmsg(fd, messages, 2, 0, &limit));
		limit = (struct timespec){ 0 };
		R(recvmmsg(fd, messages, 4, 0, &limit));
	}
	for (int index = 0; index < 4; index++)
		bytes("one", buffer + 2000 * index, messages[index].msg_len);
	R(recvmmsg(fd, messages, 0, 0, NULL));
	R(recvmmsg(fd, messages, 4, MSG_DONTWAIT, NULL) >= 0);
	R(recvmmsg(fd, messages, 4, MSG_DONTWAIT, NULL));
	close(fd);
}

static void control_messages(long room)
{
	char control[256] = { 0 };
	struct iovec part = { buffer, ROOM };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room };
	int fd = bound(), on = 1;

	R(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on)));
	R(setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof(on)));
	ask(fd, 1, 10);
	R(recvmsg(fd, &message, 0));
	value("flags", message.msg_flags);
	value("bytes", message.msg_controllen);
	for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); one; one = CMSG_NXTHDR(&message, one)) {
		value("level", one->cmsg_level);
		value("kind", one->cmsg_type);
		value("length", one->cmsg_len);
		if (one->cmsg_type == SCM_TIMESTAMPNS && one->cmsg_len == CMSG_LEN(sizeof(struct timespec))) {
			struct timespec stamp, now;

			memcpy(&stamp, CMSG_DATA(one), sizeof(stamp));
			clock_gettime(CLOCK_REALTIME, &now);
			value("recent", now.tv_sec - stamp.tv_sec <= 1);
		} else if (one->cmsg_level == IPPROTO_IP && one->cmsg_len == CMSG_LEN(sizeof(struct in_pktinfo))) {
			bytes("info", CMSG_DATA(one), sizeof(struct in_pktinfo));
		}
	}
	close(fd);
}

static void answer_from_where_it_came(long unused)
{
	char control[64] = { 0 };
	struct sockaddr_in from = { 0 };
	struct iovec part = { buffer, ROOM };
	struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	int fd = bound(), on = 1;

	(void)unused;
	setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof(on));
	ask(fd, 1, 10);
	part.iov_len = R(recvmsg(fd, &message, 0));
	R(sendmsg(fd, &message, 0));
	bytes("echo", buffer, R(recv(fd, buffer, ROOM, 0)));
	close(fd);
}

static void options(long unused)
{
	int fd = bound(), number = 0;
	socklen_t length = sizeof(number);

	(void)unused;
	number = 0xb8;
	R(setsockopt(fd, IPPROTO_IP, IP_TOS, &number, sizeof(number)));
	R(getsockopt(fd, IPPROTO_IP, IP_TOS, &number, &length));
	value("service", number);
	ask(fd, 1, 12);
	R(recv(fd, buffer, ROOM, 0));
	number = 0xa0;
	R(setsockopt(fd, IPPROTO_IP, IP_TOS, &number, sizeof(number)));
	ask(fd, 1, 12);
	R(recv(fd, buffer, ROOM, 0));
	number = 50;
	R(setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &number, sizeof(number)));
	ask(fd, 1, 12);
	R(recv(fd, buffer, ROOM, 0));
	number = 8192;
	R(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &number, sizeof(number)));
	R(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &number, &length));
	value("room", number);
	R(getsockopt(fd, SOL_SOCKET, SO_TYPE, &number, &length));
	value("type", number);
	number = 1;
	R(setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &number, sizeof(number)));
	R(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &number, sizeof(number)));
	R(setsockopt(fd, SOL_SOCKET, 9999, &number, sizeof(number)));
	ask(fd, 1, 12);
	R(recv(fd, buffer, ROOM, 0));
	close(fd);
}

/* An option that a port does not serve: the socket goes on as the kernel's. */
static void unserved_option(long unused)
{
	char control[64] = { 0 };
	struct iovec part = { buffer, ROOM };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	int fd = bound(), on = 1;

	(void)unused;
	R(setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &on, sizeof(on)));
	ask(fd, 1, 10);
	R(recvmsg(fd, &message, 0));
	value("control", message.msg_controllen);
	bytes("time to live", CMSG_DATA(CMSG_FIRSTHDR(&message)), 4);
	close(fd);
}

#define CUT(name, way) \
	{ name, cut_off, way * 10 }, { name "_trunc", cut_off, way * 10 + 1 }, { name "_peek", cut_off, way * 10 + 2 }, \
	{ name "_peek_trunc", cut_off, way * 10 + 3 }

const struct test receive_tests[] = {
	CUT("recv_cut", 0),
	CUT("recvfrom_cut", 1),
	CUT("recvmsg_cut", 2),
	CUT("recvmmsg_cut", 3),
	{ "read_cut", cut_off, 40 },
	{ "readv_cut", cut_off, 50 },
	{ "without_room", without_room, 0 },
	{ "non_blocking_fcntl", non_blocking, 0 },
	{ "non_blocking_ioctl", non_blocking, 1 },
	{ "waiting_bytes", waiting_bytes, 0 },
	{ "timeout", timeout, 0 },
	{ "interrupted", interrupted, 0 },
	{ "interrupted_restart", interrupted, SA_RESTART },
	{ "recvmmsg_dontwait", several_at_once, 0 },
	{ "recvmmsg_waitforone", several_at_once, 1 },
	{ "recvmmsg_timeout", several_at_once, 2 },
	{ "recvmmsg_odd_timeouts", several_at_once, 3 },
	{ "control_messages", control_messages, 256 },
	{ "control_messages_cut", control_messages, 40 },
	{ "control_messages_without_room", control_messages, 0 },
	{ "answer_from_where_it_came", answer_from_where_it_came, 0 },
	{ "options", options, 0 },
	{ "unserved_option", unserved_option, 0 },
	{ 0 },
};
