# SPDX-License-Identifier: Apache-2.0
"""The bits of a training state as one line of text."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def digest(value: Any) -> str:
    """SHA-256 over every bit of nested tensors and plain values, NaNs included."""
    running = hashlib.sha256()
    _feed(running, value)
    return running.hexdigest()


def _feed(running: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        running.update(f"{value.dtype}{tuple(value.shape)}".encode())
        if value.is_sparse:
            value = value.coalesce()
            _feed(running, (value.indices(), value.values()))
            return
        raw = value.detach().cpu().resolve_conj().contiguous().reshape(-1)
        running.update(raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b"")
    elif isinstance(value, dict):
        for key in value:
            running.update(str(key).encode())
            _feed(running, value[key])
    elif isinstance(value, list | tuple):
        running.update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            _feed(running, item)
    else:
        running.update(repr(value).encode())
