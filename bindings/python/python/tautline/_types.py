"""Facts about peers."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class HasFileno(Protocol):
    """An object with a descriptor, such as a socket."""

    def fileno(self) -> int: ...


class PeerCounters(NamedTuple):
    """Frames from one peer's port to this port, and losses on the way.

    >>> import tautline
    >>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "hub", "ip": "127.0.0.1"}])
    >>> port, hub = node.queuing(3103), node.queuing(3104)
    >>> port.send(port.destination("hub", 3104), b"1")
    >>> _ = hub.receive()
    >>> peer = hub.losses()[0]
    >>> peer.port, peer.received, peer.lost
    (3103, 1, 0)
    """

    #: Address of the peer's node.
    address: str
    #: Number of its port.
    port: int
    #: Frames that arrived, each once.
    received: int
    #: Frames that the sequence numbers say were sent and that did not arrive.
    lost: int
    #: Frames that arrived more than once.
    duplicates: int
    #: Times that the peer began to count anew.
    restarts: int


PeerCounters.__module__ = "tautline"
