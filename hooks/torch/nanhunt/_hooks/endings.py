# SPDX-License-Identifier: Apache-2.0
"""How a run ends, where that is not the last line of a loop: an exception that nobody catches, sys.exit, os._exit.

What the program said is kept with the step that it ended. Nothing is caught, and nothing is changed.
"""
from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Callable

from nanhunt import _library as lib
from nanhunt._hooks.frames import take_frames_off
from nanhunt._step_judge import SUSPECT

if TYPE_CHECKING:
    from nanhunt._session import Session

_MOST = 500  # characters of a message
RAISED = "what would have followed: the program ended with an exception: "  # the analyzer knows it

_session: Session | None = None
_hook: Callable[..., Any] | None = None  # sys.excepthook as it was before ours
_exit: Callable[..., Any] | None = None  # sys.exit
_end: Callable[..., Any] | None = None   # os._exit


def install(session: Session) -> None:
    """Ours are put on once: what others have put on top calls ours, which would call them again."""
    global _session, _hook, _exit, _end
    _session = session
    if _hook is None:
        _hook, sys.excepthook = sys.excepthook, _excepthook
    if _exit is None:
        _exit, sys.exit = sys.exit, _sys_exit  # type: ignore[assignment]
    if _end is None:
        _end, os._exit = os._exit, _os_exit  # type: ignore[assignment]


def uninstall() -> None:
    """Where others have put theirs on top, ours stays under it and hands on."""
    global _session, _hook, _exit, _end
    _session = None
    _stay_interrupted()
    if sys.excepthook is _excepthook and _hook is not None:
        sys.excepthook, _hook = _hook, None
    if sys.exit is _sys_exit and _exit is not None:
        sys.exit, _exit = _exit, None  # type: ignore[assignment]
    if os._exit is _os_exit and _end is not None:
        os._exit, _end = _end, None  # type: ignore[assignment]


def said(kind: type[BaseException], value: BaseException | None) -> str:
    """"AssertionError: loss is not finite": its first line."""
    try:
        text = str(value).strip() if value is not None else ""
        first = text.splitlines()[0] if text else ""
        return (f"{kind.__name__}: {first}" if first else kind.__name__)[:_MOST]
    except Exception:
        return kind.__name__


def _end_run(ending: int, message: Callable[[], str], stops: bool = False) -> None:
    """`stops`: by Ctrl-C, which no number has caused."""
    session = _session
    if session is None or session.dead or os.getpid() != session.pid or not session.hears():
        return
    try:
        words = message()[:_MOST]
        if session.tracker.passed:  # between two steps: the exception is told with the one that is over
            session.end_step(message=words if ending == lib.BY_EXCEPTION else "")
        elif ending == lib.BY_EXCEPTION and not session.judge.is_open() and session.recorder is not None:
            session.note(RAISED + words)
            if session.state.step == 0 and session.recorder.origins() > 0 and not stops:  # before the first forward
                session.judge.enter(SUSPECT)
                session.is_suspect = True
        session.unfinished(ending, words)
    except Exception as error:
        session.failed(error, "the end of the run")


def _excepthook(kind: type[BaseException], value: BaseException, traceback: Any) -> Any:
    global _interrupted
    hook = _hook or sys.__excepthook__  # telling may close the watch, and then ours is off
    _interrupted = kind is KeyboardInterrupt and sys._getframe().f_back is None  # Python itself calls
    _end_run(lib.BY_EXCEPTION, lambda: said(kind, value), stops=issubclass(kind, KeyboardInterrupt))
    _stay_interrupted()
    return hook(kind, value, traceback)


_interrupted = False


def _stay_interrupted() -> None:
    """Where nobody has caught a KeyboardInterrupt, Python ends by SIGINT, unless a text was executed since: importing
    does that (for named tuples). So one that raises it is the last."""
    if _interrupted:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _is_done(*status: Any) -> bool:
    """A program that trains nothing says that all went well: its last forward is over."""
    return _session is not None and _session.state.course in lib.INFERS and not any(status)


def _sys_exit(*status: Any) -> Any:
    # A program may catch what this raises and go on: then the next forward begins another step.
    leave = _exit
    assert leave is not None
    if not _is_done(*status):
        _end_run(lib.BY_EXIT, lambda: f"sys.exit({', '.join(map(repr, status))})")
    try:
        return leave(*status)
    except BaseException as ending:
        take_frames_off(ending)
        raise


def _os_exit(*status: Any, **named: Any) -> Any:
    end = _end
    assert end is not None
    try:
        session = _session
        if session is not None and not session.dead and os.getpid() == session.pid and session.hears():
            session.hurries = True  # whoever ends like this may do so because a device does not answer
            if not _is_done(*status):
                _end_run(lib.BY_EXIT, lambda: f"os._exit({', '.join(map(repr, (*status, *named.values())))})")
            session.close()
    finally:
        end(*status, **named)
