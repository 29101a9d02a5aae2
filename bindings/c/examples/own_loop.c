/* A controller of one's own at 1 kHz: own_loop FILE CYCLES, against loop_motor. */
#include "fail.h"

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "own_loop FILE CYCLES\n");
        return EXIT_FAILURE;
    }
    const struct tautline_port_options sampling = {.kind = TAUTLINE_SAMPLING, .name = "state"};
    const struct tautline_port_options queuing = {.kind = TAUTLINE_QUEUING, .name = "command"};
    const struct tautline_cycle_options options = {.period_ns = 1000000, .cpu = -1, .fifo_priority = 80};
    tautline_node node;
    tautline_port states, commands;
    tautline_destination motor;
    char report[4096];
    if (tautline_node_open(arguments[1], &node) < 0 || tautline_port_open(node, &sampling, &states) < 0 ||
        tautline_port_open(node, &queuing, &commands) < 0 ||
        tautline_destination_of(commands, "motor", 8, 0, &motor) < 0 || tautline_cycle_start(&options) < 0)
        fail("starting");
    tautline_node_report(node, report, sizeof report);
    puts(report);

    for (int cycle = 0; cycle < atoi(arguments[2]); cycle++) {
        struct tautline_tick tick;
        struct tautline_sample sample;
        union {
            double number[2]; /* position, speed */
            char bytes[1484]; /* room for the longest value */
        } state;
        if (tautline_cycle_wait(&tick) < 0)
            fail("waiting");
        if (tautline_read(states, &state, sizeof state, &sample) < 1 || !sample.valid)
            continue;
        double force = -100 * state.number[0] - 20 * state.number[1];
        if (tautline_send(commands, motor, TAUTLINE_PRIORITY_HIGHEST, &force, sizeof force) < 0)
            fail("sending");
    }
    tautline_cycle_report(report, sizeof report);
    puts(report);
    return EXIT_SUCCESS;
}
