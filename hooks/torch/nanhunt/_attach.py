# SPDX-License-Identifier: Apache-2.0
"""The watch that is on in this process, and how it is put on: session, listeners of its level, hooks."""
from __future__ import annotations

import atexit
import multiprocessing
import os
import time
from dataclasses import replace
from functools import partial

from nanhunt import _library as lib
from nanhunt import _pytorch  # noqa: F401  (before others: it raises where PyTorch or Python is not supported)
from nanhunt._hooks import hooks
from nanhunt._levels import add_listeners
from nanhunt._options import Options
from nanhunt._session import Session
from nanhunt._tap.first_op import await_first_op
from nanhunt.store.remote import is_url

current: Session | None = None


def attach(options: Options, by_command: bool = False) -> Session:
    """Starts watching this process, or gives the watch that is on. Needs torch to be imported. `by_command`: of
    `nanhunt run`, which meets every process. One that another Python made may load data, of which nothing is recorded:
    the first module or optimizer is waited for."""
    global current
    if current is not None and not current.dead:
        return current
    if is_url(options.out):
        options.url = options.out
        options.begin_upload()
    session = _begin(options)
    session.by_command = by_command
    if not by_command or not _is_made():
        await_first_op(session)
    return session


def _is_made() -> bool:
    """Whether Python's multiprocessing made this process, be it that it is still being given what it needs."""
    return multiprocessing.parent_process() is not None or (
        getattr(multiprocessing.current_process(), "_inheriting", False))


def _begin(options: Options) -> Session:
    global current
    if not options.run:
        options.run = f"{os.getpid()}-{time.time_ns()}"
    session = Session(options)
    _put_on(session)
    current = session
    atexit.register(session.close)
    return session


def _put_on(session: Session) -> None:
    add_listeners(session)
    hooks.install(session)
    session.at_end += [session.options.end_upload, _detach, lambda: _let_go_of_saves(session)]
    if session.options.guard_checkpoints and session.guard is None:
        session.at_open.append(lambda: _guard(session))
    session.begin_again = partial(_begin_again, session)  # type: ignore[method-assign]


_STAYS = ("holders", "by_command", "given", "parameter_names", "threads", "faults", "trackers", "watch_ns", "tracker",
          "guard", "optimizers", "_kept", "_made", "applies_gradients")


def _begin_again(session: Session, keeps_faults: bool = True) -> None:
    """What was recorded so far trained nothing: it is an attempt of its own, and training begins the next one."""
    interrupted = session.end_attempt()
    session.close_recorder(keeps_faults and session.inference.is_kept())
    stays = {name: getattr(session, name) for name in _STAYS}
    Session.__init__(session, session.options)
    vars(session).update(stays)
    session.faults.begin_attempt()
    _put_on(session)
    if interrupted is not None:
        raise interrupted


def _guard(session: Session) -> None:
    from nanhunt.guard import saves

    if session.guard is None:
        session.guard = saves.put_on(session)


def _let_go_of_saves(session: Session) -> None:
    if session.guard is not None:
        session.guard.patches.take_off()


def _detach() -> None:
    global current
    current = None


def _after_fork() -> None:
    """A forked child has the parent's writer but not its thread: it must not write there. Should it train (most are
    data-loader workers), it is watched as a process of its own, in an attempt beside the parent's. CUPTI stays the
    parent's."""
    parent = current
    if parent is None or parent.dead or parent.forks:  # a child of our own goes on as the parent would
        return
    if parent.kernels is not None:
        parent.kernels.forget()
    parent.tap = None
    parent.recorder = None
    parent.end_watching()
    atexit.unregister(parent.close)
    try:
        child = _begin(replace(parent.options, kernels=False))
        child.by_command, child.holders = parent.by_command, 1  # its end closes it
        child.given, child.parameter_names = parent.given, parent.parameter_names
        if parent.state.course == lib.TRAINS:  # what it calls with gradients off is part of that
            child.state.course = lib.TRAINS
    except Exception:  # unwatched
        _detach()


os.register_at_fork(after_in_child=_after_fork)


def attach_from_environment() -> Session | None:
    """For boot/sitecustomize: watches this process as `nanhunt run` asked."""
    if not os.environ.get("NANHUNT_RUN_DIR"):
        return None
    session = attach(Options.from_environment(), by_command=True)
    session.holders += 1  # never let go: the process's end closes it
    return session
