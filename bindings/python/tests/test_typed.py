"""Typed messages: dataclasses and numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Tuple

import numpy as np
import pytest
from conftest import PATIENCE_S, Pair

import tautline


@dataclass
class JointState:
    stamp: Annotated[int, "Q"]
    valid: Annotated[bool, "?"]
    position: Annotated[Tuple[float, ...], "6d"]
    name: Annotated[bytes, "8s"]


JOINT_STATE = tautline.layout(JointState)
STATE = JointState(7, True, (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), b"arm\0\0\0\0\0")
DTYPE = np.dtype([("stamp", "<u8"), ("position", "<f8", 6)])
ARRAY_STATE = tautline.layout(DTYPE, name="ArrayState")


def test_a_dataclass_travels(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    assert JOINT_STATE.size == 8 + 1 + 48 + 8 and JOINT_STATE.pack(STATE)[:8] == (7).to_bytes(8, "little")
    sender.send(to, JOINT_STATE.pack(STATE))
    assert JOINT_STATE.unpack(receiver.receive(PATIENCE_S)) == STATE
    sender.send(to, JOINT_STATE.pack(STATE))
    with receiver.receive(PATIENCE_S, in_place=True) as message:
        assert JOINT_STATE.unpack(message) == STATE


def test_another_size_is_refused_by_name(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    sender.send(to, b"short")
    message = receiver.receive(PATIENCE_S)
    for layout, name, size in ((JOINT_STATE, "JointState", 65), (ARRAY_STATE, "ArrayState", 56)):
        with pytest.raises(tautline.LayoutError, match=f"{name} has {size} bytes, and a message from .* has 5") as error:
            layout.unpack(message)
        assert error.value.remedy and isinstance(error.value, ValueError)


def test_numpy_arrays_travel_and_are_looked_at_in_place(pair: Pair) -> None:
    sender, receiver, to = pair.queuing()
    state = np.zeros((), dtype=DTYPE)
    state["stamp"], state["position"] = 9, np.arange(6)
    assert ARRAY_STATE.pack(state) == state.tobytes()
    sender.send(to, state)
    assert ARRAY_STATE.unpack(receiver.receive(PATIENCE_S)) == state
    with sender.lend(to, ARRAY_STATE.size) as loan:
        place = np.frombuffer(loan.view, dtype=DTYPE)
        place["stamp"] = 10
        with pytest.raises(BufferError):
            loan.send()
        del place
        loan.send()
    message = receiver.receive(PATIENCE_S, in_place=True)
    value = ARRAY_STATE.unpack(message)
    assert value["stamp"] == 10 and not value.flags.writeable and not value.flags.owndata
    with pytest.raises(BufferError):
        message.release()
    del value
    message.release()


def test_values_that_do_not_fit_their_layout() -> None:
    for wrong, expected in [
        (JointState(7, True, (0.0,), b""), "position has 6 values, and 1 were given"),
        (JointState(-1, True, (0.0,) * 6, b""), "is no JointState"),
    ]:
        with pytest.raises(tautline.LayoutError, match=expected):
            JOINT_STATE.pack(wrong)
    with pytest.raises(tautline.LayoutError, match="one element of 56 bytes"):
        ARRAY_STATE.pack(np.zeros(2, dtype=DTYPE))

    @dataclass
    class Vague:
        stamp: int

    @dataclass
    class Wrong:
        stamp: Annotated[int, "w"]

    for cls, expected in ((Vague, "stamp does not say"), (Wrong, "is no format"), (int, "neither a dataclass")):
        with pytest.raises(tautline.LayoutError, match=expected):
            tautline.layout(cls)
