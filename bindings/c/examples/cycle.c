/* A control loop of 1 kHz in this thread: absolute wake-ups, real-time scheduling, overruns counted.
 *
 *   cycle 1000        cycles
 */
#include "fail.h"

int main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "cycle CYCLES\n");
        return EXIT_FAILURE;
    }
    const struct tautline_cycle_options options = {
        .period_ns = 1000000, .cpu = -1, .fifo_priority = 80, .lock_memory = 1};
    if (tautline_cycle_start(&options) < 0)
        fail("starting the cycle");

    uint64_t skipped = 0;
    for (int cycle = 0; cycle < atoi(arguments[1]); cycle++) {
        struct tautline_tick tick;
        if (tautline_cycle_wait(&tick) < 0)
            fail("waiting");
        /* Read the state, compute, send the command: all before tick.deadline_ns. */
        skipped += tick.skipped;
    }

    char report[4096];
    if (tautline_cycle_report(report, sizeof report) < 0)
        fail("reporting");
    puts(report); /* settings that were refused, with the remedy; lateness and work as percentiles */
    printf("%llu periods were skipped\n", (unsigned long long)skipped);
    tautline_cycle_stop();
    return EXIT_SUCCESS;
}
