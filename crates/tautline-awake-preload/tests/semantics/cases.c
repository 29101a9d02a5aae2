/* Calls that wait, each in one situation, on a descriptor whose rhythm is known: what they return. The test runs this
 * program with the library and without it and compares the output. Usage: cases NAME. Prints the results. CASES_CAN in
 * the environment names a CAN interface: datagrams are its frames then (scripts/can.sh). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/can.h>
#include <linux/can/raw.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Messages from which the rhythm is learned, and microseconds between two. */
enum { LEARNED = 60, PERIOD_US = 2000 };

static int fd;              /* the receiving end */
static pid_t sender;        /* another process, which writes to the other end */
static int unit = 1;        /* bytes of a short message */
static volatile int handled;
static char buffer[4096];

static void out(const char *text, ...)
{
	va_list list;
	va_start(list, text);
	vprintf(text, list);
	va_end(list);
	fflush(stdout);
}

/* A call's result, and errno where it failed. */
static void result(long value)
{
	out("%ld%s%s ", value, value < 0 ? " " : "", value < 0 ? strerrorname_np(errno) : "");
}

static long ms_since(struct timespec *start)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - start->tv_sec) * 1000 + (now.tv_nsec - start->tv_nsec) / 1000000;
}

static void handler(int signal) { handled = signal; }

static void handle(int number, int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	sigaction(number, &action, 0);
}

/* Sends `count` numbered messages, one each period. */
static void send_all(int to, int count, int bytes)
{
	struct timespec next;
	char message[4096] = "";
	clock_gettime(CLOCK_MONOTONIC, &next);
	for (int k = 0; k < count; k++) {
		next.tv_nsec += PERIOD_US * 1000;
		if (next.tv_nsec >= 1000000000) {
			next.tv_nsec -= 1000000000;
			next.tv_sec++;
		}
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, 0);
		message[0] = 'a' + k % 26;
		if (write(to, message, bytes) < 0)
			return;
	}
}

static int can_socket(const char *interface)
{
	struct sockaddr_can address = { .can_family = AF_CAN, .can_ifindex = if_nametoindex(interface) };
	int own = socket(AF_CAN, SOCK_RAW, CAN_RAW);
	if (bind(own, (void *)&address, sizeof address))
		perror(interface);
	return own;
}

static int datagram_pair(int *peer)
{
	const char *interface = getenv("CASES_CAN");
	if (interface) {
		unit = CAN_MTU;
		*peer = can_socket(interface);
		return can_socket(interface);
	}
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof address;
	inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
	int own = socket(AF_INET, SOCK_DGRAM, 0);
	bind(own, (void *)&address, sizeof address);
	getsockname(own, (void *)&address, &length);
	*peer = socket(AF_INET, SOCK_DGRAM, 0);
	connect(*peer, (void *)&address, sizeof address);
	getsockname(*peer, (void *)&address, &length);
	connect(own, (void *)&address, sizeof address);
	return own;
}

static int stream_pair(int *peer)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof address;
	inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	bind(listener, (void *)&address, sizeof address);
	listen(listener, 1);
	getsockname(listener, (void *)&address, &length);
	*peer = socket(AF_INET, SOCK_STREAM, 0);
	connect(*peer, (void *)&address, sizeof address);
	int own = accept(listener, 0, 0);
	close(listener);
	return own;
}

static int is_held;         /* the sender's last message waits for SIGUSR2 */

/* The sender is another process: `count` messages, then silence for a second, then one more, then the end. A CAN
 * interface takes frames of one size alone. */
static void start(int own, int peer, int count, int bytes)
{
	fd = own;
	sender = fork();
	if (sender == 0) {
		static const char message[CAN_MTU] = "z";
		sigset_t last;
		int number;
		sigemptyset(&last);
		sigaddset(&last, SIGUSR2);
		sigprocmask(SIG_BLOCK, &last, 0);
		close(own);
		send_all(peer, count, unit == 1 ? bytes : unit);
		if (is_held)
			sigwait(&last, &number);
		else
			usleep(700000);
		if (write(peer, message, unit) < 0)
			_exit(1);
		usleep(200000);
		_exit(0);
	}
	close(peer);
}

