/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Tautline: real-time datagrams on stock Linux, from C.
 *
 * Two layers that can be mixed:
 *
 *   rt_...        five calls for programs written against sockets. They use plain UDP, so any peer
 *                 that speaks UDP will do. Addresses are sockaddr_in, a failure is -1 and errno.
 *   tautline_...  all features of ports: priorities, sampling ports, deadlines, arrival times, a
 *                 descriptor for epoll, counters. A failure is a negative code of enum tautline_code.
 *
 * Every call follows these rules:
 *
 * - A failure also sets errno, and a text that says what happened and what to do:
 *   tautline_last_error().
 * - A handle (node, port, socket) is a number. A call with one that is closed or was never given out
 *   fails with TAUTLINE_ERROR_BAD_HANDLE (EBADF), also after its entry was used again. 4,096 nodes
 *   and 4,096 ports and sockets can be open at a time.
 * - One thread at a time uses a port or a socket; it may be another thread each time. A second call
 *   with the same handle, while the first has not returned, does nothing and fails with
 *   TAUTLINE_ERROR_BUSY (EBUSY). It does not wait, because a slow thread could then delay an urgent
 *   one. Any number of threads may use a node. A program that sends in one thread and receives in
 *   another opens two ports.
 * - Sending and receiving allocate nothing, and take no lock that another handle's calls take. The
 *   first message to a new address, and everything that opens or asks for status, does allocate.
 * - A signal does not end a wait, as with SA_RESTART. A thread that must end waits with a deadline.
 * - After fork, a call with a handle that the parent opened fails in the child with
 *   TAUTLINE_ERROR_OTHER_PROCESS (EBADFD). Closing it there leaves the parent's open. The child opens
 *   its own.
 * - Times are nanoseconds of CLOCK_MONOTONIC.
 *
 * Link with -ltautline (pkg-config tautline). docs/reference/c.md has more, and the examples.
 */
#ifndef TAUTLINE_H
#define TAUTLINE_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Codes. */

