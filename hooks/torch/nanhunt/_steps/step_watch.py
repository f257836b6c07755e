# SPDX-License-Identifier: Apache-2.0
"""What is read of every step, whether its operations are heard or not: losses, gradients at the boundary, weights now
and then. Parameters, optimizer state and the batch are read of bad steps alone.
"""
from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._device import is_away
from nanhunt._hooks.scaler import peek
from nanhunt._listener import Listener, RootCall
from nanhunt._names import plain_path
from nanhunt._nested import tensors_in
from nanhunt._pytorch import no_torch_function, unwrapped
from nanhunt._step_judge import CLIPPED, READS_AGAIN, SCALE_APPLIED, SCALED, SUSPECT, TRAINED, UNSCALED
from nanhunt._step_mode import StepMode
from nanhunt._steps.bad_steps import BadSteps, Norms, StepSnapshot
from nanhunt._steps.device_boundary import DeviceBoundary
from nanhunt._steps.reading import Here, Reader
from nanhunt._steps.validation import Validation
from nanhunt._tap.marks import mark_left_out
from nanhunt._tap.tap_library import unheard

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._step_judge import StepFacts
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
_WEIGHTS_EVERY = 8  # steps; the first so many are all read
_MAX_LOSSES = 4096
_MAX_HELD = 1 << 20  # bytes of buffers that are kept
_ZERO_STEPS = 16    # as kZeroSteps of src/analyze/rules/run/training_trend.h
_GROWS = 3.0        # times the smallest gradient norm of the steps before


