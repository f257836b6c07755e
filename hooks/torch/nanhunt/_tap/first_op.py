# SPDX-License-Identifier: Apache-2.0
"""The first op of a thread that reads floating-point numbers, or makes them of whole ones. What a program computes
before it has a module or an optimizer (it scales its data, weighs its classes) is part of the first step, so the
recorder is opened for it."""
from __future__ import annotations

import _thread
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from nanhunt._modes import modes_aside
from nanhunt._tap.tap import pass_by
from nanhunt._tap.tap_build import TapMissing
from nanhunt._tap.tap_library import FirstOp, load_tap

if TYPE_CHECKING:
    from nanhunt._session import Session

_SOON = 0.01  # seconds
_waits: Any = None  # ctypes keeps no reference
_steps: Any = None


def await_first_op(session: Session) -> None:
    """In the calling thread, of a session that hears operations."""
    global _waits
    if session.options.level == "steps" or session.recorder is not None:
        return
    try:
        library = load_tap()
    except TapMissing:  # which is said when the recorder is opened
        return
    its, pid = weakref.ref(session), os.getpid()
    _waits = FirstOp(lambda: _open(its(), pid))
    session.at_end.append(_forget)
    pass_by(True)
    library.await_first_op(_waits)


def _open(session: Session | None, pid: int) -> None:
    """Before that op, or right after it."""
    if session is not None and session.recorder is None and not session.dead and pid == os.getpid():
        try:
            with modes_aside():
                session.open()
        except Exception as error:
            session.failed(error, "the first operation")
        except BaseException:  # Ctrl-C, which ctypes would keep: the program gets it when this is over
            threading.Timer(_SOON, _thread.interrupt_main).start()
    if session is None or session.tap is None or not session.tap.is_on:
        pass_by(False)


def _forget() -> None:
    """Nobody waits for it any more."""
    if load_tap().forget_first_op():
        pass_by(False)


def await_next_forward(session: Session) -> None:
    """Of a program that trains tensors of its own by hand: before the op that begins a forward its step is over."""
    global _steps
    if session.tap is None:
        return
    its, pid = weakref.ref(session), os.getpid()
    _steps = FirstOp(lambda: _end_step(its(), pid))
    session.at_end.append(_await_none)
    load_tap().await_next_forward(_steps)


def _end_step(session: Session | None, pid: int) -> None:
    if session is None or session.dead or pid != os.getpid() or not session.hears():
        return
    try:
        with modes_aside():
            if session.leaves and session.updates_by_hand():
                session.end_by_hand()
                if session.tap is not None:
                    session.tap.begin_step()
            session.state.stepped = 0  # nobody is asked again before the next update
    except Exception as error:
        session.failed(error, "the end of a step")


def _await_none() -> None:
    load_tap().await_next_forward(FirstOp())