/* Reasons of a failure. A number keeps its meaning; more may be added. */
enum tautline_code {
    TAUTLINE_OK = 0,
    /* A pointer that must not be null is null. EFAULT */
    TAUTLINE_ERROR_NULL_POINTER = -1,
    /* The handle is closed, or never was one. EBADF */
    TAUTLINE_ERROR_BAD_HANDLE = -2,
    /* Another thread is in a call with this handle. EBUSY */
    TAUTLINE_ERROR_BUSY = -3,
    /* An argument is outside its range. EINVAL */
    TAUTLINE_ERROR_BAD_ARGUMENT = -4,
    /* The port is of the other kind. EOPNOTSUPP */
    TAUTLINE_ERROR_WRONG_KIND = -5,
    /* The buffer cannot hold the port's largest message; nothing was taken. EMSGSIZE */
    TAUTLINE_ERROR_BUFFER_TOO_SMALL = -6,
    /* The message is larger than any message can be. EMSGSIZE */
    TAUTLINE_ERROR_MESSAGE_TOO_LARGE = -7,
    /* The interface did not take the frame: a full queue, or a smaller MTU at the other end. ENOBUFS */
    TAUTLINE_ERROR_TRANSMIT_QUEUE_FULL = -8,
    /* The interface is down, or has no carrier. ENETDOWN */
    TAUTLINE_ERROR_INTERFACE_DOWN = -9,
    /* The interface no longer exists. ENODEV */
    TAUTLINE_ERROR_INTERFACE_GONE = -10,
    /* The interface's MTU is too small for the frame. EMSGSIZE */
    TAUTLINE_ERROR_FRAME_TOO_LARGE = -11,
    /* The kernel refused; errno says why. EIO */
    TAUTLINE_ERROR_REFUSED = -12,
    /* The configuration file cannot be read. ENOENT */
    TAUTLINE_ERROR_CONFIG_UNREADABLE = -13,
    /* The configuration is wrong. EINVAL */
    TAUTLINE_ERROR_CONFIG_WRONG = -14,
    /* There is no such interface. ENODEV */
    TAUTLINE_ERROR_NO_SUCH_INTERFACE = -15,
    /* The address is not one that this node has. EADDRNOTAVAIL */
    TAUTLINE_ERROR_NO_ADDRESS = -16,
    /* The link needs a privilege that this process lacks. EPERM */
    TAUTLINE_ERROR_NOT_PERMITTED = -17,
    /* Another XDP program is on the interface. EBUSY */
    TAUTLINE_ERROR_INTERFACE_TAKEN = -18,
    /* No link works here. ENETUNREACH */
    TAUTLINE_ERROR_NO_LINK = -19,
    /* The port is open already, here or in another process. EADDRINUSE */
    TAUTLINE_ERROR_PORT_TAKEN = -20,
    /* The configuration has no port of that name. ENOENT */
    TAUTLINE_ERROR_UNKNOWN_NAME = -21,
    /* No port can have this number, depth or message size. EINVAL */
    TAUTLINE_ERROR_BAD_OPTIONS = -22,
    /* No neighbour of that name or address, or its entry lacks what the link needs. EHOSTUNREACH */
    TAUTLINE_ERROR_UNKNOWN_PEER = -23,
    /* The port has as many destinations as it can hold. ENOBUFS */
    TAUTLINE_ERROR_TOO_MANY_DESTINATIONS = -24,
    /* The calling thread is in another network namespace than the node. EXDEV */
    TAUTLINE_ERROR_OTHER_NAMESPACE = -25,
    /* As many nodes or ports are open as there can be. EMFILE */
    TAUTLINE_ERROR_TOO_MANY_HANDLES = -26,
    /* The link has no descriptor to wait on. EOPNOTSUPP */
    TAUTLINE_ERROR_NO_DESCRIPTOR = -27,
    /* A fault inside the library; close the handle and report it. ENOTRECOVERABLE */
    TAUTLINE_ERROR_INTERNAL = -28,
    /* The link does not offer that. EOPNOTSUPP */
    TAUTLINE_ERROR_NOT_OFFERED = -29,
    /* All send buffers of that size are in use. ENOBUFS */
    TAUTLINE_ERROR_POOL_EXHAUSTED = -30,
    /* The peer's port has not appeared on the bus by the deadline. ETIMEDOUT */
    TAUTLINE_ERROR_PEER_ABSENT = -31,
    /* The control process's policy does not allow it. EACCES */
    TAUTLINE_ERROR_NOT_ALLOWED = -32,
    /* A task of the set can miss its deadline. ERANGE */
    TAUTLINE_ERROR_SET_REFUSED = -33,
    /* This call comes before another one that it needs, or a second time. EPROTO */
    TAUTLINE_ERROR_WRONG_ORDER = -34,
    /* The handle was opened by another process; open it again after fork. EBADFD */
    TAUTLINE_ERROR_OTHER_PROCESS = -35
};

/* Text of a code; never null. */
const char *tautline_code_text(int code);

/* Text of the calling thread's last failure, with names and numbers and the remedy, written as
 * snprintf does: the result is the text's length without its closing zero byte, and a text that does
 * not fit is cut off. Empty if nothing has failed yet; success leaves it alone. */
int tautline_last_error(char *text, size_t bytes);

/* The library's version, such as "0.1.0". */
const char *tautline_version(void);

/* The five calls. A socket is a port of plain UDP: any program that speaks UDP over IPv4 can be a peer. On
 * links xdp and xsk its datagrams bypass the kernel's protocol stack. Every other UDP port of the same
 * address stays with the kernel. */

/* Opens a socket at a local address (sockaddr_in), and takes all memory that it will need: room to build
 * the longest datagram, and room for received ones of up to message_bytes_max, 1 to 65,507. Port 0
 * takes a free one from 61000 up.
 *
 * Its node is the one of tautline_socket_node(); else the one in the configuration file that the
 * environment variable TAUTLINE_NODE names; else one on the udp link, the kernel's own UDP, which needs
 * no privilege, at the local address. The local address is the node's, or INADDR_ANY.
 *
 * Returns the socket, 0 or greater, or -1: EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EINVAL, EMFILE, or
 * the error of opening the node. A socket is not a file descriptor; tautline_socket_port() and
 * tautline_descriptor() give one for epoll. */
int rt_socket(const struct sockaddr *local, socklen_t local_bytes, size_t message_bytes_max);

