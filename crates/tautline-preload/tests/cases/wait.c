/* poll, select and epoll, with sockets beside other descriptors. */
#include "cases.h"
#include <pthread.h>

/* Where nothing is; the compiler must not know. */
static void *volatile nowhere = (void *)8;

static void poll_mixed(long unused)
{
	int pipes[2], fd = bound();
	struct pollfd entries[3] = { { .fd = fd, .events = POLLIN }, { .events = POLLIN }, { .fd = -1, .events = POLLIN } };

	(void)unused;
	if (pipe(pipes))
		return;
	entries[1].fd = pipes[0];
	R(poll(entries, 3, 0));
	R(poll(entries, 3, 30));
	ask_later(fd, 20, 10);
	R(poll(entries, 3, 1000));
	value("socket", entries[0].revents);
	value("pipe", entries[1].revents);
	/* Still there. */
	R(poll(entries, 3, 1000));
	if (write(pipes[1], "x", 1) != 1)
		return;
	R(poll(entries, 3, 1000));
	value("socket", entries[0].revents);
	value("pipe", entries[1].revents);
	R(recv(fd, buffer, ROOM, 0));
	R(poll(entries, 3, 1000));
	value("socket", entries[0].revents);
	entries[0].events = POLLIN | POLLOUT | POLLRDNORM | POLLPRI;
	R(poll(entries, 1, 1000));
	value("socket", entries[0].revents);
	entries[0].events = 0;
	ask(fd, 1, 10);
	usleep(10000);
	R(poll(entries, 1, 0));
	entries[0].events = POLLRDNORM;
	R(poll(entries, 1, 1000));
	value("socket", entries[0].revents);
	close(pipes[0]);
	close(pipes[1]);
	close(fd);
	entries[0].events = POLLIN;
	R(poll(entries, 1, 1000));
	value("closed", entries[0].revents);
}

static void poll_wrongly(long unused)
{
	struct timespec wrong = { .tv_nsec = 2000000000 }, none = { 0 };
	int fd = bound();
	struct pollfd entry = { .fd = fd, .events = POLLIN };

	(void)unused;
	R(poll(nowhere, 1, 0));
	R(ppoll(&entry, 1, &wrong, NULL));
	R(ppoll(&entry, 1, &none, NULL));
	R(poll(nowhere, 10000000, 0));
	close(fd);
}

static volatile int signals;

static void count_signal(int signal)
{
	(void)signal;
	signals++;
}

static void poll_with_signal(long unused)
{
	struct sigaction action = { .sa_handler = count_signal };
	struct timespec limit = { .tv_nsec = 500000000 };
	sigset_t blocked, open_set;
	int fd = bound();
	struct pollfd entry = { .fd = fd, .events = POLLIN };

	(void)unused;
	signals = 0;
	sigaction(SIGUSR1, &action, NULL);
	sigemptyset(&open_set);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	raise(SIGUSR1);
	R(poll(&entry, 1, 10));
	value("signals", signals);
	R(ppoll(&entry, 1, &limit, &open_set));
	value("signals", signals);
	sigprocmask(SIG_UNBLOCK, &blocked, NULL);
	signal(SIGUSR1, SIG_DFL);
	close(fd);
}

/* A signal that comes early in a wait ends it, as one that comes late does: none is lost between looks. */
static void early_signals(long by_epoll)
{
	struct sigaction action = { .sa_handler = count_signal };
	struct timespec limit = { .tv_sec = 20 };
	struct epoll_event event = { .events = EPOLLIN };
	sigset_t blocked, open_set;
	int ended = 0, fd = bound(), epoll = epoll_create1(0);
	struct pollfd entry = { .fd = fd, .events = POLLIN };

	signals = 0;
	sigaction(SIGALRM, &action, NULL);
	sigemptyset(&open_set);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGALRM);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	for (int round = 0; round < 40; round++) {
		struct itimerval soon = { .it_value.tv_usec = 10 + 10 * round };

		setitimer(ITIMER_REAL, &soon, NULL);
		if (by_epoll)
			ended += epoll_pwait(epoll, &event, 1, 20000, &open_set) == -1 && errno == EINTR;
		else
			ended += ppoll(&entry, 1, &limit, &open_set) == -1 && errno == EINTR;
	}
	value("ended", ended);
	value("signals", signals);
	sigprocmask(SIG_UNBLOCK, &blocked, NULL);
	signal(SIGALRM, SIG_DFL);
	close(epoll);
	close(fd);
}

