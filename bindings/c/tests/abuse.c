/* Everything that a C program can do wrong without leaving the memory that is its own: each is
 * answered with its code. Run plain, under AddressSanitizer and under valgrind. */
#define _POSIX_C_SOURCE 200809L
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tautline.h>
#include <time.h>
#include <unistd.h>

static const char CONFIGURATION[] = "link = 'udp'\n"
                                    "address = '127.0.0.1'\n"
                                    "[[neighbour]]\n"
                                    "name = 'self'\n"
                                    "ip = '127.0.0.1'\n"
                                    "[[port]]\n"
                                    "name = 'state'\n"
                                    "number = 1241\n"
                                    "kind = 'sampling'\n"
                                    "refresh_period_us = 20000\n";

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            char why[1024];                                                                        \
            int number = errno;                                                                    \
            tautline_last_error(why, sizeof why);                                                  \
            fprintf(stderr, "line %d: not so: %s\n(errno %d, last error: %s)\n", __LINE__,         \
                    #condition, number, why);                                                      \
            exit(EXIT_FAILURE);                                                                    \
        }                                                                                          \
    } while (0)

#define PORT(...) (&(struct tautline_port_options){__VA_ARGS__})

/* A call that must fail with a code, and set errno. */
#define REFUSED(call, code, number)                                                                \
    do {                                                                                           \
        errno = 0;                                                                                 \
        EXPECT((call) == (code));                                                                  \
        EXPECT(errno == (number));                                                                 \
    } while (0)

static tautline_node node;