/* Messages that are there: several where this program was held up. */
static int drained(void)
{
	int count = 0;
	while (recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) > 0)
		count++;
	return count;
}

static void learn(void)
{
	for (int k = 0; k < LEARNED; k++)
		if (recv(fd, buffer, sizeof buffer, 0) < 0)
			perror("learn");
}

/* A datagram socket whose rhythm is known, and whose sender has `more` messages. */
static void datagrams(int more)
{
	int peer, own = datagram_pair(&peer);
	start(own, peer, LEARNED + more, 1);
	learn();
}

static void *interrupt_main(void *main_thread)
{
	usleep(100000);
	pthread_kill(*(pthread_t *)main_thread, SIGUSR1);
	return 0;
}

static void interrupt_soon(void)
{
	static pthread_t main_thread, helper;
	main_thread = pthread_self();
	pthread_create(&helper, 0, interrupt_main, &main_thread);
}

static void case_receives(void)
{
	datagrams(200);
	int sum = 0;
	for (int k = 0; k < 200; k++)
		sum += recv(fd, buffer, sizeof buffer, 0) == unit && buffer[0] == 'a' + (LEARNED + k) % 26;
	out("%d in order", sum);
}

static void case_errno(void)
{
	datagrams(5);
	errno = 77;
	recv(fd, buffer, sizeof buffer, 0);
	out("%d", errno);
}

static void case_timeout(void)
{
	datagrams(0);
	struct timeval limit = { 0, 300000 };
	struct timespec began;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	clock_gettime(CLOCK_MONOTONIC, &began);
	result(recv(fd, buffer, sizeof buffer, 0));
	long ms = ms_since(&began);
	out("%s", ms >= 299 ? "in time" : "not in time");
}

static void case_interrupted(int flags, int second, int second_flags)
{
	datagrams(0);
	handle(SIGUSR1, flags);
	if (second)
		handle(second, second_flags);
	interrupt_soon();
	result(recv(fd, buffer, sizeof buffer, 0));
	out("handled %d, %c", handled, buffer[0]);
}

static void case_eintr(void) { case_interrupted(0, 0, 0); }
static void case_restart(void) { case_interrupted(SA_RESTART, 0, 0); }
static void case_mixed_eintr(void) { case_interrupted(0, SIGUSR2, SA_RESTART); }
static void case_mixed_restart(void) { case_interrupted(SA_RESTART, SIGUSR2, 0); }

static void case_eintr_with_timeout(void)
{
	datagrams(0);
	struct timeval limit = { 2, 0 };
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	handle(SIGUSR1, SA_RESTART);
	interrupt_soon();
	result(recv(fd, buffer, sizeof buffer, 0));
}

static void *shut_down(void *unused)
{
	usleep(100000);
	shutdown(fd, SHUT_RDWR);
	return unused;
}
static void *close_it(void *unused)
{
	usleep(100000);
	close(fd);
	return unused;
}
static void *replace_it(void *unused)
{
	int other = open("/dev/null", O_RDWR);
	usleep(100000);
	dup2(other, fd);
	return unused;
}

static void by_another(void *(*work)(void *))
{
	pthread_t thread;
	datagrams(0);
	pthread_create(&thread, 0, work, 0);
	result(recv(fd, buffer, sizeof buffer, 0));
	out("%c", buffer[0]);
	pthread_join(thread, 0);
}

static void case_shutdown(void) { by_another(shut_down); }
static void case_close(void) { by_another(close_it); }
static void case_dup2(void) { by_another(replace_it); }

static void *waits(void *unused)
{
	recv(fd, buffer, sizeof buffer, 0);
	return unused;
}

