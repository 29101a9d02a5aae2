"""Waiting: Ctrl-C, other threads, select, asyncio."""

from __future__ import annotations

import asyncio
import re
import select
import selectors
import signal
import socket
import threading
from typing import Any

import pytest
from conftest import PATIENCE_S, Pair, next_number, run_python

import tautline

WAITS = """
import sys, tautline
node = tautline.Node(link=sys.argv[1], bus=sys.argv[2] or None, node="a" if sys.argv[2] else None,
                     address=None if sys.argv[2] else "127.0.0.1")
queuing, sampling = node.queuing(3920), node.sampling(3921)
wait = {"receive": lambda: queuing.receive(), "lent": lambda: queuing.receive(in_place=True), "read": lambda: sampling.next(),
        "spin": lambda: node.queuing(3922, spin=3600.0).receive()}[sys.argv[3]]
try:
    print("waiting", flush=True)
    wait()
except KeyboardInterrupt:
    # The port is whole: it can be used, and closed.
    assert queuing.receive(0) is None
    queuing.close()
    print("interrupted")
"""


@pytest.mark.parametrize("wait", ["receive", "lent", "read", "spin"])
@pytest.mark.parametrize("link", ["udp", "vbus"])
def test_ctrl_c_ends_a_wait(link: str, wait: str, tmp_path: object) -> None:
    with run_python(WAITS, link, f"{tmp_path}/bus" if link == "vbus" else "", wait) as child:
        assert child.stdout is not None and child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        said, complained = child.communicate(timeout=PATIENCE_S)
        assert said == "interrupted\n", complained


def test_other_threads_run_while_one_waits(pair: Pair) -> None:
    sender, receiver, to = pair.queuing(spin=3600.0)
    # If the wait, which spins, kept the interpreter, this thread could never send.
    thread = threading.Timer(0.05, lambda: sender.send(to, b"from another thread"))
    thread.start()
    assert receiver.receive(PATIENCE_S).data == b"from another thread"
    thread.join()


def test_select_watches_ports_and_sockets(pair: Pair, udp_peer: socket.socket) -> None:
    sender, receiver, to = pair.queuing()
    assert receiver.receive(0) is None
    readable, _, _ = select.select([receiver, udp_peer], [], [], 0)
    assert readable == [] or receiver.receive(0) is None
    with selectors.DefaultSelector() as watched:
        watched.register(receiver, selectors.EVENT_READ)
        watched.register(udp_peer, selectors.EVENT_READ)
        assert receiver.receive(0) is None
        sender.send(to, b"1")
        found = None
        while found is None:
            assert watched.select(PATIENCE_S)
            found = receiver.receive(0)
        assert found.data == b"1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.sendto(b"2", udp_peer.getsockname())
            assert any(key.fileobj is udp_peer for key, _ in watched.select(PATIENCE_S))


def test_a_loop_serves_two_ports_and_a_socket(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    value_sender, values, to_values = pair.sampling()

    async def serve() -> "list[Any]":
        loop = asyncio.get_running_loop()
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        tasks = [asyncio.ensure_future(wait) for wait in
                 (receiver.receive_async(), values.next_async(), loop.sock_recv(mine, 100))]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)
        sender.send(to, b"message")
        value_sender.send(to_values, b"value")
        theirs.send(b"stream")
        found = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
        mine.close()
        theirs.close()
        return found

    message, sample, stream = asyncio.run(serve())
    assert (message.data, sample.data, stream) == (b"message", b"value", b"stream")


def test_values_wake_their_task_again_and_again(pair: Pair) -> None:
    sender, receiver, to = pair.sampling()

    async def read() -> "list[bytes]":
        seen = []
        for number in range(5):
            asyncio.get_running_loop().call_later(0.005, sender.send, to, bytes([number]))
            sample = await receiver.next_async(timeout=PATIENCE_S)
            assert sample is not None
            seen.append(sample.data)
        return seen

    assert asyncio.run(read()) == [bytes([number]) for number in range(5)]


