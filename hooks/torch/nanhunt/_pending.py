# SPDX-License-Identifier: Apache-2.0
"""What has to wait for numbers from a device, in the order in which it came: readings of a step, then its rows.

Where nothing is on its way, which is always so on the CPU, everything is done at once.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanhunt._device import Fetch
    from nanhunt._session import Session

LOST = "unread values: readings of a device that were lost"  # the analyzer knows its beginning


class Pending:
    def __init__(self, session: Session) -> None:
        self._session = session
        self.items: deque[tuple[Sequence[Fetch], Callable[[], None], Callable[[], None]]] = deque()
        self._busy = False

    def later(self, act: Callable[[], None]) -> None:
        """Does it when all that came before is known: now, where nothing is on its way."""
        if not self.items:
            act()
        else:
            self.items.append(((), act, _nothing))

    def expect(self, fetches: Sequence[Fetch], act: Callable[[], None],
               otherwise: Callable[[], None] | None = None) -> None:
        """Does it once the numbers are here. `otherwise`: they will never be."""
        self.items.append((fetches, act, otherwise or _nothing))

    def poll(self) -> None:
        """Does what can be done, without waiting."""
        self._go(wait=False)

    def drain(self) -> None:
        """Waits for all that is on its way."""
        self._go(wait=True)

    def _go(self, wait: bool) -> None:
        if self._busy or not self.items:
            return
        from nanhunt import _device

        if _device.is_capturing():  # asking an event would break the capture
            return
        self._busy = True
        try:
            while self.items:
                fetches, act, otherwise = self.items[0]
                try:
                    if wait:
                        for fetch in fetches:
                            fetch.wait()
                    elif not all(fetch.is_here() for fetch in fetches):
                        return
                except Exception as error:  # the device is lost
                    self._session.note(f"{LOST}: {type(error).__name__}")
                    act = otherwise
                self.items.popleft()
                try:
                    act()
                except Exception as error:
                    self._session.failed(error, "what a device has read")
        finally:
            self._busy = False


def _nothing() -> None:
    return