static void cancelled(void *(*work)(void *))
{
	pthread_t thread;
	void *value;
	pthread_create(&thread, 0, work, 0);
	usleep(100000);
	pthread_cancel(thread);
	pthread_join(thread, &value);
	out("%s", value == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
}

static void case_cancel(void)
{
	datagrams(0);
	cancelled(waits);
}

static void case_refused(void)
{
	datagrams(5);
	kill(sender, SIGKILL);
	waitpid(sender, 0, 0);
	usleep(20000);
	drained();
	send(fd, "x", 1, 0);
	result(recv(fd, buffer, sizeof buffer, 0));
}

static void case_fork(void)
{
	datagrams(40);
	pid_t child = fork();
	int count = 0;
	if (child == 0) {
		while (count < 10 && recv(fd, buffer, sizeof buffer, 0) == unit)
			count++;
		_exit(count);
	}
	int status;
	waitpid(child, &status, 0);
	out("child %d ", WEXITSTATUS(status));
	result(recv(fd, buffer, sizeof buffer, 0));
}

static int received[2];
static void *receives(void *index)
{
	struct timeval limit = { 0, 400000 };
	char own[16];
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	while (recv(fd, own, sizeof own, 0) > 0)
		received[(long)index]++;
	return 0;
}

static void case_two_threads(void)
{
	pthread_t threads[2];
	datagrams(100);
	for (long k = 0; k < 2; k++)
		pthread_create(&threads[k], 0, receives, (void *)k);
	for (int k = 0; k < 2; k++)
		pthread_join(threads[k], 0);
	out("%d together", received[0] + received[1]);
}

/* Three messages at once, each period. */
static void case_bursts(void)
{
	int peer, own = datagram_pair(&peer), in_order = 0;
	fd = own;
	sender = fork();
	if (sender == 0) {
		close(own);
		for (int k = 0; k < 100; k++) {
			usleep(PERIOD_US);
			for (int part = 0; part < 3; part++) {
				int number = 3 * k + part;
				if (write(peer, &number, sizeof number) < 0)
					_exit(1);
			}
		}
		usleep(200000);
		_exit(0);
	}
	close(peer);
	for (int k = 0; k < 300; k++) {
		int number = -1;
		recv(fd, &number, sizeof number, 0);
		in_order += number == k;
	}
	out("%d in order", in_order);
}

/* A socket that asks for the time of arrival only now. */
static void case_option_later(void)
{
	char control[100];
	struct iovec part = { buffer, sizeof buffer };
	int on = 1, with_time = 0;
	datagrams(20);
	setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
	/* Messages that are there already have none. */
	drained();
	for (int k = 0; k < 15; k++) {
		struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
					  .msg_controllen = sizeof control };
		recvmsg(fd, &message, 0);
		with_time += CMSG_FIRSTHDR(&message) != 0;
	}
	out("%d with a time", with_time);
}

/* The socket goes on under another number. */
static void case_copies(void)
{
	int received = 0;
	char last = 0, expected;
	datagrams(60);
	int copy = dup(fd);
	for (int k = 0; k < 60; k++) {
		if (k == 30)
			close(fd);
		expected = 'a' + (LEARNED + k) % 26;
		received += recv(k % 2 || k >= 30 ? copy : fd, &last, 1, 0) == 1 && last == expected;
	}
	out("%d in order", received);
}

/* A program that looks twice before it reads. */
static void case_polled_twice(void)
{
	int found = 0;
	datagrams(60);
	for (int k = 0; k < 50; k++) {
		struct pollfd one = { fd, POLLIN, 0 };
		fd_set set;
		struct timeval none = { 0, 0 };
		FD_ZERO(&set);
		FD_SET(fd, &set);
		found += poll(&one, 1, 1000) == 1 && poll(&one, 1, 0) == 1 && one.revents == POLLIN;
		found += select(fd + 1, &set, 0, 0, &none) == 1 && FD_ISSET(fd, &set);
		found += recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) == unit;
	}
	out("%d", found);
}

/* A socket that listens to another peer from now on. */
static void case_reconnected(void)
{
	struct sockaddr_in other = { .sin_family = AF_INET, .sin_port = htons(9) };
	struct timeval limit = { 0, 100000 };
	inet_pton(AF_INET, "127.0.0.1", &other.sin_addr);
	datagrams(100);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	connect(fd, (void *)&other, sizeof other);
	drained();
	result(recv(fd, buffer, sizeof buffer, 0));
}

