# SPDX-License-Identifier: Apache-2.0
"""Programs that train nothing: each call of an outermost module is a step. Whether one trains shows when it does: by a
backward, an optimizer's step, or a call with gradients on once there is an optimizer. What was recorded until then is
an attempt of its own, which goes unless something was bad in it, so that training begins with step 0. Where something
bad is left of it that the training may read, it stays part of the same attempt."""
from __future__ import annotations

import json
import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._hooks.scaler import peek
from nanhunt._load import render
from nanhunt._names import first_parameter
from nanhunt._nested import tensors_in
from nanhunt._ranks import rank_and_world
from nanhunt._step_judge import BACKWARD, LOSS
from nanhunt._step_mode import StepMode
from nanhunt._steps.validation import has_nan

if TYPE_CHECKING:
    from nanhunt._session import Session

# The analyzer knows these; of the second it is counted how many steps they are.
BEFORE_TRAINING = "forwards before the training began, which are an attempt of their own"
FIRST_STEPS = "forwards before the training began that are its first steps"


class Inference:
    """Of one session, whose `state.course` it writes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._called: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # while nothing is known
        self.was_bad = False
        self.asked: Sequence[torch.Tensor] | None = None  # losses of the last torch.autograd.grad of parameters

    def begins_forward(self, module: torch.nn.Module, learns: bool, args: Any, kwargs: Any) -> bool:
        """Before an outermost module is called, and nothing was trained: whether the call is a step of its own. The one
        before it is over then. `learns`: a backward may follow."""
        session, state = self._session, self._session.state
        if learns and (len(session.tracker.alive) or state.course == lib.FORWARDS):
            self.begin_training(lib.TRAINS if len(session.tracker.alive) else lib.UNKNOWN)
            return False
        if first_parameter(module) is None:
            return False
        if state.course == lib.UNKNOWN:
            if not self._is_another(module, learns):
                return False
            state.course = lib.FORWARDS_WITH_GRADIENTS if learns else lib.FORWARDS
            session.notify("on_validated", module, ())  # what the first call gave counts
        if session.judge.is_open() or len(self._called):
            self._called.clear()
            if self._are_bad(args, kwargs):
                state.left_bad = 1
            session.end_step(ending=lib.BY_FORWARD)
        if session.tap is not None:
            session.tap.stay_on()
        return True

    def _is_another(self, module: torch.nn.Module, learns: bool) -> bool:
        """Whether the call says that nothing is trained: the second one with gradients on, or one with gradients off.
        Where a training may have begun, with a teacher or a frozen encoder perhaps: the second one of that."""
        session = self._session
        if learns:
            return bool(session.judge.is_open())
        if not len(session.tracker.alive) and not session.judge.is_open() or module in self._called:
            return True
        self._called.add(module)
        return False

    def _are_bad(self, args: Any, kwargs: Any) -> bool:
        """Whether the step that is over has made what is not finite, and the next forward is given such numbers."""
        session = self._session
        if session.mode is not StepMode.HELD or session.state.held:  # a held step whose rows nobody has made no NaN
            return False
        given = [t for _, t in tensors_in((args, kwargs)) if t.is_floating_point() and t.is_cpu]
        return any(has_nan(t) for t in given)

    def asks_for_gradients(self, losses: Sequence[torch.Tensor], learned: Sequence[torch.Tensor], again: bool) -> bool:
        """Before torch.autograd.grad: whether it is the backward of a program that trains without an optimizer. That it
        does shows when it has written parameters with what it got; until then gradients may be looked at alone."""
        session = self._session
        if again or not session.roots or session.has_optimizer() or session.threads.others or (
                not any(id(t) in session.parameter_names for t in learned)):
            return False
        if session.applies_gradients:
            return True
        self.asked = losses
        if session.mode is StepMode.UNHEARD:
            session.drops.after_backward()
        return False

    def see_updates(self) -> None:
        """Before a root is called, after gradients were asked for."""
        session, asked, self.asked = self._session, self.asked, None
        if asked is None or not session.state.stepped and (
                session.mode is not StepMode.UNHEARD or not session.drops.used_up()):
            return
        self.begin_training(losses=asked)
        session.applies_gradients = True
        if session.recorder is not None:
            session.notify("before_backward", asked)
            session.judge.enter(LOSS)
            session.judge.enter(BACKWARD)

    def begin_training(self, course: int = lib.TRAINS, losses: Sequence[torch.Tensor] = ()) -> None:
        """`losses`: of the backward that shows it. Where one is bad, the last call is part of its step."""
        session = self._session
        if session.state.course in lib.INFERS:
            try:
                numbers = [peek(loss) for loss in losses]
                is_bad = any(number is not None and not math.isfinite(number) for number in numbers)
                if self._left_bad(is_bad):
                    self._go_on(is_bad)
                else:
                    session.note(BEFORE_TRAINING)
                    session.begin_again()
            except Exception as error:
                session.failed(error, "the beginning of training")
        session.state.course = course

    def _left_bad(self, loss_is_bad: bool) -> bool:
        """Whether what was made so far may make the training bad. Ranks count their steps alike: there it is left."""
        session = self._session
        return session.tap is not None and rank_and_world()[1] == 1 and (loss_is_bad or session.tap.left_bad())

    def _go_on(self, loss_is_bad: bool) -> None:
        """Training goes on where the calls of models have come to: in one attempt, an origin among what they left, or
        in what came before them, is known."""
        session = self._session
        if session.judge.is_open() and not loss_is_bad:
            session.end_step(ending=lib.BY_FORWARD)
        if session.state.step > 0:
            session.note(FIRST_STEPS, session.state.step)

    def is_kept(self) -> bool:
        """Whether what was recorded, which is over, has a fault."""
        recorder = self._session.recorder
        if recorder is None or not self.was_bad and not recorder.bad_since(0):
            return False
        self._session.flush()
        try:
            return bool(json.loads(render(recorder.folder(), "json"))["verdict"]["status"] == "fault")
        except Exception as error:  # the folder is gone, say
            self._session.failed(error, "what was recorded before training")
            return True
