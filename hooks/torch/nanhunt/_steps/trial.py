# SPDX-License-Identifier: Apache-2.0
"""A remedy is tried on the numbers that an origin read: its op is computed with the change that advice asks for, then
what used its result in the run, as far as it is at hand, then the derivatives. Nothing of the program's runs.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nanhunt import _library as lib
from nanhunt._pytorch import no_autocast
from nanhunt._tap.plain import NARROW

if TYPE_CHECKING:
    from nanhunt._steps.origin import Call

_Tensor = torch.Tensor
Compute = Callable[[Any, list[Any], dict[str, Any]], Any]  # (function, arguments) -> what it returns
SAME, OTHER_KERNEL, WIDER, REMEDY = range(4)  # ProbeMode
MAX_ELEMENTS = 1 << 22  # of an op and of what used its result
_MAX_WORK = 1 << 24     # multiplications of these
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "convolution", "convolution_backward")
_MAX_OPS = 16
_ROOM = 16.0
_MOST_TIMES = 1e3  # as large as the largest result that was finite before may be what a remedy makes
_AS_LEARNED = (lib.FORWARD, lib.LOSS, lib.DATA)


class Attempt(NamedTuple):
    """`words`: the change. `wider`: in this format; `all`: what used the result, too. `follow`: that is computed.
    `given`: what the op is given instead of its first argument. `derived`: the op is its derivative."""

    words: str
    compute: Compute | None = None
    wider: torch.dtype | None = None
    all: bool = True
    follow: bool = True
    given: Callable[[_Tensor], _Tensor] | None = None
    derived: bool = False


class Outcome(NamedTuple):
    words: str
    ops: int
    dtype: torch.dtype
    nan: int
    pos_inf: int
    neg_inf: int
    amax: float
    ratio: float = 0.0  # the op's largest result, in multiples of the largest that was finite before; 0: there was none

    @property
    def finite(self) -> bool:
        return self.nan + self.pos_inf + self.neg_inf == 0

    @property
    def is_huge(self) -> bool:
        """Finite, but of no use in training: x / (0 + 1e-8)."""
        return self.finite and self.ratio > _MOST_TIMES

    @property
    def has_room(self) -> bool:
        """What is at the end of its format overflows with the next operation, which may not be at hand."""
        return self.finite and self.amax <= torch.finfo(self.dtype).max / _ROOM


@contextmanager
def alone() -> Iterator[None]:
    """With derivatives, and without what the program may have turned on: autocast, anomaly mode, hooks of its own."""
    with ExitStack() as stack:
        # Detached: a result that is handed back as it is would hold what made it, and that the result.
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t))
        stack.enter_context(torch.enable_grad())
        anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        torch.set_anomaly_enabled(False, False)
        stack.callback(torch.set_anomaly_enabled, *anomaly)
        stack.enter_context(no_autocast())
        yield


def readable(t: _Tensor) -> _Tensor:
    """In a format in which PyTorch compares: of 8 bits it knows less."""
    return t.float() if t.is_floating_point() and t.element_size() == 1 else t


def first_bad(t: _Tensor) -> int:
    """Where the first number stands that is not finite, row-major; -1: there is none."""
    if not t.is_floating_point():
        return -1
    bad = (~torch.isfinite(readable(t))).reshape(-1).nonzero()
    return int(bad[0]) if bad.numel() else -1


def tensors(value: Any) -> list[_Tensor]:
    if isinstance(value, _Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    return []


def each(value: Any, change: Callable[[Any], Any]) -> Any:
    """The arguments with each that is no list changed."""
    if isinstance(value, (list, tuple)):
        return [each(v, change) for v in value]
    if isinstance(value, dict):
        return {k: each(v, change) for k, v in value.items()}
    return change(value)


def derivatives(heads: Sequence[_Tensor], leaves: Sequence[_Tensor], given: Sequence[_Tensor],
                again: bool = False) -> list[_Tensor]:
    """Of `heads` by `leaves`; `again`: they can be derived once more. Not by way of a call that others listen to."""
    engine = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
    found = engine.run_backward(tuple(heads), tuple(given), True, again, tuple(leaves), allow_unreachable=True,
                                accumulate_grad=False)
    return [t for t in found if t is not None]


def work_of(call: Call) -> int:
    """Multiplications of a matrix product or a convolution; 0: of any other op."""
    name = call.plan.op.split("::")[-1]
    if name not in _PRODUCTS:
        return 0
    made = [t.numel() for t in tensors(call.results)]
    inner = [t.shape[-1] if name != "convolution" else t[0].numel() for t in tensors(call.args) if t.dim() > 1]
    return max(made, default=0) * max(inner, default=0)


def is_random(call: Call) -> bool:
    """It would draw numbers of the program's."""
    return torch.Tag.nondeterministic_seeded in getattr(call.func, "tags", ())


