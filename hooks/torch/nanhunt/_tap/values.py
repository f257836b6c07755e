# SPDX-License-Identifier: Apache-2.0
"""Which contents a tensor shows, and how it is described to the library: the tap's table, asked from Python."""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._pytorch import no_torch_function
from nanhunt._tap.lasting_tensors import ModuleTensors, OptimizerTensors
from nanhunt._tap.plain import DTYPES, PLAIN
from nanhunt._tap.streams import Streams
from nanhunt._tap.tap import NO_TAP, Quad, Tap
from nanhunt._tap.tap_build import TapMissing
from nanhunt._weak_id_dict import WeakIdDict

if TYPE_CHECKING:
    from nanhunt._session import Session


def _storage_of(t: torch.Tensor) -> int:
    """The address by which the tap knows the storage. Raises where there is none."""
    if type(t) in PLAIN:
        return t.untyped_storage()._cdata
    with no_torch_function():
        return t.untyped_storage()._cdata


class Values:
    """Of one session. The tap is there once the recorder is open."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.streams = Streams(session)
        self._tap: Tap | None = None
        self._missing = False
        self._layouts: dict[Any, int] = {}
        self._of_optimizers: WeakIdDict[OptimizerTensors] = WeakIdDict()
        self.checked: OptimizerTensors | None = None  # since the last moment at which they may have become others
        self._of_roots: WeakIdDict[ModuleTensors] = WeakIdDict()

    @property
    def tap(self) -> Tap | None:
        """None: there is no recorder yet, or no tap for this PyTorch, which is noted and said once."""
        if self.session.dead:
            return None
        if self._tap is None and not self._missing and self.session.recorder is not None:
            try:
                self._tap = self.session.tap = Tap(self.session)
            except TapMissing as why:
                self._missing = True
                self.session.note(NO_TAP + str(why))
                print(f"nanhunt: operations cannot be watched: {why}. Losses, gradients and the loss scaler still are.",
                      file=sys.stderr)
        return self._tap

    def prepare(self) -> None:
        """Once the recorder is open: the tap is compiled now, if it must be, and not in the middle of training."""
        _ = self.tap

    def tensors_of(self, optimizer: torch.optim.Optimizer) -> OptimizerTensors:
        """Parameters and state as they are now; looked for once at each end of the optimizer's step."""
        known = self._of_optimizers.get(id(optimizer))
        if known is None or known is not self.checked and not known.is_current(self.session, optimizer):
            assert self.tap is not None
            known = OptimizerTensors(self.session, self.tap, optimizer)
            self._of_optimizers.set(optimizer, known)
        self.checked = known
        return known

    def tensors_of_root(self, root: torch.nn.Module, name: str) -> ModuleTensors:
        """Parameters and buffers as they are now. `name`: the root's path."""
        known = self._of_roots.get(id(root))
        if known is None or not known.is_current(root):
            assert self.tap is not None
            known = ModuleTensors(self.session, self.tap, root, name)
            self._of_roots.set(root, known)
        return known

    def knows(self, t: torch.Tensor) -> bool:
        """Whether the storage has a number."""
        return self.tap is not None and self.tap.known_word(_storage_of(t)) != 0

    def identity(self, t: torch.Tensor) -> int:
        """The word of the contents that t shows. A storage that was not seen before gets a number. 0: no tap."""
        return 0 if self.tap is None else self.tap.word(_storage_of(t))

    def written(self, t: torch.Tensor) -> int:
        """t was written: the word of its contents now."""
        return 0 if self.tap is None else self.tap.written(_storage_of(t))

    def as_of(self, t: torch.Tensor) -> int:
        """Torch's version of the contents that the word is known to stand for; -1: not known."""
        return -1 if self.tap is None else self.tap.as_of(_storage_of(t))

    def renew(self, t: torch.Tensor) -> None:
        """Contents that were written since they were recorded last, as torch counts it: a new version."""
        try:
            if self.knows(t) and self.as_of(t) != t._version:
                self.written(t)
        except Exception:  # an inference tensor has no version
            return

    def describe(self, t: torch.Tensor, with_data: bool = True) -> Quad | None:
        """The four words of any tensor; None where it cannot be watched, which is noted."""
        tap = self.tap
        if tap is None:
            return None
        if type(t) in PLAIN:
            return tap.describe(t, with_data)
        with no_torch_function():
            return tap.describe(t, with_data)

    def quad(self, t: torch.Tensor) -> Quad:
        """The same. Raises where it cannot."""
        words = self.describe(t)
        if words is None:
            raise RuntimeError("it cannot be described")
        return words

    def layout(self, t: torch.Tensor) -> int:
        """The layout number of t. Raises where elements are not what the library would read."""
        if t.layout is not torch.strided:
            raise TypeError("no strides")
        return self._layout(t, t.stride())

    def dense_layout(self, t: torch.Tensor) -> int:
        """That of a contiguous tensor of the same shape."""
        strides = [1] * min(t.dim(), 1)
        for size in reversed(t.shape[1:]):
            strides.insert(0, strides[0] * max(size, 1))
        return self._layout(t, tuple(strides))

    def _layout(self, t: torch.Tensor, strides: tuple[int, ...]) -> int:
        key = (t.dtype, t.shape, strides)
        number = self._layouts.get(key)
        if number is None:
            recorder = self.session.open()
            if recorder is None:
                raise RuntimeError("no recorder")
            number = recorder.layout(DTYPES[t.dtype], list(t.shape), list(strides))
            if number < 0:
                raise RuntimeError("the layout was refused")
            self._layouts[key] = number
        return number

    def release_hosts(self) -> None:
        if self._tap is not None:
            self._tap.release_hosts()
