"""Typed messages on a bus, in one process: what `mypy --strict` is held against.

    python typed.py
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from typing import Annotated, Optional, Tuple

import tautline


@dataclass
class JointState:
    """Where a joint is."""

    stamp: Annotated[int, "Q"]
    position: Annotated[Tuple[float, ...], "6d"]


JOINT_STATE = tautline.layout(JointState)


def latest(port: tautline.SamplingPort) -> Optional[JointState]:
    """The last state, if it is still valid."""
    sample = port.read()
    if sample is None or not sample.valid:
        return None
    return JOINT_STATE.unpack(sample)


async def first_command(port: tautline.QueuingPort) -> bytes:
    """The next command, within a second."""
    message = await port.receive_async(timeout=1.0)
    return b"" if message is None else message.data


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        bus = {"link": "vbus", "bus": f"{directory}/cell"}
        arm = tautline.Node(node="arm", neighbour=[{"name": "desk"}], **bus)
        desk = tautline.Node(node="desk", neighbour=[{"name": "arm"}], **bus)
        with arm.queuing(1) as publisher, desk.sampling(2) as state, desk.queuing(3) as commands:
            publisher.send(publisher.destination("desk", 2), JOINT_STATE.pack(JointState(1, (0.0,) * 6)))
            publisher.send(publisher.destination("desk", 3), b"stop", priority=tautline.HIGHEST)
            state.next(timeout=1.0)
            print(latest(state), asyncio.run(first_command(commands)))


if __name__ == "__main__":
    main()