static void case_dontwait(void)
{
	datagrams(0);
	result(recv(fd, buffer, sizeof buffer, MSG_DONTWAIT));
}

static void case_nonblocking(void)
{
	datagrams(0);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	result(recv(fd, buffer, sizeof buffer, 0));
	result(read(fd, buffer, sizeof buffer));
}

static void case_peek(void)
{
	datagrams(5);
	result(recv(fd, buffer, sizeof buffer, MSG_PEEK));
	char first = buffer[0];
	result(recv(fd, buffer, sizeof buffer, 0));
	out("%s", first == buffer[0] ? "the same" : "another");
}

static void case_truncated(void)
{
	int peer, own = datagram_pair(&peer);
	start(own, peer, LEARNED + 5, 100);
	learn();
	result(recv(fd, buffer, 10, MSG_TRUNC));
	result(recv(fd, buffer, 10, 0));
}

static void case_recvmsg(void)
{
	struct sockaddr_in from;
	struct iovec part = { buffer, sizeof buffer };
	struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &part, .msg_iovlen = 1 };
	datagrams(5);
	result(recvmsg(fd, &message, 0));
	out("%d %d", message.msg_namelen, from.sin_family);
}

static void case_recvmmsg(void)
{
	struct iovec parts[2] = { { buffer, 100 }, { buffer + 100, 100 } };
	struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = &parts[0], .msg_iovlen = 1 } },
		{ .msg_hdr = { .msg_iov = &parts[1], .msg_iovlen = 1 } } };
	datagrams(20);
	result(recvmmsg(fd, messages, 2, 0, 0));
	result(recvmmsg(fd, messages, 2, MSG_WAITFORONE, 0) >= 1);
}

static void case_readv(void)
{
	struct iovec parts[2] = { { buffer, 1 }, { buffer + 1, 10 } };
	datagrams(5);
	result(readv(fd, parts, 2));
	result(read(fd, buffer, sizeof buffer));
	result(recvfrom(fd, buffer, sizeof buffer, 0, 0, 0));
}

/* Parts of ten bytes of a stream, and `more` after those that were learned from. */
static void streamed(int more)
{
	int peer, own = stream_pair(&peer);
	start(own, peer, LEARNED + more, 10);
	for (int k = 0; k < LEARNED; k++)
		read(fd, buffer, 10);
}

static void case_waitall(void)
{
	streamed(20);
	result(recv(fd, buffer, 45, MSG_WAITALL));
	result(recv(fd, buffer, 5, 0));
}

static void case_end_of_stream(void)
{
	streamed(0);
	result(read(fd, buffer, 10));
	result(read(fd, buffer, 10));
}

static void case_pipe(void)
{
	int ends[2];
	if (pipe(ends))
		return;
	start(ends[0], ends[1], LEARNED + 20, 1);
	for (int k = 0; k < LEARNED + 20; k++)
		read(fd, buffer, 1);
	result(read(fd, buffer, 10));
	result(read(fd, buffer, 10));
}

static void case_unix(void)
{
	int ends[2];
	socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends);
	start(ends[0], ends[1], LEARNED + 20, 3);
	learn();
	result(recv(fd, buffer, 2, MSG_TRUNC));
	for (int k = 0; k < 19; k++)
		recv(fd, buffer, 10, 0);
	result(recv(fd, buffer, 10, 0));
	result(recv(fd, buffer, 10, 0));
}

static void case_bad_buffer(void)
{
	datagrams(5);
	result(recv(fd, (void *)8, 100, 0));
}

static void learn_by_poll(struct pollfd *entries, int count)
{
	for (int k = 0; k < LEARNED; k++) {
		poll(entries, count, -1);
		recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
	}
}

static void polled(int more)
{
	int peer, own = datagram_pair(&peer);
	start(own, peer, LEARNED + more, 1);
}

static void case_poll_timeout(void)
{
	struct timespec began;
	polled(0);
	struct pollfd entries[2] = { { fd, POLLIN, 0 }, { 0, 0, 0 } };
	learn_by_poll(entries, 2);
	clock_gettime(CLOCK_MONOTONIC, &began);
	result(poll(entries, 2, 150));
	long ms = ms_since(&began);
	out("%s %d", ms >= 150 ? "in time" : "not in time", entries[0].revents);
}

