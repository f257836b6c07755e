# SPDX-License-Identifier: Apache-2.0
"""Level sentinel: what is looked at in every step, and what follows when it is bad.

In a step without a trip: root calls and the ops between them go on the tape, gradients and written buffers are read
once at the boundary. Parameters, optimizer state and the batch are read on a trip only.
"""
from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._device import is_away
from nanhunt._hooks.dynamo import hide_from_dynamo
from nanhunt._hooks.functions import CHECKPOINT
from nanhunt._hooks.scaler import peek
from nanhunt._listener import Listener, RootCall
from nanhunt._pytorch import is_autocast_on
from nanhunt._sentinel.after import After
from nanhunt._sentinel.boundary import DeviceBoundary, Here
from nanhunt._sentinel.reading import Reader
from nanhunt._sentinel.roots import LEARNING, RootInfo, python_rng, same_rng
from nanhunt._sentinel.tape import (
    BackwardEntry,
    Held,
    RootEntry,
    Tape,
    TapeOfStep,
    cloned,
    is_transformed,
    listed,
    tensors_of,
    version_of,
)
from nanhunt._sentinel.trigger import Found, Look, Norms, Trips
from nanhunt._sentinel.unchanged import Autocast
from nanhunt._sentinel.unseen import Unseen
from nanhunt._sentinel.validation import Validation

if TYPE_CHECKING:
    from nanhunt._sentinel.buffers import Buffers
    from nanhunt._session import Session, StepFacts
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
HEALTH_AUDIT = 1 << 16
_WEIGHTS_EVERY = 8  # steps; the first so many are all read
_MAX_LOSSES = 4096
_GROWS = 3.0        # times the smallest gradient norm of the steps before
_groups = attrgetter("param_groups")
CAPTURED = "the step is captured into a CUDA graph"


