# SPDX-License-Identifier: Apache-2.0
"""Level sentinel: what optimizers are about to store is foreseen, and shown op by op.

On a device nothing is read before they run, for that would wait. Where hyperparameters and the largest gradients so far
prove nothing, parameters and state are copied before the step and read after it; what became bad is shown on the
copies when the readings are there.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _device
from nanhunt import _library as lib
from nanhunt._device import is_away
from nanhunt._device_reader import Readings
from nanhunt._hooks.scaler import peek
from nanhunt._listener import Listener
from nanhunt._sentinel.audit import (
    BEGIN,
    COPIES,
    DIFFERS,
    REPRODUCED,
    SHOWN,
    TRIGGER_AUDIT,
    Audit,
    Copies,
    Foreseen,
    Shown,
    is_torchs,
    on_copies,
    replay_optimizer,
)

if TYPE_CHECKING:
    from nanhunt._sentinel.audit import Known
    from nanhunt._session import Session, StepFacts
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
_MAY_GROW = 1e3   # largest gradients from one step to the next, where this one's is not known yet
_SETTLED = 1e15   # state below it was not on the way out of its format


def is_on_device(optimizer: torch.optim.Optimizer) -> bool:
    return any(is_away(group["params"][0]) for group in optimizer.param_groups if group["params"])


class _Step:
    """One step of an optimizer that nothing was proved of."""

    def __init__(self, optimizer: torch.optim.Optimizer, known: Known, facts: StepFacts, step: int, micro_batch: int,
                 parameters: list[tuple[_Tensor, str]], copies: Copies | None) -> None:
        self.optimizer, self.known, self.facts = optimizer, known, facts
        self.step, self.micro_batch = step, micro_batch
        self.parameters, self.copies = parameters, copies
        self.versions: list[int] = []  # of parameters, when it had run


class Hindsight:
    """`show` is called for what became bad: with it, copies of before, and their names."""

    def __init__(self, session: Session, audit: Audit,
                 show: Callable[[Foreseen, Copies, list[tuple[_Tensor, str]]], Shown | None]) -> None:
        self.session, self._audit, self._show = session, audit, show
        self._open: _Step | None = None

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        session, facts, name = self.session, self.session.facts, type(optimizer).__name__
        self._open = None
        if session.open() is None or _device.is_capturing():
            return
        if not is_torchs(optimizer):
            session.note(f"what {name} is about to store: it is none of torch.optim")
            return
        if name == "LBFGS":
            session.note("what LBFGS is about to store: its gradients are made while it steps")
            return
        known = self._audit.known_of(optimizer)
        if facts.gradients_are_bad:
            known.proved = False
            return
        top = facts.largest_gradient
        guess = top if top is not None else max(known.top, 1.0) * _MAY_GROW
        doubtful = [g for g in optimizer.param_groups
                    if not (known.proved and self._is_calm(name, g, known, max(known.top, guess)))]
        known.steps += 1
        if name == "Adadelta":
            known.growth = 2.1 * known.growth + 1e-6
            if known.growth > 1e30:
                doubtful = list(optimizer.param_groups)
        if not doubtful:
            session.pending.later(lambda: self._confirm(optimizer, name, known, facts))
            return
        chosen = {id(p) for g in doubtful for p in g["params"] if p.grad is not None}
        parameters = [(p, path) for p, path in session.parameters_of(optimizer) if id(p) in chosen]
        copies = None
        if sum(p.numel() * p.element_size() for p, _ in parameters) > COPIES:
            session.note(f"what {name} stores on a device: its parameters are too large for copies")
        else:
            with on_copies(session, optimizer, [p for p, _ in parameters]) as made:
                copies = made
        self._open = _Step(optimizer, known, facts, session.step, session.micro_batch, parameters, copies)

    def _is_calm(self, name: str, group: dict[str, Any], known: Known, top: float) -> bool:
        return self._audit.is_calm(name, group, top, known.steps)

    def _confirm(self, optimizer: torch.optim.Optimizer, name: str, known: Known, facts: StepFacts) -> None:
        """Once the largest gradient of the step is known: whether the guess was right."""
        top = facts.largest_gradient
        if facts.gradients_are_bad or top is None:
            known.proved = False
            return
        known.top = max(known.top, top)
        if not all(self._is_calm(name, g, known, known.top) for g in optimizer.param_groups):
            known.proved = False  # the next steps are read
            self.session.note(f"what {name} stored on a device: its gradients were {_MAY_GROW:.0f} times those before")

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        step, self._open = self._open, None
        if step is None or step.optimizer is not optimizer:
            return
        readings = Readings(self.session)
        readings.add(_stored(optimizer, step.parameters))
        if step.copies is not None:
            names = {id(p): path for p, path in step.parameters}
            readings.add(_stored(step.copies.optimizer, [(q, names[id(p)]) for p, q in step.copies.pairs]))
        if readings.send():
            step.versions = [p._version for p, _ in step.parameters]
            self.session.pending.expect(readings.fetches, lambda: self._judge(step, readings))

    def _judge(self, step: _Step, readings: Readings) -> None:
        readings.take()
        after, before = readings.lists[0], readings.lists[1] if step.copies is not None else []
        known, facts = step.known, step.facts
        if facts.gradients_are_bad:
            known.proved = False
            return
        was_bad = {r.name for r in before if r.bad}
        bad = [r.name for r in after if r.bad and r.name not in was_bad]
        if not any(r.bad for r in after):
            largest = max((r.amax for r in after if r.name.endswith(_STATE)), default=0.0)
            if facts.largest_gradient is not None and max(largest, facts.largest_gradient) <= _SETTLED:
                known.top = max(known.top, facts.largest_gradient, largest if not known.proved else 0.0)
                known.proved, known.growth = True, largest
            return
        known.proved = False
        if not bad or step.copies is None:
            return
        paths = list(dict.fromkeys(name.split("\0")[0] for name in bad))
        what = [name.split("\0")[1] for name in bad if name.startswith(paths[0] + "\0")]
        found = Foreseen(step.optimizer, paths, f"Its {' and '.join(what)} became NaN or infinite.")
        facts.foreseen.extend(paths)
        names = {id(p): path for p, path in step.parameters}
        with self.session.as_of(step.step, step.micro_batch):
            shown = self._show(found, step.copies, [(q, names[id(p)]) for p, q in step.copies.pairs])
        if shown is not None:
            self._link(step, shown)

    def _link(self, step: _Step, shown: Shown) -> None:
        """What the run holds has the numbers of what was shown, if it is still that."""
        assert step.copies is not None
        originals = {id(q): p for p, q in step.copies.pairs}
        versions = {id(p): version for (p, _), version in zip(step.parameters, step.versions)}
        for q, key, twin in shown.results:
            p = originals.get(id(q))
            if p is None or versions.get(id(p)) != p._version:
                continue
            t = p if not key else step.optimizer.state.get(p, {}).get(key)
            if isinstance(t, _Tensor):
                self._audit.values.share(twin, t)
                self._audit.values.set_as_of(t)


_STATE = "\0state"


def _stored(optimizer: torch.optim.Optimizer, parameters: Sequence[tuple[_Tensor, str]]) -> list[tuple[str, _Tensor]]:
    """Parameters and their state by path and what they are, with a zero byte between: no path has one."""
    items = []
    for p, path in parameters:
        items.append((f"{path}\0parameter", p.detach()))
        for key, t in (optimizer.state.get(p, {}) if p in optimizer.state else {}).items():
            if isinstance(t, _Tensor) and t.is_floating_point() and t.numel() > 1:
                items.append((f"{path}\0{key}{_STATE}", t))
    return items


def held_back_now(optimizer: torch.optim.Optimizer) -> bool:
    """A fused optimizer that a scaler's flag will hold back."""
    flag = peek(getattr(optimizer, "found_inf", None))
    return flag is not None and flag > 0


