# SPDX-License-Identifier: Apache-2.0
"""Frames above a call site: recorded once for each, with their lines."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanhunt._tap.sites import THEIRS, is_own_file

# Whom the frames above a call site are told, the first time; None: nobody.
report_frames: Callable[[str, list[tuple[str, int, str]]], None] | None = None
_reported: set[str] = set()
_MOST_FRAMES = 8


def awaits(site: str) -> bool:
    return report_frames is not None and site not in _reported


def report_once(site: str, frames: list[tuple[str, int, str]]) -> None:
    """Frames of a site, innermost first: the first time they are recorded with their lines."""
    if report_frames is not None and site not in _reported:
        _reported.add(site)
        own = next((i for i, frame in enumerate(frames) if is_own_file(frame[0])), 0)
        kept = frames[:_MOST_FRAMES] if own < _MOST_FRAMES else [*frames[: _MOST_FRAMES - 1], frames[own]]
        report_frames(site, kept)


def set_frame_reporter(report: Callable[[str, list[tuple[str, int, str]]], None] | None) -> None:
    global report_frames
    report_frames = report
    _reported.clear()


def frames_above(frame: Any) -> list[tuple[str, int, str]]:
    """Where those of packages take all of the room, the nearest of the program's own is the last."""
    found: list[tuple[str, int, str]] = []
    own = False
    while frame is not None and (len(found) < _MOST_FRAMES or not own):
        code = frame.f_code
        file = code.co_filename
        here, full = is_own_file(file), len(found) == _MOST_FRAMES
        if here or not full and not file.startswith(THEIRS):
            del found[_MOST_FRAMES - 1:]
            found.append((file, frame.f_lineno, getattr(code, "co_qualname", code.co_name)))
        own = own or here
        frame = frame.f_back
    return found