/* A send buffer for up to `bytes` bytes, 65,507 at most, out of the node's pool. The pool is memory that was
 * taken, touched, and locked where allowed, when the node opened. A buffer has 4,096, 16,384, 32,768 or 65,536
 * bytes, the smallest that suffices, aligned to 64. Each call returns another one; [send_pool] in the node's
 * configuration sets their numbers (16, 8, 4 and 4 unless given).
 *
 * rt_sendto from the beginning of a buffer copies nothing in this process. It writes headers in front of the
 * message, and cuts a message that is longer than a frame into IP fragments where it lies: each header
 * overwrites the end of the fragment that has just left. So sending destroys the content; build the message
 * anew for each rt_sendto. The buffer is the caller's until tautline_socket_unmap() or until the socket is
 * closed. The kernel's copies depend on the link; tautline_node_status() shows them. Returns MAP_FAILED on
 * failure: ENOBUFS if all buffers of that size are in use, ENOMEM if no buffer has `bytes` bytes, EBADF. */
void *rt_mmap(int socket, size_t bytes);

/* Gives a send buffer, a result of rt_mmap(), back to the pool. */
int tautline_socket_unmap(int socket, void *buffer);

/* Sends a datagram of up to 65,507 bytes, from a send buffer or from other memory. Never waits; the flags
 * MSG_DONTWAIT and MSG_NOSIGNAL are accepted. A socket can send to any number of addresses, and remembers the
 * way to the newest 64: the first call for another one is slower. On link xdp an address must be a neighbour's,
 * be reached through the gateway, or be one whose MAC address the kernel knows. Returns
 * `bytes`, or -1: EMSGSIZE, EHOSTUNREACH, ENOBUFS, ENETDOWN, EINVAL, EBADF, EBUSY, EFAULT. */
ssize_t rt_sendto(int socket, const void *message, size_t bytes, int flags, const struct sockaddr *to,
                  socklen_t to_bytes);

/* Receives the most urgent datagram, and waits for one unless flags has MSG_DONTWAIT (EAGAIN then). As
 * with recvfrom, bytes beyond the buffer are lost, and with MSG_TRUNC the result is the datagram's whole
 * length. A buffer of message_bytes_max saves a copy. `from` may be null. Returns the length, which may be
 * 0, or -1. ECONNREFUSED, EHOSTUNREACH and EMSGSIZE report once that an earlier datagram was not
 * delivered; received datagrams remain for the next call. */
ssize_t rt_recvfrom(int socket, void *buffer, size_t bytes, int flags, struct sockaddr *from,
                    socklen_t *from_bytes);

/* Closes a socket; its send buffers go back to the pool. Fails with EBUSY while another thread is in a call
 * with it. */
int rt_socket_close(int socket);

/* Handles. Do not look inside; one that is all zeros is never valid. */

typedef struct tautline_node {
    uint32_t id;
} tautline_node;

typedef struct tautline_port {
    uint32_t id;
} tautline_port;

/* The way from one port of this node to one port of a peer. It ends with its port. Sends of other ports to it fail with
 * TAUTLINE_ERROR_BAD_ARGUMENT. */
typedef struct tautline_destination {
    uint32_t port_id;
    uint32_t index;
} tautline_destination;

/* Nodes. */

/* Opens a node with a configuration file (docs/reference/configuration.md). If the file names no link, the node takes
 * the best that works; tautline_node_report() says which. */
int tautline_node_open(const char *file, tautline_node *node);

/* The same from a text in the form of such a file. */
int tautline_node_open_text(const char *configuration, tautline_node *node);

/* Closes a node. Its ports stay open until they are closed themselves. */
int tautline_node_close(tautline_node node);

/* The node's link, the reason for not having a better one, and the settings that took effect, in words.
 * Written as tautline_last_error() does; returns the length of the whole, or a code. */
int tautline_node_report(tautline_node node, char *text, size_t bytes);

/* The node's whole state as JSON, as `taut status --json` shows it: link and capabilities, neighbours,
 * ports, counters. Written and returned as by tautline_node_report(). */
int tautline_node_status(tautline_node node, char *text, size_t bytes);

/* Makes the node visible to `taut status`, by a thread that sleeps until it is asked. Opening a node does so already,
 * unless its configuration says `publish_status = false`. */
int tautline_node_publish_status(tautline_node node);

/* The node that sockets opened from now on belong to, in this process. */
int tautline_socket_node(tautline_node node);

/* Ports. */

#define TAUTLINE_QUEUING 0  /* keeps every message, the most urgent first */
#define TAUTLINE_SAMPLING 1 /* keeps the last value */
#define TAUTLINE_DATAGRAM 2 /* plain UDP, without Tautline's header; keeps every datagram */
#define TAUTLINE_RAW 3      /* whole Ethernet frames of one EtherType; keeps every frame */