class Trial:
    """One origin, its followers in the order in which they ran, and what a remedy of it comes to."""

    def __init__(self, call: Call, kept: Sequence[Call]) -> None:
        self.call = call
        self.backward = call.phase == lib.BACKWARD
        alike = (lib.BACKWARD,) if self.backward else _AS_LEARNED
        self.followers = [one for one in kept if one.first_seq > call.first_seq and one.phase in alike
                          and call.phase in alike and one.plan.op.startswith("aten::")]
        sizes = [sum(t.numel() for t in tensors((one.args, one.kwargs, one.results)))
                 for one in (call, *self.followers)]
        self.fits = sizes[0] <= MAX_ELEMENTS and work_of(call) <= _MAX_WORK
        if sum(sizes) > MAX_ELEMENTS:
            self.followers = []
        done = list(accumulate((work_of(one) for one in self.followers), initial=work_of(call)))
        self.followers = [one for one, work in zip(self.followers, done[1:]) if work <= _MAX_WORK]
        # What another origin has made may look the same.
        self._others = [t for one in kept if one.began and one.first_seq != call.first_seq
                        for t in tensors(one.results) if t.is_floating_point()]

    def run(self, attempt: Attempt) -> Outcome | None:
        """None: it could not be computed."""
        with alone():
            try:
                return self._run(attempt)
            except Exception:  # the op does not take it so
                return None

    def _run(self, attempt: Attempt) -> Outcome | None:
        leaves: list[_Tensor] = []
        with torch.set_grad_enabled(not self.backward or self.call.graphed):
            args, kwargs = self._copies(self.call, attempt.wider, leaves, formats=True, cast=not attempt.all)
            if attempt.given is not None:
                args[0] = attempt.given(args[0].detach()).requires_grad_(args[0].requires_grad)
                leaves.append(args[0])
            made = (attempt.compute or _as_it_is)(self.call.func, args, kwargs)
            all_made = [(old, new) for old, new in zip(tensors(self.call.results), tensors(made))]
            if not all_made:
                return None
            ratio = _ratio(*all_made[0])
            ops, used = 1, set[int]()
            masked = set[int]()  # of what was made: its infinities are a mask's
            for one in self.followers if attempt.follow else ():
                if ops == _MAX_OPS or is_random(one) or (self.backward and self._reads_what_changes(one)):
                    break
                instead = self._instead(one, all_made)
                if not instead:
                    continue
                if _has_other_bad(one, instead):
                    break
                try:
                    given = {key: shown for key, (shown, _) in instead.items()}
                    wider = attempt.wider if attempt.all else None
                    made = self._follow(one, wider, leaves, given)
                    if attempt.compute is not None and one.plan.op == self.call.plan.op and _are_bad(made) and (
                            not _are_bad((one.args, one.kwargs), instead=given)):
                        made = self._follow(one, wider, leaves, given, attempt.compute)
                except Exception:
                    break
                if _is_masked(one, [new for _, new in instead.values()], tensors(made), masked):
                    masked |= set(map(id, tensors(made)))
                all_made += zip(tensors(one.results), tensors(made))
                used |= {id(new) for _, new in instead.values()}
                ops += 1
            results = [new for _, new in all_made if new.is_floating_point()]
            scope = ["its derivative"] if attempt.derived else []
            if ops > 1:
                others = "the operation" if ops == 2 else f"the {ops - 1} operations"
                scope.append(f"with {others} that used the result")
            heads = [t for t in results if t.requires_grad and id(t) not in used]
            learned = [t for t in leaves if t.requires_grad]
            found: list[_Tensor] = []
            if heads and learned:
                ones = [torch.full_like(t, max(1 / max(t.numel(), 1), torch.finfo(t.dtype).tiny)) for t in heads]
                found = derivatives(heads, learned, ones)
                scope.append("and the derivative of that" if self.backward else "forward and backward")
        words = "; ".join([attempt.words, ", ".join(scope)] if scope else [attempt.words])
        shown = [torch.where(t.isinf(), 0.0, t) if id(t) in masked else t for t in results]
        made = outcome_of(words, ops, shown + found, results[0].dtype if results else torch.float32)
        return made._replace(ratio=ratio)

    def _copies(self, call: Call, wider: torch.dtype | None, leaves: list[_Tensor], formats: bool = False,
                cast: bool = False, instead: dict[int, _Tensor] | None = None) -> Any:
        """`cast`: what has a gradient has it in its own format. `formats`: that of the result is `wider`, too."""
        written = {id(t) for arg, value in zip(call.plan.args, call.args) if arg.written for t in tensors(value)}

        def copy(value: Any) -> Any:
            if isinstance(value, _Tensor):
                if instead and id(value) in instead:
                    new = instead[id(value)]
                    return new.clone() if id(value) in written else new
                same = value.detach().clone()
                widens = wider is not None and same.dtype in NARROW
                if widens and not cast:
                    same = same.to(wider)
                if value.requires_grad and torch.is_grad_enabled():
                    leaves.append(same.requires_grad_())
                    same = same.clone() if id(value) in written else same
                return same.to(wider) if widens and cast else same
            if formats and wider is not None and isinstance(value, torch.dtype) and value in NARROW:
                return wider
            return value

        return each(call.args, copy), each(call.kwargs, copy)

    def _follow(self, call: Call, wider: torch.dtype | None, leaves: list[_Tensor],
                instead: dict[int, _Tensor], compute: Compute | None = None) -> Any:
        """`compute`: the remedy, where the operation fails once more for the reason of the first."""
        args, kwargs = self._copies(call, wider, leaves, instead=instead)
        try:
            return (compute or _as_it_is)(call.func, args, kwargs)
        except RuntimeError:  # of two formats: it takes the one of before, as autocast would have it
            narrow = {key: t.to(next(s.dtype for s in tensors((call.args, call.kwargs)) if id(s) == key))
                      for key, t in instead.items()}
            args, kwargs = self._copies(call, wider, leaves, instead=narrow)
            return call.func(*args, **kwargs)

    def _instead(self, call: Call, all_made: Sequence[tuple[_Tensor, _Tensor]]) -> dict[int, tuple[_Tensor, _Tensor]]:
        """What it is given of what was made, and that as it was made, by the tensor that it was given in the run."""
        instead: dict[int, tuple[_Tensor, _Tensor]] = {}
        for t in tensors((call.args, call.kwargs)):
            for old, new in reversed(all_made):
                shown = _as_shown(old, t, new)
                if shown is not None and not any(_as_shown(other, t, other) is not None for other in self._others):
                    instead[id(t)] = shown, new
                    break
        return instead

    def _reads_what_changes(self, call: Call) -> bool:
        """A part of the same derivative: a remedy changes what else it reads as well."""
        return any(t.dim() > 0 and t.shape == mine.shape and t.dtype == mine.dtype and bool(torch.equal(t, mine))
                   for t in tensors(call.args) for mine in tensors(self.call.args))


