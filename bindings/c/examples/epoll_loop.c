/* One thread waits for two ports at once, with epoll. Both ends are in this program, on loopback. */
#include <sys/epoll.h>

#include "fail.h"

static const char CONFIGURATION[] = "link = 'udp'\n"
                                    "address = '127.0.0.1'\n"
                                    "[[neighbour]]\n"
                                    "name = 'self'\n"
                                    "ip = '127.0.0.1'\n";

enum { FIRST_PORT = 1230, PORTS = 2, MESSAGES = 6 };

/* Takes all that there is: the descriptor tells only what comes after a receive that found nothing. */
static int take_all(tautline_port port, int number)
{
    for (int taken = 0;; taken++) {
        int value;
        char buffer[1484];
        struct tautline_message message;
        int received = tautline_receive(port, TAUTLINE_POLL, buffer, sizeof buffer, &message);
        if (received < 0)
            fail("receiving");
        if (received == 0)
            return taken;
        value = buffer[0];
        printf("port %d: message %d\n", number, value);
    }
}

int main(void)
{
    tautline_node node;
    if (tautline_node_open_text(CONFIGURATION, &node) < 0)
        fail("opening the node");
    int waiting = epoll_create1(EPOLL_CLOEXEC);
    if (waiting < 0) {
        perror("epoll_create1");
        return EXIT_FAILURE;
    }
    tautline_port ports[PORTS];
    for (int index = 0; index < PORTS; index++) {
        uint16_t number = (uint16_t)(FIRST_PORT + index);
        if (tautline_port_open(node, &(struct tautline_port_options){.number = number}, &ports[index]) < 0)
            fail("opening a port");
        int descriptor = tautline_descriptor(ports[index]);
        if (descriptor < 0)
            fail("asking for the descriptor");
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)index};
        if (epoll_ctl(waiting, EPOLL_CTL_ADD, descriptor, &event) < 0) {
            perror("epoll_ctl");
            return EXIT_FAILURE;
        }
    }
    tautline_destination to[PORTS];
    for (int index = 0; index < PORTS; index++)
        if (tautline_destination_of(ports[0], "self", (uint16_t)(FIRST_PORT + index), TAUTLINE_FOREVER, &to[index]) < 0)
            fail("finding the neighbour");
    for (char value = 0; value < MESSAGES; value++)
        if (tautline_send(ports[0], to[value % PORTS], TAUTLINE_PRIORITY_NORMAL, &value, 1) < 0)
            fail("sending");

    int taken = 0;
    for (int index = 0; index < PORTS; index++)
        taken += take_all(ports[index], FIRST_PORT + index);
    while (taken < MESSAGES) {
        struct epoll_event events[PORTS];
        int ready = epoll_wait(waiting, events, PORTS, -1);
        for (int index = 0; index < ready; index++) {
            int which = (int)events[index].data.u32;
            taken += take_all(ports[which], FIRST_PORT + which);
        }
    }
    for (int index = 0; index < PORTS; index++)
        tautline_port_close(ports[index]);
    tautline_node_close(node);
    return EXIT_SUCCESS;
}