#define TAUTLINE_SPIN_NEVER UINT64_MAX /* a wait sleeps at once */

/* Options of a port, which has a name, a number, or both. A port with a name has the options of its entry in the
 * node's configuration; options of the program add to these. A field that is 0 or null has the value of the entry, else
 * the default. An option that the entry sets to another value, and one that the kind does not have, is refused. */
struct tautline_port_options {
    uint16_t kind;              /* TAUTLINE_QUEUING, TAUTLINE_SAMPLING, TAUTLINE_DATAGRAM or TAUTLINE_RAW */
    uint16_t number;            /* in its node, 1 to 4,095; the UDP port, in plain UDP; the EtherType, of raw frames */
    uint32_t depth;             /* slots of each priority, a power of two from 2 to 4,096; 64. Not of sampling ports */
    const char *name;           /* in the configuration */
    uint32_t message_bytes_max; /* up to 65,536, on link vbus 16 MiB; 1,484, which is one frame. Not of raw ports */
    uint32_t sources;           /* senders with a value of their own, 1 to 48; 1. Of sampling ports */
    uint64_t refresh_period_ns; /* an older value is not valid; 1,000,000,000. Of sampling ports */
    uint64_t spin_ns;           /* how long a wait spins before it sleeps; up to 200 us where that has paid lately */
    uint32_t police_rate;       /* frames a second that the port takes; all */
    uint32_t police_burst;      /* frames that it takes at once */
};

struct tautline_port_info {
    uint16_t number;            /* as in the options */
    uint16_t kind;
    uint32_t message_bytes_max; /* what a buffer for its messages must hold */
};

/* Opens a port. All its memory is taken here.
 *
 *     tautline_port_open(node, &(struct tautline_port_options){.name = "command"}, &port);
 *     tautline_port_open(node, &(struct tautline_port_options){.kind = TAUTLINE_SAMPLING, .number = 8}, &port);
 *
 * A port of plain UDP is used like a queuing port; the priority is the IP precedence of the datagrams in both
 * directions. A raw port has frames of an EtherType that is neither Linux's nor the node's, such as EtherCAT's 0x88a4,
 * on links xdp, xsk and packet (docs/how-to/raw.md). It sends with tautline_send_frame(); destinations and the sends of
 * messages fail with TAUTLINE_ERROR_WRONG_KIND. */
int tautline_port_open(tautline_node node, const struct tautline_port_options *options, tautline_port *port);

/* The port of a socket, for features that the five calls lack. It is the same object: closing the one
 * closes the other. */
int tautline_socket_port(int socket, tautline_port *port);

/* Closes a port. */
int tautline_port_close(tautline_port port);

/* Description of a port. */
int tautline_port_info(tautline_port port, struct tautline_port_info *info);

/* Sender of a message. Anybody can write anything there: it tells where an answer goes, and proves
 * nothing. */
#define TAUTLINE_ETHERNET 1 /* the message came straight in Ethernet */
#define TAUTLINE_UDP 2      /* the message came in UDP */
#define TAUTLINE_BUS 3      /* the message came over a bus */

/* On a bus `mac` and `ip` hold a number that stands for the name of the sender's node, for this process alone. */
struct tautline_source {
    uint8_t form;       /* TAUTLINE_ETHERNET, TAUTLINE_UDP or TAUTLINE_BUS */
    uint8_t mac[6];     /* the sender's MAC address, in the Ethernet form */
    uint8_t reserved;
    in_addr_t ip;       /* the sender's address, in the UDP form; network byte order */
    in_port_t udp_port; /* the sender's UDP port, in the UDP form; network byte order */
    uint16_t port;      /* the number of the port that sent it; 0 in plain UDP */
};

/* Sending. */

/* The way to a port of a neighbour that the configuration names; of a port of plain UDP, the way to a
 * UDP port, where `neighbour` may be an IPv4 address too. On link vbus it waits for the peer's port until a deadline,
 * so that this program may start before its peer; on other links it does not wait. Not for the hot path. */
int tautline_destination_of(tautline_port port, const char *neighbour, uint16_t to, uint64_t deadline_ns,
                            tautline_destination *destination);

/* One to many, on link vbus. The destination of all who follow this port: a message or value that is sent there is
 * written once, for up to 64 readers. A send never waits for them: a reader that falls behind loses messages, or misses
 * values, and counts them as overwritten. Not for the hot path. */
