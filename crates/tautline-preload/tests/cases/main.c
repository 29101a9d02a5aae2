/* Calls on UDP sockets, each with its result, errno and bytes: the same program runs against the kernel and against
 * ports. Arguments: the own address, the peer's, and the names of cases (none: all). */
#include "cases.h"

static const char *own_address, *peer_address;

struct sockaddr_in at(const char *address, int port)
{
	struct sockaddr_in made = { .sin_family = AF_INET, .sin_port = htons(port) };

	inet_pton(AF_INET, address, &made.sin_addr);
	return made;
}

struct sockaddr_in peer(int port)
{
	return at(peer_address, port);
}

struct sockaddr_in own(int port)
{
	return at(own_address, port);
}

int bound(void)
{
	struct sockaddr_in local = own(OWN);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0 || bind(fd, (void *)&local, sizeof(local)) != 0) {
		perror("bound");
		exit(1);
	}
	return fd;
}

int connected(void)
{
	struct sockaddr_in to = peer(ASKED);
	int fd = bound();

	if (connect(fd, (void *)&to, sizeof(to)) != 0) {
		perror("connected");
		exit(1);
	}
	return fd;
}

static void question(int fd, const char *text)
{
	struct sockaddr_in to = peer(ASKED);

	sendto(fd, text, strlen(text), 0, (void *)&to, sizeof(to));
}

void ask(int fd, int count, int size)
{
	char text[64];

	snprintf(text, sizeof(text), "?0 %d %d 0", count, size);
	question(fd, text);
}

void ask_other(int fd, int count, int size)
{
	char text[64];

	snprintf(text, sizeof(text), "?1 %d %d 0", count, size);
	question(fd, text);
}

void ask_later(int fd, int milliseconds, int size)
{
	char text[64];

	snprintf(text, sizeof(text), "?0 1 %d %d", size, milliseconds);
	question(fd, text);
}

void arrived(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };

	poll(&entry, 1, 3000);
	/* The others of a batch are right behind the first. */
	usleep(3000);
}

int main(int count, char **arguments)
{
	if (count < 3)
		return 2;
	own_address = arguments[1];
	peer_address = arguments[2];
	begin();
	run_all(basic_tests, arguments + 3);
	run_all(receive_tests, arguments + 3);
	run_all(wait_tests, arguments + 3);
	run_all(lifetime_tests, arguments + 3);
	return 0;
}
