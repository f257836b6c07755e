# SPDX-License-Identifier: Apache-2.0
"""What the tap hears here depends on where it listens in PyTorch's dispatcher (tap/listening.h): tests that need more
say so."""
from __future__ import annotations

import functools

import pytest


@functools.cache
def _tap():
    from nanhunt._tap.tap_build import TapMissing
    from nanhunt._tap.tap_library import load_tap

    try:
        return load_tap()
    except TapMissing:
        return None


def hears_python() -> bool:
    tap = _tap()
    return tap is None or bool(tap.hears_python())


def place() -> str:
    """below_autograd or above_autograd; "": there is no tap."""
    tap = _tap()
    return "" if tap is None else str(tap.listens().decode())


def is_above_autograd() -> bool:
    return place() == "above_autograd"


def calls_followed_by_python(monkeypatch):
    """Calls of modules are followed by Python's function, as where there is no tap that can."""
    from nanhunt._hooks import calls

    monkeypatch.setattr(calls, "call_natively", lambda function, own: _tap().calls(id(function), id(own), None))


def shows_saved() -> bool:
    from nanhunt import _pytorch

    return bool(_pytorch.shows_saved)


needs_saved_shown = pytest.mark.skipif(
    "not __import__('listening').shows_saved()",
    reason="this PyTorch does not show what autograd saved without a call of the program's hooks")
needs_python_heard = pytest.mark.skipif(
    "not __import__('listening').hears_python()",
    reason="where the tap listens in this PyTorch it cannot hear what Python runs for a mode or a tensor subclass")