int tautline_readers_of(tautline_port port, tautline_destination *destination);

/* Reads from now on what the port `publisher` of a neighbour sends to its readers, beside what is sent to this port,
 * which is of the same kind. A sampling port gets the last value first; the bus looks for the publisher again when it
 * has gone. Waits up to a second for it. Not for the hot path. */
int tautline_follow(tautline_port port, const char *neighbour, uint16_t publisher);

#define TAUTLINE_PRIORITY_LOWEST 0
#define TAUTLINE_PRIORITY_NORMAL 3
#define TAUTLINE_PRIORITY_HIGHEST 7

/* Sends a message or value with a priority of 0 to 7: one system call for each frame, and it never waits. If
 * a message in several frames fails, some of them may have been sent; the peer drops them. */
int tautline_send(tautline_port port, tautline_destination destination, uint8_t priority,
                  const void *message, size_t bytes);

/* Sends an answer to the sender of a message or value, as tautline_send does. The sender does not become a destination,
 * so a port can answer any number of senders. Fails with TAUTLINE_ERROR_UNKNOWN_PEER if the sender cannot be reached.
 * On links xdp and xsk, an answer in UDP looks up the MAC address: of a neighbour in the node's table, of another
 * sender in the kernel's, which takes about 10 us. On a bus, the first answer connects to the sender's port, which must
 * still be open, and waits up to a second for it. */
int tautline_reply(tautline_port port, const struct tautline_source *source, uint8_t priority,
                   const void *message, size_t bytes);

/* A message of a batch. */
struct tautline_outgoing {
    const void *message;
    size_t bytes;
    tautline_destination destination;
    uint8_t priority;
    uint8_t reserved[7];
};

#define TAUTLINE_BATCH_MAX 1024 /* messages of a batch */

/* Sends messages in their order, each to its own destination: with one system call for each 32 frames where the link
 * can, and it never waits. Returns the number that it took: all, unless there is no room or one cannot be sent; or a
 * code if it took none. The rest may be sent later; the call that begins with it returns the error. */
int tautline_send_batch(tautline_port port, const struct tautline_outgoing *batch, size_t count);

/* Receiving. */

/* Deadlines are moments on the clock of tautline_now_ns(). */
#define TAUTLINE_POLL UINT64_C(0)      /* do not wait */
#define TAUTLINE_FOREVER UINT64_MAX    /* wait until there is something */

/* CLOCK_MONOTONIC. */
uint64_t tautline_now_ns(void);

struct tautline_message {
    uint32_t bytes;      /* in the buffer */
    uint32_t sequence;   /* of its first frame; a sender counts its frames to one port. 0 in plain UDP, raw frames */
    uint64_t arrival_ns; /* when its last frame arrived */
    struct tautline_source source; /* all zero of a raw frame */
    uint8_t priority;              /* of a raw frame, that of its tag; 0 without one, and on link packet */
    uint8_t reserved[7];
};

/* Takes the most urgent message, datagram or raw frame; waits until a deadline for one, spinning first and then
 * sleeping. The buffer must hold the port's message_bytes_max. Returns 1, 0 if there was none until the deadline, or a
 * code. For sampling ports there are tautline_read() and tautline_next(). */
int tautline_receive(tautline_port port, uint64_t deadline_ns, void *buffer, size_t bytes,
                     struct tautline_message *message);

struct tautline_sample {
    uint32_t bytes;       /* in the buffer */
    uint32_t sequence;    /* of its frame */
    uint64_t arrival_ns;  /* when it arrived */
    uint64_t age_ns;      /* how long ago that was */
    uint64_t overwritten; /* values that came and were replaced since the last read */
    struct tautline_source source;
    uint8_t priority;
    uint8_t valid;        /* 1 if the age is within the port's refresh period */
    uint8_t fresh;        /* 1 if no read has seen it before */
    uint8_t reserved[5];
};

/* Reads the last value of a sampling port, seen before or not. Never waits, and is never torn. The
 * buffer must hold the port's message_bytes_max. Returns 1, 0 if there has never been a value, or a
 * code. */
int tautline_read(tautline_port port, void *buffer, size_t bytes, struct tautline_sample *sample);

/* Reads the next value that was not seen; waits for one until a deadline. Returns as
 * tautline_receive(). */
int tautline_next(tautline_port port, uint64_t deadline_ns, void *buffer, size_t bytes,
                  struct tautline_sample *sample);

