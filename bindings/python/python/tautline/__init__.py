"""Real-time datagrams on stock Linux.

A `Node` is one participant on a network or a bus. It has numbered ports: a `QueuingPort` keeps every message and hands
out the most urgent first, a `SamplingPort` keeps the last value with its age, a `UdpPort` speaks to peers that do not
run Tautline, a `RawPort` has whole Ethernet frames. All times are seconds: moments on `time.monotonic()`, durations and
timeouts as in Python's own sockets.

>>> import tautline
>>> node = tautline.Node(link="udp", address="127.0.0.1", neighbour=[{"name": "motor", "ip": "127.0.0.1"}])
>>> port, motor = node.queuing(3101), node.queuing(3102)
>>> port.send(port.destination("motor", 3102), b"hold altitude", priority=tautline.HIGHEST)
>>> motor.receive(timeout=1.0).data
b'hold altitude'
"""

from ._awake import AwakeSelector
from ._errors import (
    ArgumentError,
    BusyError,
    ClosedError,
    ConfigError,
    Error,
    FullError,
    LayoutError,
    NeighbourError,
    OpenError,
    PeerAbsentError,
    PortError,
    ReceiveError,
    SendError,
)
from ._layout import Layout, layout
from ._tautline import (
    Awake,
    Cycle,
    Datagram,
    Destination,
    Frame,
    Loan,
    Message,
    Node,
    QueuingPort,
    RawPort,
    Sample,
    SamplingPort,
    Source,
    Tick,
    UdpPort,
    __version__,
    sleep_until,
)
from ._types import PeerCounters

#: Priorities: any number from 0 to 7. Messages are sent with NORMAL unless another is given.
LOWEST = 0
NORMAL = 3
HIGHEST = 7

__all__ = [
    "HIGHEST",
    "LOWEST",
    "NORMAL",
    "ArgumentError",
    "Awake",
    "AwakeSelector",
    "BusyError",
    "ClosedError",
    "ConfigError",
    "Cycle",
    "Datagram",
    "Destination",
    "Error",
    "Frame",
    "FullError",
    "Layout",
    "LayoutError",
    "Loan",
    "Message",
    "NeighbourError",
    "Node",
    "OpenError",
    "PeerAbsentError",
    "PeerCounters",
    "PortError",
    "QueuingPort",
    "RawPort",
    "ReceiveError",
    "Sample",
    "SamplingPort",
    "SendError",
    "Source",
    "Tick",
    "UdpPort",
    "__version__",
    "layout",
    "sleep_until",
]