static void case_poll_finds(void)
{
	polled(60);
	struct pollfd entries[2] = { { fd, POLLIN | POLLOUT, 0 }, { -1, POLLIN, 7 } };
	struct pollfd one = { fd, POLLIN, 0 };
	learn_by_poll(&one, 1);
	int found = 0;
	for (int k = 0; k < 50; k++) {
		found += poll(&one, 1, 1000) == 1 && one.revents == POLLIN;
		recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
	}
	out("%d ", found);
	result(poll(entries, 2, -1));
	out("%d %d", entries[0].revents & POLLOUT, entries[1].revents);
}

/* As candump does: a wait for several descriptors, then a call that would wait too. */
static void case_select_receives(void)
{
	polled(60);
	int in_order = 0;
	for (int k = 0; k < LEARNED + 60; k++) {
		fd_set set;
		FD_ZERO(&set);
		FD_SET(fd, &set);
		select(fd + 1, &set, 0, 0, 0);
		in_order += recv(fd, buffer, sizeof buffer, 0) == unit && buffer[0] == 'a' + k % 26;
	}
	out("%d in order", in_order);
}

static void case_poll_signal(void)
{
	polled(0);
	struct pollfd one = { fd, POLLIN, 0 };
	learn_by_poll(&one, 1);
	handle(SIGUSR1, SA_RESTART);
	interrupt_soon();
	result(poll(&one, 1, 5000));
}

static void case_ppoll_mask(void)
{
	sigset_t blocked, none;
	struct timespec limit = { 3, 0 };
	polled(0);
	struct pollfd one = { fd, POLLIN, 0 };
	learn_by_poll(&one, 1);
	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	handle(SIGUSR1, 0);
	sigprocmask(SIG_BLOCK, &blocked, 0);
	raise(SIGUSR1);
	out("handled %d ", handled);
	result(ppoll(&one, 1, &limit, &none));
	out("handled %d", handled);
}

static void case_poll_error(void)
{
	polled(5);
	struct pollfd one = { fd, POLLIN, 0 };
	learn_by_poll(&one, 1);
	kill(sender, SIGKILL);
	waitpid(sender, 0, 0);
	drained();
	send(fd, "x", 1, 0);
	result(poll(&one, 1, 2000));
	out("%d ", one.revents);
	result(recv(fd, buffer, sizeof buffer, 0));
}

static void case_poll_invalid(void)
{
	struct pollfd one = { 77, POLLIN, 0 };
	result(poll(&one, 1, 1000));
	out("%d ", one.revents);
	struct timespec bad = { 0, 1000000000 };
	result(ppoll(&one, 1, &bad, 0));
	result(poll(0, 1, 10));
}

static void case_select(void)
{
	polled(60);
	struct timeval limit = { 0, 200000 };
	fd_set set;
	int found = 0;
	for (int k = 0; k < LEARNED + 60; k++) {
		FD_ZERO(&set);
		FD_SET(fd, &set);
		found += select(fd + 1, &set, 0, 0, 0) == 1 && FD_ISSET(fd, &set);
		recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
	}
	out("%d ", found);
	FD_SET(fd, &set);
	result(select(fd + 1, &set, 0, 0, &limit));
	out("%d %ld.%06ld", FD_ISSET(fd, &set) != 0, limit.tv_sec, limit.tv_usec);
}

static void case_pselect(void)
{
	polled(0);
	struct timespec limit = { 0, 100000000 };
	struct timespec began;
	fd_set set;
	for (int k = 0; k < LEARNED; k++) {
		FD_ZERO(&set);
		FD_SET(fd, &set);
		pselect(fd + 1, &set, 0, 0, 0, 0);
		recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
	}
	FD_SET(fd, &set);
	clock_gettime(CLOCK_MONOTONIC, &began);
	result(pselect(fd + 1, &set, 0, 0, &limit, 0));
	out("%s %ld", ms_since(&began) >= 100 ? "in time" : "early", limit.tv_nsec);
}

