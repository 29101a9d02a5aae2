/* A request and its reply. The server answers the sender of each message, whoever it is; the client waits for the reply
 * to its request, and asks again if none comes. Both ends are in this program, on loopback; it runs anywhere. */
#include <inttypes.h>
#include <string.h>

#include "fail.h"

static const char CONFIGURATION[] = "link = 'udp'\n"
                                    "address = '127.0.0.1'\n"
                                    "[[neighbour]]\n"
                                    "name = 'gripper'\n"
                                    "ip = '127.0.0.1'\n";

enum { SERVER_PORT = 1211, CLIENT_PORT = 1212, ATTEMPTS = 3 };

/* The number tells a reply to this request from a late one to an earlier request. */
struct request {
    uint32_t number;
    uint32_t width_mm;
};

struct reply {
    uint32_t number;
    uint32_t is_done;
};

/* Answers all requests that are there. In a program of its own it would wait: TAUTLINE_FOREVER. */
static void serve(tautline_port server)
{
    struct request request;
    struct tautline_message message;
    int received;
    while ((received = tautline_receive(server, TAUTLINE_POLL, &request, sizeof request, &message)) == 1) {
        if (message.bytes != sizeof request)
            continue; /* anybody can send anything */
        struct reply reply = {.number = request.number, .is_done = request.width_mm <= 80};
        if (tautline_reply(server, &message.source, message.priority, &reply, sizeof reply) < 0)
            fail("answering");
    }
    if (received < 0)
        fail("receiving a request");
}

/* Whether the reply to a request came within 20 ms. */
static int has_reply(tautline_port client, uint32_t number, struct reply *reply)
{
    uint64_t deadline_ns = tautline_now_ns() + 20000000;
    struct tautline_message message;
    int received;
    while ((received = tautline_receive(client, deadline_ns, reply, sizeof *reply, &message)) == 1)
        if (message.bytes == sizeof *reply && reply->number == number)
            return 1;
    if (received < 0)
        fail("receiving a reply");
    return 0;
}

int main(void)
{
    tautline_node node;
    if (tautline_node_open_text(CONFIGURATION, &node) < 0)
        fail("opening the node");
    /* Buffers need no more room than these: larger messages are dropped and counted. */
    struct tautline_port_options requests = {.number = SERVER_PORT, .message_bytes_max = sizeof(struct request)};
    struct tautline_port_options replies = {.number = CLIENT_PORT, .message_bytes_max = sizeof(struct reply)};
    tautline_port server, client;
    if (tautline_port_open(node, &requests, &server) < 0)
        fail("opening the server's port");
    if (tautline_port_open(node, &replies, &client) < 0)
        fail("opening the client's port");
    tautline_destination gripper;
    if (tautline_destination_of(client, "gripper", SERVER_PORT, TAUTLINE_FOREVER, &gripper) < 0)
        fail("finding the neighbour");

    const uint32_t widths_mm[] = {40, 90};
    for (uint32_t number = 0; number < 2; number++) {
        struct request request = {.number = number, .width_mm = widths_mm[number]};
        struct reply reply;
        int is_answered = 0;
        for (int attempt = 0; attempt < ATTEMPTS && !is_answered; attempt++) {
            if (tautline_send(client, gripper, TAUTLINE_PRIORITY_NORMAL, &request, sizeof request) < 0)
                fail("asking");
            serve(server);
            is_answered = has_reply(client, number, &reply);
        }
        const char *outcome = !is_answered ? "no answer" : reply.is_done ? "done" : "refused";
        printf("%" PRIu32 " mm: %s\n", request.width_mm, outcome);
    }
    tautline_port_close(client);
    tautline_port_close(server);
    tautline_node_close(node);
    return EXIT_SUCCESS;
}
