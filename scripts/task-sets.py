#!/usr/bin/env python3
"""Random task sets that `taut task check` answers, held against a simulation of the kernel's rules or real runs.

Shares no code with the analysis: sets are files, answers are `--json`. One CPU; SCHED_FIFO with a priority ceiling, or
SCHED_DEADLINE with its rules at a wake-up, and one time as runtime, deadline and period of a thread
(docs/reference/executive.md, "Earliest deadlines"). Under SCHED_DEADLINE the clock of releases and deadlines is 500 ppm
ahead of
the kernel's. Each job takes its worst case, and the first one of each task is as late as its jitter allows. Sets that
hold are simulated again with other first releases. In sets of shape "equal" most tasks have equals in priority.

With `--run`, `taut task run` runs each set that holds, and every fourth that is refused, for 200 jobs of each task, and
each job is looked at. A probe above all tasks on the same CPU notes when the machine stood still; a late job that such
a stall explains counts apart. A set that is late without one runs twice more. Needs root and a C compiler; earliest
deadlines need kernel.sched_rt_runtime_us = -1 and are left out elsewhere. Exit status 1 if a set that holds misses a
deadline (with `--run`: without a stall, in all three runs).
"""
import argparse
import collections
import json
import os
import pathlib
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

PERIODS_US = [1000, 2000, 3000, 4000, 5000, 8000, 10000, 20000, 33333]
SPAN_NS = 200_000_000
AGAIN = 3  # Simulations of a set that holds, with other first releases.


