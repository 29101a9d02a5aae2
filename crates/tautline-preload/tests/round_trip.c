/* Round trips of an ordinary UDP program: `echo ADDRESS PORT HOW`, and `ask ADDRESS PORT HOW BYTES COUNT`, which writes
 * the median and the 99th percentile in nanoseconds. HOW is spin, block, poll, select or epoll; with the last three, it
 * waits in that call and then receives. scripts/exec-speed.sh runs it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>

enum { ROOM = 2000, WARM_UP = 1000 };

static int flags;
static const char *how;
static int epoll;
static char buffer[ROOM];

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void await(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	struct epoll_event event;
	fd_set reading;

	if (strcmp(how, "poll") == 0) {
		poll(&entry, 1, -1);
	} else if (strcmp(how, "select") == 0) {
		FD_ZERO(&reading);
		FD_SET(fd, &reading);
		select(fd + 1, &reading, NULL, NULL, NULL);
	} else if (epoll) {
		epoll_wait(epoll, &event, 1, -1);
	}
}

static long receive(int fd, struct sockaddr_in *from)
{
	socklen_t length = sizeof(*from);
	long got;

	await(fd);
	do
		got = recvfrom(fd, buffer, ROOM, flags, (void *)from, &length);
	while (got < 0);
	return got;
}

static int compare(const void *left, const void *right)
{
	long long difference = *(const long long *)left - *(const long long *)right;

	return (difference > 0) - (difference < 0);
}

static int echo(int fd)
{
	struct sockaddr_in from;

	for (;;) {
		long got = receive(fd, &from);

		sendto(fd, buffer, got, 0, (void *)&from, sizeof(from));
	}
}

static int ask(int fd, const struct sockaddr_in *to, long bytes, long count)
{
	long long *times = calloc(count, sizeof(*times));
	struct sockaddr_in from;

	for (long index = -WARM_UP; index < count; index++) {
		long long start = now_ns();

		sendto(fd, buffer, bytes, 0, (void *)to, sizeof(*to));
		receive(fd, &from);
		if (index >= 0)
			times[index] = now_ns() - start;
	}
	qsort(times, count, sizeof(*times), compare);
	printf("%lld %lld\n", times[count / 2], times[count / 100 * 99]);
	return 0;
}

int main(int count, char **arguments)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (count < 5)
		return 2;
	inet_pton(AF_INET, arguments[2], &address.sin_addr);
	address.sin_port = htons(atoi(arguments[3]));
	how = arguments[4];
	flags = strcmp(how, "spin") == 0 ? MSG_DONTWAIT : 0;
	if (strcmp(how, "epoll") == 0) {
		struct epoll_event event = { .events = EPOLLIN };

		epoll = epoll_create1(0);
		epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	}
	if (strcmp(arguments[1], "echo") == 0)
		return bind(fd, (void *)&address, sizeof(address)) ? 1 : echo(fd);
	return count < 7 ? 2 : ask(fd, &address, atol(arguments[5]), atol(arguments[6]));
}
