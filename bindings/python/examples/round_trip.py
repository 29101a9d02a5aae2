"""Round trips and a 1 kHz loop in Python: Tautline's ports beside Python's own UDP sockets, interleaved in one run.

    python round_trip.py [--rounds 20000] [--seconds 10] [--bytes 16] [--mode tc] [--json FILE]

Root. Makes two hosts (network namespaces) with two cables (veth pairs) between them, and removes them afterwards. The
sockets' cable never carries Tautline's demux: they are what a program has without Tautline. One process on each host
serves all paths in turn, in short blocks, so that whatever disturbs the machine disturbs all of them. Both processes
spin, each on a CPU of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

import tautline

PATHS = ("queuing port", "UDP port", "UDP socket")
# The path that the others are compared with.
PLAIN = "UDP socket"
# Round trips of a path before the next one has its turn. Fewer: each block begins with cold caches. More: a disturbance
# of the machine hits one path alone.
BLOCK = 500
# Round trips of each path that are not counted: both sides come up to speed.
WARM_UP = 1_000
# Time for which a side waits before it says that a message was lost. Longer than this machine is ever away.
LOST_AFTER_S = 5.0
PERIOD_S = 0.001
# Periods of the loop with one path before the next one has its turn: each is used in every millisecond, as in a loop.
LOOP_BLOCK = 100
PORT = 7
UDP_PORT = 17_000
TAUTLINE_IPS = ("10.78.0.1", "10.78.0.2")
PLAIN_IPS = ("10.78.1.1", "10.78.1.2")
MACS = ("02:00:00:78:00:01", "02:00:00:78:00:02")


class Side:
    """The ports and the socket of one side: 0 asks, 1 answers."""

    def __init__(self, place: int, link: str, mode: Optional[str]) -> None:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1 - place]})
        peer = {"name": "peer", "mac": MACS[1 - place], "ip": TAUTLINE_IPS[1 - place], "form": "ethernet"}
        self.node = tautline.Node(interface="cable0", link=link, xdp_mode=mode, address=TAUTLINE_IPS[place],
                                  neighbour=[peer])
        # Spins for longer than any wait here lasts, so it never sleeps.
        self.queuing = self.node.queuing(PORT, spin=2 * LOST_AFTER_S)
        self.udp = self.node.udp(UDP_PORT, spin=2 * LOST_AFTER_S)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((PLAIN_IPS[place], UDP_PORT))
        self.socket.connect((PLAIN_IPS[1 - place], UDP_PORT))
        self.socket.setblocking(False)
        self.ports: Dict[str, Any] = {
            "queuing port": (self.queuing, self.queuing.destination("peer", PORT)),
            "UDP port": (self.udp, self.udp.destination("peer", UDP_PORT)),
        }

    def receive_plain(self) -> bytes:
        """A datagram of the socket, spinning."""
        receive = self.socket.recv
        given_up = time.monotonic() + LOST_AFTER_S
        while True:
            try:
                return receive(2048)
            except BlockingIOError:
                if time.monotonic() > given_up:
                    raise SystemExit("a datagram was lost") from None

    def answer(self, path: str, count: int) -> None:
        """Sends back what comes."""
        if path == PLAIN:
            receive_plain, send_plain = self.receive_plain, self.socket.send
            for _ in range(count):
                send_plain(receive_plain())
            return
        port, to = self.ports[path]
        receive, send = port.receive, port.send
        for _ in range(count):
            message = receive(LOST_AFTER_S)
            if message is None:
                raise SystemExit("a message was lost")
            send(to, message.data)

    def ask(self, path: str, message: bytes, count: int) -> List[int]:
        """Round trips, in nanoseconds."""
        clock, times = time.perf_counter_ns, []
        if path == PLAIN:
            receive_plain, send_plain = self.receive_plain, self.socket.send
            for _ in range(count):
                started = clock()
                send_plain(message)
                receive_plain()
                times.append(clock() - started)
            return times
        port, to = self.ports[path]
        receive, send = port.receive, port.send
        for _ in range(count):
            started = clock()
            send(to, message)
            answer = receive(LOST_AFTER_S)
            times.append(clock() - started)
            if answer is None:
                raise SystemExit("a message was lost")
        return times


def schedule(rounds: int) -> List[Any]:
    """Path and length of each block."""
    blocks = [(path, WARM_UP) for path in PATHS]
    for begun in range(0, rounds, BLOCK):
        blocks += [(path, min(BLOCK, rounds - begun)) for path in PATHS]
    return blocks


def answerer(arguments: argparse.Namespace) -> None:
    """The process that answers. It says that it is ready, and ends with the work."""
    side = Side(1, arguments.link, arguments.mode)
    print("ready", flush=True)
    for path, count in schedule(arguments.rounds):
        side.answer(path, count)
    for tick in range(ticks(arguments)):
        side.answer(path_of(tick), 1)


def asker(arguments: argparse.Namespace) -> None:
    """The process that asks, and prints what it has measured as JSON."""
    side, message = Side(0, arguments.link, arguments.mode), bytes(arguments.bytes)
    print("ready", flush=True)
    sys.stdin.readline()
    trips: Dict[str, List[int]] = {path: [] for path in PATHS}
    for number, (path, count) in enumerate(schedule(arguments.rounds)):
        times = side.ask(path, message, count)
        trips[path] += times if number >= len(PATHS) else []
    loop: Dict[str, List[int]] = {path: [] for path in PATHS}
    late: Dict[str, int] = {path: 0 for path in PATHS}
    due = time.monotonic() + PERIOD_S
    for tick in range(ticks(arguments)):
        path = path_of(tick)
        while time.monotonic() < due:
            pass
        loop[path] += side.ask(path, message, 1)
        due += PERIOD_S
        # The answer is there after the next period has begun; the next one then starts with that.
        if time.monotonic() > due:
            late[path] += 1
            due = time.monotonic()
    report = {"path": side.node.report, "trips": trips, "loop": loop, "late": late}
    print(json.dumps(report), flush=True)


def path_of(tick: int) -> str:
    """Path of a period of the loop."""
    return PATHS[tick // LOOP_BLOCK % len(PATHS)]


def ticks(arguments: argparse.Namespace) -> int:
    """Periods of the loop."""
    return int(arguments.seconds / PERIOD_S)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def make_hosts(names: List[str]) -> None:
    """Two hosts with two cables between them."""
    for name in names:
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
    for cable, ips in enumerate((TAUTLINE_IPS, PLAIN_IPS)):
        end = f"cable{cable}"
        run("ip", "-n", names[0], "link", "add", end, "type", "veth", "peer", "name", end, "netns", names[1])
        for place, name in enumerate(names):
            if cable == 0:
                run("ip", "-n", name, "link", "set", end, "address", MACS[place])
            run("ip", "-n", name, "address", "add", f"{ips[place]}/24", "dev", end)
            run("ip", "-n", name, "link", "set", end, "up")


def measure(arguments: argparse.Namespace) -> Dict[str, Any]:
    """Runs both sides on hosts of their own."""
    names = [f"taut-python-{os.getpid()}-{side}" for side in "ab"]
    processes: List[Any] = []
    try:
        make_hosts(names)
        for name, side in zip(names, ("asker", "answerer")):
            own = [sys.executable, os.path.abspath(__file__), "--side", side, *sys.argv[1:]]
            processes.append(subprocess.Popen(["ip", "netns", "exec", name, *own], text=True,
                                              stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for process in processes:
            if process.stdout.readline() != "ready\n":
                raise SystemExit("a side did not start; what it said is above")
        output, _ = processes[0].communicate("go\n")
        if processes[0].returncode != 0:
            raise SystemExit("the measurement ended early; what it said is above")
        return dict(json.loads(output))
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def share(times: List[int], part: float) -> float:
    """Time within which this part of the round trips ended, in microseconds."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] / 1000