/* Another thread closes a member of the set: the call goes on with its file. */
enum { TRIED = 24 }; /* messages after which the next is looked for, whatever that brings */
static int other;

/* Waits until the first thread sleeps in its call, however late a busy machine lets it begin. */
static void until_called(void)
{
	char text[64];
	do {
		usleep(100);
		int status = open("/proc/self/stat", O_RDONLY);
		text[read(status, text, sizeof text - 1)] = 0;
		close(status);
	} while (!strstr(text, ") S "));
}

static void *close_member(void *unused)
{
	until_called();
	close(fd);
	close(other);
	return unused;
}

/* Closes the member; then the last message of the sender comes. */
static void *close_before_message(void *unused)
{
	close_member(unused);
	usleep(300000);
	kill(sender, SIGUSR2);
	return unused;
}

static void found(struct pollfd *list, int count)
{
	for (int k = 0; k < count; k++)
		out("%#x ", list[k].revents);
}

/* Waits for two descriptors that another thread closes. */
static void poll_closed(void *(*work)(void *), int timeout_ms)
{
	int peer, closed = datagram_pair(&peer);
	struct timespec began;
	pthread_t thread;
	is_held = 1;
	polled(TRIED - LEARNED);
	other = closed;
	struct pollfd list[2] = { { fd, POLLIN, 0 }, { other, POLLIN, 0 } };
	for (int k = 0; k < TRIED; k++) {
		poll(list, 2, -1);
		recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
	}
	pthread_create(&thread, 0, work, 0);
	clock_gettime(CLOCK_MONOTONIC, &began);
	result(poll(list, 2, timeout_ms));
	out("%s ", ms_since(&began) >= 250 ? "at its end" : "early");
	found(list, 2);
	pthread_join(thread, 0);
}

static void case_poll_close(void)
{
	poll_closed(close_member, 300);
	struct pollfd list[2] = { { fd, POLLIN, 0 }, { other, POLLIN, 0 } };
	result(poll(list, 2, 300));
	found(list, 2);
	result(fcntl(fd, F_GETFD));
	result(dup(0) == fd);
}

/* The sender's last message comes to the file that was closed. */
static void case_poll_close_message(void) { poll_closed(close_before_message, 5000); }

static void case_select_close(void)
{
	struct timeval limit = { 0, 300000 };
	pthread_t thread;
	fd_set set;
	int peer;
	is_held = 1;
	polled(TRIED - LEARNED);
	other = datagram_pair(&peer);
	FD_ZERO(&set);
	for (int k = 0; k < TRIED; k++) {
		FD_SET(fd, &set);
		select(fd + 1, &set, 0, 0, 0);
		recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
	}
	pthread_create(&thread, 0, close_member, 0);
	FD_SET(fd, &set);
	result(select(fd + 1, &set, 0, 0, &limit));
	out("%d ", FD_ISSET(fd, &set));
	FD_ZERO(&set);
	pthread_join(thread, 0);
	FD_SET(fd, &set);
	result(select(fd + 1, &set, 0, 0, &limit));
}

static void case_epoll_close(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 99 }, got;
	int epoll = epoll_create1(0);
	pthread_t thread;
	is_held = 1;
	polled(TRIED - LEARNED);
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	for (int k = 0; k < TRIED; k++) {
		epoll_wait(epoll, &got, 1, -1);
		recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
	}
	other = fd;
	fd = epoll;
	pthread_create(&thread, 0, close_member, 0);
	result(epoll_wait(epoll, &got, 1, 300));
	pthread_join(thread, 0);
	result(epoll_wait(epoll, &got, 1, 300));
}

