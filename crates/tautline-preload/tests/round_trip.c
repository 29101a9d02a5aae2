/* Round trips of an ordinary UDP program: `echo ADDRESS PORT spin|block`, and `ask ADDRESS PORT spin|block BYTES
 * COUNT`, which writes the median and the 99th percentile in nanoseconds. scripts/exec-speed.sh runs it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { ROOM = 2000, WARM_UP = 1000 };

static int flags;
static char buffer[ROOM];

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long receive(int fd, struct sockaddr_in *from)
{
	socklen_t length = sizeof(*from);
	long got;

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
	flags = strcmp(arguments[4], "spin") == 0 ? MSG_DONTWAIT : 0;
	if (strcmp(arguments[1], "echo") == 0)
		return bind(fd, (void *)&address, sizeof(address)) ? 1 : echo(fd);
	return count < 7 ? 2 : ask(fd, &address, atol(arguments[5]), atol(arguments[6]));
}
