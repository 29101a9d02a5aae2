/* Logical execution time: a control task reads its state at each release and sends its force at each deadline, however
 * early it ends. Both are sampling ports of this program, and the force moves the state over loopback.
 *
 *   logical_task examples/three_rates.toml
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

enum { FORCES = 20, PATIENCE_S = 20 };

struct state {
    double position;
};

struct force {
    double newton;
    uint64_t deadline_ns; /* of the job that computed it */
};

static struct {
    tautline_port state, force;
    tautline_destination motor;
} ports;

static _Atomic int sent, early;

static void read_state(void *input, void *context)
{
    (void)context;
    static double position = 1.0;
    unsigned char buffer[1484];
    struct tautline_sample sample;
    struct force last;
    if (tautline_read(ports.state, buffer, sizeof buffer, &sample) == 1 && sample.bytes == sizeof last) {
        memcpy(&last, buffer, sizeof last);
        position += last.newton / 1e6;
    }
    ((struct state *)input)->position = position;
}

static void control(const struct tautline_job *job, const void *input, void *output, void *context)
{
    (void)context;
    const struct state *state = input;
    struct force *force = output;
    force->newton = -100.0 * state->position;
    force->deadline_ns = job->deadline_ns;
}

static void send_force(const void *output, void *context)
{
    (void)context;
    const struct force *force = output;
    if (tautline_now_ns() < force->deadline_ns)
        atomic_fetch_add(&early, 1);
    if (tautline_send(ports.force, ports.motor, TAUTLINE_PRIORITY_NORMAL, force, sizeof *force) == 0)
        atomic_fetch_add(&sent, 1);
}

static void nothing(const struct tautline_job *job, void *context)
{
    (void)job;
    (void)context;
}

int main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "logical_task FILE\n");
        return EXIT_FAILURE;
    }
    const struct tautline_port_options state = {.kind = TAUTLINE_SAMPLING, .number = 1242};
    const struct tautline_port_options force = {.kind = TAUTLINE_SAMPLING, .number = 1243};
    tautline_node node;
    if (tautline_node_open_text(CONFIGURATION, &node) < 0 ||
        tautline_port_open(node, &state, &ports.state) < 0 || tautline_port_open(node, &force, &ports.force) < 0 ||
        tautline_destination_of(ports.force, "self", 1242, TAUTLINE_FOREVER, &ports.motor) < 0)
        fail("opening the ports");

    const struct tautline_logical_code code = {
        .read = read_state,
        .run = control,
        .write = send_force,
        .input_bytes = sizeof(struct state),
        .output_bytes = sizeof(struct force),
    };
    tautline_tasks tasks;
    if (tautline_tasks_open(arguments[1], &tasks) < 0 ||
        tautline_tasks_logical_code(tasks, "control", &code, NULL) < 0 ||
        tautline_tasks_code(tasks, "estimate", nothing, NULL, NULL) < 0 ||
        tautline_tasks_code(tasks, "vision", nothing, NULL, NULL) < 0 ||
        tautline_tasks_start(tasks, -1, 0) < 0)
        fail("starting the tasks");

    for (int looks = 0; atomic_load(&sent) < FORCES && looks < PATIENCE_S * 100; looks++)
        poll(NULL, 0, 10);
    int left = tautline_tasks_close(tasks, 1000000000);
    tautline_port_close(ports.state);
    tautline_port_close(ports.force);
    tautline_node_close(node);
    printf("%s forces, %d before their deadline\n", atomic_load(&sent) < FORCES ? "too few" : "enough",
           atomic_load(&early));
    return left == 0 && atomic_load(&sent) >= FORCES && atomic_load(&early) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
