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
    """Frames of a site, innermost first: the first time they are recorded with their lines. Where those of packages
    take all of the room, the nearest of the program's own is the last."""
    if report_frames is not None and site not in _reported:
        _reported.add(site)
        own = next((i for i, frame in enumerate(frames) if is_own_file(frame[0])), 0)
        report_frames(site, [*frames[: _MOST_FRAMES - 1], *frames[max(_MOST_FRAMES - 1, own):][:1]])


def set_frame_reporter(report: Callable[[str, list[tuple[str, int, str]]], None] | None) -> None:
    global report_frames
    report_frames = report
    _reported.clear()


def frames_above(frame: Any) -> list[tuple[str, int, str]]:
    """As far out as report_once() may record."""
    found: list[tuple[str, int, str]] = []
    own = False
    while frame is not None and (len(found) < _MOST_FRAMES or not own):
        code = frame.f_code
        if not code.co_filename.startswith(THEIRS):
            found.append((code.co_filename, frame.f_lineno, getattr(code, "co_qualname", code.co_name)))
            own = own or is_own_file(code.co_filename)
        frame = frame.f_back
    return found
