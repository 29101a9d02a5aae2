"""An event loop of `asyncio` that is awake when its messages come."""

from __future__ import annotations

import selectors
from typing import List, Optional, Tuple

from ._tautline import Awake


class AwakeSelector(selectors.EpollSelector):
    """A selector for the event loop of `asyncio`: the loop's waits end awake, as those of `Awake`. All descriptors of
    the loop are one flow, so it is for loops with one rhythm. Timeouts are not rounded up to milliseconds.

    >>> import asyncio, tautline
    >>> loop = asyncio.SelectorEventLoop(tautline.AwakeSelector())
    >>> loop.run_until_complete(asyncio.sleep(0.001, "done"))
    'done'
    >>> loop.close()
    """

    def __init__(self) -> None:
        super().__init__()
        self._awake = Awake(self.fileno())

    def select(self, timeout: Optional[float] = None) -> List[Tuple[selectors.SelectorKey, int]]:
        """Descriptors that are ready, after a wait of at most `timeout` seconds."""
        if timeout is None or timeout > 0:
            self._awake.wait(timeout)
        return super().select(0)

    @property
    def report(self) -> str:
        """Rhythm of the loop's messages, and how they were found, in words."""
        return self._awake.report