static struct sockaddr_in loopback(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void nodes(void)
{
    tautline_node unused = {0};
    REFUSED(tautline_node_open(NULL, &unused), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_node_open("/nowhere/node.toml", NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    char text[64];
    EXPECT(tautline_last_error(text, sizeof text) > 0 && strcmp(text, "`node` is null") == 0);
    REFUSED(tautline_node_open("/nowhere/node.toml", &unused), TAUTLINE_ERROR_CONFIG_UNREADABLE,
            ENOENT);
    REFUSED(tautline_node_open("\xff\xfe", &unused), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    EXPECT(tautline_last_error(text, sizeof text) > 0 && strcmp(text, "`file` is not UTF-8") == 0);
    REFUSED(tautline_node_open_text("speed = 3", &unused), TAUTLINE_ERROR_CONFIG_WRONG, EINVAL);
    EXPECT(tautline_last_error(text, sizeof text) > 63);
    EXPECT(strncmp(text, "line 1, column 1: there is no key `speed`", 41) == 0 && strlen(text) == 63);
    REFUSED(tautline_node_open_text("interface = 'nosuch0'", &unused),
            TAUTLINE_ERROR_NO_SUCH_INTERFACE, ENODEV);
    REFUSED(tautline_node_open_text("link = 'udp'", &unused), TAUTLINE_ERROR_NO_ADDRESS,
            EADDRNOTAVAIL);
    EXPECT(unused.id == 0);

    REFUSED(tautline_node_close(unused), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    REFUSED(tautline_node_report(unused, text, sizeof text), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    REFUSED(tautline_node_status((tautline_node){UINT32_MAX}, text, sizeof text),
            TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    REFUSED(tautline_node_publish_status(unused), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    REFUSED(tautline_socket_node(unused), TAUTLINE_ERROR_BAD_HANDLE, EBADF);

    EXPECT(tautline_node_open_text(CONFIGURATION, &node) == 0);
    int whole = tautline_node_report(node, NULL, 0);
    EXPECT(whole > 8 && tautline_node_report(node, text, 9) == whole);
    EXPECT(strcmp(text, "link udp") == 0);
    REFUSED(tautline_node_report(node, NULL, 9), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_node_report(node, text, SIZE_MAX), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    char status[8192];
    EXPECT(tautline_node_status(node, status, sizeof status) > 0 && strstr(status, "\"copies\""));
}

static void opening_ports(void)
{
    tautline_port port = {0};
    tautline_node closed = {0};
    REFUSED(tautline_port_open(closed, PORT(.number = 1240), &port), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    REFUSED(tautline_port_open(node, PORT(.number = 1240), NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_port_open(node, PORT(.number = 0), &port), TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    REFUSED(tautline_port_open(node, PORT(.number = 4096), &port), TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    REFUSED(tautline_port_open(node, PORT(.number = 1240, .depth = 3), &port), TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    const struct tautline_port_options *large =
        PORT(.number = 1240, .depth = UINT32_MAX, .message_bytes_max = UINT32_MAX);
    REFUSED(tautline_port_open(node, large, &port), TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    char bytes[sizeof *large + 1];
    REFUSED(tautline_port_open(node, (void *)(((uintptr_t)bytes & ~7u) + 1), &port), TAUTLINE_ERROR_BAD_ARGUMENT,
            EINVAL);
    /* No name and no number; a kind that does not exist; options that the kind does not have. */
    REFUSED(tautline_port_open(node, PORT(.depth = 2), &port), TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    REFUSED(tautline_port_open(node, PORT(.kind = 4, .number = 1240), &port), TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    const struct tautline_port_options unfit[] = {
        {.number = 1240, .refresh_period_ns = 1},
        {.number = 1240, .sources = 2},
        {.kind = TAUTLINE_SAMPLING, .number = 1240, .depth = 4},
        {.kind = TAUTLINE_RAW, .number = 0x88a4, .message_bytes_max = 100},
    };
    for (size_t index = 0; index < sizeof unfit / sizeof *unfit; index++)
        REFUSED(tautline_port_open(node, &unfit[index], &port), TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    /* The configuration has another number, another kind, and another period. */
    REFUSED(tautline_port_open(node, PORT(.kind = TAUTLINE_SAMPLING, .name = "state", .number = 7), &port),
            TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    REFUSED(tautline_port_open(node, PORT(.name = "state"), &port), TAUTLINE_ERROR_WRONG_KIND, EOPNOTSUPP);
    REFUSED(tautline_port_open(node, PORT(.kind = TAUTLINE_SAMPLING, .name = "state", .refresh_period_ns = 1), &port),
            TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    REFUSED(tautline_port_open(node, PORT(.number = 1240, .police_burst = 4), &port), TAUTLINE_ERROR_BAD_OPTIONS,
            EINVAL);
    REFUSED(tautline_port_open(node, NULL, &port), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_port_open(node, PORT(.name = "nobody"), &port), TAUTLINE_ERROR_UNKNOWN_NAME, ENOENT);
    REFUSED(tautline_port_open(node, PORT(.kind = TAUTLINE_RAW, .number = 0x0800), &port), TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    REFUSED(tautline_port_open(node, PORT(.kind = TAUTLINE_RAW, .number = 0x88b5), &port), TAUTLINE_ERROR_NOT_ALLOWED, EACCES);
    REFUSED(tautline_port_open(node, PORT(.kind = TAUTLINE_RAW, .number = 0x88a4, .depth = 3), &port),
            TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    REFUSED(tautline_port_open(node, PORT(.kind = TAUTLINE_RAW, .number = 0x88a4), NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_port_open(node, PORT(.kind = TAUTLINE_RAW, .number = 0x88a4), &port), TAUTLINE_ERROR_NOT_OFFERED, EOPNOTSUPP);
    EXPECT(port.id == 0);

    tautline_port first, second;
    EXPECT(tautline_port_open(node, PORT(.number = 1240), &first) == 0);
    REFUSED(tautline_port_open(node, PORT(.number = 1240), &second), TAUTLINE_ERROR_PORT_TAKEN,
            EADDRINUSE);
    EXPECT(tautline_port_open(node, PORT(.kind = TAUTLINE_SAMPLING, .name = "state"), &second) == 0);
    struct tautline_port_info info;
    EXPECT(tautline_port_info(second, &info) == 0);
    EXPECT(info.number == 1241 && info.kind == TAUTLINE_SAMPLING && info.message_bytes_max == 1484);
    REFUSED(tautline_port_info(second, NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    EXPECT(tautline_port_close(first) == 0 && tautline_port_close(second) == 0);
}

/* A batch is taken as far as it is right; what is wrong is told to the call that begins with it. */
static void batches(tautline_port port, tautline_destination to, tautline_destination foreign)
{
    static const struct tautline_outgoing nothing[TAUTLINE_BATCH_MAX + 1];
    struct tautline_outgoing batch[40];
    for (size_t index = 0; index < 40; index++)
        batch[index] = (struct tautline_outgoing){.message = "0123456789", .bytes = 1 + index % 10, .destination = to};
    EXPECT(tautline_send_batch(port, batch, 0) == 0 && tautline_send_batch(port, NULL, 0) == 0);
    REFUSED(tautline_send_batch(port, NULL, 1), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    const void *odd = (const char *)batch + 1;
    REFUSED(tautline_send_batch(port, odd, 1), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    REFUSED(tautline_send_batch(port, nothing, TAUTLINE_BATCH_MAX + 1), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    REFUSED(tautline_send_batch(port, batch, SIZE_MAX), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    REFUSED(tautline_send_batch((tautline_port){0}, batch, 1), TAUTLINE_ERROR_BAD_HANDLE, EBADF);

    batch[35].priority = 8;
    EXPECT(tautline_send_batch(port, batch, 40) == 35);
    REFUSED(tautline_send_batch(port, batch + 35, 5), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    batch[36].message = NULL;
    REFUSED(tautline_send_batch(port, batch + 36, 4), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    batch[37].destination = foreign;
    REFUSED(tautline_send_batch(port, batch + 37, 3), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    batch[39].bytes = SIZE_MAX;
    EXPECT(tautline_send_batch(port, batch + 38, 2) == 1);
    char buffer[1484];
    struct tautline_message message;
    for (size_t index = 0; index < 36; index++) {
        size_t bytes = 1 + (index < 35 ? index : 38) % 10;
        uint64_t soon_ns = tautline_now_ns() + 5000000000;
        EXPECT(tautline_receive(port, soon_ns, buffer, sizeof buffer, &message) == 1);
        EXPECT(message.bytes == bytes && memcmp(buffer, "0123456789", bytes) == 0);
    }
    EXPECT(tautline_receive(port, TAUTLINE_POLL, buffer, sizeof buffer, &message) == 0);
}

static void using_ports(void)
{
    tautline_port port, other, state;
    EXPECT(tautline_port_open(node, PORT(.number = 1240), &port) == 0);
    EXPECT(tautline_port_open(node, PORT(.number = 1242), &other) == 0);
    EXPECT(tautline_port_open(node, PORT(.kind = TAUTLINE_SAMPLING, .name = "state"), &state) == 0);
    char buffer[1484];
    struct tautline_message message;
    struct tautline_sample sample;
    tautline_destination to, foreign;

    REFUSED(tautline_destination_of(port, "stranger", 1240, TAUTLINE_FOREVER, &to), TAUTLINE_ERROR_UNKNOWN_PEER,
            EHOSTUNREACH);
    REFUSED(tautline_destination_of(port, NULL, 1240, TAUTLINE_FOREVER, &to), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_destination_of(port, "self", 0, TAUTLINE_FOREVER, &to), TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    REFUSED(tautline_readers_of(state, &to), TAUTLINE_ERROR_NOT_OFFERED, EOPNOTSUPP);
    REFUSED(tautline_follow(state, "self", 1240), TAUTLINE_ERROR_NOT_OFFERED, EOPNOTSUPP);
    EXPECT(tautline_destination_of(port, "self", 1240, TAUTLINE_FOREVER, &to) == 0);
    EXPECT(tautline_destination_of(other, "self", 1240, TAUTLINE_FOREVER, &foreign) == 0);
    REFUSED(tautline_send(port, foreign, 0, "x", 1), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    char text[256];
    EXPECT(tautline_last_error(text, sizeof text) > 0 && strstr(text, "belongs to another port") != NULL);
    to.index = 64;
    REFUSED(tautline_send(port, to, 0, "x", 1), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    to.index = 0;
    REFUSED(tautline_send(port, to, 8, "x", 1), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    REFUSED(tautline_send(port, to, 0, NULL, 1), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_send(port, to, 0, "x", SIZE_MAX), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    char *large = calloc(1, 65537);
    REFUSED(tautline_send(port, to, 0, large, 65537), TAUTLINE_ERROR_MESSAGE_TOO_LARGE, EMSGSIZE);
    free(large);

    EXPECT(tautline_receive(port, TAUTLINE_POLL, buffer, sizeof buffer, &message) == 0);
    REFUSED(tautline_receive(port, TAUTLINE_POLL, buffer, sizeof buffer - 1, &message),
            TAUTLINE_ERROR_BUFFER_TOO_SMALL, EMSGSIZE);
    EXPECT(tautline_last_error(text, sizeof text) > 0 && strstr(text, "buffer of 1483 bytes") != NULL);
    EXPECT(strstr(text, "messages may have 1484") != NULL);
    REFUSED(tautline_receive(port, TAUTLINE_POLL, NULL, 0, &message), TAUTLINE_ERROR_BUFFER_TOO_SMALL,
            EMSGSIZE);
    REFUSED(tautline_receive(port, TAUTLINE_POLL, NULL, 1484, &message), TAUTLINE_ERROR_NULL_POINTER,
            EFAULT);
    REFUSED(tautline_receive(port, TAUTLINE_POLL, buffer, sizeof buffer, NULL),
            TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_send_frame(port, buffer, 60), TAUTLINE_ERROR_WRONG_KIND, EOPNOTSUPP);
    REFUSED(tautline_read(port, buffer, sizeof buffer, &sample), TAUTLINE_ERROR_WRONG_KIND,
            EOPNOTSUPP);
    REFUSED(tautline_receive(state, TAUTLINE_POLL, buffer, sizeof buffer, &message),
            TAUTLINE_ERROR_WRONG_KIND, EOPNOTSUPP);
    EXPECT(tautline_read(state, buffer, sizeof buffer, &sample) == 0);
    EXPECT(tautline_next(state, TAUTLINE_POLL, buffer, sizeof buffer, &sample) == 0);
    REFUSED(tautline_read(state, buffer, 1, &sample), TAUTLINE_ERROR_BUFFER_TOO_SMALL, EMSGSIZE);

    /* An empty message is one, and null is a good place for it. */
    EXPECT(tautline_send(port, to, TAUTLINE_PRIORITY_HIGHEST, NULL, 0) == 0);
    uint64_t soon_ns = tautline_now_ns() + 5000000000;
    EXPECT(tautline_receive(port, soon_ns, buffer, sizeof buffer, &message) == 1);
    EXPECT(message.bytes == 0 && message.priority == TAUTLINE_PRIORITY_HIGHEST);
    EXPECT(message.source.form == TAUTLINE_UDP && message.source.port == 1240);
    EXPECT(message.source.ip == htonl(INADDR_LOOPBACK));
    EXPECT(message.arrival_ns != 0 && message.arrival_ns <= tautline_now_ns());
    EXPECT(tautline_reply(port, &message.source, TAUTLINE_PRIORITY_HIGHEST, "mine", 4) == 0);
    EXPECT(tautline_receive(port, soon_ns, buffer, sizeof buffer, &message) == 1 && message.bytes == 4);
    REFUSED(tautline_reply(port, &message.source, 8, "x", 1), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    REFUSED(tautline_reply(port, &message.source, 0, NULL, 1), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    message.source.form = 9;
    REFUSED(tautline_reply(port, &message.source, 0, "x", 1), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    REFUSED(tautline_reply(port, NULL, 0, "x", 1), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    struct tautline_port_counters counters;
    EXPECT(tautline_port_counters(port, &counters) == 0);
    EXPECT(counters.sent == 2 && counters.received == 2 && counters.send_errors == 3);
    REFUSED(tautline_port_counters(port, NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);

    batches(port, to, foreign);

    EXPECT(tautline_descriptor(port) >= 0);
    EXPECT(tautline_port_close(port) == 0);
    REFUSED(tautline_port_close(port), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    REFUSED(tautline_descriptor(port), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    REFUSED(tautline_send(port, to, 0, "x", 1), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    REFUSED(tautline_receive(port, TAUTLINE_FOREVER, buffer, sizeof buffer, &message),
            TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    REFUSED(tautline_read(port, buffer, sizeof buffer, &sample), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    REFUSED(tautline_port_info(port, &(struct tautline_port_info){0}), TAUTLINE_ERROR_BAD_HANDLE,
            EBADF);
    EXPECT(tautline_port_close(other) == 0 && tautline_port_close(state) == 0);
}

/* Buffers of the pool: each another one, until there are no more. */
static void send_buffers(int socket)
{
    char *held[17] = {0};
    for (int index = 0; index < 16; index++) {
        held[index] = rt_mmap(socket, 4096);
        EXPECT(held[index] != MAP_FAILED && (uintptr_t)held[index] % 64 == 0);
        memset(held[index], index, 4096);
    }
    REFUSED(rt_mmap(socket, 1), MAP_FAILED, ENOBUFS);
    for (int index = 0; index < 16; index++)
        EXPECT(held[index][0] == index && held[index][4095] == index);
    /* Other sizes are not touched by that. */
    held[16] = rt_mmap(socket, 4097);
    EXPECT(held[16] != MAP_FAILED);
    memset(held[16], 16, 16384);
    EXPECT(tautline_socket_unmap(socket, held[16]) == 0);
    REFUSED(tautline_socket_unmap(socket, held[16]), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    REFUSED(tautline_socket_unmap(socket, held[0] + 1), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    REFUSED(tautline_socket_unmap(socket, NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_socket_unmap(-1, held[0]), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    EXPECT(tautline_socket_unmap(socket, held[3]) == 0);
    EXPECT(rt_mmap(socket, 1) == held[3]);
    /* The rest goes back when the socket is closed. */
}

static void opening_sockets(void)
{
    struct sockaddr_in local = loopback(15250);
    const struct sockaddr *at = (struct sockaddr *)&local;
    REFUSED(rt_socket(NULL, sizeof local, 100), -1, EFAULT);
    REFUSED(rt_socket(at, sizeof local - 1, 100), -1, EINVAL);
    REFUSED(rt_socket(at, sizeof local, 0), -1, EINVAL);
    REFUSED(rt_socket(at, sizeof local, 65508), -1, EINVAL);
    REFUSED(rt_socket(at, sizeof local, SIZE_MAX), -1, EINVAL);
    local.sin_family = AF_INET6;
    REFUSED(rt_socket(at, sizeof local, 100), -1, EAFNOSUPPORT);
    local = loopback(15250);
    local.sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1, which nobody has */
    REFUSED(rt_socket(at, sizeof local, 100), -1, EADDRNOTAVAIL);

    local = loopback(15250);
    int socket = rt_socket(at, sizeof local, 100);
    EXPECT(socket >= 0);
    REFUSED(rt_socket(at, sizeof local, 100), -1, EADDRINUSE);
    EXPECT(rt_socket_close(socket) == 0);
    REFUSED(rt_socket_close(socket), -1, EBADF);
    REFUSED(rt_socket_close(-1), -1, EBADF);
    REFUSED(rt_socket_close(0), -1, EBADF);

    /* Closed means that it can be opened again, and that the old number stays closed. */
    int again = rt_socket(at, sizeof local, 65507);
    EXPECT(again >= 0 && again != socket);
    REFUSED(rt_mmap(socket, 1), MAP_FAILED, EBADF);
    char *whole = rt_mmap(again, 65507);
    EXPECT(whole != MAP_FAILED);
    memset(whole, 1, 65507);
    REFUSED(rt_mmap(again, 65508), MAP_FAILED, ENOMEM);
    send_buffers(again);
    EXPECT(rt_socket_close(again) == 0);

    /* On any address of the host, at any free port. */
    local = loopback(0);
    local.sin_addr.s_addr = htonl(INADDR_ANY);
    int any = rt_socket(at, sizeof local, 100);
    EXPECT(any >= 0 && rt_socket_close(any) == 0);
}

static void using_sockets(void)
{
    struct sockaddr_in local = loopback(15251), from, wrong;
    struct sockaddr *to = (struct sockaddr *)&local, *bad = (struct sockaddr *)&wrong;
    socklen_t from_bytes = sizeof from;
    char buffer[1400];
    for (size_t index = 0; index < sizeof buffer; index++)
        buffer[index] = (char)(index % 251);
    int socket = rt_socket(to, sizeof local, sizeof buffer);
    EXPECT(socket >= 0);

    REFUSED(rt_sendto(socket, NULL, 1, 0, to, sizeof local), -1, EFAULT);
    REFUSED(rt_sendto(socket, buffer, 1, 0, NULL, 0), -1, EDESTADDRREQ);
    REFUSED(rt_sendto(socket, buffer, 1, 0, to, 3), -1, EINVAL);
    REFUSED(rt_sendto(socket, buffer, 1, MSG_OOB, to, sizeof local), -1, EOPNOTSUPP);
    static char large[65508];
    REFUSED(rt_sendto(socket, large, sizeof large, 0, to, sizeof local), -1, EMSGSIZE);
    REFUSED(rt_sendto(socket, buffer, SIZE_MAX, 0, to, sizeof local), -1, EINVAL);
    wrong = loopback(0);
    REFUSED(rt_sendto(socket, buffer, 1, 0, bad, sizeof wrong), -1, EINVAL);
    wrong.sin_family = AF_UNIX;
    REFUSED(rt_sendto(socket, buffer, 1, 0, bad, sizeof wrong), -1, EAFNOSUPPORT);
    REFUSED(rt_sendto(-5, buffer, 1, 0, to, sizeof local), -1, EBADF);

    char heard[sizeof buffer];
    REFUSED(rt_recvfrom(socket, heard, sizeof heard, MSG_DONTWAIT, NULL, NULL), -1, EAGAIN);
    REFUSED(rt_recvfrom(socket, heard, sizeof heard, MSG_PEEK, NULL, NULL), -1, EOPNOTSUPP);
    REFUSED(rt_recvfrom(socket, NULL, sizeof heard, 0, NULL, NULL), -1, EFAULT);
    REFUSED(rt_recvfrom(socket, heard, sizeof heard, 0, bad, NULL), -1, EFAULT);
    REFUSED(rt_recvfrom(socket + 1, heard, sizeof heard, 0, NULL, NULL), -1, EBADF);

    /* Whole, with the sender's address. */
    EXPECT(rt_sendto(socket, buffer, sizeof buffer, 0, to, sizeof local) == sizeof buffer);
    EXPECT(rt_recvfrom(socket, heard, sizeof heard, 0, (struct sockaddr *)&from, &from_bytes) ==
           sizeof buffer);
    EXPECT(memcmp(buffer, heard, sizeof buffer) == 0);
    EXPECT(from_bytes == sizeof from && memcmp(&from, &local, sizeof from) == 0);

    /* A short buffer gets the beginning and not a byte more, a short address too. */
    memset(heard, 'z', sizeof heard);
    memset(&from, 'z', sizeof from);
    from_bytes = 4;
    EXPECT(rt_sendto(socket, buffer, sizeof buffer, 0, to, sizeof local) == sizeof buffer);
    EXPECT(rt_recvfrom(socket, heard, 10, 0, (struct sockaddr *)&from, &from_bytes) == 10);
    EXPECT(memcmp(buffer, heard, 10) == 0 && heard[10] == 'z');
    EXPECT(from_bytes == sizeof from && from.sin_port == local.sin_port);
    EXPECT(from.sin_addr.s_addr == 0x7a7a7a7a);
    EXPECT(rt_sendto(socket, buffer, 99, 0, to, sizeof local) == 99);
    EXPECT(rt_recvfrom(socket, heard, 10, MSG_TRUNC, NULL, NULL) == 99);
    EXPECT(rt_sendto(socket, NULL, 0, 0, to, sizeof local) == 0);
    EXPECT(rt_recvfrom(socket, NULL, 0, 0, NULL, NULL) == 0);

    /* From the send buffer, from its middle, and from beyond its end. */
    char *own = rt_mmap(socket, sizeof buffer);
    memcpy(own, "at the beginning", 16);
    EXPECT(rt_sendto(socket, own, 16, 0, to, sizeof local) == 16);
    EXPECT(rt_recvfrom(socket, heard, sizeof heard, 0, NULL, NULL) == 16);
    EXPECT(memcmp(heard, "at the beginning", 16) == 0);
    memcpy(own + 8, "in the middle", 13);
    EXPECT(rt_sendto(socket, own + 8, 13, 0, to, sizeof local) == 13);
    EXPECT(rt_recvfrom(socket, heard, sizeof heard, 0, NULL, NULL) == 13);
    EXPECT(memcmp(heard, "in the middle", 13) == 0);
    REFUSED(rt_sendto(socket, own + 4090, 8, 0, to, sizeof local), -1, EFAULT);
    REFUSED(rt_sendto(socket, own - 1, 8, 0, to, sizeof local), -1, EFAULT);

    /* Functions that sockets lack, through the port below; a port that is no socket is not one. */
    tautline_port port, plain;
    struct tautline_message message;
    EXPECT(tautline_socket_port(socket, &port) == 0);
    EXPECT(rt_sendto(socket, "x", 1, 0, to, sizeof local) == 1);
    uint64_t soon_ns = tautline_now_ns() + 5000000000;
    EXPECT(tautline_receive(port, soon_ns, heard, sizeof heard, &message) == 1);
    EXPECT(message.bytes == 1 && message.priority == TAUTLINE_PRIORITY_NORMAL);
    EXPECT(message.source.port == 0 && message.source.udp_port == local.sin_port);
    tautline_destination back;
    EXPECT(tautline_destination_of(port, "127.0.0.1", ntohs(local.sin_port), TAUTLINE_FOREVER, &back) == 0);
    EXPECT(tautline_reply(port, &message.source, TAUTLINE_PRIORITY_HIGHEST, own, 5) == 0);
    EXPECT(tautline_receive(port, soon_ns, heard, sizeof heard, &message) == 1);
    EXPECT(message.bytes == 5 && message.priority == TAUTLINE_PRIORITY_HIGHEST);
    /* In a batch, from a send buffer too, which stays as it was, and from beyond its end. */
    memcpy(own, "twice", 5);
    struct tautline_outgoing batch[] = {
        {.message = own, .bytes = 5, .destination = back},
        {.message = own, .bytes = 5, .destination = back},
        {.message = own + 4090, .bytes = 8, .destination = back},
    };
    EXPECT(tautline_send_batch(port, batch, 3) == 2);
    REFUSED(tautline_send_batch(port, batch + 2, 1), TAUTLINE_ERROR_BAD_ARGUMENT, EFAULT);
    for (int turn = 0; turn < 2; turn++) {
        EXPECT(tautline_receive(port, soon_ns, heard, sizeof heard, &message) == 1);
        EXPECT(message.bytes == 5 && memcmp(heard, "twice", 5) == 0);
    }
    struct tautline_port_info info;
    struct tautline_port_counters counters;
    EXPECT(tautline_port_info(port, &info) == 0 && info.kind == TAUTLINE_DATAGRAM);
    EXPECT(info.number == 15251 && info.message_bytes_max == sizeof buffer);
    EXPECT(tautline_port_counters(port, &counters) == 0 && counters.received == counters.sent);
    struct tautline_sample sample;
    REFUSED(tautline_read(port, heard, sizeof heard, &sample), TAUTLINE_ERROR_WRONG_KIND, EOPNOTSUPP);
    REFUSED(tautline_port_open(node, PORT(.kind = TAUTLINE_DATAGRAM, .number = 0), &plain), TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
    REFUSED(tautline_port_open(node, PORT(.kind = TAUTLINE_DATAGRAM, .number = 15251), &plain), TAUTLINE_ERROR_PORT_TAKEN, EADDRINUSE);
    EXPECT(tautline_port_open(node, PORT(.number = 1252), &plain) == 0);
    REFUSED(rt_recvfrom((int)plain.id, heard, sizeof heard, 0, NULL, NULL), -1, EBADF);
    REFUSED(rt_socket_close((int)plain.id), -1, EBADF);
    REFUSED(tautline_socket_port((int)plain.id, &port), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    EXPECT(tautline_port_close(plain) == 0);

    /* A socket sends to more addresses than a port has destinations. */
    struct sockaddr_in many = loopback(15251);
    for (int index = 1; index < 100; index++) {
        many.sin_port = htons((uint16_t)(15300 + index));
        EXPECT(rt_sendto(socket, "x", 1, 0, (struct sockaddr *)&many, sizeof many) == 1);
    }
    EXPECT(rt_socket_close(socket) == 0);
}

struct waiter {
    tautline_port port;
    int received;
};

static void *wait_for_a_message(void *argument)
{
    struct waiter *waiter = argument;
    char buffer[1484];
    struct tautline_message message;
    waiter->received =
        tautline_receive(waiter->port, TAUTLINE_FOREVER, buffer, sizeof buffer, &message);
    return NULL;
}

/* A thread waits in a port; another that uses or closes it is refused, and the first is not disturbed. */
static void two_threads(void)
{
    tautline_port sender;
    struct waiter waiter = {.received = -100};
    EXPECT(tautline_port_open(node, PORT(.number = 1260), &waiter.port) == 0);
    EXPECT(tautline_port_open(node, PORT(.number = 1261), &sender) == 0);
    tautline_destination to;
    EXPECT(tautline_destination_of(sender, "self", 1260, TAUTLINE_FOREVER, &to) == 0);
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, wait_for_a_message, &waiter) == 0);

    /* Until the other thread is in its call, ours succeed. */
    struct tautline_port_info info;
    struct timespec pause = {.tv_nsec = 1000000};
    while (tautline_port_info(waiter.port, &info) == 0)
        nanosleep(&pause, NULL);
    REFUSED(tautline_port_info(waiter.port, &info), TAUTLINE_ERROR_BUSY, EBUSY);
    REFUSED(tautline_send(waiter.port, to, 0, "x", 1), TAUTLINE_ERROR_BUSY, EBUSY);
    REFUSED(tautline_port_close(waiter.port), TAUTLINE_ERROR_BUSY, EBUSY);
    REFUSED(rt_socket_close((int)waiter.port.id), -1, EBUSY);

    EXPECT(tautline_send(sender, to, 0, "x", 1) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(waiter.received == 1);
    EXPECT(tautline_port_close(waiter.port) == 0 && tautline_port_close(sender) == 0);
}

/* The sockets' node is chosen; a port outlives its node's handle. */
static void nodes_of_sockets(void)
{
    EXPECT(tautline_socket_node(node) == 0);
    struct sockaddr_in local = loopback(15270);
    int socket = rt_socket((struct sockaddr *)&local, sizeof local, 100);
    EXPECT(socket >= 0);
    static char status[16384];
    EXPECT(tautline_node_status(node, status, sizeof status) < (int)sizeof status);
    EXPECT(strstr(status, "\"key\":\"udp:15270\"") != NULL);
    local.sin_addr.s_addr = htonl(0x7f000002);
    local.sin_port = 0;
    REFUSED(rt_socket((struct sockaddr *)&local, sizeof local, 100), -1, EADDRNOTAVAIL);

    EXPECT(tautline_node_close(node) == 0);
    REFUSED(tautline_node_close(node), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    REFUSED(rt_socket((struct sockaddr *)&local, sizeof local, 100), -1, EBADF);
    local = loopback(15270);
    EXPECT(rt_sendto(socket, "x", 1, 0, (struct sockaddr *)&local, sizeof local) == 1);
    EXPECT(rt_socket_close(socket) == 0);
}

static void texts(void)
{
    EXPECT(strcmp(tautline_code_text(TAUTLINE_OK), "no error") == 0);
    EXPECT(strstr(tautline_code_text(TAUTLINE_ERROR_BUSY), "another thread") != NULL);
    EXPECT(strstr(tautline_code_text(-1000), "not a code") != NULL);
    EXPECT(strstr(tautline_code_text(INT32_MIN), "not a code") != NULL);
    EXPECT(strchr(tautline_version(), '.') != NULL);
    REFUSED(tautline_last_error(NULL, 1), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    EXPECT(tautline_last_error(NULL, 0) > 0);
}

/* A queuing port follows another one, and loses what it does not take in time. */
static void publishing_messages_for_many(tautline_node on_bus)
{
    tautline_port publisher, reader;
    tautline_destination to;
    struct tautline_message message;
    struct tautline_port_counters counters;
    char buffer[1484];
    EXPECT(tautline_port_open(on_bus, PORT(.number = 13, .depth = 4), &publisher) == 0);
    EXPECT(tautline_port_open(on_bus, PORT(.number = 14, .depth = 4), &reader) == 0);
    EXPECT(tautline_readers_of(publisher, &to) == 0);
    EXPECT(tautline_send(publisher, to, TAUTLINE_PRIORITY_NORMAL, "nobody", 6) == 0);
    EXPECT(tautline_follow(reader, "self", 13) == 0);
    for (int number = 0; number < 9; number++)
        EXPECT(tautline_send(publisher, to, TAUTLINE_PRIORITY_NORMAL, &number, sizeof number) == 0);
    for (int number = 6; number < 9; number++) {
        EXPECT(tautline_receive(reader, 0, buffer, sizeof buffer, &message) == 1);
        EXPECT(message.bytes == sizeof number && memcmp(buffer, &number, sizeof number) == 0);
    }
    EXPECT(tautline_receive(reader, 0, buffer, sizeof buffer, &message) == 0);
    EXPECT(tautline_port_counters(reader, &counters) == 0 && counters.overwritten == 6);
    EXPECT(tautline_port_close(reader) == 0 && tautline_port_close(publisher) == 0);
}

/* Two ports follow a third one, and get one value. `queuing` is a port of the other kind. */
static void publishing_for_many(tautline_node on_bus, tautline_port queuing)
{
    tautline_port publisher, readers[2];
    tautline_destination to;
    struct tautline_sample sample;
    char buffer[1484];
    EXPECT(tautline_port_open(on_bus, PORT(.kind = TAUTLINE_SAMPLING, .number = 3), &publisher) == 0);
    REFUSED(tautline_readers_of(publisher, NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    EXPECT(tautline_readers_of(publisher, &to) == 0);
    EXPECT(tautline_follow(queuing, "self", 3) < 0);
    EXPECT(tautline_send(publisher, to, TAUTLINE_PRIORITY_NORMAL, "first", 5) == 0);
    for (uint16_t index = 0; index < 2; index++) {
        EXPECT(tautline_port_open(on_bus, PORT(.kind = TAUTLINE_SAMPLING, .number = 4 + index), &readers[index]) == 0);
        REFUSED(tautline_follow(readers[index], NULL, 3), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
        REFUSED(tautline_follow(readers[index], "self", 0), TAUTLINE_ERROR_BAD_OPTIONS, EINVAL);
        REFUSED(tautline_follow(readers[index], "nobody", 3), TAUTLINE_ERROR_UNKNOWN_PEER, EHOSTUNREACH);
        EXPECT(tautline_follow(readers[index], "self", 3) == 0);
        uint64_t soon_ns = tautline_now_ns() + 5000000000;
        EXPECT(tautline_next(readers[index], soon_ns, buffer, sizeof buffer, &sample) == 1);
        EXPECT(sample.bytes == 5 && memcmp(buffer, "first", 5) == 0);
    }
    EXPECT(tautline_send(publisher, to, TAUTLINE_PRIORITY_NORMAL, "second", 6) == 0);
    for (int index = 0; index < 2; index++) {
        uint64_t soon_ns = tautline_now_ns() + 5000000000;
        EXPECT(tautline_next(readers[index], soon_ns, buffer, sizeof buffer, &sample) == 1);
        EXPECT(sample.bytes == 6 && memcmp(buffer, "second", 6) == 0);
        EXPECT(tautline_port_close(readers[index]) == 0);
    }
    EXPECT(tautline_port_close(publisher) == 0);
}

/* Both kinds of port answer whoever sent to them over a bus; an invented sender is none. */
static void answering_on_a_bus(tautline_node on_bus, tautline_port asker)
{
    tautline_port answerers[2];
    EXPECT(tautline_port_open(on_bus, PORT(.number = 21), &answerers[0]) == 0);
    EXPECT(tautline_port_open(on_bus, PORT(.kind = TAUTLINE_SAMPLING, .number = 22), &answerers[1]) == 0);
    for (int index = 0; index < 2; index++) {
        tautline_destination to;
        struct tautline_message question, answer;
        struct tautline_sample value;
        struct tautline_source from;
        char buffer[1484];
        uint64_t soon_ns = tautline_now_ns() + 5000000000;
        EXPECT(tautline_destination_of(asker, "self", (uint16_t)(21 + index), soon_ns, &to) == 0);
        EXPECT(tautline_send(asker, to, 0, "question", 8) == 0);
        if (index == 0) {
            EXPECT(tautline_receive(answerers[0], soon_ns, buffer, sizeof buffer, &question) == 1);
            from = question.source;
        } else {
            EXPECT(tautline_next(answerers[1], soon_ns, buffer, sizeof buffer, &value) == 1);
            from = value.source;
        }
        EXPECT(from.form == TAUTLINE_BUS && from.port == 1);
        for (int answers = 0; answers < 2; answers++) {
            EXPECT(tautline_reply(answerers[index], &from, 0, "answer", 6) == 0);
            soon_ns = tautline_now_ns() + 5000000000;
            EXPECT(tautline_receive(asker, soon_ns, buffer, sizeof buffer, &answer) == 1);
            EXPECT(answer.bytes == 6 && memcmp(buffer, "answer", 6) == 0 && answer.source.port == 21 + index);
        }
        from.ip ^= 1;
        REFUSED(tautline_reply(answerers[index], &from, 0, "x", 1), TAUTLINE_ERROR_UNKNOWN_PEER, EHOSTUNREACH);
        from.ip ^= 1;
        from.port = 4000;
        REFUSED(tautline_reply(answerers[index], &from, 0, "x", 1), TAUTLINE_ERROR_UNKNOWN_PEER, EHOSTUNREACH);
        EXPECT(tautline_port_close(answerers[index]) == 0);
    }
}

/* A node on a bus waits for a port until the deadline, and finds one that is there. */
static void waiting_for_a_peer(void)
{
    char text[512];
    tautline_node on_bus;
    tautline_port sender, receiver;
    tautline_destination to;
    struct tautline_port_info info;
    struct tautline_sample sample;
    static char picture[30000];
    snprintf(text, sizeof text,
             "link = 'vbus'\nbus = '/tmp/taut-abuse-%ld'\nnode = 'self'\n[[neighbour]]\nname = 'self'\n"
             "[[port]]\nname = 'picture'\nnumber = 9\nkind = 'sampling'\nvalue_bytes_max = 30000\n",
             (long)getpid());
    EXPECT(tautline_node_open_text(text, &on_bus) == 0);
    EXPECT(tautline_port_open(on_bus, PORT(.number = 1), &sender) == 0);
    uint64_t soon_ns = tautline_now_ns() + 10000000;
    REFUSED(tautline_destination_of(sender, "self", 2, soon_ns, &to), TAUTLINE_ERROR_PEER_ABSENT, ETIMEDOUT);
    REFUSED(tautline_destination_of(sender, "nobody", 2, soon_ns, &to), TAUTLINE_ERROR_UNKNOWN_PEER, EHOSTUNREACH);
    REFUSED(tautline_destination_of(sender, "self", 2, soon_ns, NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    EXPECT(tautline_port_open(on_bus, PORT(.number = 2), &receiver) == 0);
    soon_ns = tautline_now_ns() + 5000000000;
    EXPECT(tautline_destination_of(sender, "self", 2, soon_ns, &to) == 0);
    EXPECT(tautline_send(sender, to, 0, "x", 1) == 0);
    answering_on_a_bus(on_bus, sender);
    /* A buffer of the size that the port names is large enough, and one byte less is not. */
    tautline_port large;
    EXPECT(tautline_port_open(on_bus, PORT(.kind = TAUTLINE_SAMPLING, .name = "picture"), &large) == 0);
    EXPECT(tautline_port_info(large, &info) == 0 && info.message_bytes_max == sizeof picture);
    EXPECT(tautline_read(large, picture, info.message_bytes_max, &sample) == 0);
    REFUSED(tautline_read(large, picture, sizeof picture - 1, &sample), TAUTLINE_ERROR_BUFFER_TOO_SMALL, EMSGSIZE);
    EXPECT(tautline_port_close(large) == 0);
    publishing_for_many(on_bus, sender);
    publishing_messages_for_many(on_bus);
    EXPECT(tautline_node_close(on_bus) == 0);
    EXPECT(tautline_port_close(sender) == 0 && tautline_port_close(receiver) == 0);
}

static void no_job(const struct tautline_job *job, void *context)
{
    (void)job;
    (void)context;
}

static void loops(void)
{
    struct tautline_tick tick;
    struct tautline_cycle_options options = {.period_ns = 1000000, .cpu = -1};
    REFUSED(tautline_cycle_wait(&tick), TAUTLINE_ERROR_WRONG_ORDER, EPROTO);
    REFUSED(tautline_cycle_stop(), TAUTLINE_ERROR_WRONG_ORDER, EPROTO);
    REFUSED(tautline_cycle_start(NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    options.period_ns = 0;
    REFUSED(tautline_cycle_start(&options), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    options.period_ns = UINT64_MAX;
    REFUSED(tautline_cycle_start(&options), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    options.period_ns = 1000000;
    options.fifo_priority = 100;
    REFUSED(tautline_cycle_start(&options), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    options.fifo_priority = 0;
    options.cpu = -2;
    REFUSED(tautline_cycle_start(&options), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    options.cpu = -1;
    options.values_per_cycle = 1;
    options.phase_ns = 500001; /* more than half of the values' period */
    REFUSED(tautline_cycle_start(&options), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    REFUSED(tautline_cycle_arrived(1), TAUTLINE_ERROR_WRONG_ORDER, EPROTO);
    options.phase_ns = 50000;
    EXPECT(tautline_cycle_start(&options) == 0);
    EXPECT(tautline_cycle_arrived(0) == 0 && tautline_cycle_arrived(UINT64_MAX) == 0);
    EXPECT(tautline_cycle_wait(&tick) == 0 && tautline_cycle_stop() == 0);
    options.values_per_cycle = 0;
    EXPECT(tautline_cycle_start(&options) == 0);
    REFUSED(tautline_cycle_start(&options), TAUTLINE_ERROR_WRONG_ORDER, EPROTO);
    REFUSED(tautline_cycle_wait(NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    EXPECT(tautline_cycle_wait(&tick) == 0 && tick.deadline_ns == tick.due_ns + 1000000);
    EXPECT(tautline_cycle_report(NULL, 0) > 0);
    EXPECT(tautline_cycle_stop() == 0);
}

static void waits_that_end_awake(void)
{
    tautline_awake awake = {0};
    int ends[2];
    EXPECT(pipe(ends) == 0);
    REFUSED(tautline_awake_open(ends[0], NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_awake_open(-1, &awake), TAUTLINE_ERROR_BAD_ARGUMENT, EBADF);
    REFUSED(tautline_awake_open(1 << 20, &awake), TAUTLINE_ERROR_BAD_ARGUMENT, EBADF);
    REFUSED(tautline_awake_wait(awake, TAUTLINE_POLL), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    EXPECT(tautline_awake_open(ends[0], &awake) == 0);
    EXPECT(tautline_awake_wait(awake, TAUTLINE_POLL) == 0);
    EXPECT(tautline_awake_wait(awake, tautline_now_ns() + 1000000) == 0);
    EXPECT(write(ends[1], "x", 1) == 1 && tautline_awake_wait(awake, TAUTLINE_FOREVER) == 1);
    EXPECT(tautline_awake_sent(awake) == 0);
    REFUSED(tautline_awake_report(awake, NULL, 1), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    EXPECT(tautline_awake_report(awake, NULL, 0) > 0);
    close(ends[0]);
    EXPECT(tautline_awake_wait(awake, TAUTLINE_FOREVER) == 1);
    EXPECT(tautline_awake_close(awake) == 0);
    REFUSED(tautline_awake_close(awake), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    REFUSED(tautline_awake_sent(awake), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    close(ends[1]);
    uint64_t due = tautline_now_ns() + 1000000, late = 0;
    EXPECT(tautline_sleep_until(due, NULL) == 0 && tautline_now_ns() >= due);
    EXPECT(tautline_sleep_until(due, &late) == 0 && late > 0);
    REFUSED(tautline_sleep_until(0, (uint64_t *)((char *)&late + 1)), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
}

static void task_sets(void)
{
    static const char FILE_NAME[] = "/tmp/tautline-abuse-XXXXXX";
    static const char SET[] = "[[task]]\nname = 'a'\nperiod = '20ms'\nworst_case = '1ms'\n"
                              "[[task]]\nname = 'm'\nport = 'm'\nperiod = '20ms'\nworst_case = '1ms'\n";
    static const char LATE[] = "[[task]]\nname = 'b'\nperiod = '20ms'\nworst_case = '20ms'\n";
    char file[sizeof FILE_NAME];
    memcpy(file, FILE_NAME, sizeof file);
    int descriptor = mkstemp(file);
    EXPECT(descriptor >= 0 && write(descriptor, SET, sizeof SET - 1) == sizeof SET - 1);
    tautline_tasks tasks = {0};
    REFUSED(tautline_tasks_open(NULL, &tasks), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_tasks_open(file, NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_tasks_open("/nowhere/set.toml", &tasks), TAUTLINE_ERROR_CONFIG_WRONG, EINVAL);
    REFUSED(tautline_tasks_start(tasks, -1, TAUTLINE_WITHOUT_REAL_TIME), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    EXPECT(tautline_tasks_open(file, &tasks) == 0);
    REFUSED(tautline_tasks_code(tasks, "a", NULL, NULL, NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_tasks_code(tasks, NULL, no_job, NULL, NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    REFUSED(tautline_tasks_code(tasks, "b", no_job, NULL, NULL), TAUTLINE_ERROR_UNKNOWN_NAME, ENOENT);
    REFUSED(tautline_tasks_start(tasks, -1, TAUTLINE_WITHOUT_REAL_TIME), TAUTLINE_ERROR_WRONG_ORDER, EPROTO);
    EXPECT(tautline_tasks_code(tasks, "m", no_job, NULL, NULL) == 0);
    EXPECT(tautline_tasks_code(tasks, "a", no_job, NULL, NULL) == 0);
    REFUSED(tautline_tasks_code(tasks, "a", no_job, NULL, NULL), TAUTLINE_ERROR_WRONG_ORDER, EPROTO);
    struct tautline_task_figures figures;
    REFUSED(tautline_tasks_figures(tasks, "a", &figures), TAUTLINE_ERROR_WRONG_ORDER, EPROTO);
    REFUSED(tautline_tasks_trigger(tasks, "a"), TAUTLINE_ERROR_WRONG_ORDER, EPROTO);
    REFUSED(tautline_tasks_start(tasks, -2, 0), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    REFUSED(tautline_tasks_start(tasks, -1, 2), TAUTLINE_ERROR_BAD_ARGUMENT, EINVAL);
    EXPECT(tautline_tasks_start(tasks, -1, TAUTLINE_WITHOUT_REAL_TIME) == 0);
    REFUSED(tautline_tasks_start(tasks, -1, TAUTLINE_WITHOUT_REAL_TIME), TAUTLINE_ERROR_WRONG_ORDER, EPROTO);
    REFUSED(tautline_tasks_trigger(tasks, "a"), TAUTLINE_ERROR_WRONG_KIND, EOPNOTSUPP);
    REFUSED(tautline_tasks_request_mode(tasks, "none"), TAUTLINE_ERROR_CONFIG_WRONG, EINVAL);
    REFUSED(tautline_tasks_figures(tasks, "a", NULL), TAUTLINE_ERROR_NULL_POINTER, EFAULT);
    EXPECT(tautline_tasks_figures(tasks, "a", &figures) == 0 && figures.stopped == 0);
    EXPECT(tautline_tasks_limits(tasks, NULL, 0) >= 0);
    EXPECT(tautline_tasks_close(tasks, UINT64_C(5000000000)) == 0);
    REFUSED(tautline_tasks_close(tasks, 0), TAUTLINE_ERROR_BAD_HANDLE, EBADF);
    EXPECT(write(descriptor, LATE, sizeof LATE - 1) == sizeof LATE - 1);
    REFUSED(tautline_tasks_open(file, &tasks), TAUTLINE_ERROR_SET_REFUSED, ERANGE);
    close(descriptor);
    unlink(file);
}

int main(void)
{
    EXPECT(tautline_last_error(NULL, 0) == 0);
    nodes();
    opening_ports();
    using_ports();
    opening_sockets();
    using_sockets();
    two_threads();
    nodes_of_sockets();
    waiting_for_a_peer();
    texts();
    loops();
    waits_that_end_awake();
    task_sets();
    puts("all refused as documented");
    return EXIT_SUCCESS;
}
