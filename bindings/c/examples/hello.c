#include <stdio.h>
#include <tautline.h>

int main(int count, char **arguments) /* FILE PEER */
{
    char text[1484];
    struct tautline_message message;
    tautline_node node;
    tautline_port port;
    tautline_destination peer;
    if (count == 3 && tautline_node_open(arguments[1], &node) == 0 &&
        tautline_port_open(node, &(struct tautline_port_options){.name = "hello"}, &port) == 0 &&
        tautline_destination_of(port, arguments[2], 7, TAUTLINE_FOREVER, &peer) == 0 &&
        tautline_send(port, peer, TAUTLINE_PRIORITY_NORMAL, "hello from C", 12) == 0 &&
        tautline_receive(port, TAUTLINE_FOREVER, text, sizeof text, &message) == 1)
        return printf("%.*s\n", (int)message.bytes, text) < 0;
    tautline_last_error(text, sizeof text);
    return fprintf(stderr, "%s\n", text) != 0;
}
