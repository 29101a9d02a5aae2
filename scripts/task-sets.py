#!/usr/bin/env python3
"""Random task sets that `taut task check` answers, held against a simulation of the kernel's rules.

Shares no code with the analysis: sets are files, answers are `--json`. One CPU; SCHED_FIFO with a priority ceiling, or
SCHED_DEADLINE with its rules at a wake-up, and one time as runtime, deadline and period of a thread
(docs/executive.md, "Earliest deadlines"). Under SCHED_DEADLINE the clock of releases and deadlines is 500 ppm ahead of
the kernel's. Each job takes its worst case, and the first one of each task is as late as its jitter allows. Sets that
hold are simulated again with other first releases. In sets of shape "equal" most tasks have equals in priority.

Usage: task-sets.py TAUT SETS [SEED]. Exit status 1 if a set that holds misses a deadline.
"""
import collections
import random
import subprocess
import sys
import tempfile

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


def main():
    taut, count = sys.argv[1], int(sys.argv[2])
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
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
    sys.exit(1 if tally["shown"] else 0)


main()