/* Raw frames, whole: from the destination's address to the end of the payload. The tag is not among the received bytes,
 * padding is. */
#define TAUTLINE_FRAME_BYTES_MAX 1514

/* Sends a frame of a raw port's EtherType as it is, with one system call; never waits. The EtherType may stand behind a
 * tag of no VLAN. TAUTLINE_ERROR_BAD_ARGUMENT for another frame, TAUTLINE_ERROR_NOT_ALLOWED for a priority or source
 * address that the control process's policy does not give. */
int tautline_send_frame(tautline_port port, const void *frame, size_t bytes);

/* A descriptor for poll, select or epoll. It becomes readable when a message arrives after a receive or
 * read that found nothing. So take all messages first, then wait. The descriptor belongs to the port: do
 * not close or read it. From the first call on, each receive that finds nothing costs a little more. */
int tautline_descriptor(tautline_port port);

/* Counters of a port since it was opened. */
struct tautline_port_counters {
    uint64_t sent;
    uint64_t send_errors;
    uint64_t frames;       /* that arrived, dropped ones too */
    uint64_t received;     /* messages handed out; values seen */
    uint64_t queued;       /* frames that wait */
    uint64_t dropped_full; /* frames dropped because their priority had no free slot */
    uint64_t overwritten;  /* values replaced before they were seen; messages for many readers that this one has lost */
    uint64_t lost;         /* frames that did not arrive, by their sequence numbers */
    uint64_t duplicates;   /* frames that arrived more than once */
    uint64_t too_large;    /* messages larger than the port takes */
    uint64_t incomplete;   /* messages given up: fragments missing, late or contradictory */
};

int tautline_port_counters(tautline_port port, struct tautline_port_counters *counters);

/* Periodic loops. A cycle belongs to the thread that started it, and there is one at a time: it gives the thread its
 * scheduling, wakes it at absolute times, and counts what came too late. Settings that are refused are no failures:
 * tautline_cycle_report() names each with its remedy. */

struct tautline_cycle_options {
    uint64_t period_ns;    /* 10 us to 1 h */
    int32_t cpu;           /* the only CPU of the thread; -1 for any */
    uint8_t fifo_priority; /* under SCHED_FIFO, 1 to 99; 0 leaves the policy as it is */
    uint8_t lock_memory;   /* 1: all memory of the process is locked, and stays so */
    uint8_t reserved[2];
    uint64_t phase_ns;         /* from the arrival of a peer's value to the start; at most half a period of the values */
    uint32_t values_per_cycle; /* values of a peer in a period, which the cycle follows; 0: a cycle of its own */
    uint32_t reserved_too;
};

struct tautline_tick {
    uint64_t number;      /* of the period, from 1; skipped ones have numbers too */
    uint64_t due_ns;      /* when it began */
    uint64_t late_ns;     /* from then until the thread ran */
    uint64_t deadline_ns; /* when the next one begins */
    uint64_t skipped;     /* periods that were skipped immediately before */
};

int tautline_cycle_start(const struct tautline_cycle_options *options);

/* Sleeps until the next period begins. Allocates nothing. */
int tautline_cycle_wait(struct tautline_tick *tick);

/* Tells a cycle that follows values when one arrived, after each read: the arrival that the port reports, never the
 * time of the read. The cycle begins phase_ns after the arrival of its value, although both clocks drift. */
int tautline_cycle_arrived(uint64_t arrival_ns);

/* Settings, counters and times as text, written as snprintf does; returns its length or a code. */
int tautline_cycle_report(char *text, size_t bytes);

/* Puts the thread's settings back, as the thread's end does. */
int tautline_cycle_stop(void);

/* Waits and sleeps that end awake (docs/how-to/awake.md): before the receiving call of any loop, on any descriptor,
 * without node, configuration or privilege. The thread sleeps until shortly before the next message is due, which is
 * learned from the arrivals, and looks for it with poll(2). At most a tenth of a thread's time, and of a CPU's, is
 * spent looking. The descriptor stays the program's: nothing is read from it. One thread at a time uses a
 * tautline_awake. */

typedef struct tautline_awake {
    uint32_t id;
} tautline_awake;

/* Learns from now on when a descriptor has something to read. Keep the descriptor open until tautline_awake_close(). */
int tautline_awake_open(int descriptor, tautline_awake *awake);

/* Waits until the descriptor has something to read or an error; to be called before each receive. Returns 1, 0 if there
 * was nothing until the deadline, or a code. */
