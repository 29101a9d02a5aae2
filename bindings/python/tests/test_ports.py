"""Ports of all kinds, on links xdp, udp and vbus."""

from __future__ import annotations

import array
import time

import pytest
from conftest import PATIENCE_S, Pair, next_number

import tautline


def test_the_most_urgent_message_comes_first(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    for priority in (1, 7, 3, 7):
        sender.send(to, bytes([priority]), priority=priority)
    messages = [receiver.receive(PATIENCE_S) for _ in range(1)]
    # On the links with a queue in the kernel the first may come alone.
    messages += [receiver.receive(PATIENCE_S) for _ in range(3)]
    assert sorted(message.priority for message in messages) == [1, 3, 7, 7]
    assert all(message.data == bytes([message.priority]) for message in messages)
    assert receiver.receive(0) is None


def test_a_message_tells_its_sender_and_its_time(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    before = time.monotonic()
    sender.send(to, b"question")
    message = receiver.receive(PATIENCE_S)
    assert before - 0.1 <= message.arrival <= time.monotonic()
    assert message.source.port == sender.number and len(message) == 8 and bytes(message) == b"question"
    assert message.source == message.source and len({message.source, message.source}) == 1
    if pair.link == "vbus":
        assert message.source.address == "a"
    receiver.reply(message.source, b"answer", priority=7)
    answer = sender.receive(PATIENCE_S)
    assert (answer.data, answer.priority) == (b"answer", 7)
    assert "answer" not in repr(answer) and "6 bytes" in repr(answer)


def test_whatever_has_contiguous_bytes_can_be_sent(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    numbers = array.array("d", [1.0, 2.0])
    for message in (bytearray(b"bytes"), memoryview(b"xbytes")[1:], numbers, b""):
        sender.send(to, message)
        assert receiver.receive(PATIENCE_S).data == bytes(memoryview(message).cast("B"))
    with pytest.raises(BufferError):
        sender.send(to, memoryview(b"abcd")[::2])
    with pytest.raises(TypeError):
        sender.send(to, "text")  # type: ignore[arg-type]


def test_long_messages_travel_whole(pair: Pair) -> None:
    sender, receiver, to = pair.queuing(message_bytes_max=60_000, depth=64)
    for length in (1_485, 60_000):
        message = bytes(i % 251 for i in range(length))
        sender.send(to, message)
        assert receiver.receive(PATIENCE_S).data == message


def test_batches_and_merged_messages(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    batch = [(to, bytes([i]), 3) for i in range(40)]
    sent = 0
    while sent < len(batch):
        sent += sender.send_batch(batch[sent:])
    assert [receiver.receive(PATIENCE_S).data[0] for _ in range(40)] == list(range(40))
    for i in range(6):
        sender.merge(to, bytes([i] * 16))
    sender.flush()
    assert [receiver.receive(PATIENCE_S).data for _ in range(6)] == [bytes([i] * 16) for i in range(6)]


def test_a_sampling_port_keeps_the_last_value(pair: Pair) -> None:
    sender, receiver, to = pair.sampling(refresh_period=3600.0)
    assert receiver.read() is None and receiver.next(0) is None and not receiver.fresh
    for value in (b"1", b"2", b"3"):
        sender.send(to, value)
    sample = receiver.next(PATIENCE_S)
    while sample.data != b"3":
        sample = receiver.next(PATIENCE_S)
    assert sample.new and sample.valid and 0 <= sample.age
    again = receiver.read()
    assert again.data == b"3" and not again.new
    assert receiver.read_from(again.source).data == b"3"
    assert receiver.sources == [again.source]
    assert receiver.next(0) is None


def test_each_source_has_a_value_of_its_own(pair: Pair) -> None:
    hub = pair.b.sampling(next_number(), sources=4)
    arms = [pair.a.queuing(next_number()) for _ in range(3)]
    for arm in arms:
        arm.send(arm.destination("b", hub.number), arm.number.to_bytes(2, "big"))
    seen = {}
    while len(seen) < 3:
        sample = hub.next(PATIENCE_S)
        seen[sample.source.port] = int.from_bytes(sample.data, "big")
    assert seen == {arm.number: arm.number for arm in arms}
    assert len(hub.sources) == 3


def test_messages_are_lent_and_filled_in_place(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    with sender.lend(to, 7, priority=6) as loan:
        loan.view[:] = b"picture"
        loan.send()
    with receiver.receive(PATIENCE_S, in_place=True) as message:
        assert message.data == bytes(message.view) == b"picture" and message.priority == 6 and message.view.readonly
        assert message.source.port == sender.number
        with pytest.raises(tautline.BusyError, match="lent"):
            receiver.receive(0)
        with pytest.raises(TypeError):
            message.view[0] = 0
    assert message.released
    # Nothing was sent without send().
    sender.lend(to, 7).release()
    assert receiver.receive(0.05) is None
    assert receiver.receive(0.01, in_place=True) is None


def test_values_are_lent(pair: Pair) -> None:
    sender, receiver, to = pair.sampling(value_bytes_max=1_456)
    assert receiver.read(in_place=True) is None
    sender.send(to, bytes(range(200)) * 5)
    receiver.next(PATIENCE_S)
    with receiver.read(in_place=True) as sample:
        assert bytes(sample.view) == bytes(range(200)) * 5 and not sample.new
        assert sample.valid and 0 <= sample.age < PATIENCE_S


def test_waits_end_when_their_time_is_over(pair: Pair) -> None:
    _, receiver, _ = pair.queuing()
    began = time.monotonic()
    assert receiver.receive(timeout=0.12) is None
    assert time.monotonic() - began >= 0.12
    assert receiver.receive(until=time.monotonic() + 0.01) is None
    assert receiver.receive(until=0.0) is None
    with pytest.raises(tautline.ArgumentError, match="not both"):
        receiver.receive(1.0, until=1.0)


def test_losses_and_status(pair: Pair) -> None:
    sender, receiver, to = pair.queuing(depth=2)
    sent = 0
    for number in range(6):
        try:
            sender.send(to, bytes([number]))
            sent += 1
        except tautline.FullError as full:
            assert pair.link == "vbus" and full.remedy
    received = 0
    while receiver.receive(0.05) is not None:
        received += 1
    status = receiver.status()
    assert status["received"] == received and status["depth"] == 2 and status["kind"] == "queuing"
    assert sender.status()["sent"] == sent
    assert received + sum(status["dropped_full"]) == 6
    peer = receiver.losses()[0]
    assert isinstance(peer, tautline.PeerCounters) and peer.port == sender.number
    whole = pair.b.status()
    assert [port["key"] for port in whole["ports"]] == [str(receiver.number)]
    assert pair.b.link == pair.link and pair.link in pair.b.report


def test_ports_close_with_their_block(pair: Pair) -> None:
    number = next_number()
    with pair.a.queuing(number) as port:
        assert not port.closed
    assert port.closed and "closed" in repr(port)
    with pair.a.queuing(number) as port:
        assert port.number == number


def test_a_peer_on_a_bus_is_waited_for(plain_pair: Pair) -> None:
    if plain_pair.link != "vbus":
        return
    sender = plain_pair.a.queuing(next_number())
    with pytest.raises(tautline.PeerAbsentError, match="not on the bus") as absent:
        sender.destination("b", 4000, timeout=0.12)
    assert isinstance(absent.value, TimeoutError)
    with plain_pair.b.queuing(4000):
        sender.destination("b", 4000, timeout=PATIENCE_S)


def test_a_policed_port_says_so(loopback: Pair) -> None:
    port = loopback.b.queuing(next_number(), police_rate=1_000, police_burst=4)
    assert port.status()["policing"] == {"interval_ns": 1_000_000, "burst": 4}


def test_one_value_goes_to_many_readers(plain_pair: Pair) -> None:
    camera = plain_pair.a.sampling(next_number())
    if plain_pair.link != "vbus":
        for refused in (camera.readers, lambda: camera.follow("b", 1)):
            with pytest.raises(tautline.PortError, match="vbus"):
                refused()
        return
    readers = camera.readers()
    screens = [plain_pair.b.sampling(next_number()) for _ in range(3)]
    for screen in screens:
        screen.follow("a", camera.number)
    for picture in (b"first", b"second"):
        camera.send(readers, picture)
        assert [screen.next(PATIENCE_S).data for screen in screens] == [picture] * 3
    with pytest.raises(tautline.PortError, match="stranger"):
        screens[0].follow("stranger", camera.number)
    with pytest.raises(tautline.ArgumentError):
        screens[0].send(readers, b"not mine")


def test_one_message_goes_to_many_readers_and_a_slow_one_counts(plain_pair: Pair) -> None:
    planner = plain_pair.a.queuing(next_number(), depth=4)
    if plain_pair.link != "vbus":
        for refused in (planner.readers, lambda: planner.follow("b", 1)):
            with pytest.raises(tautline.PortError, match="vbus"):
                refused()
        return
    readers = planner.readers()
    prompt, slow = (plain_pair.b.queuing(next_number()) for _ in range(2))
    for log in (prompt, slow):
        log.follow("a", planner.number)
    for number in range(9):
        planner.send(readers, bytes([number]))
        assert prompt.receive(PATIENCE_S).data == bytes([number])
    assert [slow.receive(PATIENCE_S).data for _ in range(3)] == [b"\6", b"\7", b"\10"]
    assert (slow.status()["overwritten"], prompt.status()["overwritten"]) == (6, 0)
