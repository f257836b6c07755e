# SPDX-License-Identifier: Apache-2.0
"""What differs between releases of PyTorch, a row a fact, each looked up once and here alone: private names, with what
stands in for one that is missing, and signatures. No other file asks which release this is. (Where the dispatcher's
keys lie is a matter of C++: tap/listening.h.)

It imports nothing of the package, and on a PyTorch that is not supported it raises UnsupportedPyTorch at import.
"""
from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import torch

OLDEST = (2, 4)


class UnsupportedPyTorch(ImportError):
    """What this process has is not supported: what it has, and what is needed."""


def _numbers(version: str) -> tuple[int, ...]:
    """2, 11 of "2.11.0a0+git1234"."""
    found = []
    for part in version.split("+")[0].split(".")[:2]:
        digits = part[:len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def why_unsupported(version: str, has_gil: bool) -> str:
    """As a sentence; "": it is supported. A version that says nothing is taken for a new one."""
    if not has_gil:
        return "a Python without the global interpreter lock is not supported: run the program with a usual one"
    if _numbers(version) and _numbers(version) < OLDEST:
        return f"PyTorch {'.'.join(map(str, OLDEST))} or newer is needed, this is {version}"
    return ""


release = str(torch.__version__)
_why = why_unsupported(release, getattr(sys, "_is_gil_enabled", lambda: True)())
if _why:
    raise UnsupportedPyTorch(_why)

missing: list[str] = []  # what this release lacks, and what is done instead: for the notes of a run
_C: Any = torch._C


def _find(path: str, stand_in: Any, instead: str) -> Any:
    """What `path` names below torch; else `stand_in`, which is noted."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            missing.append(f"PyTorch {release} has no torch.{path}: {instead}")
            return stand_in
    return found


# Facts of the process and the thread.
graph_task_id: Callable[[], int] = _find("_C._current_graph_task_id", lambda: -1, "a backward of another thread is "
                                         "not told from one of this thread's")
tracing_state: Callable[[], Any] = _find("_C._get_tracing_state", lambda: None, "torch.jit.trace is not noticed")
# Under torch.compile's tracing it is True; torch.export sets a flag instead. Two facts, for a call costs more.
is_traced: Callable[[], bool] = _find("compiler.is_dynamo_compiling", lambda: False, "torch.compile is not noticed")
compiler: Any = torch.compiler if hasattr(torch.compiler, "_is_compiling_flag") else SimpleNamespace(
    _is_compiling_flag=False)
is_profiling: Callable[[], bool] = _find("autograd._profiler_enabled", lambda: False, "torch.profiler is not noticed")
dispatch_modes: Callable[[], int] = _find("_C._len_torch_dispatch_stack", lambda: 0, "dispatch modes are not set aside")
function_modes: Callable[[], int] = _find("_C._len_torch_function_stack", lambda: 0, "function modes are not set aside")
# Not in 2.4: then the two devices are asked that have it.
is_autocast_on: Callable[[], bool] = getattr(
    _C, "_is_any_autocast_enabled", lambda: any(torch.is_autocast_enabled(d) for d in ("cpu", "cuda")))

no_function_modes: Callable[[], Any] = _C.DisableTorchFunction
no_autocast: Callable[[], Any] = getattr(_C, "_DisableAutocast", nullcontext)
below_autograd: Callable[[], Any] = getattr(_C, "_AutoDispatchBelowAutograd", nullcontext)
# Guards under which ops are ours alone: no dispatch mode, no autocast, no function mode.
guards: list[Callable[[], Any]] = [
    make for make in (getattr(_C, "_DisableTorchDispatch", None), no_autocast, no_function_modes) if make is not None]
# Under it a subclass of the user's is a plain tensor.
no_torch_function: Any = getattr(_C, "DisableTorchFunctionSubclass", no_function_modes)
raw_stream: Callable[[int], int] | None = getattr(_C, "_cuda_getCurrentRawStream", None)

# Tensors of a transform (torch.func.grad, vmap) stand around another.
_is_wrapped: Callable[[Any], bool] = _find("_C._functorch.is_functorch_wrapped_tensor", lambda _: False,
                                           "losses of torch.func are not read")
_unwrap: Callable[[Any], Any] = _find("_C._functorch.get_unwrapped", lambda t: t, "losses of torch.func are not read")

_functorch: Any = getattr(_C, "_functorch", None)
_autograd: Any = getattr(_C, "_autograd", None)
_STACK = ("peek_interpreter_stack", "pop_dynamic_layer_stack", "push_dynamic_layer_stack")
_HOOKS = ("_saved_tensors_hooks_enable", "_saved_tensors_hooks_disable",
          "_saved_tensors_hooks_get_disabled_error_message")
_leaves_transforms = all(hasattr(_functorch, n) for n in _STACK) and all(hasattr(_autograd, n) for n in _HOOKS)


@contextmanager
def no_transforms() -> Iterator[None]:
    """Ops are none of a transform's (torch.func.grad, vmap) that runs: it would wrap what they make."""
    left: list[Any] = []
    why = _autograd._saved_tensors_hooks_get_disabled_error_message() if _leaves_transforms else None
    try:
        while _leaves_transforms and _functorch.peek_interpreter_stack() is not None:
            left.append(_functorch.pop_dynamic_layer_stack())
        if left and why is not None:
            _autograd._saved_tensors_hooks_enable()
        yield
    finally:
        if left and why is not None:
            _autograd._saved_tensors_hooks_disable(why)
        while left:
            _functorch.push_dynamic_layer_stack(left.pop())


_OURS = "ignore", None, Warning, re.compile(r"nanhunt(\.|$)"), 0


@contextmanager
def no_warnings() -> Iterator[None]:
    """What PyTorch warns of in what we compute is not the program's. Past the functions of `warnings`, which would have
    it show again what the program was warned of before."""
    filters: Any = warnings.filters
    filters.insert(0, _OURS)
    try:
        yield
    finally:
        if _OURS in filters:
            filters.remove(_OURS)


def unwrapped(t: Any) -> Any:
    """The tensor that has the numbers."""
    while _is_wrapped(t):
        t = _unwrap(t)
    return t


# Higher-order operators, which are dispatched in Python.
HigherOrderOperator: Any = torch._ops.HigherOrderOperator
higher_order_operators: dict[str, Any] = torch._ops._higher_order_ops
dispatch_key: Callable[[str], Any] = _C._parse_dispatch_key


# What autograd saved can be read without a call of the program's hooks on it, by attributes that the first releases
# lack.
shows_saved = hasattr(_C._autograd.SavedTensor, "data") and hasattr(_C._autograd.SavedTensor, "unpack_hook")


def _code_skipper() -> Callable[[CodeType], None] | None:
    """What keeps torch.compile from looking at frames of a code: `skip_code` up to 2.6, a strategy from 2.7 on."""
    frames: Any = getattr(getattr(_C, "_dynamo", None), "eval_frame", None)
    skip = getattr(frames, "skip_code", None)
    if skip is not None:
        return skip  # type: ignore[no-any-return]
    names = ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
    if not all(hasattr(frames, name) for name in names):
        missing.append(f"PyTorch {release} does not let torch.compile go past functions: ours are compiled")
        return None
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    return lambda code: frames.set_code_exec_strategy(code, strategy)


skip_code = _code_skipper()


# Counts of devices by the driver's own library: CUDA is not begun by them. -1: they do not know.
_count_devices: Callable[[], int] = getattr(
    torch.cuda, "_device_count_amdsmi" if torch.version.hip else "_device_count_nvml", lambda: -1)
_counts: dict[str | None, int] = {}  # by the devices that are said to be visible
# What a driver leaves where its library for counting is missing: Linux's, WSL's, Jetson's, AMD's.
_DRIVER_FILES: Sequence[str] = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-gpu", "/dev/kfd")


# torch.accelerator came with 2.6; from 2.7 on it tells what PyTorch was built for from what is there.
_current: Any = getattr(getattr(torch, "accelerator", None), "current_accelerator", None)
if "check_available" not in getattr(_current, "__annotations__", {}):
    _current = None


def _counted() -> int:
    with warnings.catch_warnings():  # of a library that finds no driver: the run would not have been warned
        warnings.simplefilter("ignore")
        try:
            return _count_devices()
        except Exception:
            return -1


def accelerator() -> str:
    """The type of the accelerator that this process can use: "cuda"; "": none. CUDA is not begun by the question: a
    program that forks before it uses CUDA could not use it in its children."""
    if _current is None:
        built_for = "cuda" if torch.version.cuda or torch.version.hip else ""
    else:
        found = _current()
        built_for = found.type if found is not None else ""
    if built_for != "cuda":
        return built_for if built_for and _current(check_available=True) is not None else ""
    if torch.cuda.is_initialized():
        return built_for
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible not in _counts:
        _counts[visible] = _counted()
    count = _counts[visible]
    there = count > 0 if count >= 0 else any(Path(file).exists() for file in _DRIVER_FILES)
    return built_for if there else ""
