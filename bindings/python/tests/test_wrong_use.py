"""Wrong use on purpose: what is closed, busy, lent, another's, or of another process. Nothing may crash."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest
from conftest import PATIENCE_S, Pair, next_number, run_python

import tautline


def test_a_closed_port_says_so(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    sender.close()
    sender.close()
    for call in (
        lambda: sender.send(to, b"1"),
        lambda: sender.receive(0),
        lambda: sender.number,
        lambda: sender.fileno(),
        lambda: sender.lend(to, 5),
        lambda: sender.receive(0, in_place=True),
        lambda: sender.destination("b", 5),
    ):
        with pytest.raises(tautline.ClosedError, match="closed"):
            call()
    with pair.a.udp(15_300 + next_number()) if pair.link != "vbus" else receiver as other:
        other.close()


def test_ports_keep_their_node_open(loopback: Pair) -> None:
    sender, receiver, to = loopback.queuing()
    loopback.a.close()
    loopback.b.close()
    gc.collect()
    sender.send(to, b"still here")
    assert receiver.receive(PATIENCE_S).data == b"still here"
    with pytest.raises(tautline.ClosedError, match="node is closed"):
        loopback.a.queuing(next_number())


def test_destinations_belong_to_their_port(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    for wrong in (lambda: receiver.send(to, b"1"), lambda: receiver.lend(to, 1), lambda: receiver.merge(to, b"1")):
        with pytest.raises(tautline.ArgumentError, match="belongs to another port"):
            wrong()
    with pytest.raises(tautline.ArgumentError, match="belongs to another port"):
        receiver.send_batch([(to, b"1", 3)])
    with pytest.raises(TypeError):
        tautline.Destination()


def test_arguments_outside_their_range(loopback: Pair) -> None:
    sender, receiver, to = loopback.queuing()
    with pytest.raises(tautline.ArgumentError, match="8 is no priority"):
        sender.send(to, b"1", priority=8)
    with pytest.raises(OverflowError):
        sender.send(to, b"1", priority=-1)
    with pytest.raises(tautline.SendError, match="larger than"):
        sender.send(to, bytes(70_000))
    with pytest.raises(tautline.SendError, match="larger than"):
        sender.lend(to, 70_000)
    for timeout in (-0.1, float("nan")):
        with pytest.raises(tautline.ArgumentError, match="is not a time"):
            receiver.receive(timeout)
    assert receiver.receive(0.0) is None


def test_a_port_is_used_by_one_thread_at_a_time(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    found = []
    thread = threading.Thread(target=lambda: found.append(receiver.receive(PATIENCE_S)))
    thread.start()
    # Other threads run while one waits, until that one is there.
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            receiver.number
        except tautline.BusyError:
            break
    for call in (lambda: receiver.receive(0), receiver.close, receiver.fileno):
        with pytest.raises(tautline.BusyError, match="another thread"):
            call()
    sender.send(to, b"go")
    thread.join(PATIENCE_S)
    assert found[0].data == b"go"
    # Afterwards any thread may have it.
    sender.send(to, b"again")
    assert receiver.receive(PATIENCE_S).data == b"again"


def test_no_view_outlives_its_loan(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    sender.send(to, b"picture")
    message = receiver.receive(PATIENCE_S, in_place=True)
    whole = message.view
    message.release()
    message.release()
    for use in (lambda: whole[0], lambda: bytes(whole), lambda: memoryview(whole)):
        with pytest.raises(ValueError):
            use()
    for use in (lambda: message.data, lambda: message.view, lambda: bytes(message)):
        with pytest.raises(tautline.ClosedError, match="given back"):
            use()


def test_a_loan_does_not_end_while_a_view_is_in_use(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    sender.send(to, b"picture")
    message = receiver.receive(PATIENCE_S, in_place=True)
    part = message.view[1:4]
    copy = memoryview(message.view)
    with pytest.raises(BufferError, match="still in use"):
        message.release()
    with pytest.raises(BufferError), message:
        pass
    assert bytes(part) == b"ict" and bytes(copy) == b"picture" and not message.released
    with pytest.raises(tautline.BusyError):
        receiver.receive(0)
    # The views keep the message, whoever has forgotten it; the last of them gives it back.
    del message, copy
    gc.collect()
    assert bytes(part) == b"ict"
    part.release()
    del part
    gc.collect()
    assert receiver.receive(0.01) is None


def test_what_shows_memory_cannot_be_made_or_reached_around(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    sender.send(to, b"picture")
    message = receiver.receive(PATIENCE_S, in_place=True)
    memory = message.view.obj
    with pytest.raises(TypeError):
        type(memory)()
    again = memoryview(memory)
    with pytest.raises(BufferError, match="still in use"):
        message.release()
    again.release()
    message.release()
    with pytest.raises(tautline.ClosedError):
        memoryview(memory)


def test_a_loan_is_sent_once(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    loan = sender.lend(to, 5)
    view = loan.view
    view[:] = b"first"
    part = view[:2]
    with pytest.raises(BufferError):
        loan.send()
    part.release()
    loan.view[:] = b"first"
    loan.send()
    for use in (loan.send, lambda: loan.view):
        with pytest.raises(tautline.ClosedError):
            use()
    assert receiver.receive(PATIENCE_S).data == b"first"


def test_a_port_closes_when_its_message_comes_back(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    number = receiver.number
    sender.send(to, b"picture")
    message = receiver.receive(PATIENCE_S, in_place=True)
    receiver.close()
    assert receiver.closed and bytes(message) == b"picture"
    message.release()
    with pair.b.queuing(number) as again:
        assert again.receive(0) is None


def test_a_fork_does_not_touch_its_parents_ports(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    sender.send(to, b"for the parent")
    message = receiver.receive(PATIENCE_S, in_place=True)
    child = os.fork()
    if child == 0:
        # Nothing here may reach pytest.
        wrong = 0
        for call in (lambda: sender.send(to, b"1"), lambda: sender.receive(0), lambda: receiver.receive(0, in_place=True)):
            try:
                call()
                wrong += 1
            except tautline.ClosedError as error:
                wrong += "fork" not in str(error)
        sender.close()
        del message, sender, receiver
        gc.collect()
        os._exit(wrong)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert bytes(message) == b"for the parent"
    message.release()
    sender.send(to, b"after the fork")
    assert receiver.receive(PATIENCE_S).data == b"after the fork"


STORM = """
import random, sys, tautline
seed = int(sys.argv[1])
print("seed", seed)
chance = random.Random(seed)
node = tautline.Node(link=sys.argv[2], bus=sys.argv[3] or None, node="a" if sys.argv[3] else None,
                     address=None if sys.argv[3] else "127.0.0.1",
                     neighbour=[{"name": "a"} if sys.argv[3] else {"name": "a", "ip": "127.0.0.1"}])
