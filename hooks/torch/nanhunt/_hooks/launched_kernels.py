# SPDX-License-Identifier: Apache-2.0
"""Kernels that the program launches past PyTorch's dispatcher, by Triton: each launch is heard as one op, by the
tensors that it is given and those that it writes. Inductor launches its own otherwise: they are parts of graphs."""
from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._hooks.frames import take_frames_off
from nanhunt._modes import without_modes
from nanhunt._tap.plain import PLAIN
from nanhunt._tap.tap_library import unheard

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.tap import Tap

# What launches a kernel; the second runs it on the CPU (TRITON_INTERPRET=1).
_LAUNCHERS = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))
_OF_A_TENSOR = ("TensorDescriptor", "TensorWrapper")  # by which Triton is given one
Put = Callable[[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], object]


def expect(watching: Callable[[], Session | None], put: Put) -> None:
    """Triton is met where it has been imported. `put`: places a patch."""
    for place, name in _LAUNCHERS:
        kind = getattr(sys.modules.get(place), name, None)
        if kind is not None and "run" in vars(kind):
            put(kind, "run", functools.partial(_heard, watching))


def _heard(watching: Callable[[], Session | None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        session = watching()
        tap = session.tap if session is not None else None
        if session is None or tap is None or not tap.is_on or kwargs.get("warmup") or not session.hears(trains=False):
            return original(kernel, *args, **kwargs)
        # What it is given lives until it has run: who calls it has it.
        begun = without_modes(_begin, session, kernel, (*args, *kwargs.values()))
        try:
            with unheard():
                result = original(kernel, *args, **kwargs)
        except BaseException as error:
            without_modes(_end, session, tap, begun, True)
            take_frames_off(error)
            raise
        without_modes(_end, session, tap, begun, False)
        return result

    return run


def _begin(session: Session, kernel: Any, args: Iterable[Any]) -> bool:
    try:
        assert session.tap is not None
        name = getattr(getattr(kernel, "fn", None), "__name__", "kernel")
        session.tap.begin_kernel(f"triton::{name}", list(_tensors(args)))
        return True
    except Exception as error:
        session.failed(error, "a kernel")
        return False


def _end(session: Session, tap: Tap, begun: bool, raised: bool) -> None:
    try:
        if begun and session.tap is tap:
            tap.end_kernel(raised)
    except Exception as error:
        session.failed(error, "a kernel")


def _tensors(args: Iterable[Any]) -> Iterator[torch.Tensor]:
    for arg in args:
        if type(arg) in PLAIN:
            yield arg
        elif type(arg) in (tuple, list):
            yield from _tensors(arg)
        elif type(arg).__name__ in _OF_A_TENSOR and type(getattr(arg, "base", None)) in PLAIN:
            yield arg.base
