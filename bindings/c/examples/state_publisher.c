/* Publishes a state every millisecond, on absolute time, so that errors do not add up.
 *
 *   state_publisher node.toml controller 1000      to port 7 of the neighbour "controller"
 */
#define _POSIX_C_SOURCE 200809L
#include <time.h>

#include "fail.h"

enum { STATE_PORT = 7, OWN_PORT = 17, PERIOD_NS = 1000000 };

int main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "state_publisher CONFIGURATION NEIGHBOUR COUNT\n");
        return EXIT_FAILURE;
    }
    tautline_node node;
    if (tautline_node_open(arguments[1], &node) < 0)
        fail("opening the node");
    tautline_port port;
    const struct tautline_port_options options = {.kind = TAUTLINE_SAMPLING, .number = OWN_PORT};
    if (tautline_port_open(node, &options, &port) < 0)
        fail("opening the port");
    tautline_destination controller;
    if (tautline_destination_of(port, arguments[2], STATE_PORT, TAUTLINE_FOREVER, &controller) < 0)
        fail("finding the neighbour");

    uint64_t next_ns = tautline_now_ns();
    for (int sent = 0; sent < atoi(arguments[3]); sent++) {
        double angle = 0.1 * sent;
        int code = tautline_send(port, controller, TAUTLINE_PRIORITY_NORMAL, &angle, sizeof angle);
        /* A full queue concerns this value only; the next one replaces it. */
        if (code < 0 && code != TAUTLINE_ERROR_TRANSMIT_QUEUE_FULL)
            fail("sending the state");
        next_ns += PERIOD_NS;
        struct timespec next = {.tv_sec = (time_t)(next_ns / 1000000000),
                                .tv_nsec = (long)(next_ns % 1000000000)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
    }
    struct tautline_port_counters counters;
    if (tautline_port_counters(port, &counters) < 0)
        fail("asking for the counters");
    printf("published %llu states\n", (unsigned long long)counters.sent);
    tautline_port_close(port);
    tautline_node_close(node);
    return EXIT_SUCCESS;
}
