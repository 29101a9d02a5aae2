/* How packet sockets begin, as fieldbus programs open them, and what they are bound to. */
#include "packets.h"

static void name_of(int fd)
{
	struct sockaddr_ll name = { 0 };
	socklen_t length = sizeof(name);

	R(getsockname(fd, (void *)&name, &length));
	value("length", length);
	value("family", name.sll_family);
	value("protocol", ntohs(name.sll_protocol) == TYPE);
	value("interface", name.sll_ifindex == interface_index);
	value("hardware", name.sll_hatype);
	value("bytes of address", name.sll_halen);
	value("own address", memcmp(name.sll_addr, own_mac, 6));
}

static void names(long kind)
{
	struct sockaddr_ll name;
	socklen_t length = sizeof(name);
	int fd = packet_socket(kind);

	name_of(fd);
	R(getpeername(fd, (void *)&name, &length));
	R(connect(fd, (void *)&name, sizeof(name)));
	R(listen(fd, 1));
	R(shutdown(fd, SHUT_RDWR));
	ask_frames(fd, 'h', 1, 50);
	taken_frame(fd);
	close(fd);
}

/* SOEM: short times, an interface that is set to be promiscuous, and calls that return at once or after a tick. */
static void as_soem_opens(long unused)
{
	struct timeval limit = { .tv_usec = 1 };
	struct sockaddr_ll local = { .sll_family = AF_PACKET };
	struct ifreq asked = { 0 };
	int fd = socket(PF_PACKET, SOCK_RAW, htons(TYPE)), on = 1;
	long got = -1;

	(void)unused;
	R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	R(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)));
	R(setsockopt(fd, SOL_SOCKET, SO_DONTROUTE, &on, sizeof(on)));
	strncpy(asked.ifr_name, interface_name, IFNAMSIZ - 1);
	R(ioctl(fd, SIOCGIFINDEX, &asked));
	local.sll_ifindex = asked.ifr_ifindex;
	R(ioctl(fd, SIOCGIFFLAGS, &asked));
	asked.ifr_flags |= IFF_PROMISC | IFF_BROADCAST;
	R(ioctl(fd, SIOCSIFFLAGS, &asked));
	local.sll_protocol = htons(TYPE);
	R(bind(fd, (void *)&local, sizeof(local)));
	R(recv(fd, buffer, 1518, 0));
	for (int round = 0; round < 20; round++) {
		framed("\xff\xff\xff\xff\xff\xff", 46 + round);
		frame[6] = 0x01;
		if (send(fd, frame, HEADER + 46 + round, 0) != HEADER + 46 + round)
			value("sent", errno);
		for (int look = 0; look < 1000 && got < 0; look++)
			got = recv(fd, buffer, 1518, 0);
		value("got", got);
		bytes("payload", buffer + 2 * HEADER, got - 2 * HEADER);
		got = -1;
	}
	asked.ifr_flags &= ~IFF_PROMISC;
	R(ioctl(fd, SIOCSIFFLAGS, &asked));
	R(close(fd));
}

/* Without waiting, and watched by epoll for edges, as asynchronous Rust does it. */
static void as_ethercrab_opens(long unused)
{
	struct sockaddr_ll local = link_address(TYPE, interface_index);
	struct epoll_event event = { .events = EPOLLIN | EPOLLET | EPOLLONESHOT, .data.u64 = 77 };
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(TYPE)), epoll = epoll_create1(EPOLL_CLOEXEC);
	struct ifreq asked = { 0 };

	(void)unused;
	local.sll_hatype = 1;
	local.sll_halen = 6;
	strncpy(asked.ifr_name, interface_name, IFNAMSIZ - 1);
	R(bind(fd, (void *)&local, sizeof(local)));
	R(ioctl(fd, SIOCGIFMTU, &asked));
	value("largest", asked.ifr_mtu);
	R(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
	R(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
	for (int round = 0; round < 10; round++) {
		framed("\xff\xff\xff\xff\xff\xff", 46 + round);
		R(write(fd, frame, HEADER + 46 + round));
		event = (struct epoll_event){ .events = EPOLLIN | EPOLLET | EPOLLONESHOT, .data.u64 = 77 };
		R(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event));
		R(epoll_wait(epoll, &event, 1, 3000));
		value("data", event.data.u64);
		R(read(fd, buffer, 1500));
		R(read(fd, buffer, 1500));
		bytes("payload", buffer + 2 * HEADER, 46 + round);
	}
	close(fd);
	close(epoll);
}

