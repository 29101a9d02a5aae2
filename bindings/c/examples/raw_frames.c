/* Whole Ethernet frames of another protocol: one host answers, the other asks and prints the round trips.
 *
 *     raw_frames robot.toml answer
 *     raw_frames robot.toml ask 02:00:00:00:00:02
 *
 * The EtherType is 0x88b4, which nobody uses. The configuration names the interface, and a link that has raw frames.
 */
#include <inttypes.h>
#include <string.h>

#include "fail.h"

enum { ETHERTYPE = 0x88b4, HEADER_BYTES = 14, FRAME_BYTES = 60, QUESTIONS = 5 };

static const uint64_t ONE_SECOND_NS = 1000000000;

/* The node's own address, which its report names. */
static void own_address(tautline_node node, unsigned char address[6])
{
    char report[1024];
    if (tautline_node_report(node, report, sizeof report) < 0)
        fail("asking for the report");
    for (const char *at = report; (at = strchr(at, ',')) != NULL; at++) {
        if (sscanf(at, ", %2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx", &address[0], &address[1], &address[2], &address[3],
                   &address[4], &address[5]) == 6)
            return;
    }
    fprintf(stderr, "the node has no address: %s\n", report);
    exit(EXIT_FAILURE);
}

static void answer(tautline_port port)
{
    unsigned char frame[TAUTLINE_FRAME_BYTES_MAX];
    struct tautline_message about;
    printf("answering\n");
    fflush(stdout);
    for (int answered = 0; answered < QUESTIONS; answered++) {
        unsigned char asked_by[6];
        if (tautline_receive(port, TAUTLINE_FOREVER, frame, sizeof frame, &about) < 0)
            fail("receiving");
        /* To whom it came from, from whom it was for. */
        memcpy(asked_by, frame + 6, sizeof asked_by);
        memcpy(frame + 6, frame, 6);
        memcpy(frame, asked_by, sizeof asked_by);
        if (tautline_send_frame(port, frame, about.bytes) < 0)
            fail("answering");
    }
}

static void ask(tautline_node node, tautline_port port, const char *peer)
{
    unsigned char question[FRAME_BYTES] = {0}, buffer[TAUTLINE_FRAME_BYTES_MAX];
    struct tautline_message about;
    if (sscanf(peer, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx", &question[0], &question[1], &question[2], &question[3],
               &question[4], &question[5]) != 6) {
        fprintf(stderr, "`%s` is no MAC address\n", peer);
        exit(EXIT_FAILURE);
    }
    own_address(node, question + 6);
    question[12] = ETHERTYPE >> 8;
    question[13] = ETHERTYPE & 0xff;
    for (unsigned char number = 1; number <= QUESTIONS; number++) {
        uint64_t asked_ns = tautline_now_ns();
        question[HEADER_BYTES] = number;
        if (tautline_send_frame(port, question, sizeof question) < 0)
            fail("asking");
        int received = tautline_receive(port, asked_ns + ONE_SECOND_NS, buffer, sizeof buffer, &about);
        if (received < 0)
            fail("receiving");
        if (received == 0)
            printf("question %d: no answer within a second\n", number);
        else
            printf("question %d: answer %d, %" PRIu32 " bytes, after %" PRIu64 " us\n", number, buffer[HEADER_BYTES],
                   about.bytes, (about.arrival_ns - asked_ns) / 1000);
    }
}

int main(int count, char **arguments)
{
    tautline_node node;
    tautline_port port;
    if (count < 3 || (strcmp(arguments[2], "ask") == 0 && count < 4)) {
        fprintf(stderr, "usage: %s CONFIGURATION answer | ask MAC\n", arguments[0]);
        return EXIT_FAILURE;
    }
    if (tautline_node_open(arguments[1], &node) < 0)
        fail("opening the node");
    const struct tautline_port_options options = {.kind = TAUTLINE_RAW, .number = ETHERTYPE};
    if (tautline_port_open(node, &options, &port) < 0)
        fail("opening the port");
    if (strcmp(arguments[2], "ask") == 0)
        ask(node, port, arguments[3]);
    else
        answer(port);
    tautline_port_close(port);
    tautline_node_close(node);
    return EXIT_SUCCESS;
}
