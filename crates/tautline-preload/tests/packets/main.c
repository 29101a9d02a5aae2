/* Calls on packet sockets, each with its result, errno and bytes: the same program runs against the kernel and against
 * raw ports. Arguments: the interface, and the names of cases (none: all). */
#include "packets.h"

int interface_index;
const char *interface_name;
unsigned char own_mac[6], frame[2048];

struct sockaddr_ll link_address(int type, int index)
{
	return (struct sockaddr_ll){ .sll_family = AF_PACKET, .sll_protocol = htons(type), .sll_ifindex = index };
}

int packet_socket(int kind)
{
	struct sockaddr_ll local = link_address(TYPE, interface_index);
	int fd = socket(AF_PACKET, kind, htons(TYPE));

	if (fd < 0 || bind(fd, (void *)&local, sizeof(local)) != 0) {
		perror("packet_socket");
		exit(1);
	}
	return fd;
}

int framed(const char *destination, int size)
{
	memcpy(frame, destination, 6);
	memcpy(frame + 6, own_mac, 6);
	frame[12] = TYPE >> 8;
	frame[13] = TYPE & 0xff;
	memcpy(frame + HEADER, large, size);
	return HEADER + size;
}

static void question(int fd, const char *text)
{
	struct sockaddr_ll to = link_address(TYPE, interface_index);
	int kind = 0;
	socklen_t length = sizeof(kind);

	to.sll_halen = 6;
	memset(to.sll_addr, 0xff, 6);
	framed("\xff\xff\xff\xff\xff\xff", 0);
	strcpy((char *)frame + HEADER, text);
	getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &length);
	if (kind == SOCK_DGRAM)
		sendto(fd, text, strlen(text), 0, (void *)&to, sizeof(to));
	else
		send(fd, frame, HEADER + strlen(text), 0);
}

void ask_frames(int fd, char how, int count, int size)
{
	char text[64];

	snprintf(text, sizeof(text), "?%c %d %d 0", how, count, size);
	question(fd, text);
}

void ask_frames_later(int fd, char how, int size, int milliseconds)
{
	char text[64];

	snprintf(text, sizeof(text), "?%c 1 %d %d", how, size, milliseconds);
	question(fd, text);
}

void came(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };

	poll(&entry, 1, 3000);
	/* The others of a batch are right behind the first. */
	usleep(3000);
}

void told(const struct sockaddr_ll *from, socklen_t length)
{
	value("address", length);
	value("family", from->sll_family);
	value("protocol", ntohs(from->sll_protocol) == TYPE);
	value("interface", from->sll_ifindex == interface_index);
	value("hardware", from->sll_hatype);
	value("kind", from->sll_pkttype);
	value("bytes of address", from->sll_halen);
	bytes("address", from->sll_addr, 8);
}

void taken_frame(int fd)
{
	struct sockaddr_ll from = { 0 };
	socklen_t length = sizeof(from);
	long got;

	memset(buffer, 0, 2000);
	got = R(recvfrom(fd, buffer, 2000, 0, (void *)&from, &length));
	/* The EtherType differs among cases, and their order may change. */
	if (got >= HEADER && (buffer[12] & 0xff) == TYPE >> 8 && (buffer[13] & 0xff) == (TYPE & 0xff))
		buffer[12] = buffer[13] = 0;
	bytes("frame", buffer, got);
	told(&from, length);
}

int main(int count, char **arguments)
{
	struct ifreq asked = { 0 };
	int fd = socket(AF_PACKET, SOCK_DGRAM, 0);

	if (count < 2)
		return 2;
	interface_name = arguments[1];
	strncpy(asked.ifr_name, interface_name, IFNAMSIZ - 1);
	if (ioctl(fd, SIOCGIFHWADDR, &asked) != 0)
		return 1;
	memcpy(own_mac, asked.ifr_hwaddr.sa_data, 6);
	if (ioctl(fd, SIOCGIFINDEX, &asked) != 0)
		return 1;
	interface_index = asked.ifr_ifindex;
	close(fd);
	own_port = 0x9000;
	begin();
	/* A call that waits for what never comes ends the program, and what was written tells where. */
	alarm(300);
	run_all(opening_tests, arguments + 2);
	run_all(sending_tests, arguments + 2);
	run_all(taking_tests, arguments + 2);
	run_all(waiting_tests, arguments + 2);
	return 0;
}
