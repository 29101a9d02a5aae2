/* The most urgent command comes first, whatever came before it. Both ends are in this program, on
 * loopback; it runs anywhere. */
#include <string.h>

#include "fail.h"

static const char CONFIGURATION[] = "link = 'udp'\n"
                                    "address = '127.0.0.1'\n"
                                    "[[neighbour]]\n"
                                    "name = 'motor'\n"
                                    "ip = '127.0.0.1'\n";

enum { MOTOR_PORT = 1208, OWN_PORT = 1209 };

int main(void)
{
    tautline_node node;
    if (tautline_node_open_text(CONFIGURATION, &node) < 0)
        fail("opening the node");
    tautline_port commander, motor;
    if (tautline_port_open(node, &(struct tautline_port_options){.number = OWN_PORT}, &commander) < 0 ||
        tautline_port_open(node, &(struct tautline_port_options){.number = MOTOR_PORT, .depth = 16}, &motor) < 0)
        fail("opening a port");
    tautline_destination to;
    if (tautline_destination_of(commander, "motor", MOTOR_PORT, TAUTLINE_FOREVER, &to) < 0)
        fail("finding the neighbour");

    static const struct {
        uint8_t priority;
        const char *text;
    } commands[] = {
        {TAUTLINE_PRIORITY_LOWEST, "log your temperature"},
        {TAUTLINE_PRIORITY_NORMAL, "turn to 90 degrees"},
        {TAUTLINE_PRIORITY_NORMAL, "turn to 45 degrees"},
        {TAUTLINE_PRIORITY_HIGHEST, "emergency stop"},
    };
    enum { COUNT = sizeof commands / sizeof commands[0] };
    size_t count = COUNT;
    struct tautline_outgoing batch[COUNT];
    for (size_t index = 0; index < count; index++) {
        const char *text = commands[index].text;
        batch[index] = (struct tautline_outgoing){
            .message = text,
            .bytes = strlen(text),
            .destination = to,
            .priority = commands[index].priority,
        };
    }
    for (size_t sent = 0; sent < count;) {
        int taken = tautline_send_batch(commander, batch + sent, count - sent);
        if (taken < 0)
            fail("sending the commands");
        sent += (size_t)taken;
    }

    for (size_t index = 0; index < count; index++) {
        char text[1484];
        struct tautline_message message;
        uint64_t deadline_ns = tautline_now_ns() + 1000000000;
        int received = tautline_receive(motor, deadline_ns, text, sizeof text, &message);
        if (received < 0)
            fail("receiving a command");
        if (received == 0) {
            fprintf(stderr, "no command for a second\n");
            return EXIT_FAILURE;
        }
        printf("priority %d: %.*s\n", message.priority, (int)message.bytes, text);
    }
    tautline_port_close(motor);
    tautline_port_close(commander);
    tautline_node_close(node);
    return EXIT_SUCCESS;
}
