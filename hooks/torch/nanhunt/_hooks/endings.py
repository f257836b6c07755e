# SPDX-License-Identifier: Apache-2.0
"""How a run ends, where that is not the last line of a loop: an exception that nobody catches, sys.exit, os._exit.

What the program said is kept with the step that it ended. Nothing is caught, and nothing is changed.
"""
from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Callable

from nanhunt import _library as lib

if TYPE_CHECKING:
    from nanhunt._session import Session

_MOST = 500  # characters of a message

_session: Session | None = None
_hook: Callable[..., Any] | None = None  # sys.excepthook as it was before ours
_exit: Callable[..., Any] | None = None  # sys.exit
_end: Callable[..., Any] | None = None   # os._exit


def install(session: Session) -> None:
    global _session, _hook, _exit, _end
    _session = session
    if sys.excepthook is not _excepthook:
        _hook, sys.excepthook = sys.excepthook, _excepthook
    if sys.exit is not _sys_exit:
        _exit, sys.exit = sys.exit, _sys_exit  # type: ignore[assignment]
    if os._exit is not _os_exit:
        _end, os._exit = os._exit, _os_exit  # type: ignore[assignment]


def uninstall() -> None:
    """Where others have put theirs on top, ours stays under it and hands on."""
    global _session
    _session = None
    if sys.excepthook is _excepthook and _hook is not None:
        sys.excepthook = _hook
    if sys.exit is _sys_exit and _exit is not None:
        sys.exit = _exit  # type: ignore[assignment]
    if os._exit is _os_exit and _end is not None:
        os._exit = _end  # type: ignore[assignment]


def said(kind: type[BaseException], value: BaseException | None) -> str:
    """"AssertionError: loss is not finite": its first line."""
    try:
        text = str(value).strip() if value is not None else ""
        first = text.splitlines()[0] if text else ""
        return (f"{kind.__name__}: {first}" if first else kind.__name__)[:_MOST]
    except Exception:
        return kind.__name__


def _tell(ending: int, message: str) -> None:
    session = _session
    if session is None or session.dead or os.getpid() != session.pid or not session.hears():
        return
    try:
        if session.borders.passed:
            session.end_step()
        session.unfinished(ending, message)
    except Exception as error:
        session.failed(error, "the end of the run")


def _excepthook(kind: type[BaseException], value: BaseException, traceback: Any) -> Any:
    _tell(lib.BY_EXCEPTION, said(kind, value))
    return _hook(kind, value, traceback) if _hook is not None else None


def _sys_exit(*status: Any) -> Any:
    # A program may catch what this raises and go on: then the next forward begins another step.
    _tell(lib.BY_EXIT, f"sys.exit({', '.join(map(repr, status))})"[:_MOST])
    assert _exit is not None
    return _exit(*status)


def _os_exit(*status: Any) -> Any:
    session = _session
    if session is not None and not session.dead and os.getpid() == session.pid and session.hears():
        _tell(lib.BY_EXIT, f"os._exit({', '.join(map(repr, status))})"[:_MOST])
        session.close()
    assert _end is not None
    return _end(*status)
