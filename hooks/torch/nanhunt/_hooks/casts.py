# SPDX-License-Identifier: Apache-2.0
"""Casts of a whole model to fp16: they overflow where a weight is large. Often one comes before all else that is heard,
so the recorder is opened for it."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch

from nanhunt._modes import modes_aside

if TYPE_CHECKING:
    from nanhunt._session import Session


def _half(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if session.recorder is None:
        with modes_aside():
            session.open()
    return original(*args, **kwargs)


def _to(session: Session, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if any(given is torch.float16 for given in (*args, *kwargs.values())):
        return _half(session, original, args, kwargs)
    return original(*args, **kwargs)


CASTS = {"half": _half, "to": _to}  # methods of torch.nn.Module