static void bound_wrongly(long unused)
{
	struct sockaddr_ll local = link_address(TYPE, interface_index);
	int fd = socket(AF_PACKET, SOCK_RAW, 0);

	(void)unused;
	R(bind(fd, (void *)&local, 3));
	R(bind(fd, NULL, sizeof(local)));
	local.sll_family = AF_INET;
	R(bind(fd, (void *)&local, sizeof(local)));
	local = link_address(TYPE, 99999);
	R(bind(fd, (void *)&local, sizeof(local)));
	local = link_address(0, interface_index);
	R(bind(fd, (void *)&local, sizeof(local)));
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	local = link_address(TYPE, interface_index);
	R(bind(fd, (void *)&local, sizeof(local)));
	name_of(fd);
	ask_frames(fd, 'b', 1, 30);
	taken_frame(fd);
	close(fd);
	R(bind(fd, (void *)&local, sizeof(local)));
}

/* A packet socket may be bound again: to the same, to another EtherType, to another interface. */
static void bound_again(long unused)
{
	struct sockaddr_ll local = link_address(TYPE, interface_index);
	int fd = packet_socket(SOCK_RAW);

	(void)unused;
	R(bind(fd, (void *)&local, sizeof(local)));
	ask_frames(fd, 'h', 1, 20);
	taken_frame(fd);
	own_port++;
	ask_frames(fd, 'h', 1, 21);
	usleep(20000);
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	local = link_address(TYPE, interface_index);
	R(bind(fd, (void *)&local, sizeof(local)));
	ask_frames(fd, 'h', 1, 22);
	taken_frame(fd);
	local.sll_ifindex = if_nametoindex("lo");
	R(bind(fd, (void *)&local, sizeof(local)));
	usleep(20000);
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	local.sll_ifindex = interface_index;
	R(bind(fd, (void *)&local, sizeof(local)));
	ask_frames(fd, 'h', 1, 23);
	taken_frame(fd);
	close(fd);
}

/* Each of several sockets gets all frames. */
static void several(long both_at_once)
{
	int first = packet_socket(SOCK_RAW), second;

	ask_frames(first, 'h', 1, 20);
	taken_frame(first);
	second = packet_socket(SOCK_DGRAM);
	ask_frames(first, 'h', 1, 21);
	taken_frame(first);
	taken_frame(second);
	if (!both_at_once)
		close(second);
	ask_frames(first, 'b', 1, 22);
	taken_frame(first);
	close(first);
	if (both_at_once) {
		ask_frames(second, 'm', 1, 23);
		taken_frame(second);
		taken_frame(second);
		close(second);
	}
	first = packet_socket(SOCK_RAW);
	ask_frames(first, 'h', 1, 24);
	taken_frame(first);
	close(first);
}

static void of_other_types(long unused)
{
	int first = packet_socket(SOCK_RAW), second;

	(void)unused;
	own_port++;
	second = packet_socket(SOCK_RAW);
	ask_frames(second, 'h', 2, 31);
	came(second);
	R(recv(first, buffer, ROOM, MSG_DONTWAIT));
	taken_frame(second);
	own_port--;
	ask_frames(first, 'h', 1, 32);
	taken_frame(first);
	close(first);
	own_port++;
	taken_frame(second);
	close(second);
}

/* Frames that came before the socket was bound to the interface. */
static void bound_late(long unused)
{
	struct sockaddr_ll local = link_address(TYPE, interface_index);
	int asks, fd = socket(AF_PACKET, SOCK_RAW, htons(TYPE));

	(void)unused;
	own_port++;
	asks = packet_socket(SOCK_RAW);
	own_port--;
	framed("\xff\xff\xff\xff\xff\xff", 0);
	strcpy((char *)frame + HEADER, "?h 1 40 0");
	R(send(asks, frame, HEADER + 9, 0));
	came(fd);
	R(bind(fd, (void *)&local, sizeof(local)));
	taken_frame(fd);
	ask_frames(fd, 'h', 1, 41);
	taken_frame(fd);
	close(asks);
	close(fd);
}