def show(measured: Dict[str, Any], arguments: argparse.Namespace) -> Dict[str, Any]:
    """Prints the tables; the same as numbers."""
    print(f"{measured['path']}\nPython {platform.python_version()}, Linux {platform.release()}, {arguments.bytes} bytes; "
          "microseconds; ratio: p50 beside the socket's\n")
    tables: Dict[str, Any] = {}
    for title, key in ((f"round trip, {arguments.rounds} of each path", "trips"),
                       (f"1 kHz loop, {ticks(arguments)} periods in all", "loop")):
        if not measured[key][PLAIN]:
            continue
        late = "  missed" if key == "loop" else ""
        print(f"{title}\n{'':14}{'p50':>9}{'p99':>9}{'p99.9':>9}{'max':>10}{'ratio':>7}{late}")
        plain = share(measured[key][PLAIN], 0.5)
        for path in PATHS:
            times = measured[key][path]
            row = [share(times, part) for part in (0.5, 0.99, 0.999, 1.0)]
            tables.setdefault(key, {})[path] = {"us": row, "ratio": row[0] / plain, "late": measured["late"][path]}
            missed = f"{measured['late'][path]:8}" if key == "loop" else ""
            print(f"{path:14}{row[0]:9.2f}{row[1]:9.2f}{row[2]:9.2f}{row[3]:10.2f}{row[0] / plain:7.2f}{missed}")
        print()
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20_000, help="round trips of each path")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the 1 kHz loop")
    parser.add_argument("--bytes", type=int, default=16, help="length of the messages, up to 1,400")
    parser.add_argument("--link", default="xdp", help="link of the node: xdp, xsk, packet")
    parser.add_argument("--mode", help="mode of link xdp: native, generic, tc; the best that works unless given")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--side", choices=["asker", "answerer"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side == "answerer":
        answerer(arguments)
    elif arguments.side == "asker":
        asker(arguments)
    else:
        tables = show(measure(arguments), arguments)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(tables, file)


if __name__ == "__main__":
    main()
