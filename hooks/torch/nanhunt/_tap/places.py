# SPDX-License-Identifier: Apache-2.0
"""Where an op runs: names of modules for the tap, which follows them; the line of the user's code."""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._names import plain_module, plain_path
from nanhunt._tap import called_frames
from nanhunt._tap.sites import MET, file_name
from nanhunt._tap.tap import LOSS
from nanhunt._weak_id_dict import WeakIdDict

if TYPE_CHECKING:
    from nanhunt._listener import RootCall
    from nanhunt._tap.tap import Tap

__all__ = ["LOSS", "Places", "call_site"]


class Places:
    """Module paths: which module runs is told to the tap by each call."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self.names: WeakIdDict[int] = WeakIdDict()     # of modules of all roots: the numbers of their paths
        self.roots: WeakIdDict[int] = WeakIdDict()     # those of roots
        self._others: WeakIdDict[bool] = WeakIdDict()  # modules that are named until a root has them
        self._enter, self._exit = tap.library.enter, tap.library.exit

    @property
    def tap(self) -> Any:
        return self._tap.handle

    def add_root(self, call: RootCall) -> int:
        """The number of the path of a root that was not called before."""
        inner = plain_module(call.module)
        for name, module in inner.named_modules():
            path = plain_path(call.name, name) or type(inner).__name__
            if self._others.pop(id(module), False):
                self.names.pop(id(module), None)
            self.names.set_new(module, self._tap.text(path))
        self.names.set_new(call.module, self.names[id(inner)])
        self.roots.set(call.module, self.names[id(call.module)])
        return self.names[id(call.module)]

    def add_other(self, module: torch.nn.Module, path: str) -> None:
        """One that is called with gradients off, and may never be trained: a teacher, an encoder of images."""
        for name, inner in module.named_modules():
            if id(inner) not in self.names:
                self.names.set(inner, self._tap.text(plain_path(path, name)))
                self._others.set(inner, True)

    # Called for every module: with as little in between as can be. A closed tap has no handle.
    def enter(self, module: torch.nn.Module) -> None:
        self._enter(self._tap.handle, self.names.get(id(module), -1))

    def exit(self) -> None:
        self._exit(self._tap.handle)


def call_site(depth: int = 2) -> str:
    """file:line of the nearest frame outside of torch and of nanhunt; "" where there is none."""
    frame: Any = sys._getframe(depth)
    while frame is not None:
        file = frame.f_code.co_filename
        known = MET.get(file)  # most often
        name = known[1] if known is not None else file_name(file)
        if name:
            site = f"{name}:{frame.f_lineno}"
            if called_frames.awaits(site):
                called_frames.report_once(site, called_frames.frames_above(frame))
            return site
        frame = frame.f_back
    return ""
