# SPDX-License-Identifier: Apache-2.0
"""Which remedies are tried on the numbers that an origin read: a row for each piece of advice and the ops it is for.
Ids are those of `src/analyze/wording/advice.cpp`. To add one: a row, and a fault and its twin in
`tests/torch/programs/test_remedies.py`.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nanhunt import _library as lib
from nanhunt._steps.optimizer_trial import of_optimizer
from nanhunt._steps.trial import REMEDY, Attempt, Compute, Outcome, Trial, derivatives, tensors
from nanhunt._tap.plain import DTYPES, NARROW

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._steps.origin import Call

_Tensor = torch.Tensor
# Constants that a format holds, smallest first: of each the inverse and the root are sound numbers of it too.
GUARDS = {torch.float16: (1e-4, 1e-3, 1e-2), torch.bfloat16: (1e-8, 1e-6, 1e-4), torch.float32: (1e-8, 1e-6, 1e-4),
          torch.float64: (1e-12, 1e-8)}
_INSIDE = (1e-6, 1e-4, 1e-3)  # from an end of a domain
Attempts = Callable[["Call"], Iterator[Attempt]]


def _format(call: Call) -> torch.dtype:
    """In which its results are stored."""
    found = [t.dtype for t in tensors((call.results, call.args)) if t.is_floating_point()]
    return found[0] if found else torch.float32


def _guards(call: Call) -> Sequence[float]:
    return GUARDS.get(_format(call), ())


def _on(index: int, change: Callable[[_Tensor], _Tensor]) -> Compute:
    """The op itself, its argument `index` changed."""
    return lambda func, args, kwargs: func(*args[:index], change(args[index]), *args[index + 1:], **kwargs)


def _clamp(ends: dict[str, float]) -> Callable[[_Tensor], _Tensor]:
    return lambda x: x.clamp(**ends)


def _text(number: float) -> str:
    """1e-8, 11.08."""
    return f"{number:.10g}".replace("e-0", "e-")


def _plus(guard: float) -> Callable[[_Tensor], _Tensor]:
    return lambda x: x + guard


def _root_of(guard: float) -> Callable[[_Tensor], _Tensor]:
    return lambda x: (x + guard).sqrt()


def _name(call: Call) -> str:
    name = call.plan.op.split("::")[-1]
    return name[:-1] if name.endswith("_") else name


def _argument(call: Call, index: int) -> _Tensor | None:
    value = call.args[index] if index < len(call.args) else None
    return value if isinstance(value, _Tensor) and value.is_floating_point() else None


# Poles and domains.
def _clamped(low: Callable[[float], float | None], high: Callable[[float], float | None],
             constants: Callable[[Call], Sequence[float]]) -> Attempts:
    def attempts(call: Call) -> Iterator[Attempt]:
        for constant in constants(call):
            ends = {k: v for k, v in (("min", low(constant)), ("max", high(constant))) if v is not None}
            words = ", ".join(f"{k}={_text(v)}" for k, v in ends.items())
            yield Attempt(f"{_name(call)}(x.clamp({words}))", _on(0, _clamp(ends)))
    return attempts


def _none(_: float) -> None:
    return None


def _exponent(call: Call) -> Iterator[Attempt]:
    """The largest argument that the result's format holds; then less, for what multiplies the result: a wide format
    has room for that at once."""
    largest = math.log(torch.finfo(_format(call)).max) / (math.log(2) if _name(call) == "exp2" else 1)
    for part in (1, 2, 4, 8) if _format(call) is torch.float16 else (4, 8, 16):
        end = math.floor(largest / part * 100) / 100
        ends = {"min": -end, "max": end} if _name(call) in ("sinh", "cosh") else {"max": end}
        words = ", ".join(f"{k}={_text(v)}" for k, v in ends.items())
        yield Attempt(f"{_name(call)}(x.clamp({words}))", _on(0, _clamp(ends)))


def _less_largest(call: Call) -> Iterator[Attempt]:
    x = _argument(call, 0)
    if x is not None and x.dim() > 0 and x.shape[-1] > 1 and x.numel() > 0:
        yield Attempt("exp(x - x.amax(-1, keepdim=True))", _on(0, lambda x: x - x.amax(-1, keepdim=True)))


def _log_softmax(call: Call) -> Iterator[Attempt]:
    p = _argument(call, 0)
    if p is None or bool((p < 0).any()):
        return
    sums = [(abs(float((p.float().sum(dim) - 1).abs().max())), dim) for dim in range(p.dim()) if p.shape[dim] > 1]
    if not sums or min(sums)[0] > 0.02:
        return
    dim = min(sums)[1] - p.dim()

    def compute(func: Any, args: list[Any], kwargs: dict[str, Any]) -> _Tensor:
        return torch.ops.aten._log_softmax.default(args[0], dim, False)
    yield Attempt(f"log_softmax(x, {dim}) of scores that have these probabilities", compute, given=_scores)


def _with_logits(call: Call) -> Iterator[Attempt]:
    p = _argument(call, 0)
    if p is None or bool(((p < 0) | (p > 1)).any()):
        return

    def compute(func: Any, args: list[Any], kwargs: dict[str, Any]) -> _Tensor:
        return -torch.ops.aten.softplus.default(-args[0])
    yield Attempt("logsigmoid(x) of scores that have these probabilities", compute,
                  given=lambda p: _scores(p) - _scores(1 - p))


def _logsumexp(call: Call) -> Iterator[Attempt]:
    p = _argument(call, 0)
    if p is None or bool((p < 0).any()):
        return
    base = {"log2": math.log(2), "log10": math.log(10)}.get(_name(call), 1.0)

    def compute(func: Any, args: list[Any], kwargs: dict[str, Any]) -> _Tensor:
        return torch.ops.aten.logsumexp.default(args[0].unsqueeze(-1), [-1]) / base
    yield Attempt("logsumexp of exponents that have these sums", compute, given=_scores)


def _scores(p: _Tensor) -> _Tensor:
    """Logarithms; of 0 that of a number that its format rounds to 0."""
    tiny = torch.finfo(p.dtype).smallest_normal
    return p.double().clamp(min=tiny * 2.0 ** -11).log().to(p.dtype)


def _inside(call: Call) -> Iterator[Attempt]:
    """The derivatives of acos and asin are g * rsqrt(1 - x * x)."""
    for constant in _INSIDE:
        end = 1 - constant
        yield Attempt(f"x.clamp(min={_text(-end)}, max={_text(end)})",
                      _on(0, _clamp({"min": 1 - end * end})))


def _above(call: Call) -> Iterator[Attempt]:
    """The derivative of acosh is g * rsqrt(x * x - 1)."""
    for constant in _INSIDE:
        low = 1 + constant
        yield Attempt(f"x.clamp(min={_text(low)})", _on(0, _clamp({"min": low * low - 1})))


# Quotients.
def _raised(call: Call) -> Iterator[Attempt]:
    """A constant that was rounded away has left what it was added to."""
    at = _divisor(call)
    words = "x / (y + {})" if at == 1 else f"{_name(call)}(x + {{}})"
    for guard in _guards(call) if _argument(call, at) is not None else ():
        yield Attempt(words.format(_text(guard)), _on(at, _plus(guard)))


def _divisor(call: Call) -> int:
    return 1 if _name(call) in ("div", "true_divide") else 0


def _counted(call: Call) -> Iterator[Attempt]:
    at = _divisor(call)
    count = call.args[at] if at < len(call.args) else None
    if isinstance(count, _Tensor) and not count.is_complex() and bool((count == count.round()).all()):
        words = "x / y.clamp(min=1)" if at == 1 else f"{_name(call)}(x.clamp(min=1))"
        yield Attempt(words, _on(at, _clamp({"min": 1})))


def _skipped(call: Call) -> Iterator[Attempt]:
    at = _divisor(call)
    if _argument(call, at) is None:
        return

    def skip(func: Any, args: list[Any], kwargs: dict[str, Any]) -> _Tensor:
        zero = args[at] == 0
        args[at] = torch.where(zero, torch.ones_like(args[at]), args[at])
        made = func(*args, **kwargs)
        return torch.where(zero, torch.zeros_like(made), made)
    yield Attempt(f"0 where {'x' if at == 0 else 'y'} is 0, which 1 takes the place of before the division", skip)


# Selections after the op: what they drop has a gradient of 0.
def _selected(call: Call) -> Iterator[Attempt]:
    if _argument(call, 0) is None or _argument(call, 1) is None:
        return

    def compute(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        dropped = (args[0] == 0) & (args[1] == 0)
        args[1] = torch.where(dropped, torch.full_like(args[1], 0.5), args[1])
        return func(*args, **kwargs)
    yield Attempt("0.5 in place of y where the gradient is 0", compute)


# Roots, whose derivative is g / (2 * sqrt(x)), and norms, whose is g * x / norm.
def _root(call: Call) -> Iterator[Attempt]:
    if _name(call) in ("rsqrt", "pow"):
        yield from _raised(call)
        return
    for guard in _guards(call) if _argument(call, 1) is not None else ():
        yield Attempt(f"sqrt(x + {_text(guard)})", _derivative(torch.square, _root_of(guard)), derived=True)


def _norm(call: Call) -> Iterator[Attempt]:
    if _argument(call, 1) is not None:
        yield Attempt("linalg.vector_norm(x)", _derivative(
            lambda y: y, lambda x: torch.linalg.vector_norm(x.unsqueeze(-1), dim=-1)), follow=False, derived=True)


def _derivative(of: Callable[[_Tensor], _Tensor], forward: Callable[[_Tensor], _Tensor]) -> Compute:
    """Instead of g / (2 * y): the derivative of `forward` by `of`(y), with the g that came in."""
    def compute(func: Any, args: list[Any], kwargs: dict[str, Any]) -> _Tensor:
        given, again = args[0], torch.is_grad_enabled() and args[1].requires_grad
        with torch.enable_grad():
            x = of((args[1] / 2).expand(torch.broadcast_shapes(given.shape, args[1].shape)))
            x = x if again else x.detach().requires_grad_()
            made = forward(x)
            return derivatives([made], [x], [given.expand_as(made).to(made.dtype)], again)[0]
    return compute


# Masks.
def _unmasked(call: Call) -> Iterator[Attempt]:
    dims = call.args[1] if len(call.args) > 1 else -1

    def some(x: _Tensor) -> _Tensor:
        nothing = torch.isneginf(x).all(dim=dims, keepdim=True)
        return torch.where(nothing, torch.zeros_like(x), x)
    yield Attempt(f"{_name(call).strip('_')} with zeros in rows that are masked as a whole", _on(0, some))


def _finite(call: Call) -> Iterator[Attempt]:
    if not any(bool(torch.isinf(t).any()) for t in tensors(call.args) if t.is_floating_point()):
        return

    def compute(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        def change(t: Any) -> Any:
            if not isinstance(t, _Tensor) or not t.is_floating_point():
                return t
            largest = 1e4 if t.dtype == torch.float16 else 1e9
            return torch.where(torch.isinf(t), torch.full_like(t, largest).copysign(t.detach()), t)
        return func(*map(change, args), **kwargs)
    yield Attempt(f"{'1e4' if _format(call) == torch.float16 else '1e9'} of its sign for each infinite number", compute)


def _uncorrected(call: Call) -> Iterator[Attempt]:
    if "correction" in call.kwargs:
        yield Attempt("correction=0", lambda func, args, kwargs: func(*args, **{**kwargs, "correction": 0}))


# Matrices.
def _regular(call: Call) -> Iterator[Attempt]:
    def change(guard: float) -> Callable[[_Tensor], _Tensor]:
        return lambda a: a + guard * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for guard in (1e-4, 1e-3, 1e-2):
        yield Attempt(f"A + {_text(guard)} * torch.eye({call.args[0].shape[-1]})", _on(0, change(guard)))


# Formats.
def _in_format(dtype: torch.dtype, instead_of: Sequence[torch.dtype], word: str) -> Attempts:
    def attempts(call: Call) -> Iterator[Attempt]:
        if any(t.dtype in instead_of for t in tensors((call.args, call.results))):
            name = "the cast" if _name(call) == "_to_copy" else _name(call).strip("_")
            if dtype == torch.float32:
                yield Attempt(f"{name} in {word}", wider=dtype, all=False)
            yield Attempt(f"{name} and what comes after it in {word}", wider=dtype)
    return attempts


class Row(NamedTuple):
    id: str
    attempts: Attempts
    ops: frozenset[str] | None = None  # None: any
    backward: bool | None = None       # in backward alone, or elsewhere; None: both


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


_LOGS = _of("log", "log2", "log10")
_QUOTIENTS = _of("div", "true_divide", "reciprocal", "rsqrt")
ROWS = (
    Row("log-softmax", _log_softmax, _LOGS, backward=False),
    Row("with-logits", _with_logits, _LOGS, backward=False),
    Row("stay-in-logarithms", _logsumexp, _LOGS, backward=False),
    Row("clamp-input", _clamped(float, _none, _guards), _LOGS | _of("sqrt", "pow"), backward=False),
    Row("clamp-input", _clamped(lambda c: c - 1, _none, lambda call: _INSIDE), _of("log1p"), backward=False),
    Row("clamp-input", _clamped(lambda c: c - 1, lambda c: 1 - c, lambda call: _INSIDE),
        _of("acos", "asin", "atanh", "erfinv"), backward=False),
    Row("clamp-input", _clamped(lambda c: 1 + c, _none, lambda call: _INSIDE), _of("acosh"), backward=False),
    Row("clamp-input", _clamped(float, lambda c: 1 - c, lambda call: _INSIDE), _of("logit"), backward=False),
    Row("subtract-largest", _less_largest, _of("exp"), backward=False),
    Row("clamp-input", _exponent, _of("exp", "exp2", "expm1", "sinh", "cosh"), backward=False),
    Row("clamp-inside", _inside, _of("rsqrt"), backward=True),
    Row("clamp-above-1", _above, _of("rsqrt"), backward=True),
    Row("clamp-count", _counted, _QUOTIENTS, backward=False),
    Row("guard-denominator", _raised, _QUOTIENTS),
    Row("skip-zero-divisors", _skipped, _QUOTIENTS),
    Row("raise-eps", _raised, _LOGS | _QUOTIENTS),
    Row("builtin-norm", _norm, _of("div"), backward=True),
    Row("eps-in-sqrt", _root, _of("div"), backward=True),
    Row("eps-in-sqrt", _root, _of("rsqrt", "pow")),
    Row("keep-one-key", _unmasked, _of("_softmax", "_log_softmax", "logsumexp"), backward=False),
    *(Row(id, _finite, _of(
        "mul", "add", "sub", "div", "sum", "mm", "bmm", "addmm", "logsumexp", "logaddexp"), backward=False)
      for id in ("finite-mask", "finite-constant", "finite-log-zero")),
    *(Row(id, _selected, _of("div", "true_divide"), backward=True) for id in ("select-argument", "select-first")),
    Row("regular-matrix", _regular, _of("_linalg_slogdet", "_linalg_solve_ex", "linalg_inv_ex"), backward=False),
    Row("few-elements", _uncorrected, _of("var", "std", "var_mean", "std_mean"), backward=False),
    Row("fp32-compute", _in_format(torch.float32, NARROW, "fp32")),
    Row("bf16", _in_format(torch.bfloat16, (torch.float16,), "bf16")),
)


def try_remedies(session: Session, call: Call, kept: Sequence[Call], step: int) -> None:
    """Of each remedy the first attempt that came out finite with room to spare, else the first finite one, else the
    first, as a probe of the origin. Not those that are huge."""
    recorder = session.recorder
    trial = Trial(call, kept)
    if recorder is None or not trial.fits:
        return

    def record(remedy: str, one: Outcome) -> None:
        recorder.probe(seq=call.first_seq, step=step, mode=REMEDY, dtype=DTYPES.get(one.dtype, lib.F32), ops=one.ops,
                       ran=1, nan=one.nan, pos_inf=one.pos_inf, neg_inf=one.neg_inf, flat_index=-1, number=one.amax,
                       text=f"{remedy}: {one.words}")

    if call.phase == lib.OPTIMIZER:
        for remedy, made in of_optimizer(session._keep, call):
            record(remedy, made)
    if call.phase in (lib.OPTIMIZER, lib.UPDATE, lib.COMM):
        return
    for row in ROWS:
        if row.ops is not None and _name(call) not in row.ops or row.backward not in (None, trial.backward):
            continue
        outcomes: list[Outcome] = []
        for attempt in row.attempts(call):
            outcome = trial.run(attempt)
            if outcome is not None and not outcome.is_huge:
                outcomes.append(outcome)
                if outcome.has_room:
                    break
        if outcomes:
            record(row.id, max(outcomes, key=lambda one: (one.has_room, one.finite)))
