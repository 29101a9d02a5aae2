"""Hosts, buses and peers for the tests: everything that a test makes is called taut… and is gone when it ends."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest

import tautline

# Longer than anything here takes on a busy machine.
PATIENCE_S = 20.0
CLONE_NEWNET = 0x40000000
# Of the ends of both cables.
MACS = ("02:00:00:77:00:01", "02:00:00:77:00:02")
# Of the cable between pairs of nodes, whose demux stays for all tests, and of the one to other peers.
PAIR_IPS = ("10.77.90.1", "10.77.90.2")
IPS = ("10.77.91.1", "10.77.91.2")

_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count(100)


def next_number() -> int:
    """A port number that no other test has."""
    return next(_numbers)


class Hosts:
    """Two network namespaces, joined by two cables: taut0 for pairs of nodes, taut1 for other peers."""

    def __init__(self) -> None:
        self.names = [f"taut-py-{os.getpid()}-{side}" for side in "ab"]

    def make(self) -> None:
        for name in self.names:
            self._ip("netns", "add", name)
            self._ip("-n", name, "link", "set", "lo", "up")
        a, b = self.names
        for cable, ips in (("taut0", PAIR_IPS), ("taut1", IPS)):
            self._ip("-n", a, "link", "add", cable, "type", "veth", "peer", "name", cable, "netns", b)
            for name, mac, ip in zip(self.names, MACS, ips):
                self._ip("-n", name, "link", "set", cable, "address", mac)
                self._ip("-n", name, "address", "add", f"{ip}/24", "dev", cable)
                self._ip("-n", name, "link", "set", cable, "up")

    def remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False)

    def command(self, host: int, *command: str) -> List[str]:
        """A command line that runs on a host."""
        return ["ip", "netns", "exec", self.names[host], *command]

    @contextlib.contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """This thread is on the host meanwhile: sockets and nodes are made there."""
        with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{self.names[host]}") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    made = Hosts()
    try:
        made.make()
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="session")
def taut() -> str:
    """The command `taut`."""
    found = os.environ.get("TAUT") or shutil.which("taut")
    if not found or not Path(found).exists():
        pytest.skip("the command taut is not built")
    return found


class Pair:
    """Two nodes that reach each other, `a` as "a" and `b` as "b"."""

    def __init__(self, link: str, a: tautline.Node, b: tautline.Node) -> None:
        self.link = link
        self.a = a
        self.b = b

    def queuing(self, **options: Any) -> Tuple[tautline.QueuingPort, tautline.QueuingPort, tautline.Destination]:
        """A port on each side, and the way from the first to the second."""
        numbers = next_number(), next_number()
        sender, receiver = self.a.queuing(numbers[0], **options), self.b.queuing(numbers[1], **options)
        return sender, receiver, sender.destination("b", numbers[1])

    def sampling(self, **options: Any) -> Tuple[tautline.QueuingPort, tautline.SamplingPort, tautline.Destination]:
        numbers = next_number(), next_number()
        sender, receiver = self.a.queuing(numbers[0]), self.b.sampling(numbers[1], **options)
        return sender, receiver, sender.destination("b", numbers[1])


@contextlib.contextmanager
def open_pair(link: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[Pair]:
    """Two nodes on a link; on link xdp each on a host of its own."""
    if link == "udp":
        both: List[Dict[str, Any]] = [{"name": "a", "ip": "127.0.0.1"}, {"name": "b", "ip": "127.0.0.2"}]
        a, b = (tautline.Node(link="udp", address=entry["ip"], neighbour=both[1 - place : 2 - place])
                for place, entry in enumerate(both))
        with a, b:
            yield Pair(link, a, b)
    elif link == "vbus":
        a, b = (tautline.Node(link="vbus", bus=directory / "bus", node=name, neighbour=[{"name": other}])
                for name, other in (("a", "b"), ("b", "a")))
        with a, b:
            yield Pair(link, a, b)
    else:
        nodes = request.getfixturevalue("xdp_nodes")
        try:
            yield Pair(link, *nodes)
        finally:
            for node in nodes:
                node.close_ports()


@pytest.fixture(scope="session")
def xdp_nodes(hosts: Hosts) -> Iterator[Any]:
    """A node on link xdp on each host. Attaching a demux takes longer than most tests, so they stay."""
    nodes = []
    for place, name in enumerate("ab"):
        with hosts.inside(place):
            peer = {"name": "ba"[place], "mac": MACS[1 - place], "ip": PAIR_IPS[1 - place]}
            nodes.append(OnHost(hosts, place, tautline.Node(interface="taut0", link="xdp", neighbour=[peer])))
    yield nodes
    for node in nodes:
        node.close()


class OnHost:
    """A node whose ports are opened on its host, wherever the calling thread is."""

    def __init__(self, hosts: Hosts, place: int, node: tautline.Node) -> None:
        self.hosts, self.place, self.node = hosts, place, node
        self.ports: List[Any] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.node, name)
        if name not in ("queuing", "sampling", "udp", "raw"):
            return method

        def opened(*arguments: Any, **options: Any) -> Any:
            with self.hosts.inside(self.place):
                self.ports.append(method(*arguments, **options))
            return self.ports[-1]

        return opened

    def close_ports(self) -> None:
        """Closes its ports: the traceback of an exception that was expected may keep them longer than their test."""
        for port in self.ports:
            port.close()
        self.ports.clear()


@pytest.fixture(params=["xdp", "udp", "vbus"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with open_pair(request.param, request, tmp_path) as made:
        yield made


@pytest.fixture(params=["udp", "vbus"])
def plain_pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """As `pair`, on the links that need no privilege."""
    with open_pair(request.param, request, tmp_path) as made:
        yield made


@pytest.fixture
def loopback(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with open_pair("udp", request, tmp_path) as made:
        yield made


@pytest.fixture
def udp_peer() -> Iterator[socket.socket]:
    """Anybody's socket on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.settimeout(PATIENCE_S)
        yield peer


@contextlib.contextmanager
def run_python(text: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Another Python with this program, which is killed at the end if it still runs."""
    command = [sys.executable, "-u", "-c", text, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE,
                          text=True) as child:
        try:
            yield child
        finally:
            child.kill()