int tautline_awake_wait(tautline_awake awake, uint64_t deadline_ns);

/* To be called before a send to which the peer answers: so answers are expected by their delay, too. */
int tautline_awake_sent(tautline_awake awake);

/* Rhythm and counters as text, written as snprintf does; returns its length or a code. */
int tautline_awake_report(tautline_awake awake, char *text, size_t bytes);

/* Forgets the rhythm; does not close the descriptor. */
int tautline_awake_close(tautline_awake awake);

/* Sleeps until a moment and is awake then. How late it was is written to late_ns, unless that is null. */
int tautline_sleep_until(uint64_t moment_ns, uint64_t *late_ns);

/* Real-time tasks: a set from a file (docs/reference/executive.md), whose tasks are functions. Open it, give each task
 * without a program its code, start it, close it. One thread at a time uses a set. */

typedef struct tautline_tasks {
    uint32_t id;
} tautline_tasks;

struct tautline_job {
    uint64_t number;      /* of the release since the mode began, from 1 */
    uint64_t release_ns;
    uint64_t deadline_ns; /* the function must have returned by then */
    const void *message;  /* the message that released the job, while the function runs; null if none did */
    size_t message_bytes;
    uint64_t arrival_ns;  /* of that message; without one, release_ns */
};

typedef void (*tautline_job_function)(const struct tautline_job *job, void *context);
typedef void (*tautline_safe_function)(void *context);

/* Reads and admits a set. TAUTLINE_ERROR_SET_REFUSED if a task can miss its deadline; the text of the failure names it
 * and says by how much. */
int tautline_tasks_open(const char *file, tautline_tasks *tasks);

/* Gives a task its code: a function for each job, and one, or null, that sets the outputs to their safe values when the
 * task is stopped. Both are called in the task's own thread until the set is closed. A job must not block for longer
 * than its worst case says. */
int tautline_tasks_code(tautline_tasks tasks, const char *task, tautline_job_function run,
                        tautline_safe_function safe_state, void *context);

/* Scheduling as threads have it by themselves, and memory that is not locked: for valgrind and sanitizers. */
#define TAUTLINE_WITHOUT_REAL_TIME UINT32_C(1)

/* Starts all tasks together, on one CPU, or with -1 on any. The analysis expects one. Flags: 0, or that above. */
int tautline_tasks_start(tautline_tasks tasks, int cpu, uint32_t flags);

/* Has a port's messages release a task that has `port` in its file: a job for each, not sooner than its period allows.
 * To be called before the start. From the start on the port is the task's, which takes its messages and values; it is
 * closed after the set. TAUTLINE_ERROR_WRONG_KIND for a task that is released by time. */
int tautline_tasks_messages(tautline_tasks tasks, const char *task, tautline_port port);

/* Activates a task that has `port` in its file: call it when a message has come, whose arrival is this moment. Takes a
 * lock for some instructions, whose holder inherits the caller's priority. */
int tautline_tasks_trigger(tautline_tasks tasks, const char *task);

/* Asks for another mode, which takes effect when the jobs that run have ended. */
int tautline_tasks_request_mode(tautline_tasks tasks, const char *mode);

struct tautline_task_figures {
    uint64_t jobs;             /* that ended */
    uint64_t missed;           /* that ended after their deadline */
    uint64_t response_p50_ns;  /* from the release to the end */
    uint64_t response_p99_ns;
    uint64_t response_max_ns;
    uint64_t execution_max_ns; /* CPU time of a job */
    uint64_t stopped;          /* 1 if the task was stopped, by its policy or because it failed */
    uint64_t latency_p50_ns;   /* from the arrival of a message to the end of its job; 0 for a task released by time */
    uint64_t latency_p99_ns;
    uint64_t latency_max_ns;
};

int tautline_tasks_figures(tautline_tasks tasks, const char *task, struct tautline_task_figures *figures);

/* Settings that could not be had, each with reason and remedy, a line each, written as snprintf does; returns the
 * text's length or a code. Empty if there was everything. */
int tautline_tasks_limits(tautline_tasks tasks, char *text, size_t bytes);

/* Stops the tasks after the jobs that run, waits for that at most so long, and closes the set. Returns the number of
 * tasks whose job did not return: their threads go on, below all others, and their functions and context must stay. */
int tautline_tasks_close(tautline_tasks tasks, uint64_t patience_ns);

#ifdef __cplusplus
}
#endif

#endif
