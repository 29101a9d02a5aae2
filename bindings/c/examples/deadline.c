/* A receiver with a deadline in every cycle: what comes in time is used, and with its arrival time it
 * is known how long it waited; what does not come is counted, and the cycle goes on.
 *
 *   deadline node.toml 10      with a queuing port named "command"; cycles of 20 ms
 */
#include "fail.h"

enum { CYCLE_NS = 20000000 };

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "deadline CONFIGURATION CYCLES\n");
        return EXIT_FAILURE;
    }
    tautline_node node;
    if (tautline_node_open(arguments[1], &node) < 0)
        fail("opening the node");
    tautline_port command;
    if (tautline_port_open(node, &(struct tautline_port_options){.name = "command"}, &command) < 0)
        fail("opening the port");
    puts("ready");
    fflush(stdout);

    int missed = 0;
    uint64_t deadline_ns = tautline_now_ns();
    for (int cycle = 0; cycle < atoi(arguments[2]); cycle++) {
        char text[1484];
        struct tautline_message message;
        deadline_ns += CYCLE_NS;
        int received = tautline_receive(command, deadline_ns, text, sizeof text, &message);
        if (received < 0)
            fail("receiving");
        if (received == 0) {
            missed++;
            continue;
        }
        uint64_t waited_ns = tautline_now_ns() - message.arrival_ns;
        printf("%.*s\n", (int)message.bytes, text);
        fprintf(stderr, "waited for %llu ns\n", (unsigned long long)waited_ns);
    }
    printf("%d cycles without a command\n", missed);
    tautline_port_close(command);
    tautline_node_close(node);
    return EXIT_SUCCESS;
}