static void *sleep_by_epoll(void *epoll)
{
	struct epoll_event event;

	return (void *)(long)epoll_wait(*(int *)epoll, &event, 1, 20000);
}

static void *sleep_by_poll(void *fd)
{
	struct pollfd entry = { .fd = *(int *)fd, .events = POLLIN };

	return (void *)(long)poll(&entry, 1, 20000);
}

/* A thread that sleeps is woken, although another one has looked at the same socket for short times meanwhile. */
static void slept_beside(long by_epoll)
{
	struct epoll_event event = { .events = EPOLLIN };
	int fd = bound(), epoll = epoll_create1(0);
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	pthread_t thread;
	void *woken;

	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	pthread_create(&thread, NULL, by_epoll ? sleep_by_epoll : sleep_by_poll, by_epoll ? &epoll : &fd);
	usleep(20000);
	for (int round = 0; round < 10; round++)
		poll(&entry, 1, 2);
	ask_later(fd, 30, 10);
	pthread_join(thread, &woken);
	value("woken", (long)woken);
	R(recv(fd, buffer, ROOM, 0));
	close(epoll);
	close(fd);
}

static void select_mixed(long precise)
{
	int pipes[2], fd = bound(), most;
	struct timeval limit = { .tv_usec = 500000 };
	struct timespec precise_limit = { .tv_nsec = 500000000 };
	fd_set reading, writing;

	if (pipe(pipes))
		return;
	most = (fd > pipes[1] ? fd : pipes[1]) + 1;
	FD_ZERO(&reading);
	FD_ZERO(&writing);
	FD_SET(fd, &reading);
	FD_SET(pipes[0], &reading);
	ask_later(fd, 20, 10);
	if (precise)
		R(pselect(most, &reading, NULL, NULL, &precise_limit, NULL));
	else
		R(select(most, &reading, NULL, NULL, &limit));
	value("socket", !!FD_ISSET(fd, &reading));
	value("pipe", !!FD_ISSET(pipes[0], &reading));
	value("time went by", limit.tv_usec < 490000);
	FD_SET(pipes[0], &reading);
	FD_SET(fd, &writing);
	FD_SET(pipes[1], &writing);
	R(select(most, &reading, &writing, NULL, &limit));
	value("written", !!FD_ISSET(fd, &writing) + !!FD_ISSET(pipes[1], &writing));
	R(recv(fd, buffer, ROOM, 0));
	limit = (struct timeval){ .tv_usec = 20000 };
	FD_ZERO(&reading);
	FD_SET(fd, &reading);
	R(select(most, &reading, NULL, NULL, &limit));
	value("left", limit.tv_usec);
	value("socket", !!FD_ISSET(fd, &reading));
	FD_SET(fd, &reading);
	close(pipes[0]);
	FD_SET(pipes[0], &reading);
	R(select(most, &reading, NULL, NULL, &limit));
	limit.tv_usec = -1;
	R(select(most, &reading, NULL, NULL, &limit));
	close(pipes[1]);
	close(fd);
}

static void watch(int epoll, int operation, int fd, unsigned events)
{
	struct epoll_event event = { .events = events, .data.u64 = 0x1234567800000000ULL + fd };

	R(epoll_ctl(epoll, operation, fd, &event));
}

static void waited(int epoll, int fd, int milliseconds)
{
	struct epoll_event events[4] = { 0 };
	long count = R(epoll_wait(epoll, events, 4, milliseconds));

	for (long index = 0; index < count; index++) {
		value("events", events[index].events);
		value("data", events[index].data.u64 == 0x1234567800000000ULL + (unsigned long)fd);
	}
}

static void epoll_levels(long taken_later)
{
	int epoll = epoll_create1(0), fd = taken_later ? socket(AF_INET, SOCK_DGRAM, 0) : bound();
	struct sockaddr_in local = own(OWN);

	watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN);
	if (taken_later)
		R(bind(fd, (void *)&local, sizeof(local)));
	watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN);
	waited(epoll, fd, 0);
	ask(fd, 2, 10);
	arrived(fd);
	waited(epoll, fd, 1000);
	waited(epoll, fd, 1000);
	R(recv(fd, buffer, ROOM, 0));
	waited(epoll, fd, 1000);
	R(recv(fd, buffer, ROOM, 0));
	waited(epoll, fd, 20);
	ask_later(fd, 20, 10);
	waited(epoll, fd, 1000);
	watch(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT);
	waited(epoll, fd, 1000);
	watch(epoll, EPOLL_CTL_MOD, fd, 0);
	waited(epoll, fd, 20);
	watch(epoll, EPOLL_CTL_MOD, fd, EPOLLIN);
	waited(epoll, fd, 1000);
	watch(epoll, EPOLL_CTL_DEL, fd, 0);
	waited(epoll, fd, 20);
	watch(epoll, EPOLL_CTL_DEL, fd, 0);
	close(fd);
	waited(epoll, fd, 0);
	close(epoll);
}

