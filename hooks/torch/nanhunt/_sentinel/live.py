# SPDX-License-Identifier: Apache-2.0
"""Level sentinel: steps whose ops are watched as they run. They are held in memory, and reach the trace where the
step was not healthy; nothing has to be computed again to know what it did. So does the first one, for what needs no
failure to be wrong: formats and guard constants; with parameters of 16 bits the first eight, for updates that are
lost.

Watching costs time: the first steps are watched, then as many as the budget has room for. The others are seen from
outside, and replayed where they are bad.
"""
from __future__ import annotations

import math
import statistics
import sys
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._hooks.patches import has_other_hooks
from nanhunt._listener import Listener, RootCall
from nanhunt._pytorch import accelerator
from nanhunt._ranks import rank_and_world
from nanhunt._sentinel.origin import prove
from nanhunt._tap.tap_library import load_tap

if TYPE_CHECKING:
    from nanhunt._sentinel.sentinel import Sentinel
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_NARROW = (torch.float16, torch.bfloat16)
FIRST = 8     # steps that are watched in any case
_MEASURED = 16  # steps of either kind whose times are remembered
KEPT = 64 << 20  # bytes of what ops read at which badness began, in one step
KEPT_WRITTEN = 1 << 20  # ... of what each op in place may write over: it is copied whether it turns bad or not
_LONGEST = 3  # usual steps
_LOOK_EVERY = 8  # steps: how long these take is looked at
_COST_AT_MOST = 2.0  # of watching a step, in steps
_PLAIN_AFTER = 8  # watched steps one that is not
_WROTE_NARROW = 2  # State::wrote_weights of the tap
_LEARN = 4    # steps that must have run unwatched before it is known what watching costs


