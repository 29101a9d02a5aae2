"""Typed messages: values of a dataclass, or numpy's structured arrays, as bytes of one fixed layout."""

from __future__ import annotations

import dataclasses
import struct
import typing
from typing import Any, Generic, List, Optional, Tuple, Type, TypeVar, Union, overload

from ._errors import LayoutError
from ._tautline import Datagram, Frame, Message, Sample

T = TypeVar("T")

# Anything with contiguous bytes. (`collections.abc.Buffer` is there since Python 3.12.)
_Buffer = Union[bytes, bytearray, memoryview]


class Layout(Generic[T]):
    """Layout of a typed message: its name, its size in bytes, and how values become bytes and back. Made by `layout()`.

    A message of another size is refused by name, with LayoutError.
    """

    #: Name of the type, for errors.
    name: str
    #: Bytes of a message.
    size: int

    def pack(self, value: T) -> bytes:
        """The bytes of a value."""
        raise NotImplementedError

    def unpack(self, message: Any) -> T:
        """The value in a message, or in bytes."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<Layout {self.name}, {self.size} bytes>"

    def _checked(self, message: Any) -> Any:
        data = message.view if isinstance(message, (Message, Sample, Datagram, Frame)) else message
        length = memoryview(data).nbytes
        if length != self.size:
            source = getattr(message, "source", None)
            origin = "" if source is None else f" from {source}"
            raise LayoutError(
                f"{self.name} has {self.size} bytes, and a message{origin} has {length}",
                "use the same type on both sides, or look at which port sends what",
            )
        return data


class _StructLayout(Layout[T]):
    """Layout of a dataclass: its fields one after the other, little-endian, without padding."""

    def __init__(self, cls: Type[T]) -> None:
        self.name = cls.__qualname__
        self._cls = cls
        self._names: List[str] = []
        # Number of values of each field; None if the field is the value itself.
        self._counts: List[Optional[int]] = []
        formats = "<"
        hints = typing.get_type_hints(cls, include_extras=True)
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            code = _format_of(self.name, field.name, hints[field.name])
            values = len(struct.unpack("<" + code, bytes(struct.calcsize("<" + code))))
            self._names.append(field.name)
            self._counts.append(None if code[-1] == "s" or code[:-1] in ("", "1") else values)
            formats += code
        self._struct = struct.Struct(formats)
        self.size = self._struct.size

    def pack(self, value: T) -> bytes:
        values: List[Any] = []
        for name, count in zip(self._names, self._counts):
            part = getattr(value, name)
            if count is None:
                values.append(part)
            elif len(part) == count:
                values.extend(part)
            else:
                raise LayoutError(f"{self.name}.{name} has {count} values, and {len(part)} were given")
        try:
            return self._struct.pack(*values)
        except struct.error as error:
            raise LayoutError(f"{value!r} is no {self.name}: {error}") from error

    def unpack(self, message: Any) -> T:
        flat = self._struct.unpack(self._checked(message))
        values: List[Any] = []
        at = 0
        for count in self._counts:
            values.append(flat[at] if count is None else flat[at : at + count])
            at += 1 if count is None else count
        return self._cls(*values)


class _NumpyLayout(Layout[Any]):
    """Layout of one element of a numpy type."""

    def __init__(self, dtype: Any, name: Optional[str]) -> None:
        self._dtype = dtype
        self.name = name if name is not None else str(dtype)
        self.size = dtype.itemsize

    def pack(self, value: Any) -> bytes:
        import numpy

        array = numpy.asarray(value, dtype=self._dtype)
        if array.nbytes != self.size:
            raise LayoutError(f"{self.name} is one element of {self.size} bytes, and {array.nbytes} were given")
        return array.tobytes()

    def unpack(self, message: Any) -> Any:
        import numpy

        # An array without dimensions over the message's own bytes: nothing is copied.
        return numpy.frombuffer(self._checked(message), dtype=self._dtype).reshape(())


@overload
def layout(cls: Type[T]) -> Layout[T]: ...
@overload
def layout(cls: Any, name: Optional[str] = None) -> Layout[Any]: ...


def layout(cls: Any, name: Optional[str] = None) -> Layout[Any]:
    """The layout of a dataclass, or of a numpy dtype.

    Each field of a dataclass says by `typing.Annotated` how it lies in the message, with a format of `struct`:
    little-endian, one after the other, without padding. "6d" is a tuple of six floats, "8s" eight bytes.

    >>> from dataclasses import dataclass
    >>> from typing import Annotated, Tuple
    >>> import tautline
    >>> @dataclass
    ... class JointState:
    ...     stamp: Annotated[int, "Q"]
    ...     position: Annotated[Tuple[float, ...], "3d"]
    >>> joint_state = tautline.layout(JointState)
    >>> joint_state
    <Layout JointState, 32 bytes>
    >>> joint_state.unpack(joint_state.pack(JointState(7, (0.0, 0.5, 1.0))))
    JointState(stamp=7, position=(0.0, 0.5, 1.0))
    >>> joint_state.unpack(b"short")
    Traceback (most recent call last):
      ...
    tautline.LayoutError: JointState has 32 bytes, and a message has 5
      what to do: use the same type on both sides, or look at which port sends what

    A numpy dtype gives arrays without dimensions over the message's own bytes; over a lent message that is no copy at
    all, and the loan cannot end before the array does. `name` is for errors.
    """
    if dataclasses.is_dataclass(cls) and isinstance(cls, type):
        return _StructLayout(cls)
    if hasattr(cls, "itemsize") and hasattr(cls, "fields"):
        return _NumpyLayout(cls, name)
    raise LayoutError(f"{cls!r} is neither a dataclass nor a numpy dtype", "decorate the class with @dataclass")


def _format_of(owner: str, field: str, hint: Any) -> str:
    metadata: Tuple[Any, ...] = getattr(hint, "__metadata__", ())
    codes = [code for code in metadata if isinstance(code, str)]
    remedy = 'such as `stamp: Annotated[int, "Q"]`; the formats are those of the module struct'
    if len(codes) != 1:
        raise LayoutError(f"{owner}.{field} does not say how it lies in a message", remedy)
    try:
        struct.calcsize("<" + codes[0])
    except struct.error as error:
        raise LayoutError(f"{owner}.{field}: {codes[0]!r} is no format: {error}", remedy) from error
    return codes[0]


Layout.__module__ = "tautline"
layout.__module__ = "tautline"
