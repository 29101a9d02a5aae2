#!/usr/bin/env python3
"""Programs that nobody here wrote, at 1 kHz beside load: on the kernel, under `taut exec`, and on the kernel again.

    sudo scripts/programs.py [--rounds 3] [--seconds 5] [PROGRAM...]

Two network namespaces and a cable; a busy process on each CPU; each program under SCHED_FIFO (--priority; 0: the
ordinary policy). The ways take turns, in another order each round: a job of the machine that comes every two minutes
would fall on the same way again and again. Prints a Markdown table: for each way p50 and p99.9 over all its cycles in
microseconds, and cycles that were late by more than half a period or had no answer. Two rows of the kernel show how far
equal runs differ. A short run under `taut exec --watch` shows that this works too.

What is measured is the time from when a cycle was due until its answer, so that a late start counts too; for sockperf,
which keeps no schedule, the round trip; for cyclictest the lateness of a wake-up; for LinuxCNC how far a release of its
servo thread is from one period after the last, and the time for which its driver hm2_eth reads. LinuxCNC speaks to
measure/programs/mesa_card.py, pysoem to the sub-devices of measure/ethercrab (ETHERCRAB names their directory).

Where the time of each cycle is known, a second row leaves out the cycles during which a CPU ran no thread, so that even
measure/programs/witness.py woke late, and those that such a cycle delayed: a virtual machine stands still now and then,
and a kernel that is not preemptible lets a system call end first.

A program that is not installed is named and left out. Needs root, ip, taskset, chrt, unshare, and `taut` and its
library built for release (TAUT names another one). PYTHON names an interpreter with pyzmq, eclipse-zenoh and pysoem.
"""
import argparse
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "measure/programs"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
TAUT = os.environ.get("TAUT", str(TARGET / "release/taut"))
ETHERCRAB = pathlib.Path(os.environ.get("ETHERCRAB", TARGET / "ethercrab/release"))
PYTHON = os.environ.get("PYTHON", sys.executable)
NEAR, FAR = f"taut-programs-{os.getpid()}-a", f"taut-programs-{os.getpid()}-b"
INTERFACE = "taut0"
HERE, THERE = "10.77.0.1", "10.77.0.2"
PERIOD_NS = 1_000_000
WARM_UP_S = 1.5  # A server of Java or Python is there by then.
WATCHED_S = 2
ANSWER_NS = 1_000_000_000  # The loops give up an answer after this.
RUNNING = ", while the machine ran"
WAYS = {
    "kernel": [],
    "exec": [TAUT, "exec", "--"],
    "past": [TAUT, "exec", "--interface", INTERFACE, "--"],
    "watch": [TAUT, "exec", "--watch", "--"],
}


def quantile(ns, share):
    return f"{sorted(ns)[min(len(ns) - 1, int(share * len(ns)))] / 1000:.1f}" if ns else "-"


class Turns:
    """What one program did in one way: nanoseconds, cycles late or without an answer, and why turns failed."""

    def __init__(self):
        self.ns, self.late, self.cycles, self.failures = [], 0, 0, []

    def add(self, ns, lost, late):
        self.ns += ns
        self.late += late
        self.cycles += len(ns) + lost


class Failed(Exception):
    """A turn that gave no figures, and why."""


