# SPDX-License-Identifier: Apache-2.0
"""The buffers of a root module: which of them its calls write, and what those held before a call."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from nanhunt._names import plain_path
from nanhunt._sentinel.contents import has_contents, modules_in, same_bits

_Tensor = torch.Tensor
_MAX_COPY = 64 << 20  # bytes; the first call copies all buffers where they are no more
# Kernels of normalisation write these without torch's count of writes.
_SILENT = ("running_mean", "running_var")
_JOINED = (torch.float32, torch.int64)  # autocast leaves these as they are


class Copy:
    """Contents of buffers at one moment. Small ones of one kind are copied at once: there are many."""

    __slots__ = ("joined", "single")

    def __init__(self, groups: list[list[_Tensor]], single: list[_Tensor]) -> None:
        with torch.no_grad():
            self.joined = [(group, _join(group)) for group in groups]
            self.single = [(b, b.detach().clone()) for b in single]

    def ids(self) -> set[int]:
        return {id(b) for b in [*[b for group, _ in self.joined for b in group], *[b for b, _ in self.single]]}

    def contents(self) -> Iterator[tuple[_Tensor, _Tensor]]:
        """Buffers, and what they held. Raises where a buffer has another shape by now."""
        for group, joined in self.joined:
            if sum(b.numel() for b in group) != joined.numel():
                raise ValueError("a buffer has another shape than when it was copied")
            at = 0
            for b in group:
                yield b, joined[at:at + b.numel()].view(b.shape)
                at += b.numel()
        yield from self.single


def _join(group: list[_Tensor]) -> _Tensor:
    return torch.cat(group) if group[0].dim() else torch.stack(group)


class Buffers:
    def __init__(self, root: torch.nn.Module, name: str) -> None:
        self._root_name = name
        self.find(root)

    def find(self, root: torch.nn.Module) -> None:
        """All there are now. Which of them are written is found out from the next call on."""
        self.tensors: list[_Tensor] = []
        self.paths: list[str] = []
        self.silent: set[int] = set()
        names = {id(module): path for path, module in root.named_modules()}
        seen: set[int] = set()
        for module in modules_in(root):
            for name, b in module._buffers.items():
                if b is None or id(b) in seen or not has_contents(b):
                    continue
                seen.add(id(b))
                if name in _SILENT:
                    self.silent.add(len(self.tensors))
                self.tensors.append(b)
                self.paths.append(plain_path(self._root_name, names.get(id(module), ""), name))
        self.ids = seen
        size = sum(b.numel() * b.element_size() for b in self.tensors)
        self._learns = True
        self._compares = size <= _MAX_COPY and all(b.is_cpu for b in self.tensors)
        self._versions: list[int] = []   # when the last call ended
        self._copied_in: Any = None      # step and segment of the last copy
        self._make_hot(set(range(len(self.tensors))) if size <= _MAX_COPY else set())

    def _make_hot(self, hot: set[int]) -> None:
        self.hot = hot | self.silent
        groups: dict[Any, list[_Tensor]] = {}
        self._single: list[_Tensor] = []
        for i in sorted(self.hot):
            b = self.tensors[i]
            if b.dim() < 2 and b.dtype in _JOINED and b.layout is torch.strided:
                groups.setdefault((b.dtype, b.device, b.dim()), []).append(b)
            else:
                self._single.append(b)
        self._groups = list(groups.values())

    def before_call(self, key: Any) -> Copy | None:
        """What those hold that calls write, unless it is what a call before in this part of the step left."""
        versions = [b._version for b in self.tensors]
        copied = None
        if self.hot and (self._copied_in != key or versions != self._versions):
            self._copied_in = key
            copied = Copy(self._groups, self._single)
        self._versions = versions
        return copied

    def left(self) -> tuple[list[_Tensor], list[str], list[int]]:
        """Buffers, their paths, and their versions when the last call ended."""
        return self.tensors, self.paths, self._versions

    def after_call(self, copied: Copy | None) -> str:
        """Learns which were written. Why the call cannot be done again; "": it can."""
        before, self._versions = self._versions, [b._version for b in self.tensors]
        learns, self._learns = self._learns, False
        if not learns and before == self._versions:
            return ""
        written = {i for i, (a, b) in enumerate(zip(before, self._versions)) if a != b}
        if learns and self._compares and copied is not None:
            changed = {id(b) for b, held in copied.contents() if not same_bits(b.detach(), held)}
            written |= {i for i, b in enumerate(self.tensors) if id(b) in changed}
        unknown = written - self.hot
        if learns or unknown:
            self._make_hot(written if learns else self.hot | written)
        return "a buffer was written for the first time; from now on it is copied before the call" if unknown else ""

    def to_read(self) -> Iterator[_Tensor]:
        """The hot ones of floating point, in few tensors."""
        for group in self._groups:
            if group[0].is_floating_point():
                yield _join(group)
        yield from (b for b in self._single if b.is_floating_point())

    def bad_ones(self) -> list[tuple[str, _Tensor]]:
        """Candidates, where one of the hot ones is not finite."""
        return [(self.paths[i], self.tensors[i]) for i in sorted(self.hot) if self.tensors[i].is_floating_point()]