def test_an_async_wait_ends_with_its_time_or_its_task(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()

    async def waits() -> None:
        assert await receiver.receive_async(timeout=0.02) is None
        task = asyncio.ensure_future(receiver.receive_async())
        await asyncio.sleep(0.01)
        with pytest.raises(tautline.BusyError, match="another task"):
            await receiver.receive_async()
        with pytest.raises(tautline.BusyError, match="a task waits"):
            receiver.close()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Nothing is left of it.
        sender.send(to, b"next")
        assert (await receiver.receive_async(timeout=PATIENCE_S)).data == b"next"

    asyncio.run(waits())
    receiver.close()


def test_messages_in_an_async_for(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()

    async def collect() -> "list[bytes]":
        collected = []
        async for message in receiver:
            collected.append(message.data)
            if len(collected) == 3:
                break
        return collected

    for number in range(3):
        sender.send(to, bytes([number]))
    assert asyncio.run(asyncio.wait_for(collect(), PATIENCE_S)) == [b"\x00", b"\x01", b"\x02"]


def test_a_udp_port_in_asyncio(loopback: Pair, udp_peer: socket.socket) -> None:
    with loopback.a.udp(15_300 + next_number()) as port:

        async def exchange() -> bytes:
            udp_peer.sendto(b"position?", port.local)
            datagram = await port.receive_async(timeout=PATIENCE_S)
            port.reply(datagram.source, b"3 mm")
            return datagram.data

        assert asyncio.run(exchange()) == b"position?"
        assert udp_peer.recv(100) == b"3 mm"


STATES = """
import socket, sys, time
to = ("127.0.0.1", int(sys.argv[1]))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    for number in range(300):
        time.sleep(0.001)
        sender.sendto(number.to_bytes(2, "little"), to)
"""


def found_in(report: str) -> int:
    """Messages of a report: met awake, woken by the kernel, there before."""
    return sum(int(count) for count in re.findall(r"(\d+) (?:met|woken|there)", report))


def test_a_loop_over_a_socket_is_awake_for_every_message(udp_peer: socket.socket) -> None:
    awake = tautline.Awake(udp_peer)
    assert not awake.wait(0) and not awake.wait(0.002)
    with run_python(STATES, str(udp_peer.getsockname()[1])):
        for number in range(300):
            assert awake.wait(PATIENCE_S)
            assert udp_peer.recv(100) == number.to_bytes(2, "little")
    assert found_in(awake.report) == 300
    with pytest.raises(tautline.ArgumentError, match="not an open descriptor"):
        tautline.Awake(-1)


def test_ctrl_c_ends_a_wait_that_ends_awake() -> None:
    waits = """
import socket, tautline, time
here, there = socket.socketpair()
waits = [lambda: tautline.Awake(here).wait(), lambda: tautline.sleep_until(time.monotonic() + 3600)]
for wait in waits:
    try:
        print("waiting", flush=True)
        wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
    with run_python(waits) as child:
        for _ in range(2):
            assert child.stdout is not None and child.stdout.readline() == "waiting\n"
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "interrupted\n"


def test_a_second_thread_is_refused_a_wait_that_ends_awake(udp_peer: socket.socket) -> None:
    awake = tautline.Awake(udp_peer)
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        assert awake.wait(PATIENCE_S)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    with pytest.raises(tautline.BusyError):
        for _ in range(10_000):
            assert not awake.wait(0)
    udp_peer.sendto(b"end", udp_peer.getsockname())
    thread.join()


def test_asyncio_is_awake_for_every_message_and_keeps_its_timers(udp_peer: socket.socket) -> None:
    selector = tautline.AwakeSelector()
    loop = asyncio.SelectorEventLoop(selector)
    udp_peer.setblocking(False)

    async def serve() -> "list[bytes]":
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        found = [await asyncio.wait_for(loop.sock_recv(udp_peer, 100), PATIENCE_S) for _ in range(300)]
        assert ticks > 0 and await loop.run_in_executor(None, lambda: "from another thread")
        ticking.cancel()
        return found

    with run_python(STATES, str(udp_peer.getsockname()[1])):
        found = loop.run_until_complete(serve())
    loop.close()
    assert found == [number.to_bytes(2, "little") for number in range(300)]
    assert found_in(selector.report) > 0

