"""Raw frames: a packet socket of the kernel on another host is the peer."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from typing import Iterator

import pytest
from conftest import MACS, PATIENCE_S, Hosts

import tautline

ETHERTYPE = 0x88B4
ALL = b"\xff" * 6
ADDRESSES = tuple(bytes.fromhex(mac.replace(":", "")) for mac in MACS)


def frame(source: bytes, payload: bytes, tag: bytes = b"", ethertype: int = ETHERTYPE) -> bytes:
    return ALL + source + tag + ethertype.to_bytes(2, "big") + payload


@pytest.fixture(params=["xdp", "packet"])
def node(request: pytest.FixtureRequest, hosts: Hosts) -> Iterator[tautline.Node]:
    """A node on host a; the calling thread is there meanwhile."""
    with hosts.inside(0):
        named = {"name": "fieldbus", "kind": "raw", "ethertype": 0x88A4, "depth": 8}
        with tautline.Node(interface="taut1", link=request.param, port=[named]) as opened:
            yield opened


@pytest.fixture
def wire(hosts: Hosts) -> Iterator[socket.socket]:
    """A packet socket at the other end of the cable."""
    with hosts.inside(1):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
    with made:
        made.bind(("taut1", ETHERTYPE))
        made.settimeout(PATIENCE_S)
        yield made


def test_frames_pass_both_ways_as_they_are(node: tautline.Node, wire: socket.socket) -> None:
    with node.raw(ETHERTYPE) as port:
        assert (port.ethertype, repr(port)) == (ETHERTYPE, "<RawPort 0x88b4>")
        for length in (0, 1, 46, 1500):
            sent = frame(ADDRESSES[1], bytes(i % 251 for i in range(length)))
            wire.send(sent)
            received = port.receive(PATIENCE_S)
            assert received is not None and received.data == sent and bytes(received) == sent
            assert received.priority == 0 and len(received) == 14 + length
            assert 0 <= time.monotonic() - received.arrival < PATIENCE_S
            wire.send(sent)
            with port.receive(PATIENCE_S, in_place=True) as shown:
                assert bytes(shown.view) == sent and shown.priority == 0
            port.send(memoryview(frame(ADDRESSES[0], b"answer %d" % length)))
            assert wire.recv(2048)[14:] == b"answer %d" % length
        status = port.status()
        assert (status["key"], status["sent"], status["received"]) == ("raw:0x88b4", 4, 8)
    assert port.closed


def test_the_most_urgent_frame_comes_first_where_tags_are_seen(node: tautline.Node, wire: socket.socket) -> None:
    with node.raw(ETHERTYPE) as port:
        for priority in (1, 6):
            tag = bytes((0x81, 0, priority << 5, 0))
            wire.send(frame(ADDRESSES[1], b"of priority %d" % priority, tag))
        until = time.monotonic() + PATIENCE_S
        while node.link == "xdp" and port.status()["frames"] < 2:
            assert time.monotonic() < until
        found = [port.receive(PATIENCE_S) for _ in range(2)]
        priorities = [one.priority for one in found if one is not None]
        assert priorities == ([6, 1] if node.link == "xdp" else [0, 0])


def test_select_and_asyncio_wait_for_frames(node: tautline.Node, wire: socket.socket) -> None:
    with node.raw(ETHERTYPE) as port:
        assert port.receive(0) is None
        assert select.select([port], [], [], 0) == ([], [], [])
        wire.send(frame(ADDRESSES[1], b"for select"))
        assert select.select([port], [], [], PATIENCE_S)[0] == [port]
        assert port.receive(0).data.endswith(b"for select")

        async def wait() -> "list[bytes]":
            assert await port.receive_async(0.01) is None
            waiting = asyncio.ensure_future(port.receive_async(PATIENCE_S))
            await asyncio.sleep(0.01)
            for payload in (b"first", b"second"):
                wire.send(frame(ADDRESSES[1], payload))
            first = await waiting
            async for second in port:
                return [first.data[14:], second.data[14:]]
            return []

        assert asyncio.run(wait()) == [b"first", b"second"]


def test_wrong_frames_and_ports_are_refused_with_a_remedy(node: tautline.Node) -> None:
    with node.raw(ETHERTYPE) as port:
        for wrong in (b"", frame(ADDRESSES[0], b"", ethertype=0x88CC), frame(ADDRESSES[0], b"", b"\x81\x00\x00\x05")):
            with pytest.raises(tautline.SendError) as refused:
                port.send(wrong)
            assert refused.value.message == "frame is not one of the port's EtherType" and refused.value.remedy
        with pytest.raises(TypeError):
            port.send("text")  # type: ignore[arg-type]
        with pytest.raises(tautline.PortError, match="is open in this node already"):
            node.raw(ETHERTYPE)
    for linux in (0x0800, 0x0806, 0x86DD, 0x8100, 100):
        with pytest.raises(tautline.ArgumentError):
            node.raw(linux)
    with pytest.raises(tautline.PortError, match="node's own"):
        node.raw(0x88B5)
    with pytest.raises(tautline.PortError):
        node.raw(ETHERTYPE, depth=3)
    with pytest.raises(tautline.ClosedError):
        port.receive(0)
    with node.raw("fieldbus") as named:
        assert named.ethertype == 0x88A4
    with pytest.raises(tautline.PortError, match="depth"):
        node.raw("fieldbus", depth=4)


def test_links_without_raw_frames_say_so() -> None:
    with tautline.Node(link="udp", address="127.0.0.1") as node:
        with pytest.raises(tautline.PortError, match="link `udp` has no raw frames"):
            node.raw(ETHERTYPE)