static void case_recvmmsg_timeout(void)
{
	struct iovec part = { buffer, sizeof buffer };
	struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = &part, .msg_iovlen = 1 } } };
	struct timespec limit, began;
	int ones = 0, written = 0;
	datagrams(60);
	messages[1] = messages[0];
	for (int k = 0; k < 50; k++) {
		limit = (struct timespec){ 5, 0 };
		ones += recvmmsg(fd, messages, 1, 0, &limit) == 1;
		written += limit.tv_sec == 4;
	}
	out("%d %d ", ones, written);
	while (recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) > 0 || errno != EAGAIN)
		;
	usleep(60000);
	drained();
	/* The kernel looks at the timeout after a message only: this waits for one, then ends. */
	clock_gettime(CLOCK_MONOTONIC, &began);
	limit = (struct timespec){ 0, 20000000 };
	result(recvmmsg(fd, messages, 2, 0, &limit));
	out("%s %ld.%ld ", ms_since(&began) > 100 ? "later" : "soon", (long)limit.tv_sec, limit.tv_nsec);
	limit = (struct timespec){ 0, -1 };
	result(recvmmsg(fd, messages, 2, 0, &limit));
	limit = (struct timespec){ 0, 5 };
	handle(SIGUSR1, 0);
	interrupt_soon();
	result(recvmmsg(fd, messages, 2, 0, &limit));
	out("%ld.%ld", (long)limit.tv_sec, limit.tv_nsec);
}

static void case_select_high(void)
{
	struct rlimit most = { 4096, 4096 };
	setrlimit(RLIMIT_NOFILE, &most);
	polled(60);
	int high = fcntl(fd, F_DUPFD, 2000);
	unsigned long set[64] = { 0 };
	int found = 0;
	for (int k = 0; k < LEARNED + 60; k++) {
		set[high / 64] = 1UL << (high % 64);
		found += select(high + 1, (void *)set, 0, 0, 0) == 1;
		recv(high, buffer, sizeof buffer, MSG_DONTWAIT);
	}
	out("%d", found);
}

static void epolled(int flags, int rounds)
{
	struct epoll_event event = { .events = EPOLLIN | flags, .data.u64 = 99 }, got[4];
	int epoll = epoll_create1(0), found = 0;
	polled(rounds);
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	while (found < LEARNED + rounds) {
		int count = epoll_wait(epoll, got, 4, 1000);
		if (count != 1 || got[0].data.u64 != 99 || got[0].events != EPOLLIN)
			break;
		found += drained();
		if (flags & EPOLLONESHOT)
			epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
	}
	out("%d ", found);
	result(epoll_wait(epoll, got, 4, 50));
	result(epoll_wait(epoll, got, 0, 50));
}

static void case_epoll(void) { epolled(0, 60); }
static void case_epoll_edge(void) { epolled(EPOLLET, 60); }
static void case_epoll_once(void) { epolled(EPOLLONESHOT, 60); }

static void case_epoll_nested(void)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET }, got;
	int inner = epoll_create1(0), outer = epoll_create1(0), found = 0;
	polled(60);
	epoll_ctl(inner, EPOLL_CTL_ADD, fd, &event);
	event.events = EPOLLIN;
	epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event);
	while (found < LEARNED + 60 && epoll_wait(outer, &got, 1, 1000) == 1 && epoll_wait(inner, &got, 1, 0) == 1)
		found += drained();
	out("%d ", found);
	result(epoll_pwait2(outer, &got, 1, &(struct timespec){ 0, 20000000 }, 0));
}

static void case_epoll_signal(void)
{
	struct epoll_event event = { .events = EPOLLIN }, got;
	int epoll = epoll_create1(0);
	polled(0);
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	for (int k = 0; k < LEARNED; k++) {
		epoll_wait(epoll, &got, 1, -1);
		recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
	}
	handle(SIGUSR1, SA_RESTART);
	interrupt_soon();
	result(epoll_wait(epoll, &got, 1, 5000));
}

static void case_seccomp(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof code / sizeof *code, code };
	datagrams(40);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
	int count = 0;
	for (int k = 0; k < 20; k++)
		count += recv(fd, buffer, sizeof buffer, 0) == 1;
	out("%d", count);
}

static void case_timerfd(void)
{
	struct itimerspec every = { { 0, 2000000 }, { 0, 2000000 } };
	unsigned long expired, sum = 0;
	fd = timerfd_create(CLOCK_MONOTONIC, 0);
	timerfd_settime(fd, 0, &every, 0);
	for (int k = 0; k < 120; k++)
		sum += read(fd, &expired, sizeof expired) == sizeof expired && expired >= 1;
	out("%lu", sum);
}

