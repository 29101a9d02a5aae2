/* A sender of CAN frames, one each millisecond by the clock, and a reader of them that measures how late it is.
 *
 *   can send INTERFACE FRAMES
 *   can read INTERFACE FRAMES
 *
 * The identifiers count up. The reader gives the time from the kernel's stamp of a frame's arrival to the return of
 * read(2), without its first frames, from which `taut exec` learns the rhythm. */
#include <linux/can.h>
#include <linux/can/raw.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WARM_UP = 200, PERIOD_NS = 1000000, SPIN_NS = 100000, SECOND_NS = 1000000000 };

static int fail(const char *what)
{
	perror(what);
	return 1;
}

static long long monotonic_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (long long)now.tv_sec * SECOND_NS + now.tv_nsec;
}

/* Spins before each frame is due, since a controller on a bus is in time too. */
static int send_frames(int fd, long count)
{
	struct can_frame frame = { .can_dlc = CAN_MAX_DLEN };
	long long due_ns = monotonic_ns();
	for (long k = 0; k < count; k++) {
		due_ns += PERIOD_NS;
		long long wake_ns = due_ns - SPIN_NS;
		struct timespec wake = { wake_ns / SECOND_NS, wake_ns % SECOND_NS };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL);
		while (monotonic_ns() < due_ns)
			;
		frame.can_id = (canid_t)k & CAN_SFF_MASK;
		memcpy(frame.data, &k, sizeof k);
		if (write(fd, &frame, sizeof frame) != sizeof frame)
			return fail("write");
	}
	return 0;
}

static int compare(const void *left, const void *right)
{
	long a = *(const long *)left, b = *(const long *)right;
	return (a > b) - (a < b);
}

static double us(const long *sorted, long count, double share)
{
	long at = (long)(share * (double)count);
	return (double)sorted[at < count ? at : count - 1] / 1000;
}

static int read_frames(int fd, long count, long *late_ns)
{
	struct timespec now, stamp;
	ioctl(fd, SIOCGSTAMPNS, &stamp); /* from now on the kernel stamps what arrives */
	canid_t expected = 0;
	for (long k = 0; k < count; k++) {
		struct can_frame frame;
		if (read(fd, &frame, sizeof frame) != sizeof frame)
			return fail("read");
		clock_gettime(CLOCK_REALTIME, &now);
		if (ioctl(fd, SIOCGSTAMPNS, &stamp))
			return fail("the time of arrival");
		if (frame.can_id != expected) {
			fprintf(stderr, "frame %#x in place of %#x\n", frame.can_id, expected);
			return 1;
		}
		expected = (expected + 1) & CAN_SFF_MASK;
		if (k >= WARM_UP)
			late_ns[k - WARM_UP] = (now.tv_sec - stamp.tv_sec) * SECOND_NS + now.tv_nsec - stamp.tv_nsec;
	}
	count -= WARM_UP;
	qsort(late_ns, (size_t)count, sizeof *late_ns, compare);
	printf("%ld in order, late by p50 %.1f, p99 %.1f, p99.9 %.1f, at most %.1f us\n", count,
	       us(late_ns, count, 0.5), us(late_ns, count, 0.99), us(late_ns, count, 0.999), us(late_ns, count, 1));
	return 0;
}

int main(int words, char **word)
{
	long count = words == 4 ? atol(word[3]) : 0;
	long *late_ns = count > WARM_UP ? calloc((size_t)count, sizeof *late_ns) : NULL;
	if (!late_ns || (strcmp(word[1], "send") && strcmp(word[1], "read"))) {
		fputs("usage: can send|read INTERFACE FRAMES (more than 200)\n", stderr);
		return 2;
	}
	struct sockaddr_can address = { .can_family = AF_CAN, .can_ifindex = (int)if_nametoindex(word[2]) };
	int fd = socket(AF_CAN, SOCK_RAW, CAN_RAW);
	if (fd < 0 || address.can_ifindex == 0 || bind(fd, (struct sockaddr *)&address, sizeof address))
		return fail(word[2]);
	return strcmp(word[1], "send") ? read_frames(fd, count, late_ns) : send_frames(fd, count);
}
