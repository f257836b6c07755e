# SPDX-License-Identifier: Apache-2.0
"""Which kernels a GPU ran for an op, by CUPTI, where that was asked for. What is behind it: hooks/cupti.

CUPTI has room for one client, and torch's profiler (Kineto) is one: it goes first, whenever it comes.
"""
from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._pytorch import accelerator, is_profiling

if TYPE_CHECKING:
    from nanhunt._session import Session

NOT_WATCHED = "kernels: not watched, because "  # as hooks/cupti/watch_notes.cpp says it


def why_no_cuda() -> str:
    """Why this run has no kernels of CUDA's, as a clause; "": it may have some. CUPTI is not loaded before that."""
    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA"
    if accelerator() != "cuda":
        return "PyTorch finds no CUDA device"
    return ""


def why_not_at(level: str) -> str:
    """Why this level names no kernels, as a clause; "": it does."""
    return "" if level == "ops" else f"only level ops ties kernels to operations, and this is level {level}"


class Kernels:
    """Of one session. Nothing here raises, launches anything or waits for a device."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.on = False
        self._attached = 0  # times
        self._handle: Any = None
        fast = lib.load_library().fast
        self._push, self._push_own = fast.nanhunt_kernels_push, fast.nanhunt_kernels_push_own
        self._pop, self._pop_own = fast.nanhunt_kernels_pop, fast.nanhunt_kernels_pop_own
        self._place = fast.nanhunt_kernels_place
        self.never = why_no_cuda() or why_not_at(session.options.level)
        if self.never:
            session.note(NOT_WATCHED + self.never)

    def attach(self) -> bool:
        """False: the run goes on without, and a note says why."""
        session, recorder = self._session, self._session.recorder
        if self.on or self.never or recorder is None:
            return False
        try:
            if is_profiling():
                why = "torch.profiler (Kineto) is on, and CUPTI has room for one client"
            else:
                why = recorder.attach_kernels(os.environ.get("NANHUNT_CUPTI", ""))
            if why:
                session.note(NOT_WATCHED + why)
                return False
        except Exception as error:
            session.failed(error, "watching kernels")
            return False
        self._handle = recorder.handle
        self._attached += 1
        self.on = True
        session.state.kernels = 1
        self._place(self._handle, session.state.step, session.state.phase)
        return True

    def detach(self) -> None:
        """What is known by now is recorded; nothing of CUPTI is left."""
        if not self.on:
            return
        self.on = False
        self._session.state.kernels = 0
        recorder = self._session.recorder
        try:
            if recorder is not None:
                recorder.detach_kernels(threading.get_ident() != self._session.threads.watched)
        except Exception as error:
            self._session.failed(error, "watching kernels")

    def forget(self) -> None:
        """In a forked child CUPTI is the parent's."""
        self._session.state.kernels = 0
        self.on, self.never = False, "this process was forked"

    def give_way(self, profile: Any) -> None:
        """torch's profiler is about to begin, in any thread. Of the CPU alone it needs no CUPTI."""
        activities = getattr(profile, "kineto_activities", None)
        if self.on and (activities is None or torch.profiler.ProfilerActivity.CUDA in activities):
            self.detach()
            self._session.note("kernels: not watched any more, once torch.profiler (Kineto) needed CUPTI")

    # Around ops, on the thread that launches.
    def push(self) -> int:
        return int(self._push(self._handle)) if self.on else 0

    def pop(self, ticket: int, seq: int, step: int) -> None:
        if ticket and self.on:  # else the recorder may be gone
            self._pop(self._handle, ticket, seq, step)

    def push_own(self) -> int:
        """What is launched until pop_own is nanhunt's."""
        if self.on:
            self._push_own(self._handle)
            return self._attached
        return 0

    def pop_own(self, attached: int) -> None:
        if attached == self._attached and self.on:
            self._pop_own(self._handle)

    @contextmanager
    def own(self) -> Iterator[None]:
        attached = self.push_own()
        try:
            yield
        finally:
            self.pop_own(attached)

    def end_step(self, step: int) -> None:
        """What became known goes into the trace; what is launched outside of ops from now on is the next step's."""
        recorder = self._session.recorder
        if self.on and recorder is not None:
            recorder.drain_kernels()
            self._place(self._handle, step + 1, lib.DATA)
