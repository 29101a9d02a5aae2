"""Waiting in `asyncio`: the event loop watches a port's descriptor for the one task that waits."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Optional, Set, TypeVar

from ._errors import BusyError
from ._tautline import Datagram, Frame, Message, QueuingPort, RawPort, Sample, SamplingPort, UdpPort

_Found = TypeVar("_Found")
_Port = Any

# Numbers of the ports that a task waits for.
_watched: Set[int] = set()


async def receive(
    port: QueuingPort | UdpPort | RawPort, timeout: Optional[float]
) -> Message | Datagram | Frame | None:
    """The most urgent message or frame; None when the time is over."""
    return await _wait(port, lambda: port.receive(0.0), timeout)


async def next_value(port: SamplingPort, timeout: Optional[float]) -> Optional[Sample]:
    """The next value that the port has not seen; None when the time is over."""
    return await _wait(port, lambda: port.next(0.0), timeout)


def check_unwatched(number: int) -> None:
    """Refuses to close a port that a task waits for: the loop would never wake the task."""
    if number in _watched:
        message = "a task waits for a message of this port"
        raise BusyError(message, "cancel the task, and close the port when it has ended")


async def _wait(port: _Port, look: Callable[[], Optional[_Found]], timeout: Optional[float]) -> Optional[_Found]:
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    # From here on, a look that finds nothing arms the descriptor.
    descriptor = port.fileno()
    while (found := look()) is None:
        remaining = None if deadline is None else deadline - loop.time()
        if remaining is not None and remaining <= 0:
            return None
        await _readable(loop, port._id, descriptor, remaining)
    return found


async def _readable(loop: asyncio.AbstractEventLoop, number: int, descriptor: int, timeout: Optional[float]) -> None:
    if number in _watched:
        message = "another task waits for a message of this port"
        raise BusyError(message, "have one task receive, and hand messages on through an asyncio.Queue")
    readable = loop.create_future()
    _watched.add(number)
    loop.add_reader(descriptor, _wake, readable)
    timer = None if timeout is None else loop.call_later(timeout, _wake, readable)
    try:
        await readable
    finally:
        if timer is not None:
            timer.cancel()
        loop.remove_reader(descriptor)
        _watched.discard(number)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