def run(command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


class Machine:
    """Two namespaces and a cable, the load, and a directory."""

    def __init__(self, priority):
        self.priority, self.running, self.load = priority, [], []
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="taut-programs-"))
        self.work.chmod(0o777)  # LinuxCNC leaves root's rights for this.

    def __enter__(self):
        run(["ip", "netns", "add", NEAR])
        run(["ip", "netns", "add", FAR])
        cable = ["type", "veth", "peer", "name", INTERFACE, "netns", FAR]
        run(["ip", "-n", NEAR, "link", "add", INTERFACE, *cable])
        for name, address in (NEAR, HERE), (FAR, THERE):
            run(["ip", "-n", name, "address", "add", f"{address}/24", "dev", INTERFACE])
            run(["ip", "-n", name, "link", "set", INTERFACE, "up"])
            run(["ip", "-n", name, "link", "set", "lo", "up"])
        for cpu in os.sched_getaffinity(0):
            pinned = ["taskset", "-c", str(cpu)]
            self.load.append(subprocess.Popen([*pinned, "sh", "-c", "while :; do :; done"]))
            with open(self.work / f"stood-still-{cpu}", "w") as output:
                witness = [*pinned, "chrt", "-f", "99", sys.executable, PROGRAMS / "witness.py"]
                self.load.append(subprocess.Popen(witness, stdout=output))
        return self

    def __exit__(self, *_):
        self.end()
        self.running = self.load
        self.end()
        for name in NEAR, FAR:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.work)

    def command(self, name, command, cpu=None, above=0):
        policy = ["chrt", "-f", str(self.priority + above)] if self.priority else []
        pinned = ["taskset", "-c", str(cpu)] if cpu is not None else []
        return ["ip", "netns", "exec", name, *pinned, *policy, *map(str, command)]

    def serve(self, command, above=0, cpu=1):
        """Starts the other end of the cable, until the turn ends."""
        command = self.command(FAR, command, cpu, above)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.running.append(subprocess.Popen(command, **quiet))
        time.sleep(WARM_UP_S)

    def ask(self, command, seconds, cpu=0, **environment):
        """Runs the program that is measured: its output, and what came on standard error."""
        command = self.command(NEAR, command, cpu)
        options = {"capture_output": True, "text": True, "env": {**os.environ, **environment}}
        try:
            done = subprocess.run(command, timeout=3 * seconds + 30, check=False, **options)
        except subprocess.TimeoutExpired as error:
            raise Failed("it hung") from error
        if done.returncode:
            raise Failed(f"status {done.returncode}: {(done.stderr or done.stdout).strip()[-200:]}")
        return done.stdout, done.stderr

    def stood_still(self):
        """Times in which a CPU ran no thread, by their begin."""
        files = self.work.glob("stood-still-*")
        return sorted(tuple(map(int, line.split())) for file in files for line in file.read_text().splitlines())

    def end(self):
        for one in self.running:
            one.kill()
            one.wait()
        self.running = []


def figures(cycles):
    """Nanoseconds from when each cycle was due until its answer, and how many have none."""
    ns = [answered - due for due, answered in cycles if answered]
    return ns, len(cycles) - len(ns)


def apart(cycles, stood_still):
    """The cycles but for those in which a CPU stood still, and those that had to wait for such a one."""
    kept, next_stalls, delayed_until = [], iter([*stood_still, (sys.maxsize, sys.maxsize)]), 0
    begin, end = next(next_stalls)
    for due, answered in cycles:
        until = answered or due + ANSWER_NS
        while end < due:
            begin, end = next(next_stalls)
        if begin < until or due < delayed_until:
            delayed_until = until
        else:
            kept.append((due, answered))
    return kept


def series(machine, text):
    """Of a loop that prints when each cycle was due and answered."""
    rows = [line.split() for line in text.splitlines()]
    cycles = [(int(due), None if answered == "lost" else int(answered)) for due, answered in rows]
    return {"": figures(cycles), RUNNING: figures(apart(cycles, machine.stood_still()))}


def sockperf(machine, way, seconds, *more):
    machine.serve([*WAYS[way], "sockperf", "server", "-i", THERE, *more])
    log = machine.work / "sockperf.csv"
    asks = ["sockperf", "ping-pong", "-i", THERE, *more, "--mps=1000", "-m", 64, "-t", seconds]
    _, said = machine.ask([*WAYS[way], *asks, "--full-log", log], seconds)
    halves_us = re.findall(r"^\d+, [\d.]+, [\d.]+, ([\d.]+)$", log.read_text(), re.MULTILINE)
    return {"": ([round(2000 * float(one)) for one in halves_us], 0)}, said


def cyclictest(machine, way, seconds):
    own = ["-p", machine.priority] if machine.priority else ["--policy=other"]
    test = ["cyclictest", "-q", "-t1", "-i1000", f"-l{seconds * 1000}", *own, "-h", 5000]
    text, said = machine.ask([*WAYS[way], *test], seconds)
    rows = re.findall(r"^(\d{6}) (\d+)$", text, re.MULTILINE)
    late = sum(map(int, re.findall(r"^# Histogram Overflows: (\d+)", text, re.MULTILINE)))
    return {"": ([1000 * int(us) for us, count in rows for _ in range(int(count))], late)}, said


