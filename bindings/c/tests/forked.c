/* Handles after fork: the child is refused and closes them, and the parent's go on.
 *
 *   forked CONFIGURATION
 *
 * The configuration has the queuing port `port` and the neighbour `peer`. Prints "forked" when the child has ended,
 * sends a message to port 41 of the peer, and prints the first that it receives.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <tautline.h>
#include <unistd.h>

#define PATIENCE_NS 20000000000ULL

static int fail(const char *what)
{
    char text[1024];

    tautline_last_error(text, sizeof text);
    printf("%s: %s\n", what, text);
    return 1;
}

#define REFUSED(call) (errno = 0, (call) != TAUTLINE_ERROR_OTHER_PROCESS || errno != EBADFD)

/* Number of calls that were not refused, or did not close. */
static int in_child(tautline_node node, tautline_port port, tautline_destination to)
{
    struct tautline_message message;
    tautline_port other;
    char buffer[1484];
    int wrong = 0;

    wrong += REFUSED(tautline_send(port, to, 7, "no", 2));
    wrong += REFUSED(tautline_receive(port, TAUTLINE_POLL, buffer, sizeof buffer, &message));
    wrong += REFUSED(tautline_receive(port, tautline_now_ns() + PATIENCE_NS, buffer, sizeof buffer, &message));
    wrong += REFUSED(tautline_descriptor(port));
    wrong += REFUSED(tautline_destination_of(port, "peer", 42, TAUTLINE_FOREVER, &to));
    wrong += REFUSED(tautline_port_open(node, &(struct tautline_port_options){.number = 43}, &other));
    wrong += tautline_port_close(port) != TAUTLINE_OK;
    wrong += tautline_node_close(node) != TAUTLINE_OK;
    return wrong;
}

int main(int argc, char **argv)
{
    struct tautline_message message;
    tautline_destination to;
    tautline_node node;
    tautline_port port;
    char buffer[1484];
    int status;
    pid_t child;

    const struct tautline_port_options options = {.name = "port"};
    if (argc != 2 || tautline_node_open(argv[1], &node) || tautline_port_open(node, &options, &port))
        return fail("open");
    if (tautline_destination_of(port, "peer", 41, TAUTLINE_FOREVER, &to) || tautline_send(port, to, 7, "before", 6))
        return fail("send");
    child = fork();
    if (child == 0)
        _exit(in_child(node, port, to));
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        printf("the child: %#x\n", (unsigned)status);
        return 1;
    }
    puts("forked");
    fflush(stdout);
    if (tautline_send(port, to, 7, "after", 5))
        return fail("send");
    status = tautline_receive(port, tautline_now_ns() + PATIENCE_NS, buffer, sizeof buffer, &message);
    if (status != 1)
        return fail("receive");
    printf("%.*s\n", (int)message.bytes, buffer);
    return tautline_port_close(port) || tautline_node_close(node);
}