/* Options that a port does not serve give the socket back; the kernel serves them. */
static void auxiliary(long before)
{
	char control[256];
	struct iovec part = { buffer, 2000 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	struct sockaddr_ll local = link_address(TYPE, interface_index);
	int on = 1, fd = socket(AF_PACKET, SOCK_RAW, htons(TYPE));
	struct tpacket_auxdata told_us;

	if (before)
		R(setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &on, sizeof(on)));
	R(bind(fd, (void *)&local, sizeof(local)));
	if (!before)
		R(setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &on, sizeof(on)));
	ask_frames(fd, 'v', 1, 60);
	came(fd);
	R(recvmsg(fd, &message, 0));
	value("control", message.msg_controllen);
	for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); one; one = CMSG_NXTHDR(&message, one)) {
		memcpy(&told_us, CMSG_DATA(one), sizeof(told_us));
		value("level", one->cmsg_level);
		value("type", one->cmsg_type);
		value("tag", told_us.tp_vlan_tci);
		value("length", told_us.tp_len);
	}
	close(fd);
}

static void ring(long before)
{
	struct tpacket_req wanted = { .tp_block_size = 4096, .tp_block_nr = 2, .tp_frame_size = 2048, .tp_frame_nr = 4 };
	struct sockaddr_ll local = link_address(TYPE, interface_index);
	int fd = socket(AF_PACKET, SOCK_RAW, htons(TYPE));
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	struct tpacket_hdr *memory;

	if (before)
		R(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &wanted, sizeof(wanted)));
	R(bind(fd, (void *)&local, sizeof(local)));
	if (!before)
		R(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &wanted, sizeof(wanted)));
	memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	value("mapped", memory != MAP_FAILED);
	ask_frames(fd, 'h', 1, 70);
	R(poll(&entry, 1, 3000));
	value("events", entry.revents);
	value("there", memory->tp_status & TP_STATUS_USER);
	value("length", memory->tp_len);
	munmap(memory, 8192);
	close(fd);
}

static void kinds_of_sockets(long unused)
{
	int value_of = 0, fd = socket(AF_PACKET, SOCK_DGRAM, htons(TYPE));
	socklen_t length = sizeof(value_of);
	struct sockaddr_ll local = link_address(TYPE, interface_index);
	struct packet_mreq group = { .mr_ifindex = interface_index, .mr_type = PACKET_MR_PROMISC };

	(void)unused;
	R(socket(AF_PACKET, SOCK_STREAM, htons(TYPE)));
	R(bind(fd, (void *)&local, sizeof(local)));
	R(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value_of, &length));
	value("type", value_of);
	R(getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &value_of, &length));
	value("protocol", value_of);
	R(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &group, sizeof(group)));
	R(setsockopt(fd, SOL_PACKET, PACKET_DROP_MEMBERSHIP, &group, sizeof(group)));
	value_of = 1;
	R(setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &value_of, sizeof(value_of)));
	R(setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &value_of, sizeof(value_of)));
	R(setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &value_of, sizeof(value_of)));
	R(setsockopt(fd, SOL_PACKET, 999, &value_of, sizeof(value_of)));
	ask_frames(fd, 'h', 1, 51);
	taken_frame(fd);
	close(fd);
}

const struct test opening_tests[] = {
	{ "names, raw", names, SOCK_RAW },
	{ "names, without headers", names, SOCK_DGRAM },
	{ "opened as SOEM does", as_soem_opens, 0 },
	{ "opened as ethercrab does", as_ethercrab_opens, 0 },
	{ "bound wrongly", bound_wrongly, 0 },
	{ "bound again", bound_again, 0 },
	{ "two of one type, one closed", several, 0 },
	{ "two of one type", several, 1 },
	{ "two of two types", of_other_types, 0 },
	{ "bound late", bound_late, 0 },
	{ "auxiliary data, before", auxiliary, 1 },
	{ "auxiliary data, after", auxiliary, 0 },
	{ "ring, before", ring, 1 },
	{ "ring, after", ring, 0 },
	{ "kinds of sockets", kinds_of_sockets, 0 },
	{ NULL, NULL, 0 },
};