class StepWatch(Listener):
    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        keep = max(session.options.keep, 1)
        self._parameters: list[tuple[_Tensor, str]] = []  # of all roots and optimizers
        self._parameters_key: Any = None
        self._norms: Norms = deque(maxlen=keep)
        self._weights: Norms = deque(maxlen=keep)
        self._bad_weights: set[str] = set()  # when they were read last
        self._sound_at_first: set[str] = set()  # at the first backward of a program without an optimizer
        self._sound_buffers: dict[str, torch.Size] = {}  # when their roots were met, by path
        self._last_buffers: deque[tuple[int, str, _Tensor]] = deque()  # a model may be gone when the program ends
        self._reader = Reader(session, values)
        self.bad_steps = BadSteps(session, values, self._reader, self._norms, self._weights)
        self._validation = Validation(session, self._reader)
        self._device_boundary = DeviceBoundary(session, self)
        self._gradient_norms: deque[float] = deque(maxlen=_WEIGHTS_EVERY)
        session.newest_gradients = self._newest_gradients  # type: ignore[method-assign]
        self._was_bad = False  # gradients, in the step before
        self._older: dict[str, tuple[int, int]] = {}  # bad ones of before this step's backward, as they were
        session.saw_bad_number = self._saw_bad_number  # type: ignore[method-assign]
        # Of the step that runs.
        self.losses: list[tuple[str, _Tensor | None]] = []  # path, contents (shared)
        self._returned: list[weakref.ref[_Tensor]] = []  # single numbers that the last root gave
        self._scaled_losses: list[tuple[_Tensor, float | None]] = []
        self._scaler: Any = None

    # Root calls.
    def on_root_met(self, call: RootCall) -> None:
        buffers = self._buffers_of(call.module, call.name)
        bad = {path for _, path in self._reader.bad_among(buffers)}
        for kind, path, b in buffers:
            if path not in bad:
                self._sound_buffers[path] = b.shape
                # Detached only where it has to be: a transform of functions would wrap what it gives.
                self._last_buffers.append((kind, path, b.detach() if b.requires_grad else b))
        held = sum(b.untyped_storage().nbytes() for _, _, b in self._last_buffers)
        while held > _MAX_HELD:
            held -= self._last_buffers.popleft()[2].untyped_storage().nbytes()

    @staticmethod
    def _buffers_of(root: torch.nn.Module, name: str) -> list[tuple[int, str, _Tensor]]:
        buffers = [(path, unwrapped(b)) for path, b in root.named_buffers()]  # under transforms they are wrapped
        return [(lib.MARK_BUFFER, plain_path(name, path), b) for path, b in buffers
                if b.is_floating_point() and not is_away(b)]

    def on_root_exit(self, call: RootCall, output: Any) -> None:
        if self.session.mode is StepMode.UNHEARD:
            with no_torch_function():  # a subclass of the user's is not asked
                self._returned = [weakref.ref(t) for _, t in tensors_in(output) if t.numel() == 1]

    # Backward.
    def before_backward(self, tensors: Sequence[_Tensor]) -> None:
        session = self.session
        if session.pending.items:
            session.pending.poll()
        if not session.judge.facts() & TRAINED:
            if self._was_bad or session.pending.items:
                self._read_older()
            if not (self._sound_at_first or session._used or session.has_optimizer()):
                paths, _, bad = self._reader.gradients(self.parameters(), weights=True)
                self._sound_at_first = set(paths) - set(bad)
        scaled, self._scaled_losses = self._scaled_losses, []
        if not scaled:
            for t in tensors:
                if t.numel() == 1:
                    number = peek(t)
                    scaled += (t, number) if number is not None else self._read_loss(t),
        for shared, number in scaled:
            n = len(self.losses)
            path = "the loss" if n == 0 else f"loss {n} of the step"
            if n < _MAX_LOSSES:  # a loop without an optimizer has no end of its step
                self.losses += (path, shared if number is None else None),
            if number is None:
                continue
            if session.facts.loss is None or math.isnan(session.facts.loss):
                session.facts.loss = number
            if not math.isfinite(number):
                session.judge.note(session.state.step, lib.MARK_LOSS, False, path.encode())

    def on_gradients_made(self) -> None:
        self._boundary()

    # Losses.
    def before_scale(self, scaler: Any, loss: Any) -> None:
        self._scaler = scaler
        self.session.judge.enter(SCALE_APPLIED)
        if isinstance(loss, _Tensor):
            self._scaled_losses.append(self._read_loss(loss))

    def _read_loss(self, loss: _Tensor) -> tuple[_Tensor, float | None]:
        """Its contents, shared, and its number, where that can be read without waiting."""
        number = peek(loss)
        if number is not None:
            return loss, number
        with unheard():
            shared = loss.detach()
            if loss.numel() == 1 and not is_away(loss):
                number = float(shared.float())
        return shared, number

    def _read_older(self) -> None:
        """Gradients that were there before the first backward."""
        if any(p.grad is not None for p, _ in self.parameters()):
            _, _, bad = self._reader.gradients(self.parameters())
            if self._was_bad and bad:
                self.session.judge.note_kept(self.session.state.step)
                self._older = {path: state for path, state in self.gradient_versions().items() if path in bad}
            self._device_boundary.read_older(self._reader.away, self._scaler)

    # The boundary.
    def before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        self._boundary(optimizer)

    def after_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer, result: None,
                      error: BaseException | None) -> None:
        self.session.judge.enter(UNSCALED)

    def on_drop(self) -> None:
        self._boundary()

    def on_updated_by_hand(self) -> None:
        self.session.state.wrote = 0  # gradients that were cleared since they were read are none
        self._boundary()

    def before_clip(self, parameters: Sequence[_Tensor], bound: float) -> None:
        self._boundary()
        self.session.judge.enter(CLIPPED)

    def before_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        self._boundary(optimizer)

    def after_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer, result: Any,
                          error: BaseException | None) -> None:
        if self.session.pending.items:
            self.session.pending.poll()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._boundary(optimizer, last=True)
        if self.session.pending.items:
            self.session.pending.poll()  # a scaler has waited for its flag, and with it for what was read before
        self.bad_steps.updates += 1

    def parameters(self) -> list[tuple[_Tensor, str]]:
        """Of all roots and optimizers."""
        session = self.session
        others = session.threads.others
        key: list[Any] = [session.parameter_names.changes, len(session.roots)]
        if others:
            key += -1, len(others), len(session._used)
        for kept in session._kept:
            optimizer = kept()
            if optimizer is not None:
                key += id(optimizer), len(optimizer.param_groups)
        if key != self._parameters_key:
            self._parameters_key = key
            found: dict[int, tuple[_Tensor, str]] = {}
            for reference, _ in list(session.roots.values()):
                module = reference()
                for p in module.parameters() if module is not None else ():
                    found.setdefault(id(p), (p, session.parameter_names.get(id(p), "")))
            for optimizer in session._keep:
                for p, path in session.parameters_of(optimizer):
                    found.setdefault(id(p), (p, path))
            for leaf in session.alive_leaves():
                found.setdefault(id(leaf), (leaf, session.parameter_names.get(id(leaf), "")))
            self._parameters = list(found.values())
        return self._parameters

    def _boundary(self, optimizer: torch.optim.Optimizer | None = None, last: bool = False) -> None:
        """Before gradients are divided, clipped or used. `last`: nothing comes between it and the optimizer."""
        session, step = self.session, self.session.state.step
        # Before they are used they are read once more: the program itself may have written them since.
        heard = session.mode is not StepMode.UNHEARD
        reads = session.judge.reads_gradients(step, last, heard and bool(session.state.wrote))
        if not reads:
            return
        session.state.wrote = 0
        if session.recorder is None and session.open() is None:
            return
        if session.pending.items:
            session.pending.poll()
        facts, parameters = session.facts, self.parameters()
        paths, words, bad = self._reader.gradients(parameters)
        facts.unread = facts.unread or self._reader.unread
        if self._reader.away:
            try:
                self._device_boundary.pass_boundary(self._snapshot(), optimizer, (paths, words, bad), self._reader.away)
            except Exception:
                facts.unread = True
                raise
        else:
            bad_weights: list[str] = []
            if paths:
                again = reads == READS_AGAIN
                grows = self.weigh(facts, step, paths, words, bool(session.judge.facts() & SCALED), again)
                if not again and self.weights_are_due(step, grows):
                    paths, words, bad_weights = self._reader.gradients(parameters, weights=True)
                    self.keep_weights(step, paths, words, bad_weights)
            if bad and (self._older or session.tracker.passed):
                unused = self.left_alone(self._older, optimizer) | self.of_others(optimizer)
                bad = [path for path in bad if path not in unused]
            if bad or self._was_bad:
                self.note_gradients(step, facts, bad)
            if session.judge.bad(step) or bad_weights and not session.judge.facts() & TRAINED:
                self.bad_steps.judge(self._snapshot())
        session.judge.boundary(step)

    def gradient_versions(self) -> dict[str, tuple[int, int]]:
        """Which gradients there are, by path, and torch's counts of writes to them."""
        return {path: (id(p.grad), p.grad._version) for p, path in self.parameters() if p.grad is not None}

    def left_alone(self, older: dict[str, tuple[int, int]], optimizer: torch.optim.Optimizer | None) -> set[str]:
        """Those of `older` that are as they were, and that `optimizer` does not use."""
        if not older:
            return set()
        used, now = self._paths_of(optimizer), self.gradient_versions()
        return {path for path, state in older.items() if now.get(path) == state and path not in used}

    def of_others(self, optimizer: torch.optim.Optimizer | None) -> set[str]:
        """Those of optimizers that have stepped in this step: what another's loss leaves there, no update uses."""
        passed = self.session.tracker.passed
        others = [one for one in self.session._keep if id(one) in passed and one is not optimizer]
        return {path for one in others for path in self._paths_of(one)} - self._paths_of(optimizer)

    def _paths_of(self, optimizer: torch.optim.Optimizer | None) -> set[str]:
        return set() if optimizer is None else {path for _, path in self.session.parameters_of(optimizer)}

    def _snapshot(self) -> StepSnapshot:
        session = self.session
        return StepSnapshot(session.facts, session.state.step, session.state.micro_batch, session.inputs,
                            self.parameters(), self._scaler, bool(session.judge.facts() & SCALED),
                            self.bad_steps.updates)

    # Of any boundary, when its readings are there.
    def weigh(self, facts: StepFacts, step: int, paths: list[str], words: tuple[Sequence[float], Sequence[float]],
              scaled: bool, again: bool = False) -> bool:
        """Keeps norms of gradients, as the optimizer will use them. Whether they have grown, where they were not read
        before in the step."""
        norms, amaxes = words
        scale = self.session.last_scale if scaled else 1.0
        if scale != 1.0 and scale > 0:
            norms, amaxes = [n / scale for n in norms], [a / scale for a in amaxes]
        facts.gradient_norm = norm = math.hypot(*norms)
        if again and self._norms:
            self._norms.pop()
        self._norms.append((step, paths, norms, amaxes))
        if again:
            return False
        smallest = min(self._gradient_norms, default=math.inf)
        self._gradient_norms.append(norm)
        return not norm <= _GROWS * smallest

    def _newest_gradients(self) -> tuple[Sequence[float], bool]:
        amaxes = self._norms[-1][3] if self._norms else ()
        return amaxes, any(p.dtype is torch.float16 for p, _ in self.parameters())

    def read_weights(self) -> tuple[Here, list[tuple[str, _Tensor]]]:
        return self._reader.gradients(self.parameters(), weights=True), self._reader.away

    def weights_are_due(self, step: int, grows: bool) -> bool:
        """In the first steps, now and then, and where gradients grow: whether the weights grow as well. Where no loss
        would show that they are bad, gradients having come by other means than a backward: always."""
        return step % _WEIGHTS_EVERY == 0 or step < _WEIGHTS_EVERY or grows or (
            not self.session.judge.facts() & TRAINED)

    def keep_weights(self, step: int, paths: list[str], words: tuple[Sequence[float], Sequence[float]],
                     bad: list[str]) -> None:
        """What was sound when it was last read was made bad since: loss and gradients may not show it."""
        if bad and not self._bad_weights.issuperset(bad):
            trained = {path for p, path in self.parameters() if p.requires_grad}
            for path in bad:
                if self._weights and path in trained and path not in self._bad_weights:
                    self.session.judge.note(step, lib.MARK_PARAMETER, True, path.encode())
        self._bad_weights = set(bad)
        if step > 0:  # as the step before left them
            self._weights.append((step - 1, paths, list(words[0]), list(words[1])))

    def note_gradients(self, step: int, facts: StepFacts, bad: list[str]) -> None:
        facts.gradients_are_bad = self._was_bad = bool(bad)
        for path in bad:
            self.session.judge.note(step, lib.MARK_GRADIENT, False, path.encode())

    # Calls with gradients off, and those of a program that trains nothing.
    def on_validated(self, module: torch.nn.Module, output: Any) -> None:
        session = self.session
        infers, held = session.state.course in lib.INFERS, session.mode is StepMode.HELD
        if infers and held and session.state.held:  # nothing is NaN, else somebody had its rows
            self._validation.seen = True
            return
        self._validation.on_output(output)
        if session.state.course == lib.UNKNOWN and session.state.phase != lib.VALIDATION:
            self._validation.wait()
        if infers and held and self._validation.first and self.bad_steps.may_keep(session.state.step):
            self.bad_steps.keep()

    def before_unfinished(self) -> None:
        if self._validation.judge():
            self.session.judge.enter(SUSPECT)  # there is something to be judged, should no step follow

    # Steps that the program gives up.
    def _saw_bad_number(self) -> bool:
        """Where nothing is heard: most often it is the loss, returned by a module."""
        numbers = [peek(t) for t in [reference() for reference in self._returned] if t is not None]
        return any(number is not None and not math.isfinite(number) for number in numbers)

    def on_unfinished(self, ending: int) -> None:
        """What the program has in hand is read now; operations are held, or nothing else is known."""
        session, step = self.session, self.session.state.step
        if session.state.course in lib.INFERS and ending == lib.ENDED:
            if session.mode is StepMode.HELD and not session.state.held:
                self.bad_steps.keep()
            return
        self._boundary()  # where a backward came
        if session.judge.bad(step):
            return
        if session.mode is not StepMode.UNHEARD:
            if ending == lib.BY_NEXT_FORWARD:  # bad gradients were heard, and have been cleared by now
                session.judge.note(step, lib.MARK_GRADIENT, False, b"gradients that were given up")
            if ending != lib.BY_NEXT_FORWARD or self.bad_steps.may_keep(step):
                self.bad_steps.keep()
            return
        session.facts.unread = True  # what is not found is not known to be healthy
        if self._saw_bad_number():
            session.judge.note(step, lib.MARK_LOSS, False, b"what a model gave")
            self.bad_steps.judge(self._snapshot())

    # The end.
    def before_last_end(self) -> None:
        """What the program does to its parameters and buffers after the last step is in no step's numbers: they are
        read once more, those that were finite when they were read last; buffers, when they were met."""
        session = self.session
        sound = self._sound_at_first
        if self._weights:
            _, paths, norms, _ = self._weights[-1]
            sound = {path for path, norm in zip(paths, norms) if math.isfinite(norm)}
        if session.recorder is None or session.judge.bad(session.state.step):
            return
        bad = self._reader.bad_among([(lib.MARK_PARAMETER, path, p) for p, path in self.parameters()
                                      if path in sound and p.requires_grad and not is_away(p)])
        buffers = self._bad_buffers()
        # Nothing ran after a last step that was bad: they are bad with it.
        if not bad and not session.judge.is_open() and self.bad_steps.last_bad == session.state.step - 1:
            with session.as_of(session.state.step - 1, session.state.micro_batch):
                self.bad_steps.mark(buffers)
            return
        for kind, path in [*bad, *(one[:2] for one in buffers)]:
            session.judge.note(session.state.step, kind, True, path.encode())
        if bad or buffers:
            session.judge.enter(SUSPECT)  # there is something to be judged, should no step be open
            snapshot, names = self._snapshot(), {path for _, path in bad}
            snapshot.parameters = [one for one in snapshot.parameters if one[1] in names]
            self.bad_steps.written_last(snapshot, buffers)

    def on_close(self) -> None:
        """Writes the last norms of gradients where most parameters had zeros alone; the analyzer decides."""
        rows = list(self._norms)
        if self.session.recorder is None or len(rows) < _ZERO_STEPS or any(row[1] != rows[-1][1] for row in rows):
            return
        zeros = sum(not any(norms) for norms in zip(*(row[2] for row in rows)))
        if 2 * zeros > len(rows[-1][1]):
            self.bad_steps.write_norms()

    def _bad_buffers(self) -> list[tuple[int, str, _Tensor]]:
        """Those that were sound when they were met. One of -Inf is a mask as likely as not."""
        session = self.session
        roots = [(reference(), name) for reference, name in list(session.roots.values())]
        buffers = [one for root, name in roots if root is not None for one in self._buffers_of(root, name)
                   if self._sound_buffers.get(one[1]) == one[2].shape]
        there = {path for _, path, _ in buffers}
        buffers += [one for one in self._last_buffers if one[1] not in there]
        bad = set(self._reader.bad_among(buffers))
        with unheard():
            return [one for one in buffers if one[:2] in bad and not bool((one[2] < math.inf).all())]

    def on_step_end(self, step: int, skipped: bool) -> None:
        session, facts = self.session, self.session.facts
        validation = self._validation
        if (validation.seen or validation.first) and validation.judge():
            session.judge.note(step, lib.MARK_OUTPUT, False, validation.first.encode())
            session.inference.was_bad = True
            if session.mode is StepMode.HELD and self.bad_steps.may_keep(step):
                self.bad_steps.keep()
            elif session.mode is StepMode.UNHEARD and session.state.course in lib.INFERS:
                self.bad_steps.report_not_heard(step)
        if validation.first or validation.waits:
            validation.forget()
        if session.state.bad_number and session.mode is StepMode.HELD and mark_left_out(session) and (
                session.judge.keeps(step, False, True)):
            self.bad_steps.keep()
        whole = self._device_boundary.passed
        if session.overran:
            session.judge.carry_over(step)
        else:
            self.losses, self._returned, self._scaled_losses, self._scaler = [], [], [], None
            self._older = {}
            if self._device_boundary.passed or self._device_boundary.older is not None:
                self._device_boundary.begin()
        if not session.pending.items:
            self._write_health(step, facts, whole)
        else:
            session.pending.later(lambda: self._write_health(step, facts, whole))

    def _write_health(self, step: int, facts: StepFacts, whole: bool) -> None:
        """A row without bits says that all of it is healthy."""
        session = self.session
        if session.recorder is not None:
            bad = session.judge.record(session.recorder.handle, step, whole, not facts.unread, facts.gradient_norm,
                                       facts.weight_checksum)
            session.faults.suspected |= bad > 0