static void epoll_edges(long unused)
{
	int epoll = epoll_create1(0), fd = bound();

	(void)unused;
	watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
	waited(epoll, fd, 0);
	ask_later(fd, 20, 10);
	waited(epoll, fd, 1000);
	waited(epoll, fd, 20);
	/* One more arrival is one more edge, although nothing was read. */
	ask_later(fd, 20, 10);
	waited(epoll, fd, 1000);
	waited(epoll, fd, 20);
	R(recv(fd, buffer, ROOM, 0));
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	ask_later(fd, 20, 10);
	waited(epoll, fd, 1000);
	R(recv(fd, buffer, ROOM, 0));
	waited(epoll, fd, 20);
	close(fd);
	close(epoll);
}

static void epoll_once(long unused)
{
	int epoll = epoll_create1(0), fd = bound();

	(void)unused;
	watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
	ask(fd, 1, 10);
	waited(epoll, fd, 1000);
	waited(epoll, fd, 20);
	R(recv(fd, buffer, ROOM, 0));
	ask(fd, 1, 10);
	waited(epoll, fd, 30);
	watch(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
	waited(epoll, fd, 1000);
	R(recv(fd, buffer, ROOM, 0));
	close(fd);
	close(epoll);
}

static void epoll_mixed(long unused)
{
	int epoll = epoll_create1(0), fd = bound(), pipes[2];
	struct epoll_event event = { .events = EPOLLIN, .data.fd = 1 }, events[1];

	(void)unused;
	if (pipe(pipes))
		return;
	R(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event));
	event.data.fd = 2;
	R(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
	ask(fd, 1, 10);
	arrived(fd);
	if (write(pipes[1], "x", 1) != 1)
		return;
	/* With room for one event, each has its turn. */
	int seen = 0;
	for (int turn = 0; turn < 6; turn++) {
		if (epoll_wait(epoll, events, 1, 1000) == 1)
			seen |= events[0].data.fd;
	}
	value("seen", seen);
	R(epoll_wait(epoll, events, 0, 0));
	R(epoll_wait(epoll, nowhere, 1, 0));
	struct epoll_event two[2];
	R(epoll_pwait(epoll, two, 2, 1000, NULL));
	/* Waited for through another instance. */
	int outer = epoll_create1(0);
	R(recv(fd, buffer, ROOM, 0));
	R(read(pipes[0], buffer, 1));
	event.data.fd = 3;
	R(epoll_ctl(outer, EPOLL_CTL_ADD, epoll, &event));
	ask_later(fd, 30, 10);
	R(epoll_wait(epoll, two, 2, 0));
	R(epoll_wait(outer, two, 2, 1000));
	R(epoll_wait(epoll, two, 2, 0));
	close(outer);
	close(pipes[0]);
	close(pipes[1]);
	close(fd);
	close(epoll);
}

const struct test wait_tests[] = {
	{ "poll_mixed", poll_mixed, 0 },
	{ "poll_wrongly", poll_wrongly, 0 },
	{ "poll_with_signal", poll_with_signal, 0 },
	{ "poll_ended_early", early_signals, 0 },
	{ "epoll_ended_early", early_signals, 1 },
	{ "poll_slept_beside", slept_beside, 0 },
	{ "epoll_slept_beside", slept_beside, 1 },
	{ "select_mixed", select_mixed, 0 },
	{ "pselect_mixed", select_mixed, 1 },
	{ "epoll_levels", epoll_levels, 0 },
	{ "epoll_levels_taken_later", epoll_levels, 1 },
	{ "epoll_edges", epoll_edges, 0 },
	{ "epoll_once", epoll_once, 0 },
	{ "epoll_mixed", epoll_mixed, 0 },
	{ 0 },
};
