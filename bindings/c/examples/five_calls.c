/* The five calls of SS-RTUDP: a question is answered with itself, and the round trip timed.
 *
 *   five_calls answer 10.0.0.2 15600           on one host
 *   five_calls ask 10.0.0.1 10.0.0.2 15600     on the other: "answer to 3: hello (5 bytes)"
 *
 * The other side may be any program that speaks UDP. Without more, this one runs over the kernel's. With a
 * configuration file it takes the best link that there is: TAUTLINE_NODE=node.toml five_calls ...
 */
#include <arpa/inet.h>
#include <string.h>
#include <sys/mman.h>

#include "fail.h"

enum { MESSAGE_BYTES_MAX = 1472, QUESTIONS = 3 };

static struct sockaddr_in address(const char *ip, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, ip, &address.sin_addr) != 1) {
        fprintf(stderr, "%s is not an IPv4 address\n", ip);
        exit(EXIT_FAILURE);
    }
    return address;
}

static int open_socket(const char *ip, int port)
{
    struct sockaddr_in local = address(ip, port);
    int socket = rt_socket((struct sockaddr *)&local, sizeof local, MESSAGE_BYTES_MAX);
    if (socket < 0)
        fail("rt_socket");
    return socket;
}

static void answer(const char *ip, int port)
{
    int socket = open_socket(ip, port);
    printf("answering on %s port %d\n", ip, port);
    fflush(stdout);
    for (;;) {
        char question[MESSAGE_BYTES_MAX];
        struct sockaddr_in from;
        socklen_t from_bytes = sizeof from;
        ssize_t bytes = rt_recvfrom(socket, question, sizeof question, 0,
                                    (struct sockaddr *)&from, &from_bytes);
        if (bytes < 0)
            fail("rt_recvfrom");
        if (rt_sendto(socket, question, (size_t)bytes, 0, (struct sockaddr *)&from, from_bytes) < 0)
            fail("rt_sendto");
        if (bytes == 0)
            break; /* an empty question is the last */
    }
    if (rt_socket_close(socket) < 0)
        fail("rt_socket_close");
}

static void ask(const char *local_ip, const char *ip, int port)
{
    int socket = open_socket(local_ip, 0);
    struct sockaddr_in to = address(ip, port);
    /* Each question is written where it is sent from; sending may spoil it. */
    char *question = rt_mmap(socket, MESSAGE_BYTES_MAX);
    if (question == MAP_FAILED)
        fail("rt_mmap");
    for (int count = QUESTIONS; count >= 0; count--) {
        size_t bytes = count > 0 ? (size_t)sprintf(question, "hello") : 0;
        uint64_t asked_ns = tautline_now_ns();
        if (rt_sendto(socket, question, bytes, 0, (struct sockaddr *)&to, sizeof to) < 0)
            fail("rt_sendto");
        char heard[MESSAGE_BYTES_MAX];
        ssize_t heard_bytes = rt_recvfrom(socket, heard, sizeof heard, 0, NULL, NULL);
        if (heard_bytes < 0)
            fail("rt_recvfrom");
        printf("answer to %d: %.*s (%zd bytes)\n", count, (int)heard_bytes, heard, heard_bytes);
        fprintf(stderr, "%.1f us\n", (double)(tautline_now_ns() - asked_ns) / 1000);
    }
    if (rt_socket_close(socket) < 0)
        fail("rt_socket_close");
}

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[1], "answer") == 0) {
        answer(arguments[2], atoi(arguments[3]));
    } else if (count == 5 && strcmp(arguments[1], "ask") == 0) {
        ask(arguments[2], arguments[3], atoi(arguments[4]));
    } else {
        fprintf(stderr, "five_calls answer IP PORT | five_calls ask LOCAL_IP IP PORT\n");
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
