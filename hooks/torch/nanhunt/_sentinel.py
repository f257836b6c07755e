# SPDX-License-Identifier: Apache-2.0
"""Levels sentinel and sampled: what is looked at in every step, and what follows when it is bad.

In a step without a trip: root calls and the ops between them go on the tape, gradients and written buffers are read
once at the door. Parameters, optimizer state and the batch are read on a trip only.
"""
from __future__ import annotations

import math
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._comparison import CLEAN, DIFFERS, OUTPUT, REFUSED, Facts, compare, read_facts
from nanhunt._listener import Listener, RootCall
from nanhunt._modes import hide_from_dynamo
from nanhunt._ops import OpWriter
from nanhunt._origin import Kept, prove
from nanhunt._places import Places
from nanhunt._reading import Reader
from nanhunt._replay import Refused, Replay
from nanhunt._roots import LEARNING, RootInfo, python_rng, same_rng
from nanhunt._scaler import peek
from nanhunt._tape import BackwardEntry, Held, RootEntry, Tape, cloned, geometry, tensors_of, version_of
from nanhunt._unchanged import Autocast, is_autocast_on

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._values import Values

_Tensor = torch.Tensor
HEALTH_AUDIT = 1 << 16
NONE, REPLAY, WAITS, SPENT = range(4)
TRIGGER_AUDIT, TRIGGER_USER = 6, 8
NO_HARM, SCALED, HARM = range(3)
_WEIGHTS_EVERY = 8  # steps; the first so many are all read
_MAX_LOSSES = 4096
_GROWS = 3.0        # times the smallest gradient norm of the steps before


def _bit(kind: int) -> int:
    return 1 << kind


