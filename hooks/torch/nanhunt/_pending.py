# SPDX-License-Identifier: Apache-2.0
"""What has to wait for numbers from a device, in the order in which it came: readings of a step, then its rows.

Where nothing is on its way, which is always so on the CPU, everything is done at once. What belongs to a step whose
operations are held waits until it is over and all of them have come: see `begin_hold`.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanhunt._device import Fetch
    from nanhunt._session import Session
    from nanhunt._steps.hold import Hold

LOST = "unread values: readings of a device that were lost"  # the analyzer knows its beginning


class Pending:
    def __init__(self, session: Session) -> None:
        self._session = session
        self.items: deque[tuple[Sequence[Fetch], Callable[[], None], Callable[[], None]]] = deque()
        self._busy = False
        self.holds = False  # what comes is of a step that is held
        self._hold: Hold | None = None  # whose part is being done

    def begin_hold(self, hold: Hold) -> None:
        """What comes from here on is of this step, until `end_hold`."""
        def begin() -> None:
            self._hold = hold
            with hold:
                hold.deliver()

        self.holds = True
        self.items.append(((hold,), begin, _nothing))

    def end_hold(self, decide: Callable[[], None]) -> None:
        def end() -> None:
            try:
                decide()
            finally:
                self._hold = None

        self.holds = False
        self.items.append(((), end, _nothing))

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
                    if not all(fetch.is_here() for fetch in fetches):
                        return
                except Exception as error:  # the device is lost
                    self._session.note(f"{LOST}: {type(error).__name__}")
                    act = otherwise
                self.items.popleft()
                try:
                    with self._hold or _NO_HOLD:
                        act()
                except Exception as error:
                    self._session.failed(error, "what a device has read")
        finally:
            self._busy = False


_NO_HOLD: AbstractContextManager[None] = nullcontext()


def _nothing() -> None:
    return
