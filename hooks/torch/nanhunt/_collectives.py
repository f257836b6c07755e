# SPDX-License-Identifier: Apache-2.0
"""Rows of collectives: what a rank gives is read before the call, what it got once the work has ended."""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._ranks import Call, Calls, Pending
from nanhunt._values import flat

if TYPE_CHECKING:
    from nanhunt._places import Places, Sites
    from nanhunt._plans import Arg, Plan
    from nanhunt._session import Session
    from nanhunt._values import Values


class Collectives:
    """The part of an OpWriter that tells of other ranks. Nobody here waits for a work to end."""

    session: Session
    values: Values
    places: Places
    sites: Sites
    phase: int | None
    off: bool
    where: tuple[str, int] | None

    def begin_collectives(self) -> None:
        self.calls = Calls()
        self._begun: Call | None = None   # the collective that runs
        self.pending: list[Pending] = []  # collectives that have not ended

    def _given(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[tuple[Arg, Any]]:
        raise NotImplementedError

    def _carefully(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> None:
        raise NotImplementedError

    def _give(self, plan: Plan, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Reads what this rank is about to give: a collective may write over it."""
        self._begun = None
        recorder = self.session.recorder
        if recorder is not None and not self.off:
            try:
                begun = self.calls.begin(plan.op, {arg.name: value for arg, value in self._given(plan, args, kwargs)})
                if begun is not None:
                    self._begun, given = begun
                    shares = [quad for t in flat(given) for quad in [self.values.describe(t)] if quad is not None]
                    words = [word for quad in shares for word in quad]
                    recorder.collective(self.session.step, lib.NO_SEQ, *self._begun, words)
                    self.values.release_hosts()
            except Exception as error:
                self.session.failed(error, f"collective {plan.op}")
        return original(*args, **kwargs)

    def _collective(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> None:
        recorder = self.session.recorder
        if recorder is None or plan.waits:
            return
        phase = self.session.phase if self.phase is None else self.phase
        path = self.places.backward()[0] if phase == lib.BACKWARD else self.places.path
        site = max(0, self.sites.of(sys._getframe(3), recorder))
        self.pending.append(Pending(plan, args, kwargs, result, (path, site), self._begun))
        self.tell_finished(None, ())

    def tell_finished(self, plan: Plan | None, args: tuple[Any, ...]) -> None:
        """Rows of the collectives that have ended. `plan`, `args`: of the op that is about to run."""
        waited = args[0] if plan is not None and plan.waits and args else None
        read: set[int] = set()
        if plan is not None and not plan.collective:
            read = {t.untyped_storage()._cdata for t in flat(args) if t.layout is torch.strided}
        for one in list(self.pending):
            try:
                if not one.ended(waited, read):
                    continue
                self.pending.remove(one)
                if self.off:
                    continue
                self.where = one.where
                self._carefully(one.plan, one.args, one.kwargs, one.result)
                recorder = self.session.recorder
                if one.call is not None and recorder is not None:
                    recorder.collective(self.session.step, recorder.next_seq() - 1, *one.call)
            except Exception as error:
                self.session.failed(error, f"collective {one.plan.op}")
            finally:
                self.where = None