class Sentinel(Listener):
    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self.tape = Tape(session)
        hide_from_dynamo()
        keep = max(session.options.keep, 1)
        self._infos: dict[int, RootInfo] = {}
        self._watched: list[tuple[_Tensor, str]] = []  # parameters of all roots and optimizers
        self._watched_key: Any = None
        self._norms: Norms = deque(maxlen=keep)
        self._weights: Norms = deque(maxlen=keep)
        self._bad_weights: set[str] = set()  # when they were read last
        self._sound_at_first: set[str] = set()  # at the first backward of a program without an optimizer
        self._reader = Reader(session, values)
        self._unseen = Unseen(session, values, self._reader)
        self.trips = Trips(session, values, self._reader, self._norms, self._weights, self._unseen)
        self.validation = Validation(session, values, self._reader, self.trips.may_replay)
        self._device_boundary = DeviceBoundary(session, values, self)
        self._after = After(session, self.tape, self._reader, self._parameters)
        self._gradient_norms: deque[float] = deque(maxlen=_WEIGHTS_EVERY)
        self.was_bad = False         # gradients, in the step before
        self.wanted: set[int] = set()  # steps to replay in any case
        session.saw_bad_number = self._saw_bad_number  # type: ignore[method-assign]
        self._begin_work()
        self._begin()

    def _begin_work(self) -> None:
        self.tape.clear()
        self._names: Sequence[tuple[str, Any]] = ()  # of losses of the backward that begins
        self._keeps_graph = False
        self._running: RootCall | None = None  # a call of which an entry will be
        self.losses: list[tuple[str, _Tensor | None, bool]] = []  # path, contents (shared), finite
        self._device_boundary.begin()
        self._scaled_losses: list[tuple[Any, _Tensor, float | None]] = []
        self._read_unasked = False   # ... without one, once
        self._unread = False         # a backward has added to gradients since they were read
        self._backwards = 0
        self._older = False          # gradients were there before the first backward
        self._kept = False           # ... and were bad
        self._scaled = False         # gradients are multiplied by the scale
        self._scaler: Any = None

    def _begin(self) -> None:
        """Nothing is known of the step yet."""
        self.found, self._after.unheard = Found(), False
        self._before_boundary = (0, 0, 0)  # losses, calls and ops of the tape that came before the last one
        self._told = (0, 0, "")      # what was bad at it

    def _carry_over(self) -> None:
        """The step ended at its last boundary: what was called and differentiated since belongs to the next."""
        losses, calls, ops = self._before_boundary
        self._begin()
        self._older = True  # whether there were gradients before is not known
        self.tape.drop(calls, ops)
        for path, _, finite in self.losses[losses:]:
            if not finite:
                self.found.note(lib.MARK_LOSS, path)

    # Root calls.
    def _info(self, call: RootCall) -> RootInfo:
        info = self._infos.get(id(call.module))
        if info is None or not info.is_of(call.module):
            info = self._infos[id(call.module)] = RootInfo(call.module, call.name)
        return info

    def on_root_enter(self, call: RootCall) -> None:
        tape = self.tape
        tape.end_region()
        if self.validation.listens:
            self.validation.stop()
        if tape.refusal or self.session.live:
            return
        if is_transformed():
            tape.refuse("a module was called inside a transform of torch.func")
            return
        if call.function and call.function != CHECKPOINT:
            tape.refuse(f"the custom autograd function {call.function} calls a module")
            return
        info = self._info(call)
        if self._device_boundary.is_capturing():
            tape.refuse(CAPTURED)
            return
        entry = RootEntry(call, self.session.micro_batch, tape.segment)
        entry.site = _site()
        tape.begin_root(entry, call)
        if info.writes:
            copies: list[Held] = []
            entry.args, entry.kwargs = cloned(entry.args, copies), cloned(entry.kwargs, copies)
            entry.inputs = copies
        if info.generators:
            entry.generators = [(g, g.get_state()) for g in info.generators]
        entry.autocast = Autocast.get()
        if info.python_rng:
            entry.python_rng = python_rng()
        entry.info = info
        if info.buffers.tensors:
            entry.buffers = info.buffers.before_call((self.session.step, tape.segment))
        info.before_call(entry)
        call.state, self._running = entry, call

    def on_root_exit(self, call: RootCall, output: Any) -> None:
        entry, tape = call.state, self.tape
        if entry is None:
            if not tape.refusal and not self.session.live:
                tape.on()
            return
        info = self._infos[id(call.module)]
        self._running = None
        if output is None and (call.raised is None or not issubclass(call.raised, (Exception, SystemExit))):
            return
        why = (info.buffers.after_call(entry.buffers) if info.buffers.tensors else "") or info.after_call(entry)
        if why:
            tape.refuse(why)
        if info.python_rng and info.calls >= LEARNING:  # saving costs: only where it is drawn from
            info.python_rng = info.draws or not same_rng(entry.python_rng, python_rng())
        elif info.python_rng:
            info.draws = info.draws or not same_rng(entry.python_rng, python_rng())
        if not info.writes:
            for held in entry.inputs:
                if not held.is_unchanged():
                    info.writes = True
                    tape.refuse("a module writes its inputs; from the next step on they are copied before the call")
        tape.end_root(entry, call, output)
        entry.left = info.buffers.left()
        entry.seen = [(weakref.ref(t), version_of(t)) for t in tensors_of(output)]
        tape.on()

    # Backward.
    def before_backward(self, tensors: Sequence[_Tensor], gradients: Any, kwargs: dict[str, Any]) -> None:
        tape = self.tape
        tape.end_region()
        if self.validation.listens:
            self.validation.stop()
        if not self._backwards:
            self._look_for_older()
            if not self._sound_at_first and not self.session.borders.alive:
                paths, _, bad = self._reader.gradients(self._parameters(), weights=True)
                self._sound_at_first = set(paths) - set(bad)
                self.trips.tell_sound([one for one in self._parameters() if one[1] in self._sound_at_first])
        self._backwards += 1
        self._unread = True
        before = tape.refusal
        self._read_losses(tensors)
        if self.session.live:
            return
        if tape.refusal:
            if not before and self._backwards > 1:
                tape.stays_on = True  # the loss may have been computed after a backward of this step
            return
        entry = self._entry(tensors, gradients)
        entry.loss = list(self._names)
        entry.options = {"retain_graph": kwargs.get("retain_graph"), "create_graph": kwargs.get("create_graph", False)}
        entry.inputs = tape.pack(listed(kwargs.get("inputs")))
        tape.add(entry)
        self._keeps_graph = bool(entry.options["retain_graph"] or entry.options["create_graph"])

    def _entry(self, tensors: Sequence[_Tensor], gradients: Any) -> BackwardEntry:
        tape = self.tape
        entry = BackwardEntry(self.session.micro_batch, tape.segment)
        entry.tensors = [tape.pack(t) for t in tensors]
        entry.gradients = tape.pack(listed(gradients))
        entry.autocast_on = is_autocast_on()
        entry.site = _site()
        return entry

    def after_backward(self) -> None:
        if self._stepping:  # a closure: the optimizer uses these gradients at once
            self._boundary()
            self.tape.next_segment()
            return
        self._after.begin()
        if (self._keeps_graph or self.tape.stays_on) and not self.session.live:
            self.tape.on()

    def before_grad(self, outputs: Any, inputs: Any, kwargs: dict[str, Any]) -> None:
        tape = self.tape
        self._resume = tape.off()
        self._grad_entry: BackwardEntry | None = None
        if tape.refusal or not (tape.roots or tape.ops) or self.session.live:
            return
        entry = self._entry(listed(outputs) or (), kwargs.get("grad_outputs"))
        entry.is_grad = True
        entry.inputs = tape.pack(listed(inputs))
        entry.options = {name: kwargs[name] for name in ("retain_graph", "create_graph", "allow_unused",
                                                         "materialize_grads") if kwargs.get(name) is not None}
        if kwargs.get("is_grads_batched"):
            tape.refuse("a batched autograd.grad outside of modules")
        self._grad_entry = entry

    _resume = False

    def after_grad(self, result: Any) -> None:
        entry, tape = self._grad_entry, self.tape
        if entry is not None and isinstance(result, (tuple, list)):
            entry.outputs = [tape.key(t) if isinstance(t, _Tensor) else None for t in result]
            tape.add(entry)
        self._grad_entry = None
        if self._resume:
            tape.on()

    # Losses.
    def before_scale(self, scaler: Any, loss: Any) -> None:
        if not getattr(scaler, "_enabled", True):
            return
        self._scaled, self._scaler = True, scaler
        if isinstance(loss, _Tensor):
            self._scaled_losses.append((self.tape.pack(loss), *self._look_at_loss(loss)))

    def _look_at_loss(self, loss: _Tensor) -> tuple[_Tensor, float | None]:
        """Its contents, shared, and its number, where that can be read without waiting."""
        resume = self.tape.off()
        shared = loss.detach()
        if resume:
            self.tape.on()
        number = peek(shared)
        if number is None and loss.numel() == 1 and not is_away(loss):
            number = float(shared.float())
        return shared, number

    def _read_losses(self, tensors: Sequence[_Tensor]) -> None:
        scaled, self._scaled_losses = self._scaled_losses, []
        names: list[tuple[str, Any]] = []
        if not scaled:
            scaled = [(self.tape.pack(t), *self._look_at_loss(t)) for t in tensors if t.numel() == 1]
        facts = self.session.facts
        for named, shared, number in scaled:
            n = len(self.losses)
            path = "the loss" if n == 0 else f"loss {n} of the step"
            finite = number is None or math.isfinite(number)
            if n < _MAX_LOSSES:  # a loop without an optimizer has no end of its step
                self.losses.append((path, shared, finite))
            names.append((path, named))
            if number is not None and (facts.loss is None or math.isnan(facts.loss)):
                facts.loss = number
            if not finite:
                self.found.note(lib.MARK_LOSS, path)
        self._names = names

    def _look_for_older(self) -> None:
        parameters = self._parameters()
        self._older = bool(parameters) and parameters[0][0].grad is not None
        if (self.was_bad or self.session.pending.items) and any(p.grad is not None for p, _ in parameters):
            _, _, bad = self._reader.gradients(parameters)
            self._kept = self.was_bad and bool(bad)
            self._device_boundary.look_for_older(self._reader.away, self._scaler)

    # The boundary.
    def before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        self._boundary(optimizer)
        self._after.go_on()

    def on_drop(self) -> None:
        self._boundary()

    def before_clip(self, parameters: Sequence[_Tensor], name: str, bound: float) -> None:
        self._boundary()
        self._after.go_on()

    def after_clip(self, total_norm: Any) -> None:
        self._after.torch_has_written()

    def before_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        self._boundary(optimizer)

    def after_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer, error: BaseException | None) -> None:
        self._poll()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._boundary(optimizer)
        self._unseen.look(self._parameters())
        self._poll()  # a scaler has waited for its flag, and with it for what was read before
        self._stepping = True

    def _poll(self) -> None:
        if self.session.pending.items:
            self.session.pending.poll()

    _stepping = False

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepping = False
        self.tape.next_segment()
        self.trips.updates += 1
        self._unseen.stepped(optimizer)

    def after_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer, error: BaseException | None) -> None:
        self._scaled = False
        self._after.torch_has_written()

    def _parameters(self) -> list[tuple[_Tensor, str]]:
        """Of all roots and optimizers."""
        session = self.session
        optimizers = session._keep
        key = (session.parameter_names.changes, len(session.roots),
               tuple(map(id, optimizers)), tuple(map(len, map(_groups, optimizers))))
        if key != self._watched_key:
            self._watched_key = key
            found: dict[int, tuple[_Tensor, str]] = {}
            for reference, _ in list(session.roots.values()):
                module = reference()
                for p in module.parameters() if module is not None else ():
                    found.setdefault(id(p), (p, session.parameter_names.get(id(p), "")))
            for optimizer in optimizers:
                for p, path in session.parameters_of(optimizer):
                    found.setdefault(id(p), (p, path))
            for leaf in session.alive_leaves():
                found.setdefault(id(leaf), (leaf, session.parameter_names.get(id(leaf), "")))
            self._watched = list(found.values())
        return self._watched

    def _boundary(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Before gradients are divided, clipped or used."""
        self.tape.off()
        if self.validation.listens:
            self.validation.stop()
        came = self._after.came()
        # Without a backward the program has given its parameters gradients by other means.
        again = not self._unread and (self._backwards > 0 or self._read_unasked)
        if again and (not came or self.found.bad):
            return
        self._unread, self._read_unasked = False, True
        if self.session.open() is None:
            return
        self._poll()
        paths, words, bad = self._reader.gradients(self._parameters())
        self.found.unread = self.found.unread or self._reader.unread
        if self._reader.away:
            try:
                self._device_boundary.pass_boundary(self._look(), optimizer, (paths, words, bad), self._reader.away)
            except Exception:
                self.found.unread = True
                raise
        else:
            self._pass_boundary(paths, words, bad, again)
        self._before_boundary = len(self.losses), len(self.tape.calls), self.tape.ops

    def _pass_boundary(self, paths: list[str], words: tuple[Sequence[float], Sequence[float]], bad: list[str],
                       again: bool) -> None:
        session, found = self.session, self.found
        bad_weights: list[str] = []
        if paths:
            norms, amaxes = self.weigh(found, session.step, paths, words, self._scaled)
            if not again and self.weights_are_due(session.step, self.grows(found.gradient_norm)):
                paths, words, bad_weights = self._reader.gradients(self._parameters(), weights=True)
                self.keep_weights(found, session.step, paths, words, bad_weights)
            session.facts.largest_gradient = max(amaxes)
        self.tell_gradients(found, session.facts, bad)
        self._read_buffers()
        if found.bad or bad_weights and self.is_without_loss():
            self.trips.trip(self._look())
        elif self.replays(session.step) and not session.live:
            self.trips.replay(self._look())
        self._told = found.bad, found.bad_tensors, found.first_bad

    def _look(self) -> Look:
        session, parameters = self.session, self._parameters()
        look = Look(self.found, session.facts, session.step, session.micro_batch, TapeOfStep(self.tape, parameters),
                    self.losses, parameters, self._scaler, self._scaled, self._kept, self._older)
        look.updates, look.unheard = self.trips.updates, self._after.unheard
        return look

    # Of any boundary, when its readings are there.
    def weigh(self, found: Found, step: int, paths: list[str], words: tuple[Sequence[float], Sequence[float]],
              scaled: bool) -> tuple[Sequence[float], Sequence[float]]:
        """Keeps norms of gradients, as the optimizer will use them."""
        norms, amaxes = words
        scale = self.session.last_scale if scaled else 1.0
        if scale != 1.0 and scale > 0:
            norms, amaxes = [n / scale for n in norms], [a / scale for a in amaxes]
        found.gradient_norm = math.hypot(*norms)
        self._norms.append((step, paths, norms, amaxes))
        return norms, amaxes

    def grows(self, norm: float) -> bool:
        smallest = min(self._gradient_norms, default=math.inf)
        self._gradient_norms.append(norm)
        return not norm <= _GROWS * smallest

    def read_weights(self) -> tuple[Here, list[tuple[str, _Tensor]]]:
        return self._reader.gradients(self._parameters(), weights=True), self._reader.away

    def is_one_bad(self, items: Sequence[tuple[int, str, _Tensor]]) -> bool:
        return bool(self._reader.bad_among(items))

    def weights_are_due(self, step: int, grows: bool) -> bool:
        """In the first steps, now and then, and where gradients grow: whether the weights grow as well. Where no loss
        would show that they are bad: always."""
        return step % _WEIGHTS_EVERY == 0 or step < _WEIGHTS_EVERY or grows or self.is_without_loss()

    def is_without_loss(self) -> bool:
        """The program has given its parameters gradients by other means than a backward."""
        return not self._backwards

    def keep_weights(self, found: Found, step: int, paths: list[str], words: tuple[Sequence[float], Sequence[float]],
                     bad: list[str]) -> None:
        """What was sound when it was last read was made bad since: loss and gradients may not show it."""
        if bad and not self._bad_weights.issuperset(bad):
            trained = {path for p, path in self._parameters() if p.requires_grad}
            for path in bad:
                if self._weights and path in trained and path not in self._bad_weights:
                    found.note(lib.MARK_PARAMETER, path)
        self._bad_weights = set(bad)
        if step > 0:  # as the step before left them
            self._weights.append((step - 1, paths, list(words[0]), list(words[1])))
            self._unseen.were_read(self._parameters(), step - 1, paths, words[1], bad)

    def tell_gradients(self, found: Found, facts: StepFacts, bad: list[str]) -> None:
        facts.gradients_are_bad = self.was_bad = bool(bad)
        for path in bad:
            found.note(lib.MARK_GRADIENT, path)

    def replays(self, step: int) -> bool:
        """Though it is healthy."""
        return step in self.wanted

    def hot_buffers(self) -> list[Buffers]:
        for key in [key for key, info in self._infos.items() if info.module() is None]:
            del self._infos[key]
        return [info.buffers for info in self._infos.values() if info.buffers.hot]

    def _read_buffers(self) -> None:
        hot = self.hot_buffers()
        if self._reader.bad_among([(lib.MARK_BUFFER, "", t) for buffers in hot for t in buffers.to_read()]):
            self.tell_buffers(self.found, hot)

    def tell_buffers(self, found: Found, hot: Sequence[Buffers]) -> None:
        """Which of those it is."""
        for buffers in hot:
            for kind, path in self._reader.bad_among([(lib.MARK_BUFFER, *one) for one in buffers.bad_ones()]):
                found.note(kind, path)

    # Calls with gradients off.
    def before_validated(self, module: torch.nn.Module) -> None:
        self.validation.on_call()

    def on_validated(self, module: torch.nn.Module, output: Any) -> None:
        self.validation.on_output(output, self.tape.listens)

    def before_unfinished(self) -> None:
        if self.validation.judge():
            self.session.worked = True  # there is something to be judged, should no step follow

    # Steps that the program gives up.
    def _saw_bad_number(self) -> bool:
        """Most often it is the loss: made outside of modules, or returned by one."""
        if self.tape.bad_number:
            return True
        entries = [entry for entry in self.tape.calls if isinstance(entry, RootEntry)]
        returned = [seen() for seen, _ in (entries[-1].seen if entries else ())]
        numbers = [peek(t) for t in returned if t is not None and t.numel() == 1]
        return any(number is not None and not math.isfinite(number) for number in numbers)

    def on_unfinished(self, ending: int) -> None:
        """What it has in hand is looked at now, and the step is done again op by op: what it computed outside of its
        modules is known in no other way."""
        self.tape.off()
        if self._running is not None:  # the program ends itself in forward
            call, call.raised = self._running, SystemExit
            self.on_root_exit(call, None)
            call.state = None
        if not self.tape.roots and not self.session.live:
            self.found.unread = bool(self.tape.refusal)
            if self.session.leaves:
                self._boundary()
            return
        self._boundary()  # where a backward came
        if self.found.bad:
            return
        if self.session.live:  # what there is to know of the step is held
            self.session.wants_ops = ending != lib.BY_NEXT_FORWARD or self.trips.may_replay(self.session.step)
            return
        self.found.unread = True  # what is not found below is not known to be healthy
        look = self._look()
        # An exception that the program got over is replayed where a bad number may have raised it.
        suspect = self._saw_bad_number() or torch.is_anomaly_enabled()
        if ending != lib.BY_NEXT_FORWARD or suspect and self.trips.may_replay(self.session.step):
            self.trips.replay(look, unfinished=True)

    # The end.
    def before_last_end(self) -> None:
        """What the program does to its parameters after the last step is in no step's numbers: they are read once more,
        those that were finite when they were read last."""
        session = self.session
        sound = self._sound_at_first
        if self._weights:
            _, paths, norms, _ = self._weights[-1]
            sound = {path for path, norm in zip(paths, norms) if math.isfinite(norm)}
        if session.recorder is None or self.found.bad or session.facts.foreseen or not sound:
            return
        bad = self._reader.bad_among([(lib.MARK_PARAMETER, path, p) for p, path in self._parameters()
                                      if path in sound and p.requires_grad and not is_away(p)])
        for kind, path in bad:
            self.found.note(kind, path)
        if bad:
            session.worked = True  # there is something to be judged, should no step be open
            look, names = self._look(), {path for _, path in bad}
            look.parameters = [one for one in look.parameters if one[1] in names]
            self.trips.tell_written_last(look)

    def on_step_end(self, step: int, skipped: bool) -> None:
        self.tape.off()
        found, facts, overran = self.found, self.session.facts, self.session.overran
        told = self._told if overran and not self._device_boundary.passed else None
        validated = self.validation.first if self.validation.judge() else ""
        self.validation.begin_step()
        if validated and self.session.live:
            self.session.wants_ops = self.session.wants_ops or self.trips.may_replay(step)
        self.session.pending.later(lambda: self._tell_health(step, found, facts, told, validated))
        if overran:
            self._carry_over()
        else:
            self._begin_work()
            self._begin()

    def _tell_health(self, step: int, found: Found, facts: StepFacts, told: tuple[int, int, str] | None,
                     validated: str) -> None:
        recorder, foreseen = self.session.recorder, facts.foreseen
        if recorder is not None:
            bad, tensors, first = told or (found.bad, found.bad_tensors, found.first_bad)
            bad |= HEALTH_AUDIT if foreseen else 0
            if validated:
                bad, tensors, first = bad | 1 << lib.MARK_OUTPUT, tensors + 1, first or validated
            self.session.faults.suspected |= bool(bad)
            if found.unread and not bad:
                return  # a row without bits would say that all of it is healthy
            recorder.health(step, bad, tensors + len(foreseen),
                            first or (foreseen[0] if foreseen else ""), found.gradient_norm, found.weight_norm)

    def on_close(self) -> None:
        self.validation.stop()
        self.tape.off()
        self.tape.clear()


def _site() -> str:
    from nanhunt._tap.places import call_site

    return call_site(3)
