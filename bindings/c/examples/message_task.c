/* A message in a port releases a task: a job for each, which has its bytes. Both ends are in this program, on loopback.
 *
 *   message_task examples/message_task.toml
 */
#include <poll.h>
#include <stdatomic.h>
#include <string.h>

#include "fail.h"

static const char CONFIGURATION[] = "link = 'udp'\n"
                                    "address = '127.0.0.1'\n"
                                    "[[neighbour]]\n"
                                    "name = 'self'\n"
                                    "ip = '127.0.0.1'\n";

enum { COMMANDS = 3, PATIENCE_S = 20 };

static atomic_int carried_out;

static void carry_out(const struct tautline_job *job, void *context)
{
    (void)context;
    char text[16];
    size_t bytes = job->message_bytes < sizeof text - 1 ? job->message_bytes : sizeof text - 1;
    memcpy(text, job->message, bytes);
    text[bytes] = 0;
    printf("job %llu: %s\n", (unsigned long long)job->number, text);
    atomic_fetch_add(&carried_out, 1);
}

static void control(const struct tautline_job *job, void *context)
{
    (void)job;
    (void)context;
}

int main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "message_task FILE\n");
        return EXIT_FAILURE;
    }
    tautline_node node;
    tautline_port commands, sender;
    tautline_destination to;
    if (tautline_node_open_text(CONFIGURATION, &node) < 0 ||
        tautline_port_open(node, &(struct tautline_port_options){.number = 1240}, &commands) < 0 ||
        tautline_port_open(node, &(struct tautline_port_options){.number = 1241}, &sender) < 0 ||
        tautline_destination_of(sender, "self", 1240, TAUTLINE_FOREVER, &to) < 0)
        fail("opening the ports");

    tautline_tasks tasks;
    if (tautline_tasks_open(arguments[1], &tasks) < 0 ||
        tautline_tasks_messages(tasks, "command", commands) < 0 ||
        tautline_tasks_code(tasks, "command", carry_out, NULL, NULL) < 0 ||
        tautline_tasks_code(tasks, "control", control, NULL, NULL) < 0 ||
        tautline_tasks_start(tasks, -1, 0) < 0)
        fail("starting the tasks");

    for (int command = 0; command < COMMANDS; command++) {
        char text[16];
        int bytes = snprintf(text, sizeof text, "command %d", command);
        if (tautline_send(sender, to, TAUTLINE_PRIORITY_NORMAL, text, (size_t)bytes) < 0)
            fail("sending");
    }
    for (int looks = 0; atomic_load(&carried_out) < COMMANDS && looks < PATIENCE_S * 100; looks++)
        poll(NULL, 0, 10);
    int left = tautline_tasks_close(tasks, 1000000000);
    tautline_port_close(commands);
    tautline_port_close(sender);
    tautline_node_close(node);
    return left == 0 && atomic_load(&carried_out) == COMMANDS ? EXIT_SUCCESS : EXIT_FAILURE;
}
