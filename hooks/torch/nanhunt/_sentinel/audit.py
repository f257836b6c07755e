# SPDX-License-Identifier: Apache-2.0
"""Optimizers, before they change anything: would what they are about to store still be finite?

Most steps are decided by hyperparameters and the largest gradient, without a look at parameters or state. Where that
proves nothing, SGD and Adam are computed ahead by the library's pre-audit, others run on copies. What is foreseen is
then shown op by op, by the optimizer itself on copies: nothing of the run's is touched.
"""
from __future__ import annotations

import ctypes as c
import math
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._hooks.scaler import peek
from nanhunt._random import devices_in_use, random_state, set_random_state
from nanhunt._recorder import pack

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.ops import OpWriter
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
HEALTH_AUDIT = 1 << 16
TRIGGER_AUDIT = 6
BEGIN, REPRODUCED, CLEAN, DIFFERS, REFUSED = range(5)
_WIDE = (torch.float32, torch.float64, torch.bfloat16)
_LARGEST_PARAMETER = 2.0**60   # as src/hunt/pre_audit.h assumes of parameters that it does not read
_CALM = 1e18                   # gradients whose square every wide format holds
_ROOM = 1e37
_NUMBERS = frozenset((float, int, bool, type(None)))
_USUAL = 1e6                   # gradients below it need no second look
COPIES = 256 << 20            # bytes of parameters that are run on copies at once
RAISED = "what {} is about to store: on copies it raised {}"
SHOWN = 8                     # parameters that are shown op by op


@dataclass
class Foreseen:
    """What an optimizer is about to store that is not finite."""

    optimizer: torch.optim.Optimizer
    paths: list[str]     # of parameters
    text: str            # in words, for the first of them


class Known:
    """What holds of one optimizer's state, so that it need not be read."""

    __slots__ = ("optimizer", "state", "steps", "top", "growth", "proved", "memory", "skips")

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.state: Any = None       # the dict itself: load_state_dict puts another in its place
        self.steps = 0
        self.top = 0.0               # largest gradient that went into the state
        self.growth = 0.0            # bound of what the optimizer sums up by itself (Adadelta)
        self.proved = False          # every step so far was proved, from new state on
        self.memory: dict[int, lib.AuditMemory] = {}
        self.skips = 0


# Optimizers of torch.optim whose state and updates stay in range as long as gradients do. Each: default eps by name.
_GUARDED = {"Adam": "eps", "AdamW": "eps", "NAdam": "eps", "RAdam": "eps", "Adamax": "eps", "RMSprop": "eps",
            "Adagrad": "eps", "SparseAdam": "eps", "Adadelta": "eps", "Muon": "eps"}
_UNGUARDED = {"SGD", "ASGD", "Rprop", "Adafactor"}  # no denominator, or one that is held above a constant inside


