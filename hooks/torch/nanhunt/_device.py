# SPDX-License-Identifier: Apache-2.0
"""What is asked of a device: its memory, whether it records a graph, and small results copied to the host, late.

All that is asked of torch.cuda, or of another device's module, stands here.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from nanhunt._pytorch import accelerator, guards, raw_stream
from nanhunt._tap.tap_library import unheard

_Tensor = torch.Tensor
_NUMBERS: dict[torch.dtype, Any] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


def is_away(t: _Tensor) -> bool:
    """Whether reading t would wait for a device."""
    return not t.is_cpu


@contextmanager
def alone() -> Iterator[None]:
    """Ops of ours: no mode, no autocast, no graph, and nothing that anybody listens to."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for make in guards:
            stack.enter_context(make())
        stack.enter_context(unheard())
        yield


def _module_of(device: torch.device) -> Any:
    """torch.cuda, or what stands for it."""
    return torch.get_device_module(device)


_capturing: Callable[[], bool] | None = None


def is_capturing() -> bool:
    """Whether what is launched now becomes part of a CUDA graph."""
    global _capturing
    if _capturing is None:
        _capturing = _how_to_ask()
    return _capturing()


def _how_to_ask() -> Callable[[], bool]:
    name = accelerator()
    module = torch.get_device_module(name) if name else None
    asks = getattr(module, "is_current_stream_capturing", None)
    if module is None or asks is None:
        return lambda: False
    return lambda: bool(module.is_initialized() and asks())


def _stream_of(device: torch.device) -> tuple[int, int] | None:
    if raw_stream is None or device.type != "cuda" or torch.version.cuda is None:  # ROCm calls itself so as well
        return None
    return device.index, raw_stream(device.index)


# Number and address of a device and its current stream, as CUDA has them; None: another kind of device.
stream_of: Callable[[torch.device], tuple[int, int] | None] = _stream_of


def lasts(device: torch.device) -> bool:
    """Whether the current stream is one of torch's, which never end. Others have their address for a number."""
    stream = _module_of(device).current_stream(device)
    address = getattr(stream, "cuda_stream", 0)
    return not address or getattr(stream, "stream_id", address) != address


class Fetch:
    """Numbers on their way to the host."""

    def is_here(self) -> bool:
        """Never waits. Raises where they will not come."""
        raise NotImplementedError

    def wait(self) -> None:
        raise NotImplementedError

    def numbers(self) -> list[list[float]]:
        """Of each tensor that was sent; once they are here. Their memory may be used again afterwards."""
        raise NotImplementedError


class Lane:
    """The way from one device to the host."""

    waits = False  # sending waits by itself

    def send(self, tensors: Sequence[_Tensor]) -> Fetch:
        raise NotImplementedError


class _Sent(Fetch):
    def __init__(self, lane: AsyncLane, sent: Sequence[_Tensor]) -> None:
        self._lane, self._kept = lane, list(sent)  # until the copy has ended
        words = [-(-t.numel() * t.element_size() // 8) for t in sent]
        self._memory, self._event = lane.take(sum(words))
        self._targets = []
        at = 0
        for t, n in zip(sent, words):
            target = self._memory[at:at + n].view(t.dtype)[:t.numel()]
            target.copy_(t.view(-1), non_blocking=True)
            self._targets.append(target)
            at += n
        self._event.record(lane.stream())

    def is_here(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()

    def numbers(self) -> list[list[float]]:
        found = [as_numbers(t) for t in self._targets]
        self._lane.give(self._memory, self._event)
        self._kept, self._targets = [], []
        return found


class AsyncLane(Lane):
    """By events and pinned memory, which are made once and used again."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, _module_of(device)
        self._free: list[tuple[_Tensor, Any]] = []

    def stream(self) -> Any:
        return self._module.current_stream(self._device)

    def take(self, words: int) -> tuple[_Tensor, Any]:
        for i, (memory, _) in enumerate(self._free):
            if memory.numel() >= words:
                return self._free.pop(i)
        event = self._free.pop()[1] if self._free else self._module.Event()
        size = max(512, 1 << max(words - 1, 0).bit_length())
        return torch.empty(size, dtype=torch.int64, device="cpu", pin_memory=True), event

    def give(self, memory: _Tensor, event: Any) -> None:
        self._free.append((memory, event))

    def send(self, tensors: Sequence[_Tensor]) -> Fetch:
        with self._module.device(self._device):
            return _Sent(self, tensors)


class _Copied(Fetch):
    def __init__(self, sent: Sequence[_Tensor]) -> None:
        self._numbers = [as_numbers(t.cpu().view(-1)) for t in sent]

    def is_here(self) -> bool:
        return True

    def wait(self) -> None:
        return

    def numbers(self) -> list[list[float]]:
        return self._numbers


class WaitingLane(Lane):
    """Devices that nothing is known of: they are waited for."""

    waits = True

    def send(self, tensors: Sequence[_Tensor]) -> Fetch:
        return _Copied(tensors)


_lanes: dict[torch.device, Lane] = {}


def _lane_of(device: torch.device) -> Lane:
    lane = _lanes.get(device)
    if lane is None:
        asked = ("Event", "current_stream", "device", "mem_get_info", "memory_reserved", "memory_allocated")
        known = device.type not in ("cpu", "meta") and all(hasattr(_module_of(device), name) for name in asked)
        lane = _lanes[device] = AsyncLane(device) if known else WaitingLane()
    return lane


lane_of: Callable[[torch.device], Lane] = _lane_of


def as_numbers(t: _Tensor) -> list[float]:
    """Of a contiguous tensor on the host, without an op."""
    n = t.numel()
    return list((_NUMBERS[t.dtype] * n).from_address(t.data_ptr())) if n else []