class Sentinel(Listener):
    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self.tape = Tape(session)
        hide_from_dynamo()
        options = session.options
        if options.door == "late":
            session.note("door=late: gradients are read at the door, before the optimizer runs")
        self._library = lib.load_library().fast
        self._policy = self._library.nanhunt_trip_policy_new(options.max_trips, options.distance)
        self._infos: dict[int, RootInfo] = {}
        self._watched: list[tuple[_Tensor, str]] = []  # parameters of all roots and optimizers
        self._watched_key: Any = None
        self._norms: deque[tuple[int, list[str], Sequence[float], Sequence[float]]] = deque(
            maxlen=max(options.keep, 1))
        self._reader = Reader(session, values)
        self._weights: deque[tuple[int, list[str], list[float], list[float]]] = deque(maxlen=self._norms.maxlen)
        self._last_spent = -2
        self._gradient_norms: deque[float] = deque(maxlen=_WEIGHTS_EVERY)
        self._was_bad = False        # gradients, in the step before
        self.wanted: set[int] = set()  # steps to replay in any case
        self._begin_work()
        self._begin()

    def _begin_work(self) -> None:
        self.tape.clear()
        self._names = ()
        self._keeps_graph = False
        self._losses: list[tuple[str, _Tensor | None, bool]] = []  # path, contents (shared), finite
        self._scaled_losses: list[tuple[str, Any, _Tensor, bool]] = []
        self._unread = False         # a backward has added to gradients since they were read
        self._backwards = 0
        self._older = False          # gradients were there before the first backward
        self._kept = False           # ... and were bad
        self._scaled = False         # gradients are multiplied by the scale
        self._scaler: Any = None

    def _begin(self) -> None:
        """Nothing is known of the step yet."""
        self._gradient_norm = math.nan
        self._weight_norm = math.nan
        self._bad = self._bad_tensors = 0
        self._first_bad = ""
        self._first_kind: int | None = None
        self._judged = False
        self._before_door = (0, 0)   # losses and entries of the tape that came before the last one
        self._told = (0, 0, "")      # what was bad at it

    def _carry_over(self) -> None:
        """The step ended at its last door: what was called and differentiated since belongs to the next."""
        losses, entries = self._before_door
        self._begin()
        self._older = True  # whether there were gradients before is not known
        del self.tape.entries[:entries]
        base = min((entry.micro_batch for entry in self.tape.entries), default=0)
        for entry in self.tape.entries:
            entry.micro_batch -= base
        for path, _, finite in self._losses[losses:]:
            if not finite:
                self._note(lib.MARK_LOSS, path)

    # Root calls.
    def _info(self, call: RootCall) -> RootInfo:
        info = self._infos.get(id(call.module))
        if info is None or info.module() is not call.module:
            info = self._infos[id(call.module)] = RootInfo(call.module, call.name)
        return info

    def on_root_enter(self, call: RootCall) -> None:
        tape = self.tape
        tape.off()
        if tape.refusal:
            return
        info = self._info(call)
        entry = RootEntry(call, self.session.micro_batch, tape.segment)
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
        call.state = entry

    def on_root_exit(self, call: RootCall, output: Any) -> None:
        entry, tape = call.state, self.tape
        if entry is None:
            if not tape.refusal:
                tape.on()
            return
        info = self._infos[id(call.module)]
        if output is None:
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
        tape.end_root(entry, output)
        entry.seen = [(weakref.ref(t), version_of(t)) for t in tensors_of(output)]
        tape.on()

    # Backward.
    def before_backward(self, tensors: Sequence[_Tensor], gradients: Any, kwargs: dict[str, Any]) -> None:
        tape = self.tape
        tape.off()
        if not self._backwards:
            self._look_for_older()
        self._backwards += 1
        self._unread = True
        before = tape.refusal
        self._read_losses(tensors)
        if tape.refusal:
            if not before and self._backwards > 1:
                tape.stays_on = True  # the loss may have been computed after a backward of this step
            return
        entry = self._entry(tensors, gradients, kwargs)
        entry.loss = [(path, named) for path, named in self._names]
        entry.options = {"retain_graph": kwargs.get("retain_graph"), "create_graph": kwargs.get("create_graph", False)}
        entry.inputs = tape.pack(_listed(kwargs.get("inputs")))
        tape.entries.append(entry)
        self._keeps_graph = bool(entry.options["retain_graph"] or entry.options["create_graph"])

    _keeps_graph = False
    _names: Sequence[tuple[str, Any]] = ()

    def _entry(self, tensors: Sequence[_Tensor], gradients: Any, kwargs: dict[str, Any]) -> BackwardEntry:
        tape = self.tape
        entry = BackwardEntry(self.session.micro_batch, tape.segment)
        entry.tensors = [tape.pack(t) for t in tensors]
        entry.gradients = tape.pack(_listed(gradients))
        entry.autocast_on = is_autocast_on()
        entry.site = _site()
        return entry

    def after_backward(self) -> None:
        if self._stepping:  # a closure: the optimizer uses these gradients at once
            self._door()
            self.tape.segment += 1
        elif self._keeps_graph or self.tape.stays_on:
            self.tape.on()

    def before_grad(self, outputs: Any, inputs: Any, kwargs: dict[str, Any]) -> None:
        tape = self.tape
        self._resume = tape.listens
        tape.off()
        self._grad_entry: BackwardEntry | None = None
        if tape.refusal or not tape.made:
            return
        entry = self._entry(_listed(outputs) or (), kwargs.get("grad_outputs"), kwargs)
        entry.is_grad = True
        entry.inputs = tape.pack(_listed(inputs))
        entry.options = {name: kwargs[name] for name in ("retain_graph", "create_graph", "allow_unused",
                                                         "materialize_grads") if kwargs.get(name) is not None}
        if kwargs.get("is_grads_batched"):
            tape.refuse("a batched autograd.grad outside of modules")
        self._grad_entry = entry

    _resume = False

    def after_grad(self, result: Any) -> None:
        entry, tape = self._grad_entry, self.tape
        if entry is not None and isinstance(result, (tuple, list)):
            entry.outputs = [geometry(tape._new(t), t, False) if isinstance(t, _Tensor) else None for t in result]
            tape.entries.append(entry)
        self._grad_entry = None
        if self._resume:
            tape.on()

    # Losses.
    def before_scale(self, scaler: Any, loss: Any) -> None:
        if not getattr(scaler, "_enabled", True):
            return
        self._scaled, self._scaler = True, scaler
        if isinstance(loss, _Tensor):
            shared, finite = self._look_at_loss(loss)
            self._scaled_losses.append(("", self.tape.pack(loss), shared, finite))

    def _look_at_loss(self, loss: _Tensor) -> tuple[_Tensor, bool]:
        listens, self.tape.listens = self.tape.listens, False
        try:
            shared = loss.detach()
        finally:
            self.tape.listens = listens
        number = peek(shared)
        if number is None and loss.numel() == 1 and loss.is_cpu:
            number = float(shared.float())
        return shared, number is None or math.isfinite(number)

    def _read_losses(self, tensors: Sequence[_Tensor]) -> None:
        scaled, self._scaled_losses = self._scaled_losses, []
        names: list[tuple[str, Any]] = []
        if not scaled:
            for t in tensors:
                if t.numel() == 1:
                    shared, finite = self._look_at_loss(t)
                    scaled.append(("", self.tape.pack(t), shared, finite))
        session = self.session
        for _, named, shared, finite in scaled:
            n = len(self._losses)
            path = "the loss" if n == 0 else f"loss {n} of the step"
            if n < _MAX_LOSSES:  # a loop without an optimizer has no end of its step
                self._losses.append((path, shared, finite))
            names.append((path, named))
            if math.isnan(session.loss):
                number = peek(shared)
                if number is not None:
                    session.loss = number
            if not finite:
                self._note(lib.MARK_LOSS, path)
        self._names = names

    def _look_for_older(self) -> None:
        self._older = any(p.grad is not None for p, _ in self._parameters()[:1])
        if self._was_bad and any(p.grad is not None for p, _ in self._parameters()):
            _, _, bad = self._reader.gradients(self._parameters())
            self._kept = bool(bad)

    # The door.
    def before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        self._door()

    def before_clip(self, parameters: Sequence[_Tensor], name: str, bound: float) -> None:
        self._door()

    def before_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        self._door()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._door()
        self._stepping = True

    _stepping = False

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepping = False
        self.tape.segment += 1

    def after_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer, error: BaseException | None) -> None:
        self._scaled = False

    def _parameters(self) -> list[tuple[_Tensor, str]]:
        """Of all roots and optimizers."""
        session = self.session
        key = (session.parameter_names.changes, len(session.roots),
               tuple([(id(o), len(o.param_groups)) for o in session._keep]))
        if key != self._watched_key:
            self._watched_key = key
            found: dict[int, tuple[_Tensor, str]] = {}
            for reference, _ in list(session.roots.values()):
                module = reference()
                for p in module.parameters() if module is not None else ():
                    found.setdefault(id(p), (p, session.parameter_names.get(id(p), "")))
            for optimizer in session._keep:
                for p, path in session.parameters_of(optimizer):
                    found.setdefault(id(p), (p, path))
            self._watched = list(found.values())
        return self._watched

    def _door(self) -> None:
        """Before gradients are divided, clipped or used."""
        self.tape.off()
        if not self._unread:
            return
        self._unread = False
        if self.session.open() is None:
            return
        paths, words, bad = self._reader.gradients(self._parameters())
        if paths:
            norms, amaxes = words
            scale = self.session.last_scale if self._scaled else 1.0
            if scale != 1.0 and scale > 0:
                norms, amaxes = [n / scale for n in norms], [a / scale for a in amaxes]
            self._gradient_norm = math.hypot(*norms)
            self._norms.append((self.session.step, paths, norms, amaxes))
            self._read_weights()
            self.session.largest_gradient = max(amaxes)
        self.session.gradients_are_bad = bool(bad)
        for path in bad:
            self._note(lib.MARK_GRADIENT, path)
        self._was_bad = bool(bad)
        self._read_buffers()
        if self._bad:
            self._trip()
        elif self.session.step in self.wanted or self._samples():
            self._replay()
        self._before_door = len(self._losses), len(self.tape.entries)
        self._told = self._bad, self._bad_tensors, self._first_bad

    def _read_weights(self) -> None:
        """In the first steps, now and then, and where gradients grow: whether the weights grow as well."""
        step = self.session.step
        smallest = min(self._gradient_norms, default=math.inf)
        self._gradient_norms.append(self._gradient_norm)
        grows = not self._gradient_norm <= _GROWS * smallest
        if step % _WEIGHTS_EVERY and step >= _WEIGHTS_EVERY and not grows:
            return
        paths, (norms, amaxes), _ = self._reader.gradients(self._parameters(), weights=True)
        if step > 0:  # as the step before left them
            self._weights.append((step - 1, paths, list(norms), list(amaxes)))

    def _samples(self) -> bool:
        """Level sampled: one step in so many is done again op by op, though it is healthy."""
        options = self.session.options
        return options.level == "sampled" and self.session.step % max(options.every, 1) == 0

    def _read_buffers(self) -> None:
        for key in [key for key, info in self._infos.items() if info.module() is None]:
            del self._infos[key]
        hot = [info.buffers for info in self._infos.values() if info.buffers.hot]
        read = self._reader.bad_among([(lib.MARK_BUFFER, "", t) for buffers in hot for t in buffers.to_read()])
        for buffers in hot if read else ():
            for kind, path in self._reader.bad_among([(lib.MARK_BUFFER, *one) for one in buffers.bad_ones()]):
                self._note(kind, path)

    def _note(self, kind: int, path: str) -> None:
        self._bad |= _bit(kind)
        self._bad_tensors += 1
        if self._first_kind is None or kind in _LASTING and self._first_kind not in _LASTING:
            self._first_kind, self._first_bad = kind, path

    # The trip.
    def _harm(self) -> int:
        bad = self._bad & ~(_bit(lib.MARK_BATCH) | _bit(lib.MARK_LABEL))
        if not bad:
            return NO_HARM
        held_back = self._scaler is not None and getattr(self._scaler, "_enabled", True)
        return SCALED if held_back and not self._kept and bad == _bit(lib.MARK_GRADIENT) else HARM

    def _trip(self) -> None:
        session, recorder = self.session, self.session.recorder
        assert recorder is not None
        if not self._judged:
            self._look_further()
        answer = self._library.nanhunt_trip_policy_judge(self._policy, session.step, self._harm())
        if answer in (NONE, WAITS):
            return
        if answer == SPENT:
            told = session.step <= self._last_spent + 1
            self._last_spent = session.step
            if told:
                return
        for kind, ring in ((lib.MARK_PARAMETER, self._weights), (lib.MARK_GRADIENT, self._norms)):
            for step, paths, norms, amaxes in ring:
                for path, norm, amax in zip(paths, norms, amaxes):
                    recorder.norm(step, kind, path, norm, amax)
            ring.clear()
        if answer == SPENT:
            self._refuse("No replay is left for this step: the number of replays of a run is limited.")
            return
        self._replay()

    def _look_further(self) -> None:
        """What is read on a trip only: parameters, optimizer state, the batch."""
        self._judged = True
        items = [(lib.MARK_PARAMETER, path, p) for p, path in self._parameters()]
        for optimizer in self.session._keep:
            for p, path in self.session.parameters_of(optimizer):
                for name, state in optimizer.state.get(p, {}).items():
                    if isinstance(state, _Tensor) and state.is_floating_point() and state.numel() > 1:
                        items.append((lib.MARK_STATE, f"{path}.{name}", state))
        for kind, path in self._reader.bad_among(items):
            self._note(kind, path)
        batch: list[tuple[int, str, _Tensor]] = []
        for entry in self.tape.entries:
            if isinstance(entry, RootEntry):
                batch += [(lib.MARK_BATCH, f"input {i}", h.tensor) for i, h in enumerate(entry.inputs)
                          if h.tensor.is_floating_point()]
        for kind, path in self._reader.bad_among(batch):
            if self._first_kind not in _LASTING:
                self._first_kind, self._first_bad = kind, path
            self._note(kind, path)

    def _trigger(self) -> int:
        if self._first_kind is None:
            return TRIGGER_AUDIT if self._bad else TRIGGER_USER
        return {lib.MARK_LABEL: lib.MARK_BATCH}.get(self._first_kind, self._first_kind)

    def _original(self, needed: Sequence[Any]) -> Facts:
        told = {path for entry in needed if isinstance(entry, BackwardEntry) for path, _ in entry.loss or ()}
        items = [(lib.MARK_LOSS, path, t) for path, t, _ in self._losses if t is not None and path in told]
        items += [(lib.MARK_GRADIENT, path, p.grad) for p, path in self._parameters() if p.grad is not None]
        for entry in needed:
            if not isinstance(entry, RootEntry):
                continue
            for i, (reference, version) in enumerate(entry.seen):
                t = reference()
                if t is not None and version_of(t) == version:
                    items.append((OUTPUT, f"{i} of call {entry.index} of {entry.name or type(entry.module).__name__}",
                                  t))
        return read_facts(self.session, self.values, items)

    def _replay(self) -> None:
        session, recorder = self.session, self.session.recorder
        assert recorder is not None
        replay = Replay(session, self.values, self.tape, self._parameters())
        replay.scale = session.last_scale if self._scaled else 1.0
        try:
            needed = replay.needed()
            replay.check(needed)
        except Refused as why:
            self._refuse(f"The step was not replayed: {why}.")
            return
        original = self._original(needed)
        places = Places(session.parameter_names)
        replay.kept = Kept()
        recorder.replay(session.step, self._trigger(), 0)
        try:
            replay.run(needed, OpWriter(session, self.values, places))
        except Refused as why:
            self._refuse(f"The replay did not end: {why}.")
            return
        except Exception as error:
            session.note(f"replays that did not end: {type(error).__name__}")
            self._refuse(f"The replay did not end: {type(error).__name__}: {_first_line(error)}")
            return
        bits = not self._older and not self._is_reduced()
        if self._older:  # what this backward does not reach is older than the step
            original = {name: fact for name, fact in original.items()
                        if name in replay.facts or name[0] != lib.MARK_GRADIENT or not fact[0]}
        result, text = compare(original, replay.facts, bits)
        if result in (CLEAN, DIFFERS):
            replay.learn_again(needed)
        text = " ".join([text, *self._remarks(result), *replay.notes])
        recorder.replay(session.step, self._trigger(), result, text)
        prove(session, replay.kept)

    def _is_reduced(self) -> bool:
        distributed = sys.modules.get("torch.distributed")
        return bool(distributed is not None and distributed.is_available() and distributed.is_initialized()
                    and distributed.get_world_size() > 1)

    def _remarks(self, result: int) -> list[str]:
        remarks = []
        if self._is_reduced():
            remarks.append("Gradients of the step were reduced over all ranks, those of the replay are this rank's.")
        elif self._older:
            remarks.append("Gradients were there before the step's backward, so only finiteness was compared.")
        compiled = any(type(e.module).__name__ == "OptimizedModule" for e in self.tape.entries
                       if isinstance(e, RootEntry))
        if result in (CLEAN, DIFFERS) and compiled:
            remarks.append("The step ran compiled code, and the replay the same code as it was written.")
        return remarks

    def _refuse(self, why: str) -> None:
        """Without a replay the analyzer has at least what is bad now."""
        session, recorder = self.session, self.session.recorder
        assert recorder is not None
        recorder.replay(session.step, self._trigger(), REFUSED, why)
        items: list[tuple[int, str, _Tensor]] = [(lib.MARK_PARAMETER, path, p) for p, path in self._parameters()]
        items += [(lib.MARK_GRADIENT, path, p.grad) for p, path in self._parameters() if p.grad is not None]
        bad = set(self._reader.bad_among(items))
        for kind, path, t in items:
            if (kind, path) in bad:
                value = self.values.describe(t.detach())
                if value is not None:
                    recorder.rows([lib.ROW_MARK, kind, session.step, session.micro_batch, recorder.text(path), *value])
        self.values.release_hosts()

    # The end.
    def on_step_end(self, step: int, skipped: bool) -> None:
        self.tape.off()
        recorder = self.session.recorder
        if recorder is not None:
            foreseen, overran = self.session.foreseen, self.session.overran
            bad, tensors, first = self._told if overran else (self._bad, self._bad_tensors, self._first_bad)
            recorder.health(step, bad | (HEALTH_AUDIT if foreseen else 0), tensors + len(foreseen),
                            first or (foreseen[0] if foreseen else ""), self._gradient_norm, self._weight_norm)
        if self.session.overran:
            self._carry_over()
        else:
            self._begin_work()
            self._begin()

    def on_close(self) -> None:
        self.tape.off()
        self.tape.clear()


_LASTING = (lib.MARK_PARAMETER, lib.MARK_STATE)


def _listed(value: Any) -> list[Any] | None:
    if value is None:
        return None
    return [value] if isinstance(value, _Tensor) or not hasattr(value, "__iter__") else list(value)


def _site() -> str:
    from nanhunt._places import call_site

    return call_site(3)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else "no message"