ports, kept = [node.queuing(3900 + i, depth=4) for i in range(3)], []
to = [port.destination("a", 3900 + (i + 1) % 3) for i, port in enumerate(ports)]
for _ in range(6000):
    at = chance.randrange(3)
    try:
        case = chance.randrange(9)
        if case == 0: ports[at].send(to[at], bytes([at]) * chance.randrange(1400))
        elif case == 1: kept.append(ports[at].receive(0, in_place=True))
        elif case == 2: kept.append(ports[at].lend(to[at], chance.randrange(1, 2000)))
        elif case == 3 and kept: kept.append(chance.choice(kept).view)
        elif case == 4 and kept: kept.append(chance.choice(kept)[: chance.randrange(9)])
        elif case == 5 and kept: chance.choice(kept).release()
        elif case == 6 and kept: kept.pop(chance.randrange(len(kept)))
        elif case == 7 and kept:
            view = chance.choice(kept)
            assert len(bytes(view)) >= 0
            if isinstance(view, memoryview) and not view.readonly and len(view): view[0] = 1
        elif case == 8: chance.choice(kept).send() if kept else ports[at].receive(0)
    except (tautline.Error, BufferError, ValueError, AttributeError, TypeError):
        pass
    if len(kept) > 30: del kept[:20]
print("done")
"""


@pytest.mark.parametrize("link", ["udp", "vbus"])
def test_random_use_of_lent_memory_crashes_nothing(link: str, tmp_path: object) -> None:
    bus = f"{tmp_path}/bus" if link == "vbus" else ""
    seed = int(os.environ.get("TAUTLINE_SEED", "7"))
    with run_python(STORM, str(seed), link, bus) as storm:
        said, complained = storm.communicate(timeout=120)
    assert said.endswith("done\n"), said + complained


THREADS = """
import sys, threading, tautline
node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "a", "ip": "127.0.0.1"}])
port, other = node.queuing(3910, depth=64), node.queuing(3911, depth=64)
to = port.destination("a", 3911)
busy = 0
def work(number):
    global busy
    for turn in range(2000):
        try:
            if number % 2: port.send(to, b"x" * 1600)
            else: other.receive(0)
        except tautline.BusyError: busy += 1
        except tautline.SendError: pass
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("done")
"""


def test_threads_that_share_ports_crash_nothing() -> None:
    with run_python(THREADS) as threads:
        said, complained = threads.communicate(timeout=120)
    assert said == "done\n", said + complained