def _usual(times: Sequence[float]) -> float:
    """The lower quartile: a step now and then that takes long is not one."""
    return sorted(times)[(len(times) - 1) // 4]


class Budget:
    """Which steps to watch so that the time this takes stays below a share of all. Times are in seconds."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.steps = 0
        self._total = self._spent = 0.0
        self._times: dict[bool, deque[float]] = {kind: deque(maxlen=_MEASURED) for kind in (False, True)}
        self._counted: dict[bool, deque[float]] = {kind: deque(maxlen=_MEASURED) for kind in (False, True)}
        self._longest = {False: 0.0, True: 0.0}  # that a step counts
        self._cost = 0.0  # of watching one step
        self._watched_since = 0  # the last step that was not

    def step_took(self, seconds: float, watched: bool) -> None:
        """What a program does between steps (it waits for data, validates, saves) earns nothing: a step counts as at
        most three usual ones."""
        times = self._times[watched]
        times.append(seconds)
        self._watched_since = self._watched_since + 1 if watched else 0
        if self.steps % _LOOK_EVERY == 0 or watched or len(times) < _MEASURED:
            self._longest[watched] = _LONGEST * _usual(times)
            self._cost = self._measured_cost()
        self.steps += 1
        counted = min(seconds, self._longest[watched])
        self._counted[watched].append(counted)
        self._total += counted
        if watched and self.steps > FIRST:
            self._spent = max(0.0, self._spent + counted - self._mean(False))

    def usual_step(self) -> float:
        """Seconds of one that is not watched."""
        times = self._times[False]
        return _usual(times) if times else 0.0

    def _mean(self, watched: bool) -> float:
        """Of what steps of a kind count. Usual ones tell too little: a watched step is more often a long one."""
        return statistics.fmean(self._counted[watched] or (0.0,))

    def _measured_cost(self) -> float:
        if not self._counted[False] or not self._counted[True]:
            return 0.0
        return max(0.0, self._mean(True) - self._mean(False))

    def has_room(self) -> bool:
        """For the next step."""
        if self.share <= 0:
            return False
        if self.share >= 1 or self.steps < FIRST:
            return True
        if self._watched_since >= _PLAIN_AFTER:  # what an unwatched step takes changes
            return False
        if len(self._times[False]) < _LEARN:
            return False
        return self._spent + self._cost <= self.share * self._total

    def may_go_on(self) -> bool:
        """Whether the step after a watched one that is about to run is watched as well, as likely as not."""
        cheap = self._cost <= self.share * self._mean(False) and self._watched_since + 1 < _PLAIN_AFTER
        return self.share >= 1 or self.steps + 1 < FIRST or cheap


class BudgetOfRanks(Budget):
    """Of one of several ranks: all must watch the same steps, and no two have the same times. So steps are counted, and
    watching one is taken to cost twice a step that is not watched: more was never measured."""

    def has_room(self) -> bool:
        if 0 < self.share < 1 and self.steps >= FIRST:
            return self.steps % math.ceil(_COST_AT_MOST / self.share) == 0
        return super().has_room()


class Live(Listener):
    """Which listeners hear the next step, and what becomes of the ops of the last one."""

    def __init__(self, session: Session, values: Values, outside: Sequence[Listener], inside: Sequence[Listener],
                 sentinel: Sentinel) -> None:
        """`outside`: who hears any step; `inside`: who hears its ops."""
        self.session, self.values, self.trips = session, values, sentinel.trips
        self._outside = [*outside, self]
        # Marks come before anything looks at what they mark.
        self._inside = [outside[0], self, *inside, *outside[1:]]
        self.budget = Budget(session.options.budget / 100)
        self.trips.usual_step = lambda: self.budget.usual_step()
        sentinel.validation.can_listen = self.can_watch
        self._origins: int | None = None  # ops at which badness had begun when optimizers did
        self._began = time.perf_counter()
        self._plain: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # nothing of them is compiled
        self._bad_copy = False  # a copy of a parameter that lasts was written with what began to be bad
        self._heard = True   # ops since contents were last known
        self._shown = 0      # healthy steps whose ops are in the trace, for the audits that need no failure
        self._narrow = False  # a model has parameters of 16 bits
        self._between = False  # what the program does to weights before a step that is not watched is heard, and held
        self._betweens = 0  # of those that are in the trace
        self._passing: torch.optim.Optimizer | None = None  # it steps, and its ops pass by
        session.pass_by = self._pass_by  # type: ignore[method-assign]
        session.before_told = self._before_told  # type: ignore[method-assign]
        self._watch(False)

    def begin(self) -> None:
        """The recorder is open, and which rank this is does not change any more."""
        if rank_and_world()[1] > 1:
            self.budget = BudgetOfRanks(self.budget.share)
        self._began = time.perf_counter()
        self._watch(self.budget.has_room() and self.can_watch())

    def can_watch(self) -> bool:
        """A device is watched by replays: what reading it at each op costs was never measured. Compiled code passes the
        dispatcher by."""
        return (self.values.tap is not None and not accelerator() and self.session.kernels is None
                and not self._is_compiled())

    def _is_compiled(self) -> bool:
        dynamo = sys.modules.get("torch._dynamo.utils")
        return dynamo is not None and bool(dynamo.counters["frames"])

    def _watch(self, on: bool) -> None:
        self.session.state.deaf = 0
        session, tap, recorder = self.session, self.session.tap, self.session.recorder
        if not on and not session.live and session.listeners is self._outside:
            return
        session.live, session.stays_live = on, on and self.budget.may_go_on()
        session.listeners = self._inside if on else self._outside
        if tap is None or recorder is None:
            return
        if on:
            if not self._heard:
                tap.forget()
            tap.hold(lib.HOLD, KEPT, KEPT_WRITTEN)
            if self._is_shown() or self.budget.steps < 2:  # what is told of averages begins after the first step
                tap.hand_over()
            session.tell("on_hold")
            tap.on()  # from here on: what comes before the first call of a root is part of the step
        else:
            tap.keep(0)
            tap.off()
            session.places = None
        self._heard = on

    # Once the program is known to write weights between two steps, what it does there is heard before steps that are
    # not watched as well, and is in the trace where it made them bad.
    def _begin_between(self) -> None:
        tap, recorder = self.session.tap, self.session.recorder
        if tap is None or recorder is None or self.budget.share <= 0:
            return
        tap.forget()
        tap.hold(lib.HOLD, KEPT, KEPT_WRITTEN)
        tap.on()
        self._between = True

    def _end_between(self) -> None:
        self._between = False
        session, tap, recorder = self.session, self.session.tap, self.session.recorder
        if tap is None or recorder is None:
            return
        tap.off()
        keeps = bool(session.state.bad_copy) and self._betweens < session.options.max_trips
        self._betweens += keeps
        tap.hold(lib.KEEP if keeps else lib.DROP)
        if keeps:
            prove(session, tap)
        tap.keep(0)

    # Half of the ops of a small step are its optimizer's.
    def _pass_by(self, optimizer: torch.optim.Optimizer) -> None:
        tap = self.session.tap
        if tap is None or has_other_hooks(optimizer):
            return
        self._passing, self.session.passed_by = optimizer, True
        tap.leave_out(True)

    def _hear_again(self) -> None:
        load_tap().leave_out(False)  # first of all: nobody else does, should Ctrl-C come
        optimizer, self._passing = self._passing, None
        tap = self.session.tap
        if tap is not None and optimizer is not None:
            self.values.forget_optimizer()
            tap.were_written(self.values.tensors_of(optimizer).owned)

    def _go_on(self) -> None:
        """What came before is over: the program's own writes, or an optimizer's step, though it may have raised."""
        if self._between:
            self._end_between()
        if self._passing is not None:
            self._hear_again()

    def before_validated(self, module: torch.nn.Module) -> None:
        if self._between or self._passing is not None:
            self._go_on()

    def before_backward(self, tensors: Sequence[torch.Tensor], gradients: Any, kwargs: dict[str, Any]) -> None:
        if self._between or self._passing is not None:
            self._go_on()

    def before_grad(self, outputs: Any, inputs: Any, kwargs: dict[str, Any]) -> None:
        if self._between or self._passing is not None:
            self._go_on()

    def on_root_enter(self, call: RootCall) -> None:
        if self._between or self._passing is not None:
            self._go_on()
        self.session.state.deaf = 0
        if not self.session.live or call.module in self._plain:
            return
        modules = call.module.modules()
        if any(type(m).__name__ == "OptimizedModule" or m._compiled_call_impl is not None for m in modules):
            self._stop()
        else:
            self._plain.add(call.module)
            self._narrow = self._narrow or any(p.dtype in _NARROW for p in call.module.parameters())

    def _stop(self) -> None:
        """In the middle of a step: what was heard of it is not all of it."""
        tap = self.session.tap
        if tap is not None:
            tap.hold(lib.DROP)
        self._watch(False)
        self.budget.share = 0.0

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._between or self._passing is not None:
            self._go_on()
        self.session.state.deaf, self.session.passed_by = 0, False
        self.session.shows_ops = self._is_shown()
        if self.session.shows_ops and self.session.tap is not None:
            self.session.tap.hand_over()
        if self.session.live and self._origins is None:
            self._origins = int(self.session.state.births)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Of who hears ops the first."""
        if self._passing is not None:
            self._hear_again()

    def on_step_end(self, step: int, skipped: bool) -> None:
        if self._between or self._passing is not None:
            self._go_on()
        self._bad_copy = bool(self.session.state.bad_copy)

    def _before_told(self) -> None:
        """The row of the step is about to be written: rows of ops that are wanted come before."""
        session = self.session
        if session.live and session.tap is not None and (session.wants_ops or self._bad_copy or self._is_shown()):
            session.tap.hand_over()

    def on_step_recorded(self, step: int) -> None:
        session = self.session
        if session.recorder is None:
            return
        now = time.perf_counter()
        self.budget.step_took(now - self._began, session.live)
        self._began = now
        if session.live and not session.wants_ops and self._origins is not None:
            session.wants_ops = int(session.state.births) != self._origins and self.trips.may_replay(step)
        if session.live and self._bad_copy:
            session.wants_ops = session.wants_ops or self.trips.may_replay(step)
        self._origins = None
        if session.overran:  # what came since its last boundary is part of the next step, which goes on as it began
            return
        if session.live and self._is_compiled():
            session.wants_ops = False
            self._stop()
        if session.live:
            self._end_hold()
        elif self.budget.share > 0:
            session.note("operations of steps that the budget had no room for")
        session.wants_ops = False
        self._watch(self.budget.has_room() and self.can_watch())
        if not session.live and session.state.wrote_weights and self.can_watch():
            self._begin_between()

    def _is_shown(self) -> bool:
        narrow = self._narrow or bool(self.session.state.wrote_weights & _WROTE_NARROW)
        return self.session.live and self._shown < (FIRST if narrow else 1)

    def _end_hold(self) -> None:
        session, tap = self.session, self.session.tap
        if session.recorder is None or tap is None:
            return
        shows = not session.wants_ops and self._is_shown()
        self._shown += shows
        tap.hold(lib.KEEP if session.wants_ops or shows else lib.DROP)
        if session.wants_ops:
            prove(session, tap)

    def on_close(self) -> None:
        if self._between or self._passing is not None:
            self._go_on()
        if self.session.live:
            self._end_hold()