def _are_bad(values: Any, instead: Mapping[int, _Tensor] | None = None) -> bool:
    """Whether any of them is not finite, or of what stands in its place."""
    return any(first_bad((instead or {}).get(id(t), t)) >= 0 for t in tensors(values))


def _has_other_bad(call: Call, instead: Mapping[int, Any]) -> bool:
    """Of another origin: no remedy of this one makes that finite."""
    return any(id(t) not in instead and first_bad(t) >= 0 for t in tensors((call.args, call.kwargs)))


def is_given_infinity(call: Call) -> bool:
    """A mask: the infinity is one of the program's own."""
    return any(isinstance(value, float) and math.isinf(value) for value in (*call.args, *call.kwargs.values()))


def _is_masked(call: Call, given: Sequence[_Tensor], made: Sequence[_Tensor], masked: set[int]) -> bool:
    """Whether infinities of what it has made are a mask's: a number that it was given, or handed on from such."""
    if not is_given_infinity(call) and masked.isdisjoint(map(id, given)):
        return False
    return all(id(t) in masked or first_bad(t) < 0 for t in given) and not any(bool(t.isnan().any()) for t in made)


def _ratio(old: _Tensor, new: _Tensor) -> float:
    """The largest of `new` in multiples of the largest of `old` that is finite, or of 1."""
    old, new = readable(old), readable(new)
    usual = old.detach()[torch.isfinite(old)]
    largest = float(usual.abs().max()) if usual.numel() and old.is_floating_point() else 0.0
    return float(new.detach().abs().max()) / max(largest, 1.0) if largest and new.numel() else 0.0


