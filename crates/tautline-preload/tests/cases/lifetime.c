/* Descriptors copied, closed, inherited; signal handlers and threads. */
#include "cases.h"
#include <pthread.h>

static void copies(long way)
{
	int fd = bound(), copy = 200;

	switch (way) {
	case 0:
		copy = dup(fd);
		break;
	case 1:
		R(dup2(fd, copy));
		break;
	case 2:
		R(dup3(fd, copy, O_CLOEXEC));
		break;
	default:
		copy = fcntl(fd, F_DUPFD_CLOEXEC, 150);
	}
	ask(copy, 2, 10);
	arrived(fd);
	R(recv(copy, NULL, 0, MSG_TRUNC));
	close(fd);
	R(recv(copy, buffer, ROOM, 0));
	ask(copy, 1, 20);
	R(recv(copy, buffer, ROOM, 0));
	close(copy);
	errno = 0;
	value("closed", recv(copy, buffer, ROOM, MSG_DONTWAIT));
	value("error", errno);
	fd = bound();
	ask(fd, 1, 30);
	R(recv(fd, buffer, ROOM, 0));
	close(fd);
}

/* A copy of something else over a socket closes it. */
static void copied_over(long unused)
{
	int fd = bound(), null = open("/dev/null", O_RDWR);

	(void)unused;
	dup2(null, fd);
	R(read(fd, buffer, 10));
	R(write(fd, buffer, 10));
	R(recv(fd, buffer, 10, 0));
	close(null);
	close(fd);
	close(bound());
}

static void close_ranges(long unused)
{
	int fd = bound(), high = fcntl(fd, F_DUPFD, 900);

	(void)unused;
	R(close_range(900, 1000, 0));
	R(recv(high, buffer, ROOM, MSG_DONTWAIT));
	ask(fd, 1, 10);
	R(recv(fd, buffer, ROOM, 0));
	R(close_range(3, ~0U, 0));
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	fd = bound();
	ask(fd, 1, 10);
	R(recv(fd, buffer, ROOM, 0));
	/* As a daemon does it. */
	for (int one = 3; one < 1024; one++)
		close(one);
	fd = bound();
	ask(fd, 1, 10);
	R(recv(fd, buffer, ROOM, 0));
	close(fd);
}

static void forked(long parent_closes)
{
	int fd = bound(), status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		/* The child may send; what the peer answers is the parent's. */
		if (parent_closes) {
			usleep(100000);
			ask(fd, 1, 15);
			_exit(recv(fd, buffer, ROOM, 0) == 15 ? 0 : 1);
		}
		ask(fd, 1, 25);
		_exit(0);
	}
	if (parent_closes)
		close(fd);
	else
		R(recv(fd, buffer, ROOM, 0));
	R(waitpid(child, &status, 0) == child);
	value("child", status);
	if (!parent_closes) {
		ask(fd, 1, 35);
		R(recv(fd, buffer, ROOM, 0));
		close(fd);
	}
}

static void child_opens_its_own(long unused)
{
	int fd = bound(), status = 0;
	pid_t child;

	(void)unused;
	fflush(stdout);
	child = fork();
	if (child == 0) {
		struct sockaddr_in to = peer(ASKED);
		int mine = socket(AF_INET, SOCK_DGRAM, 0);

		close(fd);
		sendto(mine, "child", 5, 0, (void *)&to, sizeof(to));
		_exit(recv(mine, buffer, ROOM, 0) == 5 ? 0 : 1);
	}
	R(waitpid(child, &status, 0) == child);
	value("child", status);
	ask(fd, 1, 35);
	R(recv(fd, buffer, ROOM, 0));
	close(fd);
}

static void vforked(long unused)
{
	int fd = bound();
	pid_t child;

	(void)unused;
	fflush(stdout);
	child = vfork();
	if (child == 0) {
		close(fd);
		_exit(0);
	}
	R(waitpid(child, NULL, 0) == child);
	ask(fd, 1, 35);
	R(recv(fd, buffer, ROOM, 0));
	close(fd);
}

static int handled = -1;

static void close_in_handler(int signal)
{
	(void)signal;
	send(handled, "in a handler", 12, 0);
	close(handled);
}

static void handler_closes(long unused)
{
	(void)unused;
	handled = connected();
	signal(SIGUSR1, close_in_handler);
	R(send(handled, "before", 6, 0));
	R(raise(SIGUSR1));
	R(recv(handled, buffer, ROOM, MSG_DONTWAIT));
	signal(SIGUSR1, SIG_DFL);
	close(bound());
}

static void *send_later(void *fd)
{
	usleep(30000);
	ask(*(int *)fd, 1, 45);
	return NULL;
}

static void threads(long unused)
{
	pthread_t thread;
	int fd = bound();

	(void)unused;
	pthread_create(&thread, NULL, send_later, &fd);
	/* Another thread sends while this one waits. */
	R(recv(fd, buffer, ROOM, 0));
	pthread_join(thread, NULL);
	close(fd);
}

static void *wait_for_ever(void *fd)
{
	recv(*(int *)fd, large + 60000, 10, 0);
	return NULL;
}

static void cancelled(long unused)
{
	pthread_t thread;
	void *result;
	int fd = bound();

	(void)unused;
	pthread_create(&thread, NULL, wait_for_ever, &fd);
	usleep(20000);
	pthread_cancel(thread);
	R(pthread_join(thread, &result));
	value("cancelled", result == PTHREAD_CANCELED);
	ask(fd, 1, 45);
	R(recv(fd, buffer, ROOM, 0));
	close(fd);
}

static void streams(long unused)
{
	int fd = bound();
	FILE *stream = fdopen(fd, "r+");

	(void)unused;
	fclose(stream);
	fd = open("/dev/null", O_RDONLY);
	R(read(fd, buffer, 10));
	close(fd);
	close(bound());
}

const struct test lifetime_tests[] = {
	{ "dup", copies, 0 },
	{ "dup2", copies, 1 },
	{ "dup3", copies, 2 },
	{ "fcntl_dupfd", copies, 3 },
	{ "copied_over", copied_over, 0 },
	{ "close_ranges", close_ranges, 0 },
	{ "fork_parent_receives", forked, 0 },
	{ "fork_parent_closes", forked, 1 },
	{ "child_opens_its_own", child_opens_its_own, 0 },
	{ "vfork", vforked, 0 },
	{ "handler_closes", handler_closes, 0 },
	{ "threads", threads, 0 },
	{ "cancelled", cancelled, 0 },
	{ "streams", streams, 0 },
	{ 0 },
};