def draw(rng, policy, shape):
    """Tasks of a set, times in microseconds."""
    count = rng.randint(1, 6)
    left = rng.uniform(0.3, 1.0)
    tasks = []
    for index in range(count):
        rest = count - index - 1
        after = left * rng.random() ** (1 / rest) if rest else 0
        period = rng.choice(PERIODS_US)
        cost = max(10, min(period - 10, int(period * (left - after))))
        left = after
        task = {"period": period, "deadline": period, "worst_case": cost, "jitter": 0, "section": 0}
        if "constrained" in shape:
            task["deadline"] = rng.randint(cost, period)
        if "jitter" in shape:
            task["jitter"] = rng.randint(0, (task["deadline"] - cost) // 2)
        if shape == "sections":
            task["section"] = rng.randint(0, cost // 2)
        if policy == "fixed":
            task["priority"] = rng.randint(50, 51 if shape == "equal" else 56)
        tasks.append(task)
    return tasks


def text(policy, tasks):
    lines = [f'schedule = "{policy}"']
    for index, one in enumerate(tasks):
        lines += ["[[task]]", f'name = "t{index}"']
        keys = [("period", "period"), ("deadline", "deadline"), ("worst_case", "worst_case")]
        keys += [("release_jitter", "jitter"), ("critical_section", "section")]
        lines += [f'{key} = "{one[name]}us"' for key, name in keys]
        lines += [f"priority = {one['priority']}"] if "priority" in one else []
    return "\n".join(lines) + "\n"


class Thread:
    """A task's thread, in nanoseconds."""

    def __init__(self, task, start):
        self.period, self.deadline, self.cost, self.jitter, self.section = (
            task[key] * 1000 for key in ("period", "deadline", "worst_case", "jitter", "section"))
        self.priority = task.get("priority", 0)
        self.release = start - self.jitter
        self.ready = start
        self.left = 0
        self.queued = None
        self.kernel_deadline = 0
        self.runtime = 0

    def slew(self):
        """Under SCHED_DEADLINE: the time that the kernel has been given, and times on its clock."""
        self.deadline -= self.deadline // 2000
        self.period -= self.period // 2000
        self.given = self.deadline - self.jitter

    def wake(self, now):
        """The kernel's rules for a thread whose runtime, deadline and period are the same."""
        if self.kernel_deadline <= now or self.runtime > self.kernel_deadline - now:
            self.kernel_deadline, self.runtime = now + self.given, self.given

    def key(self, policy):
        done = self.cost - self.left
        if self.section and 1 <= done < 1 + self.section:
            return (0, 0)
        return (1, self.kernel_deadline if policy == "earliest-deadline" else -self.priority, self.queued)


def misses(policy, tasks, phase=lambda task: 0):
    longest = max(one["jitter"] for one in tasks) * 1000
    threads = [Thread(one, longest + phase(one)) for one in tasks]
    is_edf, now = policy == "earliest-deadline", 0
    if is_edf:
        for one in threads:
            one.slew()
    while now < SPAN_NS:
        for one in threads:
            if not one.left and one.ready <= now:
                one.left, one.queued = one.cost, one.ready
                if is_edf:
                    one.wake(now)
        events = [one.ready for one in threads if not one.left]
        runnable = [one for one in threads if one.left]
        if not runnable:
            now = min(events)
            continue
        one = min(runnable, key=lambda one: one.key(policy))
        done = one.cost - one.left
        steps = [one.left] + [edge - done for edge in (1, 1 + one.section) if edge > done]
        steps += [event - now for event in events if event > now]
        steps += [one.runtime] if is_edf and one.runtime > 0 else []
        step = min(steps)
        now, one.left, one.runtime = now + step, one.left - step, one.runtime - step
        if not one.left:
            if now > one.release + one.deadline:
                return True
            one.release += one.period
            one.ready = max(now, one.release)
        elif is_edf and one.runtime <= 0:  # All of its time since it woke, so the deadline is now.
            one.kernel_deadline, one.runtime = now + one.given, one.given
    return False


# Real runs. All times in microseconds, as in the files.
RUN_SHAPES = ["plain", "constrained", "jitter", "message", "program", "budget", "modes"]
RUN_POLICIES = ["rate-monotonic", "deadline-monotonic", "fixed", "table", "earliest-deadline"]
# Divisors of 40 ms, so that tables are short. A window has room for the delays of the machine, so tables hold less.
RUN_PERIODS_US = [2000, 2500, 4000, 5000, 8000, 10000, 20000]
TABLE_PERIODS_US = [5000, 10000, 20000]
JOBS = 200
# Of the machine that runs the sets. A probe of 5 kHz is receive processing to the analysis.
MACHINE = """
[machine]
release_jitter = "150us"
blocking = "100us"
overhead = "40us"

[[receive]]
name = "probe"
rate = 5000
burst = 1
worst_case = "10us"
"""
PROBE_PERIOD_US = 200
# Above those that threads of other programs have; the kernel counts priorities from 99 down.
PRIORITY_MIN = 80
# Later wake-ups of the probe are stalls; the analysis is told of as much `blocking`.
STALL_US = 100
# Threads of a run, of the probe, and those of the kernel that carry others about.
OWN_THREADS = ["t[0-9]", "job", "probe", "taskset", "taut*", "migration/*"]
TRACING = pathlib.Path("/sys/kernel/tracing/instances")
NODE = 'link = "udp"\naddress = "127.84.3.1"\n[[port]]\nname = "command"\nnumber = 7\nkind = "queuing"\n'

# Notes wake-ups that come late: due and actual time.
PROBE = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
struct attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};
static volatile sig_atomic_t ends;
static void end(int signal) { ends = 1; }
static long long late[100000][2];
int main(int count, char **words) {
    long long period = atol(words[1]) * 1000LL, at;
    struct attr attr = {sizeof attr, SCHED_FIFO, 0, 0, 99, 0, 0, 0};
    if (atoi(words[2])) attr = (struct attr){sizeof attr, 6, 0, 0, 0, 100000, 100000, 100000};
    struct timespec now; long n = 0;
    signal(SIGTERM, end);
    mlockall(MCL_CURRENT | MCL_FUTURE);
    if (syscall(SYS_sched_setattr, 0, &attr, 0)) return perror("probe"), 1;
    clock_gettime(CLOCK_MONOTONIC, &now);
    at = now.tv_sec * 1000000000LL + now.tv_nsec;
    puts("ready"); fflush(stdout);
    while (!ends) {
        at += period;
        struct timespec due = {at / 1000000000, at % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, 0);
        clock_gettime(CLOCK_MONOTONIC, &now);
        long long woken = now.tv_sec * 1000000000LL + now.tv_nsec;
        if (woken - at > STALL && n < 100000) { late[n][0] = at; late[n++][1] = woken; }
        while (at + period <= woken) at += period;
    }
    for (long i = 0; i < n; i++) printf("%lld %lld\n", late[i][0], late[i][1]);
}
"""
# Jobs of so many microseconds; each BAD-th takes another time, or job BAD alone sleeps.
JOB = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
int main(int count, char **words) {
    long usual = atol(words[1]), bad = count > 2 ? atol(words[2]) : 0, other = count > 3 ? atol(words[3]) : 0;
    int sleeps = count > 4;
    char line[65536]; long long n;
    mlockall(MCL_CURRENT | MCL_FUTURE);
    while (fgets(line, sizeof line, stdin)) {
        n = atoll(line);
        int is_bad = bad && n && (sleeps ? n == bad : n % bad == 0);
        long long start = now(), us = is_bad ? other : usual;
        if (is_bad && sleeps) usleep(us);
        else if (n) while (now() - start < us * 1000) {}
        printf("%lld\n", n); fflush(stdout);
    }
}
"""


def draw_run(rng, policy, shape):
    """Tasks of a set for a run."""
    periods = TABLE_PERIODS_US if policy == "table" else RUN_PERIODS_US
    # A run takes 200 times the longest period, so long ones are rare.
    long = [one for one in periods if one >= 5000]
    longest = rng.choices(long, weights=range(len(long), 0, -1))[0]
    count = 4 if policy == "table" else rng.randint(4, 6)
    left = rng.uniform(0.2, 0.5) if policy == "table" else rng.uniform(0.3, 0.9)
    tasks = []
    for index in range(count):
        rest = count - index - 1
        after = left * rng.random() ** (1 / rest) if rest else 0
        period = longest if index == 0 else rng.choice([one for one in periods if one <= longest])
        cost = max(100, min(period * 3 // 4, int(period * (left - after))))
        left = after
        task = {"name": f"t{index}", "period": period, "deadline": period, "worst_case": cost, "judged": True}
        if shape != "plain" and (shape == "constrained" or rng.random() < 0.3):
            task["deadline"] = rng.randint(min(period, cost + 600), period)
        if shape == "jitter":
            task["release_jitter"] = rng.randint(0, (task["deadline"] - cost) // 2)
        if policy == "fixed":
            task["priority"] = rng.randint(PRIORITY_MIN, PRIORITY_MIN + 6)
        tasks.append(task)
    for one in rng.sample(tasks, rng.randint(1, 2)):
        cost = one["worst_case"]
        if shape == "message":
            one["port"] = "command"
            break
        if shape == "program":
            one["exec"] = f"./job {cost * 4 // 5}"
        if shape == "budget":
            one["budget"] = min(one["deadline"], cost + rng.randint(0, cost))
            one["exec"] = f"./job {cost * 4 // 5} {rng.randint(1, 5)} {one['budget'] * 3}"
            one.update(accept="exceeds its budget", judged=False)
            break
        if shape == "modes":
            # It sleeps beyond its next release once, and the set goes to its safe mode.
            one["exec"] = f"./job {cost * 4 // 5} {JOBS} {one['period'] * 2} sleeps"
            one.update(accept="overruns", judged=False, overrun="safe-mode", modes=["normal"])
            for other in tasks:
                if other is not one:
                    other["modes"] = rng.choice([["normal"], ["safe"], ["normal", "safe"]])
            other = next(other for other in tasks if other is not one)
            other["modes"] = ["normal", "safe"]
            break
    return tasks


def text_of_run(policy, shape, tasks):
    lines = [f'schedule = "{policy}"']
    lines += ['node = "node.toml"'] if shape == "message" else []
    lines += ['modes = ["normal", "safe"]', 'safe_mode = "safe"'] if shape == "modes" else []
    lines += [MACHINE]
    for one in tasks:
        lines.append("[[task]]")
        for key, value in one.items():
            if key in ("period", "deadline", "worst_case", "release_jitter", "budget"):
                lines.append(f'{key} = "{value}us"')
            elif key != "judged":
                lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


class Stalls:
    """The probe, and the times at which the machine stood still."""

    def __init__(self, place, cpu, policy):
        is_deadline = str(int(policy == "earliest-deadline"))
        words = ["taskset", "-c", str(cpu), place / "probe", str(PROBE_PERIOD_US), is_deadline]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            sys.exit("the probe does not start: run as root")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        lines = self.process.communicate()[0].split("\n")
        return [tuple(int(word) / 1000 for word in line.split()) for line in lines if line]


def send_messages(period_us, seconds, is_over):
    """Messages with the task's period as their least distance, and sometimes more."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(("127.84.3.1", 21569 + 7))
    rng = random.Random(1)
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end and not is_over.is_set():
        try:
            sender.send(struct.pack(">HHBBBBHBBI", 7, 8, 3, 0, 1, 0, 1, 1, 0, number) + bytes(8))
        except ConnectionRefusedError:
            pass  # not opened yet
        number += 1
        time.sleep((period_us + rng.choice([20, 20, 500, 3000])) / 1e6)


class Others:
    """Threads of others that ran on the CPU at the priorities of the tasks, where the kernel's tracing is mounted."""

    def __init__(self, cpu):
        self.instance = TRACING / f"task-sets-{os.getpid()}"
        if TRACING.exists():
            self.instance.mkdir(exist_ok=True)
            (self.instance / "tracing_cpumask").write_text(f"{1 << cpu:x}")
            event = self.instance / "events/sched/sched_switch"
            own = " && ".join(f'!(next_comm ~ "{name}")' for name in OWN_THREADS)
            (event / "filter").write_text(f"next_prio < {100 - PRIORITY_MIN} && {own}")
            (event / "enable").write_text("1")

    def end(self):
        if not TRACING.exists():
            return set()
        (self.instance / "events/sched/sched_switch/enable").write_text("0")
        lines = (self.instance / "trace").read_text().split("\n")
        self.instance.rmdir()
        return {line.split("next_comm=")[1].split(" next_pid")[0] for line in lines if "next_comm=" in line}


def run_once(arguments, place, policy, tasks):
    """Counts of the jobs that were judged, or a reason why none were."""
    longest = max(one["period"] for one in tasks)
    is_switched = any("modes" in one for one in tasks)
    seconds = longest * JOBS * (2 if is_switched else 1) / 1e6 + 0.05
    others = Others(arguments.cpu)
    stalls, is_over, sender = Stalls(place, arguments.cpu, policy), threading.Event(), None
    words = [arguments.taut, "task", "run", "set.toml", "--for", f"{seconds:.3f}s", "--cpu", str(arguments.cpu)]
    running = subprocess.Popen(words + ["--json=out.json", "--perfetto", "trace.json"], cwd=place,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for one in tasks:
        if "port" in one:
            sender = threading.Thread(target=send_messages, args=(one["period"], seconds + 2, is_over))
            sender.start()
    errors = running.communicate()[1]
    is_over.set()
    if sender:
        sender.join()
    times, strangers = stalls.end(), others.end()
    if running.returncode not in (0, 1) or not (place / "trace.json").exists():
        return "failed: " + errors.strip().split("\n")[-1]
    if strangers:
        print(f"# others ran beside: {strangers}", flush=True)
        return "others ran beside"
    report = json.loads((place / "out.json").read_text())
    if report["limits"]:
        return "limited: " + report["limits"][0]
    return judge(json.loads((place / "trace.json").read_text()), tasks, times)


def judge(trace, tasks, stalls):
    """The number of jobs, those among them beside a stall, the late ones of these, and all other late ones."""
    by_name = {one["name"]: one for one in tasks}
    longest = max(one["period"] for one in tasks)
    jobs, beside, stalled, late = 0, 0, 0, []
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    start = min(event["ts"] - event["args"]["lateness_us"] for event in events)
    for event in events:
        one = by_name[event["name"]]
        if not one["judged"]:
            continue
        end = event["ts"] + event["dur"]
        release = end - event["args"]["response_us"]
        excess = event["args"]["response_us"] - one["deadline"]
        # A stall makes late whatever waited, and the backlog lasts; so it counts for a period after its end, too.
        is_beside = any(release - longest <= woken and due <= end for due, woken in stalls)
        jobs, beside = jobs + 1, beside + is_beside
        if excess > 0 and is_beside:
            stalled += 1
        elif excess > 0:
            late.append((one["name"], round(release - start), round(excess)))
    return jobs, beside, stalled, late


def run_sets(arguments):
    rng = random.Random(arguments.seed)
    limit = pathlib.Path("/proc/sys/kernel/sched_rt_runtime_us").read_text().strip()
    policies = arguments.policy or [one for one in RUN_POLICIES if one != "earliest-deadline" or limit == "-1"]
    tally, again, refused = collections.Counter(), [], 0
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        for name, source in (("probe", PROBE.replace("STALL", f"{STALL_US * 1000}LL")), ("job", JOB)):
            subprocess.run(["cc", "-O2", "-o", place / name, "-x", "c", "-"], input=source, text=True, check=True)
        (place / "node.toml").write_text(NODE)
        number = 0
        while tally["sets"] < arguments.sets:
            number += 1
            policy, shape = rng.choice(policies), RUN_SHAPES[number % len(RUN_SHAPES)]
            if (policy, shape) == ("table", "message"):
                continue
            tasks = draw_run(rng, policy, shape)
            (place / "set.toml").write_text(text_of_run(policy, shape, tasks))
            found = subprocess.run([arguments.taut, "task", "check", "set.toml", "--json"], cwd=place,
                                   capture_output=True, check=False)
            holds = found.returncode == 0
            if not holds:
                refused += 1
                tally[policy, shape, "refused", "sets"] += 1
                if found.returncode != 1 or policy == "table" or refused % 4:
                    continue
                for one in tasks:
                    one.setdefault("accept", "refused")
                (place / "set.toml").write_text(text_of_run(policy, shape, tasks))
            result = run_once(arguments, place, policy, tasks)
            for _ in range(3):
                if result == "others ran beside":
                    result = run_once(arguments, place, policy, tasks)
            word = "holds" if holds else "refused"
            if isinstance(result, str):
                tally[policy, shape, word, result] += 1
                continue
            jobs, beside, stalled, late = result
            if not holds:
                tally[policy, shape, "refused", "late in a run" if late or stalled else "kept in a run"] += 1
                continue
            tally["sets"] += 1
            tally[policy, shape, "holds", "runs"] += 1
            counts = [("jobs", jobs), ("jobs beside a stall", beside), ("late jobs beside a stall", stalled)]
            for key, number_of in counts + [("late jobs", len(late))]:
                tally[policy, shape, "holds", key] += number_of
            if late:
                results = [result] + [run_once(arguments, place, policy, tasks) for _ in range(2)]
                is_late = all(not isinstance(one, str) and one[3] for one in results)
                tally[policy, shape, "holds", "late in all of three runs" if is_late else "late in one run"] += 1
                print(f"# of three runs: jobs, beside a stall, late of these, other late ones by start: {results}")
                print((place / "set.toml").read_text(), flush=True)
                again += [number] if is_late else []
            if tally["sets"] % 20 == 0:
                print(f"# {tally['sets']} sets", file=sys.stderr, flush=True)
                show(tally, sys.stderr)
    show(tally, sys.stdout)
    return bool(again)


def show(tally, to):
    for key, number in sorted((key, number) for key, number in tally.items() if isinstance(key, tuple)):
        print(*key, number, file=to, flush=True)
    totals = collections.Counter()
    for key, number in tally.items():
        if isinstance(key, tuple):
            totals[key[2:]] += number
    for key, number in sorted(totals.items()):
        print("all", *key, number, file=to, flush=True)


def simulate_sets(arguments):
    taut, count = arguments.taut, arguments.sets
    rng = random.Random(arguments.seed)
    shapes = ["plain", "constrained", "jitter", "constrained+jitter", "sections", "equal"]
    tally = collections.Counter()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        for number in range(count):
            shape = shapes[number % len(shapes)]
            policies = ["deadline-monotonic", "fixed", "earliest-deadline"]
            policy = "fixed" if shape == "equal" else rng.choice(policies)
            tasks = draw(rng, policy, shape)
            file.seek(0)
            file.truncate()
            file.write(text(policy, tasks))
            file.flush()
            found = subprocess.run([taut, "task", "check", file.name, "--json"], capture_output=True, check=False)
            if not found.stdout and found.returncode != 2:
                sys.exit(found.stderr.decode())
            if policy == "deadline-monotonic":
                order = sorted(tasks, key=lambda one: (one["deadline"], one["period"]))
                for place, one in enumerate(order):
                    one["priority"] = 98 - place
            # Status 2: a set that is not even analysed.
            word = "holds" if found.returncode == 0 else "refused"
            phase = lambda task: rng.randrange(task["period"] * 1000)
            is_late = misses(policy, tasks)
            is_late |= word == "holds" and any(misses(policy, tasks, phase) for _ in range(AGAIN))
            result = "misses" if is_late else "kept"
            tally[policy, shape, word, result] += 1
            if word == "holds" and result == "misses" and tally["shown"] < 5:
                tally["shown"] += 1
                print(f"# holds, and misses:\n{text(policy, tasks)}")
    for key, number in sorted((key, number) for key, number in tally.items() if key != "shown"):
        print(*key, number)
    return bool(tally["shown"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("taut", help="the program")
    parser.add_argument("sets", type=int, help="sets to simulate, or sets that hold to run")
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--run", action="store_true", help="run the sets in place of a simulation")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="CPU of the tasks that run")
    parser.add_argument("--policy", action="append", choices=RUN_POLICIES, help="run sets of these alone")
    arguments = parser.parse_args()
    arguments.taut = os.path.abspath(arguments.taut)
    sys.exit(1 if (run_sets if arguments.run else simulate_sets)(arguments) else 0)


main()
