# SPDX-License-Identifier: Apache-2.0
"""Level live: operations of a step are heard as they run and held in memory. They reach the trace where the step was
not healthy. So do those of the first step, for what needs no failure to be wrong: formats and guard constants; with
parameters of 16 bits, or under autocast to fp16, those of a few more, for updates and gradients that are lost.

With a budget some steps are left out: the first ones are heard, then as many as it has room for, and those that follow
a bad one.
"""
from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from nanhunt import _library as lib
from nanhunt._listener import Listener, RootCall
from nanhunt._pytorch import accelerator
from nanhunt._ranks import is_distributed, rank_and_world
from nanhunt._setup.model_setup import autocast_formats
from nanhunt._step_judge import DROPPED, KEPT
from nanhunt._step_mode import StepMode
from nanhunt._steps.bad_steps import LEFT_OUT
from nanhunt._steps.hold import Hold
from nanhunt._steps.origin import prove
from nanhunt._tap.plain import NARROW

if TYPE_CHECKING:
    from nanhunt._recorder import Recorder
    from nanhunt._session import Session
    from nanhunt._steps.step_watch import StepWatch
    from nanhunt._tap.ops import OpsLevel
    from nanhunt._tap.values import Values

_WROTE_NARROW = 2  # State::wrote_weights of the tap
FIRST = 8          # steps that are heard in any case
AFTER_BAD = 64     # steps that are heard after a bad one in any case
_BYTES = 64 << 20  # bytes of what operations read at which badness began, in one step
_BYTES_WRITTEN = 1 << 20  # ... of what each operation in place may write over
_MEASURED = 16     # steps of either kind whose times are remembered
_LONGEST = 3       # usual steps
_LOOK_EVERY = 8    # steps: how long these take is looked at
_COST_AT_MOST = 2.0  # of hearing a step, in steps
_UNHEARD_AFTER = 8   # steps that were heard one that is not
_EACH, _LATE = range(2)  # when what operations show on a device is read: `Reads` of tap/recording.h
_LEARN = 4         # steps that must have run unheard before it is known what hearing one costs


