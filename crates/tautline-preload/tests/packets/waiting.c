/* poll, select and epoll; descriptors copied, closed and inherited; an interface that goes down. */
#include "packets.h"

static void polled(long unused)
{
	int pipes[2], fd = packet_socket(SOCK_RAW);
	struct pollfd entries[2] = { { .fd = fd, .events = POLLIN }, { .events = POLLIN } };

	(void)unused;
	if (pipe(pipes))
		return;
	entries[1].fd = pipes[0];
	R(poll(entries, 2, 0));
	R(poll(entries, 2, 30));
	ask_frames_later(fd, 'b', 20, 20);
	R(poll(entries, 2, 3000));
	value("socket", entries[0].revents);
	value("pipe", entries[1].revents);
	if (write(pipes[1], "x", 1) != 1)
		return;
	R(poll(entries, 2, 3000));
	taken_frame(fd);
	entries[0].events = POLLIN | POLLOUT | POLLRDNORM | POLLPRI;
	R(poll(entries, 1, 1000));
	value("socket", entries[0].revents);
	close(pipes[0]);
	close(pipes[1]);
	close(fd);
}

static void selected(long unused)
{
	struct timeval limit = { .tv_sec = 3 };
	int fd = packet_socket(SOCK_RAW);
	fd_set reading, writing;

	(void)unused;
	FD_ZERO(&reading);
	FD_ZERO(&writing);
	FD_SET(fd, &reading);
	ask_frames_later(fd, 'h', 20, 20);
	R(select(fd + 1, &reading, NULL, NULL, &limit));
	value("socket", !!FD_ISSET(fd, &reading));
	taken_frame(fd);
	limit = (struct timeval){ .tv_usec = 20000 };
	R(select(fd + 1, &reading, NULL, NULL, &limit));
	FD_SET(fd, &writing);
	R(select(fd + 1, NULL, &writing, NULL, &limit));
	close(fd);
}

static void waited(int epoll, int milliseconds)
{
	struct epoll_event events[4] = { 0 };
	long count = R(epoll_wait(epoll, events, 4, milliseconds));

	for (long index = 0; index < count; index++) {
		value("events", events[index].events);
		value("data", events[index].data.u64);
	}
}

static void watched(long events)
{
	struct epoll_event event = { .events = events, .data.u64 = 4711 };
	int fd = packet_socket(SOCK_RAW), epoll = epoll_create1(0);

	R(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
	waited(epoll, 20);
	ask_frames_later(fd, 'h', 20, 20);
	waited(epoll, 3000);
	waited(epoll, 10);
	taken_frame(fd);
	waited(epoll, 10);
	ask_frames(fd, 'b', 2, 21);
	came(fd);
	waited(epoll, 3000);
	event.events = events;
	R(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event));
	waited(epoll, 100);
	taken_frame(fd);
	taken_frame(fd);
	R(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL));
	ask_frames(fd, 'b', 1, 22);
	came(fd);
	waited(epoll, 10);
	close(fd);
	close(epoll);
}

/* Watched before it is bound. */
static void watched_early(long unused)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 12 };
	struct sockaddr_ll local = link_address(TYPE, interface_index);
	int fd = socket(AF_PACKET, SOCK_RAW, 0), epoll = epoll_create1(0);

	(void)unused;
	R(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
	R(bind(fd, (void *)&local, sizeof(local)));
	ask_frames_later(fd, 'h', 20, 20);
	waited(epoll, 3000);
	taken_frame(fd);
	close(fd);
	close(epoll);
}

static void copied(long way)
{
	int fd = packet_socket(SOCK_RAW), copy = 200;

	switch (way) {
	case 0:
		copy = dup(fd);
		break;
	case 1:
		R(dup2(fd, copy));
		break;
	default:
		copy = fcntl(fd, F_DUPFD_CLOEXEC, 150);
	}
	ask_frames(copy, 'h', 2, 10);
	came(fd);
	R(recv(copy, NULL, 0, MSG_TRUNC));
	close(fd);
	R(recv(copy, buffer, ROOM, 0));
	ask_frames(copy, 'h', 1, 20);
	taken_frame(copy);
	close(copy);
	errno = 0;
	value("closed", recv(copy, buffer, ROOM, MSG_DONTWAIT));
	value("error", errno);
	fd = packet_socket(SOCK_RAW);
	ask_frames(fd, 'h', 1, 30);
	taken_frame(fd);
	close(fd);
}

static void forked(long parent_closes)
{
	int fd = packet_socket(SOCK_RAW), status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		/* The child may send; what the peer answers is the parent's. */
		if (parent_closes) {
			usleep(100000);
			ask_frames(fd, 'h', 1, 15);
			_exit(recv(fd, buffer, ROOM, 0) == HEADER + 15 ? 0 : 1);
		}
		ask_frames(fd, 'h', 1, 25);
		_exit(0);
	}
	if (parent_closes)
		close(fd);
	else
		taken_frame(fd);
	R(waitpid(child, &status, 0) == child);
	value("child", status);
	if (!parent_closes) {
		ask_frames(fd, 'h', 1, 35);
		taken_frame(fd);
		close(fd);
	}
}

static void flag_of_interface(int fd, int is_up)
{
	struct ifreq asked = { 0 };

	strncpy(asked.ifr_name, interface_name, IFNAMSIZ - 1);
	R(ioctl(fd, SIOCGIFFLAGS, &asked));
	if (is_up)
		asked.ifr_flags |= IFF_UP;
	else
		asked.ifr_flags &= ~IFF_UP;
	R(ioctl(fd, SIOCSIFFLAGS, &asked));
}

/* The last: what other cases sent may get lost meanwhile. */
static void down_and_up(long unused)
{
	int fd = packet_socket(SOCK_RAW);
	struct pollfd entry = { .fd = fd, .events = POLLIN };

	(void)unused;
	ask_frames(fd, 'h', 1, 40);
	taken_frame(fd);
	flag_of_interface(fd, 0);
	R(poll(&entry, 1, 1000));
	value("events", entry.revents);
	R(recv(fd, buffer, ROOM, 0));
	R(recv(fd, buffer, ROOM, MSG_DONTWAIT));
	framed("\xff\xff\xff\xff\xff\xff", 60);
	R(send(fd, frame, 74, 0));
	flag_of_interface(fd, 1);
	usleep(100000);
	ask_frames(fd, 'h', 1, 41);
	taken_frame(fd);
	close(fd);
}

const struct test waiting_tests[] = {
	{ "poll", polled, 0 },
	{ "select", selected, 0 },
	{ "epoll, levels", watched, EPOLLIN },
	{ "epoll, edges", watched, EPOLLIN | (long)EPOLLET },
	{ "epoll, once", watched, EPOLLIN | EPOLLONESHOT },
	{ "epoll, edges, once", watched, EPOLLIN | (long)EPOLLET | EPOLLONESHOT },
	{ "epoll, watched before bound", watched_early, 0 },
	{ "dup", copied, 0 },
	{ "dup2", copied, 1 },
	{ "F_DUPFD", copied, 2 },
	{ "fork", forked, 0 },
	{ "fork, and the parent closes", forked, 1 },
	{ "interface down and up", down_and_up, 0 },
	{ NULL, NULL, 0 },
};
