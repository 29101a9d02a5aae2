/* Three tasks of one CPU, from the file that `taut task check` analyses: a set that could miss a deadline is refused.
 *
 *   three_rates examples/three_rates.toml 2       seconds
 */
#include <stdatomic.h>
#include <unistd.h>

#include "fail.h"

static _Atomic double force;

/* 1 kHz. Its code returns long before job->deadline_ns. */
static void control(const struct tautline_job *job, void *context)
{
    (void)context;
    atomic_store(&force, (double)job->number);
}

/* The control task was stopped: its outputs go to their safe values. */
static void no_force(void *context)
{
    (void)context;
    atomic_store(&force, 0.0);
}

static void count_jobs(const struct tautline_job *job, void *context)
{
    *(uint64_t *)context = job->number;
}

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "three_rates FILE SECONDS\n");
        return EXIT_FAILURE;
    }
    static uint64_t estimates, images;
    tautline_tasks tasks;
    if (tautline_tasks_open(arguments[1], &tasks) < 0 ||
        tautline_tasks_code(tasks, "control", control, no_force, NULL) < 0 ||
        tautline_tasks_code(tasks, "estimate", count_jobs, NULL, &estimates) < 0 ||
        tautline_tasks_code(tasks, "vision", count_jobs, NULL, &images) < 0 ||
        tautline_tasks_start(tasks, -1, 0) < 0)
        fail("starting the tasks");

    char limits[4096];
    if (tautline_tasks_limits(tasks, limits, sizeof limits) > 0)
        fprintf(stderr, "limited: %s\n", limits);
    sleep((unsigned)atoi(arguments[2]));

    struct tautline_task_figures figures;
    if (tautline_tasks_figures(tasks, "control", &figures) < 0)
        fail("asking for figures");
    printf("control: %llu jobs, %llu missed, response p99 %llu ns, max %llu ns\n",
           (unsigned long long)figures.jobs, (unsigned long long)figures.missed,
           (unsigned long long)figures.response_p99_ns, (unsigned long long)figures.response_max_ns);
    return tautline_tasks_close(tasks, 1000000000) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
