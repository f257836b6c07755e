# SPDX-License-Identifier: Apache-2.0
"""States of torch's own random generators: the CPU's, and those of devices, by the module that torch has for them."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from nanhunt._pytorch import accelerator

# (device, its state); of the CPU without a device
RandomState = list[tuple["torch.device | None", Any]]


def random_state(devices: Iterable[torch.device] = ()) -> RandomState:
    """Of the CPU and of these devices. Waits for none of them: the numbers are drawn from a state on the host."""
    state: RandomState = [(None, torch.get_rng_state())]
    for device in devices:
        if device.type not in ("cpu", "meta"):
            get = getattr(torch.get_device_module(device), "get_rng_state", None)
            if get is not None:
                state.append((device, get() if device.type == "mps" else get(device)))
    return state


def set_random_state(state: RandomState) -> None:
    for device, contents in state:
        if device is None:
            torch.set_rng_state(contents)
        elif device.type == "mps":
            torch.mps.set_rng_state(contents)
        else:
            torch.get_device_module(device).set_rng_state(contents, device)


def devices_in_use() -> list[torch.device]:
    """All of the accelerator, where it was used at all: asking for a state would begin to use it."""
    name = accelerator()
    module = torch.get_device_module(name) if name else None
    if module is None or not getattr(module, "is_initialized", lambda: True)():
        return []
    return [torch.device(name, i) for i in range(module.device_count())]


def other_devices(tensors: Iterable[Any]) -> set[torch.device]:
    """Where tensors are that are not on the CPU."""
    return {t.device for t in tensors if isinstance(t, torch.Tensor) and not t.is_cpu}
