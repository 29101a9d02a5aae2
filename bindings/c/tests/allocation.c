/* Allocations on the way of a message: there are none. The program counts, by
 * standing in front of the C library's allocator. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <tautline.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static _Thread_local unsigned long allocations;

void *malloc(size_t bytes)
{
    allocations++;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    allocations++;
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    allocations++;
    return __libc_realloc(memory, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    allocations++;
    *memory = __libc_memalign(alignment, bytes);
    return 0;
}

static const char CONFIGURATION[] = "link = 'udp'\n"
                                    "address = '127.0.0.8'\n"
                                    "[[neighbour]]\n"
                                    "name = 'self'\n"
                                    "ip = '127.0.0.8'\n";

static void expect(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "not so: %s\n", what);
        exit(EXIT_FAILURE);
    }
}

enum { BYTES = 4000, DATAGRAM_BYTES = 1400, ROUNDS = 100 };

int main(void)
{
    tautline_node node;
    tautline_port queuing, sampling;
    tautline_destination to_queuing, to_sampling;
    struct tautline_port_options options = {.number = 1301, .message_bytes_max = BYTES};
    expect(tautline_node_open_text(CONFIGURATION, &node) == 0, "the node opens");
    expect(allocations > 0, "opening a node allocates, and the counter counts");
    expect(tautline_port_open(node, &options, &queuing) == 0, "a port opens");
    options = (struct tautline_port_options){.kind = TAUTLINE_SAMPLING, .number = 1302};
    expect(tautline_port_open(node, &options, &sampling) == 0, "a port opens");
    expect(tautline_destination_of(queuing, "self", 1301, TAUTLINE_FOREVER, &to_queuing) == 0, "the neighbour is known");
    expect(tautline_destination_of(queuing, "self", 1302, TAUTLINE_FOREVER, &to_sampling) == 0, "the neighbour is known");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(15303)};
    inet_pton(AF_INET, "127.0.0.8", &address.sin_addr);
    struct sockaddr *self = (struct sockaddr *)&address;
    int socket = rt_socket(self, sizeof address, DATAGRAM_BYTES);
    expect(socket >= 0, "a socket opens");
    static char message[BYTES], buffer[BYTES];
    /* The first message to an address. */
    expect(rt_sendto(socket, message, 1, 0, self, sizeof address) == 1, "a message is sent");
    expect(rt_recvfrom(socket, buffer, BYTES, 0, NULL, NULL) == 1, "and received");

    char *own = rt_mmap(socket, BYTES);
    expect(own != MAP_FAILED, "the pool has a buffer");

    unsigned long before = allocations;
    for (int round = 0; round < ROUNDS; round++) {
        struct tautline_message received;
        struct tautline_sample sample;
        uint64_t soon_ns = tautline_now_ns() + 5000000000;
        expect(tautline_send(queuing, to_queuing, 5, message, BYTES) == 0, "a message is sent");
        expect(tautline_receive(queuing, soon_ns, buffer, BYTES, &received) == 1, "and received");
        struct tautline_outgoing batch[2] = {{.message = message, .bytes = BYTES, .destination = to_queuing},
                                             {.message = message, .bytes = 1, .destination = to_queuing}};
        expect(tautline_send_batch(queuing, batch, 2) == 2, "a batch is sent");
        expect(tautline_receive(queuing, soon_ns, buffer, BYTES, &received) == 1, "its first is received");
        expect(tautline_receive(queuing, soon_ns, buffer, BYTES, &received) == 1, "and its second");
        expect(tautline_send(queuing, to_sampling, 5, message, 8) == 0, "a value is sent");
        expect(tautline_next(sampling, soon_ns, buffer, BYTES, &sample) == 1, "and read");
        expect(tautline_read(sampling, buffer, BYTES, &sample) == 1, "and read again");
        expect(rt_sendto(socket, message, DATAGRAM_BYTES, 0, self, sizeof address) == DATAGRAM_BYTES,
               "a message is sent");
        expect(rt_sendto(socket, own, DATAGRAM_BYTES, 0, self, sizeof address) == DATAGRAM_BYTES,
               "a message is sent from where it lies");
        expect(rt_recvfrom(socket, buffer, BYTES, 0, NULL, NULL) == DATAGRAM_BYTES, "and received");
        void *another = rt_mmap(socket, 1);
        expect(another != MAP_FAILED && another != own, "there is another buffer");
        expect(tautline_socket_unmap(socket, another) == 0, "and it is given back");
        expect(rt_mmap(socket, 65508) == MAP_FAILED, "none is that large");
        struct sockaddr_in from;
        socklen_t from_bytes = sizeof from;
        expect(rt_recvfrom(socket, buffer, 7, 0, (struct sockaddr *)&from, &from_bytes) == 7,
               "and its beginning received");
        /* Failures on the way allocate nothing either. */
        expect(tautline_receive(queuing, TAUTLINE_POLL, buffer, BYTES, &received) == 0, "none is left");
        expect(tautline_receive(queuing, TAUTLINE_POLL, buffer, 1, &received) ==
                   TAUTLINE_ERROR_BUFFER_TOO_SMALL,
               "a short buffer is refused");
        expect(tautline_send(queuing, to_queuing, 9, message, 1) == TAUTLINE_ERROR_BAD_ARGUMENT,
               "a priority is refused");
        expect(rt_recvfrom(socket, buffer, BYTES, MSG_DONTWAIT, NULL, NULL) == -1, "none is left");
    }
    printf("%lu allocations in %d rounds\n", allocations - before, ROUNDS);
    expect(rt_socket_close(socket) == 0, "the socket closes");
    expect(tautline_port_close(queuing) == 0 && tautline_port_close(sampling) == 0, "ports close");
    expect(tautline_node_close(node) == 0, "the node closes");
    return EXIT_SUCCESS;
}