class AuditWatch(Listener):
    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self.audit = Audit(session, values)
        options = session.options
        self._library = lib.load_library().fast
        self._policy = self._library.nanhunt_trigger_policy_new(options.max_trips, options.distance)
        self._shown: Shown | None = None
        self._hindsight = Hindsight(session, self.audit, self._show_again)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        session, facts = self.session, self.session.facts
        if is_on_device(optimizer):
            self._hindsight.before_step(optimizer)
            return
        if facts.gradients_are_bad or held_back_now(optimizer):
            return
        found = self.audit.foresee(optimizer, facts.largest_gradient)
        if found is None:
            # What cannot go bad has no origin to be found: its ops pass by, which are half of those of a small step.
            # What it loses shows in the steps that are kept for the audits.
            if session.live and self.audit.is_proved and not session.shows_ops:
                session.pass_by(optimizer)
            return
        facts.foreseen.extend(found.paths)
        if session.live:
            session.wants_ops = True  # the optimizer is about to be seen
            if session.tap is not None:
                session.tap.hand_over()
        elif self._library.nanhunt_trigger_policy_judge(self._policy, session.step, 2) == 1:
            self._shown = self._replay(found, found.optimizer)

    def _show_again(self, found: Foreseen, copies: Copies, named: list[tuple[_Tensor, str]]) -> Shown | None:
        if self._library.nanhunt_trigger_policy_judge(self._policy, self.session.step, 2) == 1:
            return self._replay(found, copies.optimizer, named)
        return None

    def _replay(self, found: Foreseen, optimizer: torch.optim.Optimizer,
                named: list[tuple[_Tensor, str]] | None = None) -> Shown | None:
        from nanhunt._sentinel.origin import prove
        from nanhunt._tap.ops import OpWriter

        session, recorder, tap = self.session, self.session.recorder, self.values.tap
        if recorder is None or tap is None:
            return None
        recorder.replay(session.step, TRIGGER_AUDIT, BEGIN)
        writer = OpWriter(session, tap)
        shown = replay_optimizer(session, self.values, writer, optimizer, found.paths, named)
        text = f"The optimizer ran on copies of {min(len(found.paths), SHOWN)} parameters. {found.text}"
        recorder.replay(session.step, TRIGGER_AUDIT, REPRODUCED if shown.bad else DIFFERS, text)
        prove(session, tap)
        return shown

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._hindsight.after_step(optimizer)
        shown, self._shown = self._shown, None
        if shown is None:
            return
        # The run has done what was shown: its tensors hold what the copies did.
        for p, key, twin in shown.results:
            t = p if not key else optimizer.state.get(p, {}).get(key)
            if isinstance(t, _Tensor):
                self.values.share(twin, t)
                self.values.set_as_of(t)