static void case_nanosleep(void)
{
	struct timespec time = { 0, 2000000 }, left = { 9, 9 }, bad = { 0, -1 }, began;
	int early = 0;
	for (int k = 0; k < 60; k++) {
		clock_gettime(CLOCK_MONOTONIC, &began);
		result(nanosleep(&time, &left));
		early += ms_since(&began) < 2;
	}
	out("early %d, left %ld.%ld ", early, left.tv_sec, left.tv_nsec);
	result(nanosleep(&bad, 0));
	result(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &began, 0));
	result(clock_nanosleep(12345, 0, &time, 0));
	result(clock_nanosleep(CLOCK_REALTIME, 0, &time, 0));
	result(usleep(3000));
}

static void case_nanosleep_signal(void)
{
	struct timespec time = { 3, 0 }, left = { 0, 0 };
	handle(SIGUSR1, SA_RESTART);
	interrupt_soon();
	result(nanosleep(&time, &left));
	out("%s ", left.tv_sec == 2 && left.tv_nsec > 700000000 ? "the rest" : "not the rest");
	interrupt_soon();
	result(clock_nanosleep(CLOCK_MONOTONIC, 0, &time, &left));
	out("%s", left.tv_sec == 2 ? "the rest" : "not the rest");
}

static void *sleeps(void *unused)
{
	sleep(10);
	usleep(10000000);
	return unused;
}

static void case_nanosleep_cancel(void) { cancelled(sleeps); }

static void case_numbers(void)
{
	int first = dup(0);
	close(first);
	datagrams(40);
	for (int k = 0; k < 40; k++)
		recv(fd, buffer, sizeof buffer, 0);
	int last = dup(0);
	out("%d ", last - first);
	for (int k = 3; k < 1024; k++)
		if (k != fd && fcntl(k, F_GETFD) >= 0 && k != last)
			out("%d ", k);
}

#define CASE(name) { #name, case_##name }
static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	CASE(receives), CASE(errno), CASE(timeout), CASE(eintr), CASE(restart), CASE(mixed_eintr), CASE(mixed_restart),
	CASE(eintr_with_timeout), CASE(shutdown), CASE(close), CASE(dup2), CASE(cancel), CASE(refused), CASE(fork),
	CASE(two_threads), CASE(dontwait), CASE(nonblocking), CASE(peek), CASE(truncated), CASE(recvmsg), CASE(recvmmsg),
	CASE(readv), CASE(waitall), CASE(end_of_stream), CASE(pipe), CASE(unix), CASE(bad_buffer), CASE(poll_timeout),
	CASE(poll_finds), CASE(poll_signal), CASE(ppoll_mask), CASE(poll_error), CASE(poll_invalid), CASE(select),
	CASE(poll_close), CASE(poll_close_message), CASE(select_close), CASE(epoll_close), CASE(recvmmsg_timeout),
	CASE(pselect), CASE(select_high), CASE(epoll), CASE(epoll_edge), CASE(epoll_once), CASE(epoll_nested),
	CASE(epoll_signal), CASE(seccomp), CASE(timerfd), CASE(nanosleep), CASE(nanosleep_signal), CASE(nanosleep_cancel),
	CASE(numbers), CASE(bursts), CASE(option_later), CASE(copies), CASE(polled_twice), CASE(reconnected),
	CASE(select_receives),
};

int main(int count, char **words)
{
	if (count < 2) {
		for (unsigned k = 0; k < sizeof cases / sizeof *cases; k++)
			puts(cases[k].name);
		return 0;
	}
	signal(SIGPIPE, SIG_IGN);
	for (unsigned k = 0; k < sizeof cases / sizeof *cases; k++)
		if (strcmp(cases[k].name, words[1]) == 0) {
			cases[k].run();
			puts("");
			if (sender > 0)
				kill(sender, SIGKILL);
			return 0;
		}
	return 2;
}