def _usual(times: Sequence[float]) -> float:
    """The lower quartile: a step now and then that takes long is not one."""
    return sorted(times)[(len(times) - 1) // 4]


class Budget:
    """Which steps are heard so that the time this takes stays below a share of all. Times are in seconds."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.steps = 0
        self._total = self._spent = 0.0
        self._times: dict[bool, deque[float]] = {kind: deque(maxlen=_MEASURED) for kind in (False, True)}
        self._counted: dict[bool, deque[float]] = {kind: deque(maxlen=_MEASURED) for kind in (False, True)}
        self._longest = {False: 0.0, True: 0.0}  # that a step counts
        self._cost = 0.0  # of hearing one step
        self._heard_since = 0  # the last step that was not

    def step_took(self, seconds: float, heard: bool) -> None:
        """What a program does between steps (it waits for data, validates, saves) earns nothing: a step counts as at
        most three usual ones."""
        times = self._times[heard]
        times.append(seconds)
        self._heard_since = self._heard_since + 1 if heard else 0
        if self.steps % _LOOK_EVERY == 0 or heard or len(times) < _MEASURED:
            self._longest[heard] = _LONGEST * _usual(times)
            self._cost = self._measured_cost()
        self.steps += 1
        counted = min(seconds, self._longest[heard])
        self._counted[heard].append(counted)
        self._total += counted
        if heard and self.steps > FIRST:
            self._spent = max(0.0, self._spent + counted - self._mean(False))

    def _mean(self, heard: bool) -> float:
        """Of what steps of a kind count. Usual ones are too few: a step that is heard is more often a long one."""
        return statistics.fmean(self._counted[heard] or (0.0,))

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
        if self._heard_since >= _UNHEARD_AFTER:  # what an unheard step takes changes
            return False
        if len(self._times[False]) < _LEARN:
            return False
        return self._spent + self._cost <= self.share * self._total


class BudgetOfRanks(Budget):
    """Of one of several ranks: all must hear the same steps, and no two have the same times. So steps are counted, and
    hearing one is taken to cost twice a step that is not heard: more was never measured."""

    def has_room(self) -> bool:
        if 0 < self.share < 1 and self.steps >= FIRST:
            return self.steps % math.ceil(_COST_AT_MOST / self.share) == 0
        return super().has_room()


class Live(Listener):
    """Which listeners hear the next step, and what becomes of the operations of the last one."""

    def __init__(self, session: Session, values: Values, unheard: Sequence[Listener], ops: OpsLevel,
                 steps: StepWatch) -> None:
        """`unheard`: who hears any step; `ops` and its parts hear operations."""
        self.session, self.values, self._bad_steps = session, values, steps.bad_steps
        self._unheard = [*unheard, self]
        # Marks come before anything reads what they mark.
        self._heard = [unheard[0], self, *ops.listeners, *unheard[1:]]
        self._ops = ops
        share = session.options.budget
        self.budget = Budget(1.0 if share is None else share / 100)
        self._began = time.perf_counter()
        self._narrow = False  # one of them has parameters of 16 bits, or computes in fp16
        self._on_device = False  # known when the recorder is open: a program may bring a device
        self._hold: Hold | None = None  # of the step, where a device tells of it later
        self._decides_later = False
        self._graphs = False  # CUDA graphs are captured or replayed: they write unheard
        self._lasting = 0     # origins that last, of steps about which that was decided
        self._was_heard = True
        session.listen(self._unheard)
        session.before_step_row = self._before_step_row  # type: ignore[method-assign]

    def begin(self) -> None:
        """The recorder is open, and which rank this is does not change any more."""
        if rank_and_world()[1] > 1:
            self.budget = BudgetOfRanks(self.budget.share)
        self._began, self._on_device = time.perf_counter(), bool(accelerator())
        self._begin_step()

    def _may_hear(self) -> bool:
        return self._was_bad_lately() and self.budget.share > 0 or self.budget.has_room()

    def _was_bad_lately(self) -> bool:
        bad = self._bad_steps.last_bad
        return bad is not None and 0 <= self.session.state.step - bad <= AFTER_BAD

    def _begin_step(self) -> None:
        session, tap, recorder = self.session, self.session.tap, self.session.recorder
        heard = tap is not None and (self.budget.share >= 1 or self._may_hear())
        session.mode = StepMode.HELD if heard else StepMode.UNHEARD
        listeners = self._heard if heard else self._unheard
        if session.listeners is not listeners:
            session.listen(listeners)
        if tap is None or recorder is None:
            return
        if heard:
            if not self._was_heard:
                tap.forget()
            shown = bool(session.judge.shows(session.state.step, self._narrow))  # healthy as it may be
            if self._on_device:
                self._begin_hold(recorder, shown)
            # What a device tells late would be taken for an origin in the operation at hand.
            tap.hold(lib.HOLD, 0 if self._hold is not None else _BYTES, _BYTES_WRITTEN)
            # On a device the tap does not know what is finite: the recorder reads there. What is shown has full
            # statistics; what is known of averages begins after the first step.
            reads_all = self._on_device and session.state.reads == _EACH
            if reads_all or self._hold is None and (self.budget.steps < 2 or shown):
                tap.hand_over()
            self._ops.marks.marked.clear()  # what was recorded so far may not be in the trace
            self._ops.lasting.begin_held_step(session.state.step)
            if not tap.is_on:  # from here on: what comes before the first call of a root is part of the step
                tap.on()
        else:
            tap.keep(0)
            tap.off()
            session.places = None
        self._was_heard = heard

    def on_root_met(self, call: RootCall) -> None:
        lasting = [*call.module.parameters(), *call.module.buffers()]
        self._narrow = self._narrow or torch.float16 in autocast_formats() or any(t.dtype in NARROW for t in lasting)

    def _begin_hold(self, recorder: Recorder, shown: bool) -> None:
        if not self._decides_later and recorder.device_counts().streams > 0:
            recorder.settle()  # once: the first step was not held
            self._decides_later, self._lasting = True, recorder.origins_that_last()
        if self._decides_later:
            assert self.session.tap is not None
            self._hold = Hold(recorder, self.session.tap)
            self.session.pending.begin_hold(self._hold)
            # Each op for itself, single elements as well: where something was bad, and where a step is shown.
            # So it is with several ranks, whose calls are tied to rows as they come.
            closely = self._was_bad_lately() or self.budget.steps < 2 or shown or is_distributed()
            closely = closely or self._graphs
            self.session.state.reads = _EACH if closely else _LATE
            recorder.read_elements(closely)

    def on_graph(self) -> None:
        self._graphs = True
        if self.session.state.reads == _LATE and self.session.tap is not None:
            self.session.tap.launch_looks()
            self.session.state.reads = _EACH

    def _before_step_row(self) -> None:
        """Rows of operations that are wanted come before that of their step."""
        session = self.session
        self._narrow = self._narrow or bool(session.state.wrote_weights & _WROTE_NARROW)
        wanted = session.mode is StepMode.KEPT or session.state.left_bad or (
            session.mode is StepMode.HELD and session.judge.shows(session.state.step, self._narrow))
        if wanted and session.tap is not None and session.state.held:
            session.tap.hand_over()
            session.notify("on_kept")

    def on_step_recorded(self, step: int) -> None:
        session, recorder = self.session, self.session.recorder
        if recorder is None:
            return
        now = time.perf_counter()
        heard = session.mode is not StepMode.UNHEARD
        if self.budget.share >= 1:
            self.budget.steps += 1
        else:
            self.budget.step_took(now - self._began, heard)
        self._began = now
        if self._hold is not None:
            self._hold.add(session.facts, session.state.left_bad)
        elif session.state.left_bad or session.state.wanted:
            self._judge(step)
        session.facts.mode = session.mode
        if session.overran:  # what came since its last boundary is part of the next step, which goes on as it began
            return
        if heard:
            self._end_hold()
        else:
            session.judge.was_left_out()
            if session.tap is not None:
                session.note("operations of steps that the budget had no room for")
        self._begin_step()

    def _judge(self, step: int) -> None:
        """Whether the step, which is over, is kept for what went bad or was lost in it, as something was."""
        session, state = self.session, self.session.state
        if session.mode is StepMode.HELD and session.judge.keeps(step, bool(state.left_bad), bool(state.wanted)):
            session.mode = StepMode.KEPT

    def _end_hold(self) -> None:
        session, tap = self.session, self.session.tap
        if session.recorder is None or tap is None:
            return
        if self._hold is not None:
            self._hold.end(tap.hold(lib.LATER, 0, 0))
            self._decide_later(self._hold, session.recorder)
            self._hold = None
            return
        fate = session.judge.end_held(session.state.step, session.mode is StepMode.KEPT, self._narrow)
        if session.judge.was_left_out() and fate == DROPPED:
            session.note(LEFT_OUT)
        if session.facts.skipped:  # no healthy step, whose infinities would be harmless from then on
            session.state.left_bad = 1
        tap.hold(lib.DROP if fate == DROPPED else lib.KEEP, 0, 0)
        if fate == KEPT:
            prove(session, tap)

    def _decide_later(self, hold: Hold, recorder: Recorder) -> None:
        """When the device has told all of the step, which is over. Origins are not proved: what an operation took may
        be gone by then."""
        state = self.session.state
        step, wanted, narrow, judge = state.step, bool(state.wanted), self._narrow, self.session.judge

        def decide() -> None:
            action = lib.KEEP
            try:
                before, self._lasting = self._lasting, recorder.origins_that_last()
                kept = any(facts.mode is StepMode.KEPT for facts in hold.facts)
                left_bad = hold.left_bad or before != self._lasting
                wants = wanted or hold.is_wanted
                kept = kept or (left_bad or wants) and bool(judge.keeps(step, left_bad, wants))
                is_dropped, was_left_out = judge.end_held(step, kept, narrow) == DROPPED, bool(judge.was_left_out())
                if is_dropped:
                    action = lib.DROP
                    if was_left_out:
                        self.session.note(LEFT_OUT)
            finally:
                skipped = any(facts.skipped for facts in hold.facts)
                hold.decide(action, healthy=action == lib.DROP and not hold.left_bad and not skipped)

        self.session.pending.end_hold(decide)

    def on_close(self) -> None:
        if self.session.mode is StepMode.UNHEARD:
            return
        session, hold = self.session, self._hold
        if hold is None:
            if session.state.left_bad or session.state.wanted:
                self._judge(session.state.step)
            return self._end_hold()
        session.facts.mode = session.mode
        hold.add(session.facts, session.state.left_bad)
        self._end_hold()
        session.pending.drain()  # closing the recorder waits as well
