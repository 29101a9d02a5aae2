/* Common to the cases: sockets, questions to the peer, and how results are written. */
#ifndef CASES_H
#define CASES_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The peer answers on the first port what it is asked there (tests/conformance.rs); it sends from the second only when
 * asked; nobody has the third. */
enum { ASKED = 7000, CLOSED = 7009 };
enum { ROOM = 70000 };

struct test {
	const char *name;
	void (*run)(long argument);
	long argument;
};

extern const struct test basic_tests[], receive_tests[], wait_tests[], lifetime_tests[];
extern char buffer[ROOM], large[ROOM];
/* The case's own port. Each has another, so that what comes late to one is not the next one's. */
extern int own_port;
#define OWN own_port

/* Writes a call, its result and errno. `errno` is 0 before; one that succeeds must leave it so. */
#define R(call) \
	({ \
		errno = 0; \
		long result_ = (long)(call); \
		wrote(#call, result_, errno); \
		result_; \
	})

void wrote(const char *call, long result, int error);
/* Writes a number, or the bytes of a datagram as length and sum. */
void value(const char *what, long number);
void bytes(const char *what, const void *start, long length);

/* Before all cases, and all cases of a list, or those whose names are wanted. */
void begin(void);
void run_all(const struct test *tests, char **wanted);

struct sockaddr_in at(const char *address, int port);
struct sockaddr_in peer(int port);
struct sockaddr_in own(int port);
/* A socket that is bound to the node's address, or connected to the peer too. */
int bound(void);
int connected(void);
/* Sends without writing anything. `ask`: the peer sends `count` datagrams of `size` bytes; `ask_other`: from its second
 * port; `ask_later`: after that many milliseconds. */
void ask(int fd, int count, int size);
void ask_other(int fd, int count, int size);
void ask_later(int fd, int milliseconds, int size);
/* Waits until the next datagram is there, looking at it only. */
void arrived(int fd);

#endif
