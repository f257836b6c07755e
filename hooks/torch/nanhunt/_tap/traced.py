# SPDX-License-Identifier: Apache-2.0
"""Lines of the program behind code that torch.fx writes: of `torch.export`, `torch.compile(backend="aot_eager")`."""
from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Iterable
from typing import Any

import torch

from nanhunt._tap.called_frames import frames_above, report_once
from nanhunt._tap.sites import THEIRS, file_name

_LINE = re.compile(r'File "(.+?)", line (\d+), in (\S+)')
WRITTEN = "<eval_with_key"  # how the files of such code are called

Frame = tuple[str, int, str]  # file, line, function


def frames_of(trace: str) -> list[Frame]:
    """Of what a node remembers of the stack that it was traced in: those of the program and of packages, innermost
    first."""
    found = [(file, int(line), function) for file, line, function in _LINE.findall(trace)]
    return [one for one in reversed(found) if not one[0].startswith(THEIRS) and file_name(one[0])]


def in_classes(frames: list[Frame], classes: Iterable[Any]) -> list[Frame]:
    """With "Block.forward" for "forward" where a method of one of the classes, those of the modules that ran, holds
    the line."""
    bases = [base for cls in classes if isinstance(cls, type) for base in cls.__mro__]

    def named(frame: Frame) -> Frame:
        file, line, name = frame
        for base in bases:
            method = vars(base).get(name)
            if inspect.isfunction(method) and method.__code__.co_filename == file and (
                    line in {at for _, at in dis.findlinestarts(method.__code__)}):
                return file, line, method.__qualname__
        return frame

    return [named(frame) for frame in frames]


def site_of(frames: list[Frame]) -> str:
    """The program's line, whose frames are recorded as those of any line are."""
    if not frames:
        return ""
    site = f"{file_name(frames[0][0])}:{frames[0][1]}"
    report_once(site, frames)
    return site


def traced_site(at: str) -> str:
    """What "<eval_with_key>.3:12", which runs now, was traced from; "": its node does not say."""
    file, _, line = at.rpartition(":")
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    if frame is None or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return ""
    frames = frames_of(_trace_at(_module_of(frame), int(line)))
    return site_of([*frames, *_calling(frames, frame)])


def _module_of(frame: Any) -> Any:
    given = frame.f_locals
    module = given.get("self")
    if isinstance(given, dict):
        given.clear()  # before 3.13 a copy, which would keep the function's tensors until it ends
    return module


def _trace_at(module: Any, line: int) -> str:
    if not isinstance(module, torch.fx.GraphModule):
        return ""
    known = vars(module)
    number = (known.get("_lineno_map") or {}).get(line - known.get("_prologue_start", 0))
    nodes = list(module.graph.nodes)
    return (nodes[number].meta.get("stack_trace") or "") if number is not None and number < len(nodes) else ""


def _calling(frames: list[Frame], frame: Any) -> list[Frame]:
    """Those above the code that was written. The nearest one is the compiled function itself, of which the stack that
    was traced says more."""
    above = frames_above(frame)
    while frames and above and (above[0][0], above[0][2]) == (frames[-1][0], frames[-1][2]):
        above = above[1:]
    return above if frames else []