def loop(machine, way, seconds, *program):
    machine.serve([*WAYS[way], *program, "serve", THERE])
    text, said = machine.ask([*WAYS[way], *program, "ask", THERE, seconds * 1000], seconds)
    return series(machine, text), said


def python(machine, way, seconds, kind):
    return loop(machine, way, seconds, PYTHON, PROGRAMS / "loops.py", kind)


def java(machine, way, seconds):
    if not (machine.work / "Loop.class").exists():
        run(["javac", "-d", machine.work, PROGRAMS / "Loop.java"])
    return loop(machine, way, seconds, "java", "-cp", machine.work, "Loop")


def soem(machine, way, seconds):
    machine.serve([ETHERCRAB / "sub_device", "--interface", INTERFACE, "--count", 2], above=10)
    asks = [PYTHON, PROGRAMS / "loops.py", "soem", "ask", INTERFACE, seconds * 1000]
    text, said = machine.ask([*WAYS[way], *asks], seconds)
    return series(machine, text), said


def linuxcnc(machine, way, seconds, period_ns=PERIOD_NS):
    """As root and in namespaces of its own: its shared memory has one key for the whole machine."""
    machine.serve([PYTHON, PROGRAMS / "mesa_card.py", INTERFACE], above=10, cpu=0)
    policy, samples = machine.work / "policy", machine.work / "samples"
    # LinuxCNC sets a policy itself only where it may raise its limit.
    above = f"pidof rtapi_app | xargs chrt -a -f -p {machine.priority}" if machine.priority else ""
    policy.write_text(f"#!/bin/sh\n{above}\n")
    policy.chmod(0o755)
    apart = ["unshare", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    environment = {
        "BOARD": THERE, "PERIOD_NS": str(period_ns), "CYCLES": str(seconds * 1_000_000_000 // period_ns),
        "SAMPLES": str(samples), "POLICY": str(policy), "LINUXCNC_FORCE_REALTIME": "1",
        "RTAPI_UID": "65534", "RTAPI_FIFO_PATH": str(machine.work / "rtapi"), "HOME": str(machine.work),
    }  # fmt: skip
    samples.unlink(missing_ok=True)
    halrun = ["halrun", "-f", PROGRAMS / "mesa.hal"]
    _, said = machine.ask([*apart, *WAYS[way], *halrun], seconds, None, **environment)
    found = re.findall(r"^(-?\d+) (\d+) $", samples.read_text(), re.MULTILINE)
    rows = [tuple(map(int, row)) for row in found]
    if not rows:
        raise Failed("it wrote no samples")
    mhz = float(re.search(r"cpu MHz\s*: ([\d.]+)", pathlib.Path("/proc/cpuinfo").read_text())[1])
    return {
        ", release": ([abs(since - period_ns) for since, _ in rows], 0),
        ", read": ([round(clocks * 1000 / mhz) for _, clocks in rows], 0),
    }, said


def iperf3(machine, way, seconds):
    machine.serve([*WAYS[way], "iperf3", "-s"])
    text, said = machine.ask([*WAYS[way], "iperf3", "-c", THERE, "-t", seconds, "-f", "m"], seconds)
    found = re.search(r"([\d.]+) Mbits/sec.*receiver", text)
    if not found:
        raise Failed("it gave no rate")
    return float(found[1]), said


ALL = {
    "sockperf UDP": ("sockperf", sockperf, ()),
    "sockperf TCP": ("sockperf", sockperf, ("--tcp",)),
    "cyclictest": ("cyclictest", cyclictest, ()),
    "ZeroMQ": ("import zmq", python, ("zmq",)),
    "Zenoh": ("import zenoh", python, ("zenoh",)),
    "asyncio": ("import asyncio", python, ("asyncio",)),
    "Java": ("javac", java, ()),
    "LinuxCNC": ("halrun", linuxcnc, ()),
    "LinuxCNC 4 kHz": ("halrun", linuxcnc, (PERIOD_NS // 4,)),
    "pysoem": ("import pysoem", soem, ()),
    "iperf3": ("iperf3", iperf3, ()),
}


def is_there(needed):
    if needed.startswith("import "):
        return subprocess.run([PYTHON, "-c", needed], check=False, stderr=subprocess.DEVNULL).returncode == 0
    return shutil.which(needed) is not None


def period_of(name):
    return next((one for one in ALL[name][2] if isinstance(one, int)), PERIOD_NS)


def turn(machine, name, way, seconds):
    """One turn: its series, and the lines that `taut exec` printed."""
    _, work, more = ALL[name]
    try:
        return work(machine, way, seconds, *more)
    finally:
        machine.end()


def measure(machine, options, found, rates, watched):
    """Fills Turns by row and way, rates of iperf3 by way, and what became of `--watch`, by program."""
    for number in range(options.rounds):
        for name in options.program:
            order = list(enumerate(options.ways))
            random.shuffle(order)
            for place, way in order:
                try:
                    rows, _ = turn(machine, name, way, options.seconds)
                except Failed as failure:
                    found[name, place].failures.append(f"{way}: {failure}")
                    continue
                if isinstance(rows, float):
                    rates[place].append(rows)
                    continue
                for row, (ns, lost) in rows.items():
                    late = lost + sum(one > period_of(name) // 2 for one in ns)
                    found[name + row, place].add(ns, lost, late)
                    said = f"p99.9 {quantile(ns, 0.999)} µs, {late} late of {len(ns) + lost}"
                    print(f"round {number + 1} of {options.rounds}: {name}{row}, {way}: {said}", file=sys.stderr)
    for name in options.program:
        try:
            _, said = turn(machine, name, "watch", WATCHED_S)
            watched[name] = "yes" if "watched" in said else "no report"
        except Failed as failure:
            watched[name] = f"no: {failure}"


def show(options, found, rates, watched):
    ways = ", ".join(options.ways)
    print(f"| program | works | p50 µs: {ways} | p99.9 µs: {ways} | late: {ways} | cycles | --watch |")
    print("|---|---|---|---|---|---|---|")
    places = range(len(options.ways))
    rows = dict.fromkeys(row for row, _ in found)
    for row in rows:
        name = max((one for one in ALL if row.startswith(one)), key=len)
        turns = [found[row, place] for place in places]
        failures = [one for place in places for one in found[name, place].failures]
        works = "yes" if not failures else f"{len(failures)} failed"
        cells = [", ".join(quantile(one.ns, share) for one in turns) for share in (0.5, 0.999)]
        late = ", ".join(str(one.late) for one in turns)
        cycles = ", ".join(str(one.cycles) for one in turns)
        if any(one.cycles for one in turns):
            print(f"| {row} | {works} | {cells[0]} | {cells[1]} | {late} | {cycles} | {watched[name]} |")
        for failure in failures:
            print(f"{name}: {failure}", file=sys.stderr)
    if rates:
        middle = [sorted(rates[place])[len(rates[place]) // 2] / 1000 for place in places if rates[place]]
        print(f"\niperf3, Gbit/s: {', '.join(f'{one:.1f}' for one in middle)}; --watch: {watched['iperf3']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--priority", type=int, default=50)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["kernel", "exec", "kernel"])
    parser.add_argument("program", nargs="*", metavar="PROGRAM", help=", ".join(ALL))
    options = parser.parse_args()
    chosen = options.program or list(ALL)
    if wrong := [one for one in chosen + options.ways if one not in [*ALL, *WAYS]]:
        parser.error(f"{wrong[0]}: the programs are {', '.join(ALL)}; the ways are {', '.join(WAYS)}")
    options.program = [one for one in chosen if is_there(ALL[one][0])]
    if missing := [one for one in chosen if one not in options.program]:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found, rates, watched = collections.defaultdict(Turns), collections.defaultdict(list), {}
    with Machine(options.priority) as machine:
        measure(machine, options, found, rates, watched)
    show(options, found, rates, watched)


if __name__ == "__main__":
    main()
