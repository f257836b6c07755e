# SPDX-License-Identifier: Apache-2.0
"""Calls of modules inside of a root: C++ decides what becomes of them (tap/calls.h), where there is a tap; Python's
function does the same, more slowly, where there is none."""
from __future__ import annotations

import ctypes as c
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nanhunt._tap.tap_build import TapMissing
from nanhunt._tap.tap_library import load_tap

if TYPE_CHECKING:
    from nanhunt._tap.places import Places

ASK, STRAIGHT, PLACES = 0, 1, 2


class Follow(c.Structure):
    """`Follow` of tap/calls.h."""

    _fields_ = [("mode", c.c_int64), ("thread", c.c_uint64), ("tap", c.c_void_p), ("names", c.c_void_p)]


follow = Follow()
_of_places: Any = None  # the names that `follow` points to live as long as this


def call_natively(function: Any, original: Any) -> None:
    """From here on C++ does what `function` does, if there is a tap that can."""
    with suppress(TapMissing):
        load_tap().calls(id(function), id(original), c.addressof(follow))


def look_into(places: Places | None) -> None:
    """A root runs: where each module's call is told; None: nowhere."""
    global _of_places
    if places is None:
        follow.mode = STRAIGHT
        return
    if _of_places is not places:
        _of_places, follow.tap, follow.names = places, places.tap, id(places.names)
    follow.thread = threading.get_ident()
    follow.mode = PLACES


def forget() -> None:
    """Nothing is watched."""
    global _of_places
    follow.mode, follow.tap, _of_places = ASK, None, None