def is_torchs(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def _number(value: Any, otherwise: float = math.nan) -> float:
    number = peek(value)
    return otherwise if number is None else number


def is_calm(name: str, group: dict[str, Any], dtypes: set[torch.dtype], top: float, steps: int) -> bool:
    """Whether no parameter or state of the group can leave its format, given that no gradient so far was above `top`
    and that state was new before it. By the formulas of torch.optim, with room for rounding."""
    if not dtypes <= set(_WIDE) or not math.isfinite(top) or group.get("differentiable"):
        return False
    lr, decay = _number(group.get("lr")), _number(group.get("weight_decay", 0.0), 0.0)
    if not (0 <= lr <= 1e6) or not (decay >= 0) or lr * decay > 1 or steps > 1 << 40:
        return False
    slope = top + decay * _LARGEST_PARAMETER
    if name in ("Adam", "AdamW") and (name == "AdamW" or group.get("decoupled_weight_decay")):
        slope = top
    if not slope <= _CALM:
        return False
    betas = [_number(b) for b in group.get("betas", ())]
    if not all(0 <= b < 1 - 1e-9 for b in betas):
        return False
    momentum = _number(group.get("momentum", 0.0), 0.0)
    if name != "Rprop" and not 0 <= momentum < 1 - 1e-6:
        return False
    if name in _UNGUARDED:
        return lr * slope / (1 - min(momentum, 0.999999)) < _ROOM
    key = _GUARDED.get(name)
    if key is None or (name == "RMSprop" and group.get("centered")):
        return False  # the difference of two averages may come out below 0
    eps = _number(group.get(key))
    if not eps >= 1e-30:
        return False
    if name == "Adagrad":
        return slope * slope * (steps + 1) < _ROOM and lr * slope / eps < _ROOM
    if name in ("Adadelta", "Muon"):
        return slope * slope < _ROOM
    most = lr * slope / eps / (1 - min(momentum, 0.999999))
    if betas:
        most /= (1 - betas[0])  # of the first step
    return most < _ROOM


class Audit:
    """Asked at the boundary of each optimizer."""

    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self._known: dict[int, Known] = {}
        self._shapes: dict[int, tuple[int, set[torch.dtype]]] = {}
        self._calm: dict[int, tuple[Any, ...]] = {}  # by group: of what kind, below _USUAL
        self.is_proved = False  # that nothing bad is coming, when last asked

    def foresee(self, optimizer: torch.optim.Optimizer, top: float | None = None) -> Foreseen | None:
        """`top`: the largest gradient as the optimizer will use it, where that is known; gradients are read else.
        None: nothing bad is coming, or nothing is known of it, which is noted. `is_proved` says which."""
        self.is_proved = False
        if self.session.open() is None:
            return None
        if not is_torchs(optimizer):
            self.session.note(f"what {type(optimizer).__name__} is about to store: it is none of torch.optim")
            return None
        known = self.known_of(optimizer)
        if top is None:
            top = max(self._amaxes(optimizer).values(), default=0.0)
        if not math.isfinite(top):
            known.proved = False  # the gradients are bad already: that is told by whoever watches them
            return None
        before, known.top = known.top, max(known.top, top)
        name = type(optimizer).__name__
        rest = [g for g in optimizer.param_groups
                if not (known.proved and self.is_calm(name, g, known.top, known.steps))]
        known.steps += 1
        if name == "Adadelta" and not rest:
            known.growth = 2.1 * known.growth + 1e-6
            if known.growth > 1e30:
                known.growth = self._largest_state(optimizer)
                rest = list(optimizer.param_groups) if known.growth > 1e30 else []
        if not rest:
            self.is_proved = True
            return None
        if name in ("SGD", "Adam", "AdamW"):
            found = self._look(optimizer, name, rest, known)
        elif name == "LBFGS":
            self.session.note("what LBFGS is about to store: its gradients are made while it steps")
            found = None
        else:
            found = self._try(optimizer, rest)
        if found is None and not known.proved and math.isfinite(known.top):
            self._settle(optimizer, known)
        if found is not None:
            known.top, known.proved = before, False
        return found

    def is_calm(self, name: str, group: dict[str, Any], top: float, steps: int) -> bool:
        """`is_calm`; what holds of usual gradients is found out once for hyperparameters that stay the same."""
        get = group.get
        numbers = (get("lr"), get("weight_decay"), get("eps"), get("momentum"), *get("betas", ()))
        dtypes = self.dtypes(group)
        # Adagrad adds up; a tensor may be written.
        if top > _USUAL or name == "Adagrad" or not _NUMBERS.issuperset(map(type, numbers)):
            return is_calm(name, group, dtypes, top, steps)
        kind = (name, numbers, dtypes, get("centered"), get("differentiable"), get("decoupled_weight_decay"))
        if self._calm.get(id(group)) == kind:
            return True
        if is_calm(name, group, dtypes, _USUAL, steps):
            self._calm[id(group)] = kind
            return True
        return is_calm(name, group, dtypes, top, steps)

    def known_of(self, optimizer: torch.optim.Optimizer) -> Known:
        known = self._known.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            known = self._known[id(optimizer)] = Known(optimizer)
            self._shapes.clear()  # ids of groups that ended may be another's by now
            self._calm.clear()
            known.state = optimizer.state
            known.proved = not optimizer.state
        elif known.state is not optimizer.state:  # loaded
            known.state, known.proved = optimizer.state, not optimizer.state
            known.memory.clear()
        return known

    def _settle(self, optimizer: torch.optim.Optimizer, known: Known) -> None:
        """State that was not seen from its beginning: read once, then what holds of it is known."""
        largest = self._largest_state(optimizer)
        if not largest <= 1e15:
            return
        known.top, known.proved, known.growth = max(known.top, largest), True, largest
        known.steps = max([known.steps, *[int(_number(s.get("step", 0), 0)) for s in optimizer.state.values()
                                          if isinstance(s, dict)]])

    def _largest_state(self, optimizer: torch.optim.Optimizer) -> float:
        tensors = [t for s in optimizer.state.values() if isinstance(s, dict) for t in s.values()
                   if isinstance(t, _Tensor) and t.is_floating_point() and t.numel() > 1]
        return max(self._read(tensors), default=0.0)

    def dtypes(self, group: dict[str, Any]) -> set[torch.dtype]:
        count = len(group["params"])
        entry = self._shapes.get(id(group["params"]))
        if entry is None or entry[0] != count:
            if len(self._shapes) > 1000:
                self._shapes.clear()
            entry = self._shapes[id(group["params"])] = (count, {p.dtype for p in group["params"]})
        return entry[1]

    def _read(self, tensors: Sequence[_Tensor]) -> list[float]:
        """Largest magnitudes; infinite where an element is not finite, or cannot be read."""
        recorder = self.session.recorder
        pairs: list[int] = []
        held = []
        for t in tensors:
            try:
                plain = t.detach()
                plain = plain._values() if plain.is_sparse else plain
                host = plain if plain.is_cpu else plain.cpu()
                held.append(host)
                pairs += (host.data_ptr(), self.values.layout(host))
            except Exception:
                return [math.inf]
        if recorder is None or not pairs:
            return []
        readings, _ = recorder.read(pairs, lib.READ_NORM)
        return [math.inf if r.bad else r.amax for r in readings[:len(held)]]

    def _amaxes(self, optimizer: torch.optim.Optimizer) -> dict[int, float]:
        given = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        read = self._read([p.grad for p in given])
        scale = _divisor(optimizer)
        return {id(p): amax / scale for p, amax in zip(given, read)} if len(read) == len(given) else {0: math.inf}

    # SGD and Adam: element by element, by the library.
    def _look(self, optimizer: torch.optim.Optimizer, name: str, groups: list[dict[str, Any]],
              known: Known) -> Foreseen | None:
        recorder = self.session.recorder
        assert recorder is not None
        names = {id(p): path for p, path in self.session.parameters_of(optimizer)}
        amaxes = self._amaxes(optimizer)
        bad: list[tuple[_Tensor, str]] = []
        doubts: list[dict[str, Any]] = []
        text = ""
        for group in groups:
            if group.get("dampening") or group.get("differentiable") or group.get("amsgrad") or not _are_numbers(group):
                doubts.append(group)  # not among what the library computes
                continue
            options = _options(name, group)
            for p in group["params"]:
                if p.grad is None:
                    continue
                audit = self._audit_one(recorder, options, optimizer, p, amaxes.get(id(p), math.nan), known)
                if audit is None:
                    self.session.note("what an optimizer is about to store: tensors that cannot be read")
                elif audit.trips and (audit.bad_updates or audit.bad_state):
                    bad.append((p, names.get(id(p), "")))
                    text = text or _in_words(audit)
        if doubts:
            tried = self._try(optimizer, doubts)
            if tried is not None:
                bad += [(p, path) for p, path in self.session.parameters_of(optimizer) if path in tried.paths]
                text = text or tried.text
        if not bad:
            return None
        return Foreseen(optimizer, [path for _, path in bad], text)

    def _audit_one(self, recorder: Any, options: lib.AuditOptions, optimizer: torch.optim.Optimizer, p: _Tensor,
                   amax: float, known: Known) -> lib.Audit | None:
        state = optimizer.state.get(p, {}) if p in optimizer.state else {}
        grad = p.grad
        assert grad is not None
        memory = known.memory.get(id(p))
        if memory is None:
            memory = known.memory[id(p)] = lib.AuditMemory(0.0, math.nan, 1, 1) if not state else lib.AuditMemory()
        before = lib.AuditMemory(memory.first, memory.param, memory.balanced, memory.known)
        first = state.get("exp_avg", state.get("momentum_buffer"))
        second = state.get("exp_avg_sq")
        if options.algorithm != b"sgd" and second is None:
            first = second = torch.zeros_like(p)
        elif options.algorithm == b"sgd" and options.momentum != 0 and first is None:
            first = torch.zeros_like(p)
        step = int(_number(state.get("step", 0), 0)) + 1
        held: list[Any] = []

        def ask(gradient: _Tensor) -> lib.Audit | None:
            words: list[int] = []
            for t in (gradient, p.detach(), first, second):
                if t is None:
                    words += (0, 0)
                    continue
                host = t.detach()
                if host.layout is not torch.strided:
                    return None
                host = host if host.is_cpu else host.cpu()
                held.append(host)
                words += (host.data_ptr(), self.values.layout(host))
            result = lib.Audit()
            status = recorder.slow.nanhunt_pre_audit(recorder.handle, c.byref(options), pack(words), step, amax,
                                                     c.byref(memory), c.byref(result))
            return result if status == lib.OK else None

        try:
            result = ask(grad)
            scale = _divisor(optimizer)
            if result is not None and result.read_elements and scale != 1:
                # A fused optimizer divides by the scale itself: its gradient was read as it is now.
                memory.first, memory.param, memory.balanced, memory.known = (
                    before.first, before.param, before.balanced, before.known)
                result = ask(grad / scale)
            return result
        except Exception:
            return None

    # Others: on copies.
    def _try(self, optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> Foreseen | None:
        session = self.session
        parameters = [p for g in groups for p in g["params"] if p.grad is not None]
        if sum(p.numel() * p.element_size() for p in parameters) > COPIES:
            session.note(f"what {type(optimizer).__name__} is about to store: its parameters are too large for copies")
            return None
        with on_copies(session, optimizer, parameters) as copies:
            if copies is None:
                return None
            try:
                copies.step()
            except Exception as error:  # so will the optimizer's own, most likely: an option that torch refuses
                session.note(RAISED.format(type(optimizer).__name__, type(error).__name__))
                return None
            bad: list[str] = []
            text = ""
            names = {id(p): path for p, path in session.parameters_of(optimizer)}
            for p, copied in copies.pairs:
                what = ["parameter"] if self._became_bad([p], [copied]) else []
                before = optimizer.state.get(p, {}) if p in optimizer.state else {}
                for key, t in copies.optimizer.state.get(copied, {}).items():
                    if isinstance(t, _Tensor) and t.is_floating_point() and self._became_bad(
                            [before[key]] if isinstance(before.get(key), _Tensor) else [], [t]):
                        what.append(key)
                if what:
                    bad.append(names.get(id(p), ""))
                    text = text or f"Its {' and '.join(what)} would not be finite."
        return Foreseen(optimizer, bad, text) if bad else None

    def _became_bad(self, before: list[_Tensor], after: list[_Tensor]) -> bool:
        return any(math.isinf(a) for a in self._read(after)) and not any(math.isinf(a) for a in self._read(before))


def _divisor(optimizer: torch.optim.Optimizer) -> float:
    """By what a fused optimizer will divide its gradients itself; 1 elsewhere."""
    scale = getattr(optimizer, "grad_scale", None)
    number = peek(scale)
    return number if number is not None and number > 0 and math.isfinite(number) else 1.0


def _are_numbers(group: dict[str, Any]) -> bool:
    """Whether the options by which it steps are; torch refuses others."""
    options = [group.get(key, 0.0) for key in ("lr", "momentum", "eps", "weight_decay")]
    return all(peek(option) is not None for option in (*options, *group.get("betas", ())))


def _options(name: str, group: dict[str, Any]) -> lib.AuditOptions:
    betas = [_number(b, 0.0) for b in group.get("betas", (0.0, 0.0))]
    decoupled = name == "AdamW" or bool(group.get("decoupled_weight_decay"))
    algorithm = b"sgd" if name == "SGD" else b"adamw" if decoupled else b"adam"
    return lib.AuditOptions(algorithm=algorithm, fused=int(bool(group.get("fused"))),
                            nesterov=int(bool(group.get("nesterov"))), lr=_number(group.get("lr")),
                            momentum=_number(group.get("momentum", 0.0), 0.0), beta1=betas[0], beta2=betas[1],
                            eps=_number(group.get("eps", 0.0), 0.0),
                            weight_decay=_number(group.get("weight_decay", 0.0), 0.0))


def _in_words(audit: lib.Audit) -> str:
    parts = []
    if audit.zero_over_zero:
        parts.append(f"{audit.zero_over_zero} elements would be 0/0")
    if audit.x_over_zero:
        parts.append(f"{audit.x_over_zero} would be divided by 0")
    if audit.bad_denominators:
        parts.append(f"{audit.bad_denominators} denominators would not be finite")
    if audit.bad_state:
        parts.append(f"{audit.bad_state} elements of its state would not be finite")
    if not parts:
        parts.append(f"{audit.bad_updates} elements would not be finite")
    return f"{', '.join(parts)}; the first is element {audit.first_index}."


class Copies:
    """An optimizer of the same class with the same options, whose parameters, gradients and state are copies."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[_Tensor]) -> None:
        wanted = {id(p) for p in parameters}
        self.pairs: list[tuple[_Tensor, _Tensor]] = []
        twin = object.__new__(type(optimizer))
        twin.__dict__.update(optimizer.__dict__)
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            if hooks in twin.__dict__:
                twin.__dict__[hooks] = {}
        for name in ("step", "zero_grad"):  # a scheduler or a launcher may have wrapped the original's
            twin.__dict__.pop(name, None)
        twin.state = defaultdict(dict)
        twin.param_groups = []
        for group in optimizer.param_groups:
            copied = {k: v.detach().clone() if isinstance(v, _Tensor) else v for k, v in group.items() if k != "params"}
            copied["params"] = []
            for p in group["params"]:
                if id(p) not in wanted or p.grad is None:
                    continue
                q = p.detach().clone().requires_grad_(p.requires_grad)
                q.grad = p.grad.detach().clone()
                if p in optimizer.state:
                    twin.state[q] = {k: v.detach().clone() if isinstance(v, _Tensor) else v
                                     for k, v in optimizer.state[p].items()}
                copied["params"].append(q)  # type: ignore[union-attr]
                self.pairs.append((p, q))
            if copied["params"]:
                twin.param_groups.append(copied)
        self.optimizer: torch.optim.Optimizer = twin

    def step(self) -> None:
        method = type(self.optimizer).step
        if getattr(method, "hooked", False):  # global hooks are the run's, and ours
            method = getattr(method, "__wrapped__", method)
        method(self.optimizer)


@contextmanager
def on_copies(session: Session, optimizer: torch.optim.Optimizer,
              parameters: Sequence[_Tensor]) -> Iterator[Copies | None]:
    """Taps are deaf and random numbers are put back meanwhile. None: it cannot be copied, which is noted."""
    before, session.replaying = session.replaying, True
    rng = random_state(devices_in_use())
    try:
        copies = None
        try:
            with torch.no_grad():
                copies = Copies(optimizer, parameters)
        except Exception as error:
            session.note(f"what {type(optimizer).__name__} is about to store: {type(error).__name__} while copying")
        yield copies
    finally:
        session.replaying = before
        set_random_state(rng)


@dataclass
class Shown:
    """What came of an optimizer's step on copies."""

    bad: bool = False  # what it stored is not finite
    # (parameter, name of its state or "", the copy): what the run's own tensors will hold after the step.
    results: list[tuple[_Tensor, str, _Tensor]] = field(default_factory=list)


def replay_optimizer(session: Session, values: Values, writer: OpWriter, optimizer: torch.optim.Optimizer,
                     paths: Sequence[str], named: Sequence[tuple[_Tensor, str]] | None = None) -> Shown:
    """The coming step of these parameters on copies, op by op, as rows of phase optimizer. `named`: its parameters with
    their paths, where it is none of the run's."""
    recorder = session.recorder
    shown = Shown()
    if recorder is None:
        return shown
    wanted = set(list(paths)[:SHOWN])
    named = session.parameters_of(optimizer) if named is None else named
    names = {id(p): path for p, path in named}
    chosen = [p for p, path in named if path in wanted]
    with on_copies(session, optimizer, chosen) as copies:
        if copies is None:
            return shown
        step, micro = writer.step, writer.micro_batch

        def mark(kind: int, path: str, t: _Tensor) -> None:
            value = values.describe(t.detach())
            if value is not None:
                recorder.rows([lib.ROW_MARK, kind, step, micro, recorder.text(path), *value])

        def states(q: _Tensor) -> list[tuple[str, _Tensor]]:
            return [(key, t) for key, t in copies.optimizer.state.get(q, {}).items()
                    if isinstance(t, _Tensor) and t.numel() > 1] if q in copies.optimizer.state else []

        phase, writer.phase = writer.phase, lib.OPTIMIZER
        owned: list[tuple[_Tensor, str]] = []
        try:
            for p, q in copies.pairs:
                path = names[id(p)]
                assert q.grad is not None
                before = optimizer.state.get(p, {}) if p in optimizer.state else {}
                for ours, twin in ((p, q), (p.grad, q.grad), *[(before.get(key), t) for key, t in states(q)]):
                    _share_identity(values, ours, twin)
                mark(lib.MARK_PARAMETER, path, q)
                mark(lib.MARK_GRADIENT, path, q.grad)
                for key, t in states(q):
                    mark(lib.MARK_STATE, f"{path}.{key}", t)
                owned += [(t, path) for t in (q, q.grad, *[t for _, t in states(q)])]
            writer.own(owned)
            try:
                with writer.listening():
                    copies.step()
            except Exception as error:
                session.note(RAISED.format(type(optimizer).__name__, type(error).__name__))
            for p, q in copies.pairs:
                path = names[id(p)]
                mark(lib.MARK_PARAMETER, path, q)
                for key, t in states(q):
                    mark(lib.MARK_STATE, f"{path}.{key}", t)
                stored = [("", q.detach()), *states(q)]
                shown.bad = shown.bad or not all(bool(torch.isfinite(t).all()) for _, t in stored
                                                 if t.is_floating_point())
                shown.results += [(p, key, t) for key, t in stored]
        finally:
            writer.phase = phase
            writer.own(())
            values.release_hosts()
    return shown


def _share_identity(values: Values, ours: Any, twin: _Tensor) -> None:
    """The run is about to do to its tensor what the rows say of the copy: whoever reads it later finds its maker."""
    if isinstance(ours, _Tensor):
        try:
            values.share(ours, twin)
        except Exception:
            return  # no storage of its own
