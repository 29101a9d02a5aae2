"""Peers that are not this package: the kernel's sockets on another host, the command `taut`, peers that are killed."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from pathlib import Path
from typing import Iterator

import pytest
from conftest import IPS, MACS, PATIENCE_S, Hosts, next_number, run_python

import tautline


@pytest.fixture
def node(hosts: Hosts) -> Iterator[tautline.Node]:
    """A node on link xdp, on host a; the calling thread is there meanwhile."""
    with hosts.inside(0):
        peer = {"name": "b", "mac": MACS[1], "ip": IPS[1]}
        with tautline.Node(interface="taut1", link="xdp", neighbour=[peer]) as opened:
            yield opened


def test_a_socket_on_another_host_is_a_peer(hosts: Hosts, node: tautline.Node) -> None:
    assert node.link == "xdp"
    with hosts.inside(1):
        peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with peer, node.udp(17_100, message_bytes_max=60_000) as port:
        peer.settimeout(PATIENCE_S)
        peer.bind((IPS[1], 17_101))
        to_peer = port.destination("b", 17_101)
        for length in (1, 1_400, 20_000):
            message = bytes(i % 251 for i in range(length))
            port.send(to_peer, message, priority=6)
            assert peer.recv(65_536) == message
            peer.sendto(message, (IPS[0], 17_100))
            datagram = port.receive(PATIENCE_S)
            assert datagram.data == message and datagram.source == (IPS[1], 17_101)
            assert datagram.checksum in ("valid", "partial")
        # Both ways without a copy in this process.
        with port.lend(to_peer, 5) as loan, port.lend(to_peer, 6, priority=7) as urgent:
            urgent.view[:] = b"urgent"
            urgent.send()
            loan.view[:] = b"image"
            loan.send()
        assert [peer.recv(100), peer.recv(100)] == [b"urgent", b"image"]
        port.lend(to_peer, 5).release()
        peer.sendto(b"picture", port.local)
        with port.receive(PATIENCE_S, in_place=True) as lent:
            assert bytes(lent.view) == b"picture" and lent.source == (IPS[1], 17_101)
        assert port.send_batch([(to_peer, b"1", 3), (to_peer, b"2", 3)]) == 2
        assert [peer.recv(10), peer.recv(10)] == [b"1", b"2"]


def test_python_answers_taut_ping(hosts: Hosts, taut: str, node: tautline.Node) -> None:
    with node.queuing(4095) as port:
        ping = subprocess.Popen(
            hosts.command(1, taut, "ping", IPS[0], "--interface", "taut1", "--count", "50", "--interval", "1ms"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        answered = 0
        while answered < 50:
            message = port.receive(PATIENCE_S)
            assert message is not None
            port.reply(message.source, message.data, priority=message.priority)
            answered += 1
        said, complained = ping.communicate(timeout=PATIENCE_S)
        assert "50 sent, 50 answered, 0.0 % lost" in said, said + complained


@pytest.mark.parametrize("link", ["udp", "vbus"])
def test_messages_to_and_from_the_command(link: str, taut: str, tmp_path: Path) -> None:
    own = 'link = "udp"\naddress = "127.0.0.3"\n' if link == "udp" else f'link = "vbus"\nbus = "{tmp_path}/bus"\nnode = "py"\n'
    other = own.replace("127.0.0.3", "127.0.0.4").replace('node = "py"', 'node = "cmd"')
    ip = 'ip = "127.0.0.{}"\n' if link == "udp" else ""
    (tmp_path / "own.toml").write_text(f'{own}[[neighbour]]\nname = "cmd"\n{ip.format(4)}')
    (tmp_path / "other.toml").write_text(f'{other}[[neighbour]]\nname = "py"\n{ip.format(3)}')
    config = ["--config", str(tmp_path / "other.toml")]
    with tautline.Node.from_file(tmp_path / "own.toml") as node, node.queuing(21) as port:
        subprocess.run([taut, "send", "py", "21", *config, "--priority", "7"], input="from the command", text=True,
                       check=True, timeout=PATIENCE_S)
        message = port.receive(PATIENCE_S)
        assert message is not None and message.data.strip() == b"from the command" and message.priority == 7
        receiver = subprocess.Popen([taut, "recv", "22", *config, "--count", "1", "--timeout", "20s", "--json"],
                                    stdout=subprocess.PIPE, text=True)
        said = []
        reader = threading.Thread(target=lambda: said.append(receiver.communicate()[0]))
        reader.start()
        # Until the command has opened its port, a message is refused, or goes nowhere.
        while reader.is_alive():
            try:
                port.send(port.destination("cmd", 22), b"to the command")
            except (tautline.SendError, tautline.PeerAbsentError):
                pass
            reader.join(0.05)
        assert json.loads(said[0].splitlines()[0]), said


ECHO = """
import sys, tautline
node = tautline.Node(link="vbus", bus=sys.argv[1], node="echo", neighbour=[{"name": "asker"}])
port = node.queuing(31)
print("ready", flush=True)
while True:
    with port.receive(in_place=True) as message:
        source, data = message.source, bytes(message)
    port.reply(source, data)
    if data == b"hold":
        print("holding", flush=True)
        kept = port.receive(in_place=True)
        while True: pass
"""


def test_a_killed_peer_leaves_a_port_that_works(tmp_path: Path) -> None:
    bus = f"{tmp_path}/bus"
    with tautline.Node(link="vbus", bus=bus, node="asker", neighbour=[{"name": "echo"}]) as node:
        for _ in range(3):
            numbers = next_number(), next_number()
            with run_python(ECHO, bus) as echo, node.queuing(numbers[0]) as port, \
                    node.queuing(numbers[1]) as other:
                assert echo.stdout is not None and echo.stdout.readline() == "ready\n"
                to = port.destination("echo", 31, timeout=PATIENCE_S)
                for message in (b"hello", b"hold"):
                    port.send(to, message)
                    answer = port.receive(PATIENCE_S, in_place=True)
                    assert answer is not None and bytes(answer) == message
                    if message == b"hello":
                        answer.release()
                # Killed in the middle: it looks at a message of ours, and we at one of its.
                other.send(other.destination("echo", 31), b"never looked at")
                echo.kill()
                echo.wait()
                assert bytes(answer) == b"hold"
                answer.release()
                assert port.receive(0.05) is None
                with pytest.raises(tautline.SendError):
                    for _ in range(10_000):
                        port.send(to, b"anybody?")
