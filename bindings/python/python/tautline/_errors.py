"""Exceptions. Each says what happened (`message`) and what to do (`remedy`); its text is both."""

from __future__ import annotations

from typing import Optional


class Error(Exception):
    """Any error of Tautline.

    >>> import tautline
    >>> try:
    ...     tautline.Node(link="udp", address="127.0.0.1").queuing(5000)
    ... except tautline.Error as error:
    ...     print(error.message, "|", error.remedy)
    port 5000 is out of range, 1 to 4095 | use a number within the range
    """

    message: str
    remedy: Optional[str]

    def __init__(self, message: str, remedy: Optional[str] = None) -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        if self.remedy is None:
            return self.message
        return f"{self.message}\n  what to do: {self.remedy}"


class OpenError(Error):
    """A node could not be opened."""


class ConfigError(OpenError, ValueError):
    """A configuration is wrong, or its file cannot be read."""


class NeighbourError(Error):
    """A neighbour was not entered."""


class PortError(Error):
    """A port could not be opened, or a destination not be resolved."""


class PeerAbsentError(PortError, TimeoutError):
    """Nobody has opened the peer's port on the bus in time."""


class SendError(Error):
    """A message was not sent, or not whole."""


class FullError(SendError):
    """There was no room: try again later, or send less."""


class ReceiveError(Error):
    """A message could not be received. What has come stays for the next call."""


class ClosedError(Error):
    """A port or node is closed, a message was given back, or they belong to the process this one was forked from."""


class BusyError(Error):
    """A port is in use: by a call in another thread, by a task that waits, or by a message that is lent."""


class ArgumentError(Error, ValueError):
    """An argument is outside its range."""


class LayoutError(Error, ValueError):
    """Bytes have not the size of a typed message, or a type has no layout."""


# The names that programs use and see.
for _class in list(globals().values()):
    if isinstance(_class, type) and issubclass(_class, Error):
        _class.__module__ = "tautline"
del _class
