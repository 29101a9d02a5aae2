/* Reads a state that another node publishes: the last value, its age, and whether that is still valid.
 *
 *   state_reader node.toml 3       with a sampling port named "state" in node.toml
 */
#include <string.h>

#include "fail.h"

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "state_reader CONFIGURATION COUNT\n");
        return EXIT_FAILURE;
    }
    tautline_node node;
    if (tautline_node_open(arguments[1], &node) < 0)
        fail("opening the node");
    char report[512];
    tautline_node_report(node, report, sizeof report);
    puts(report);

    tautline_port state;
    const struct tautline_port_options options = {.kind = TAUTLINE_SAMPLING, .name = "state"};
    if (tautline_port_open(node, &options, &state) < 0)
        fail("opening the port");
    puts("ready");
    fflush(stdout);

    for (int read = 0; read < atoi(arguments[2]); read++) {
        unsigned char value[1484];
        struct tautline_sample sample;
        /* A control loop would use tautline_read here, in its own rhythm, which never waits. */
        int new = tautline_next(state, TAUTLINE_FOREVER, value, sizeof value, &sample);
        if (new < 0)
            fail("reading the state");
        double angle;
        if (sample.bytes != sizeof angle) {
            fprintf(stderr, "a state of %u bytes\n", (unsigned)sample.bytes);
            return EXIT_FAILURE;
        }
        memcpy(&angle, value, sizeof angle);
        printf("angle %.1f, %s, %llu overwritten\n", angle, sample.valid ? "valid" : "too old",
               (unsigned long long)sample.overwritten);
    }
    tautline_port_close(state);
    tautline_node_close(node);
    return EXIT_SUCCESS;
}