def _as_it_is(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def _as_shown(old: _Tensor, seen: _Tensor, new: _Tensor) -> _Tensor | None:
    """`new` in the shape of `seen`, if that shows `old`: numbers of which some are not finite."""
    if not old.is_floating_point() or old.dtype != seen.dtype or old.numel() > seen.numel():
        return None
    shown, seen = readable(old.detach()), readable(seen)
    if bool(torch.isfinite(shown).all()):
        return None
    for view in _VIEWS:
        mine = view(shown, seen.shape)
        if mine is not None and bool(((mine == seen) | (torch.isnan(mine) & torch.isnan(seen))).all()):
            return view(new, seen.shape)
    return None


def _reshaped(t: _Tensor, shape: torch.Size) -> _Tensor | None:
    return t.reshape(shape) if t.numel() == shape.numel() else None


def _transposed(t: _Tensor, shape: torch.Size) -> _Tensor | None:
    return t.transpose(-1, -2) if t.dim() >= 2 and t.transpose(-1, -2).shape == shape else None


def _expanded_at(dim: int | None) -> Callable[[_Tensor, torch.Size], _Tensor | None]:
    """As it is, or with a new dimension, as the derivative of a sum has it."""
    def expanded(t: _Tensor, shape: torch.Size) -> _Tensor | None:
        if t.numel() == shape.numel() or (dim is not None and dim > t.dim()):
            return None
        try:
            return (t if dim is None else t.unsqueeze(dim)).expand(shape)
        except RuntimeError:
            return None
    return expanded


_VIEWS = (_reshaped, _transposed, *map(_expanded_at, (None, 0, 1, 2, 3)))


def outcome_of(words: str, ops: int, results: Sequence[_Tensor], dtype: torch.dtype) -> Outcome:
    nan = pos_inf = neg_inf = 0
    amax = 0.0
    for t in (readable(t.detach()) for t in results):
        nan += int(torch.isnan(t).sum())
        pos_inf += int(torch.isposinf(t).sum())
        neg_inf += int(torch.isneginf(t).sum())
        finite = t[torch.isfinite(t)]
        if finite.numel():
            amax = max(amax, float(finite.abs().max()))
    return Outcome(words, ops, dtype, nan, pos_inf, neg_inf, amax)
