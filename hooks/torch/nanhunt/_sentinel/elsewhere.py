# SPDX-License-Identifier: Apache-2.0
"""Work that runs code of the user's, in a forked child: whatever it changes, it changes there.

The child has all of the run's memory and none of its files, pipes and sockets (nanhunt_recorder_fork). It computes with
one thread, for the others did not survive the fork; it talks to its parent in messages, and leaves without a word to
Python. The parent waits, for no longer than it was told to.
"""
from __future__ import annotations

import contextlib
import ctypes as c
import gc
import json
import os
import platform
import random
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._pytorch import accelerator
from nanhunt._recorder import RecorderError

if TYPE_CHECKING:
    from nanhunt._session import Session

LEAST = 30.0  # seconds that work may take
_SLOWER = 20  # times a usual step: work is heard op by op
TOO_LONG = "it took too long"
_MOST = 64 << 20  # bytes of a message
_SHARES = 71  # NANHUNT_CHILD_SHARES


class Lost(Exception):
    """The child gave no answer: why, as a clause."""


def has_device(session: Session) -> bool:
    return bool(accelerator()) or session.kernels is not None


def why_not(session: Session) -> str:
    """Why this process cannot be forked, as a clause; "": it can."""
    if has_device(session):
        return "a process that has a device cannot be forked"
    if not hasattr(os, "fork"):
        return "there is no fork on this system"
    heard = signal.getsignal(signal.SIGCHLD)  # None: a handler that Python does not know
    if heard is None or callable(heard) and not str(getattr(heard, "__module__", "")).startswith("torch."):
        return "the program has a handler of its own for the end of child processes"
    if signal.SIGCHLD in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return "the program waits for the signal of the end of child processes"
    if _waits_for_any_child():
        return "another thread of the program waits for whichever child process ends"
    return ""


# Of each machine: the calls wait4 and waitid.
_WAITS = {"x86_64": (61, 247), "aarch64": (260, 95)}


def _waits_for_any_child() -> bool:
    """Whether a thread of this process does, as the system knows: it would be told of one that is not the program's."""
    wait4, waitid = _WAITS.get(platform.machine(), (-1, -1))
    for task in Path("/proc/self/task").glob("*/syscall"):
        with suppress(OSError, ValueError):  # it has ended, or runs
            number, first, *_ = task.read_text().split()
            which = int(first, 16) & 0xFFFFFFFF
            if int(number) == wait4 and (which == 0 or which >> 31) or int(number) == waitid and which != _ONE_CHILD:
                return True
    return False


_ONE_CHILD = 1  # P_PID


def patience(usual_step: float) -> float:
    """Seconds that may be waited where a step takes so many."""
    return max(LEAST, _SLOWER * torch.get_num_threads() * usual_step)


def noted(session: Session) -> dict[str, Any]:
    """What the parent must know of its child's session, whose notes and errors began anew."""
    return {"notes": session.notes, "errors": session.errors, "error": session.last_error}


def take_over(session: Session, told: dict[str, Any]) -> None:
    """In the parent."""
    for text, count in told["notes"].items():
        session.note(text, count)
    session.errors += told["errors"]
    session.last_error = told["error"] or session.last_error


class Talk:
    """One end: values of JSON, NaN and infinities among them."""

    def __init__(self, end: socket.socket, until: float) -> None:
        self._end, self._until = end, until

    def say(self, value: Any) -> None:
        data = json.dumps(value).encode()
        try:
            self._end.sendall(len(data).to_bytes(8, "little") + data)
        except OSError as error:
            raise Lost("its process ended") from error

    def hear(self) -> Any:
        size = int.from_bytes(self._take(8), "little")
        if size > _MOST:
            raise Lost("its answer is too long")
        return json.loads(self._take(size))

    def _take(self, size: int) -> bytes:
        data = b""
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        while len(data) < size:
            left = self._until - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise Lost(TOO_LONG)
            some = self._end.recv(min(size - len(data), 1 << 20))
            if not some:
                raise Lost("its process ended")
            data += some
        return data


class Elsewhere:
    """A child that works while this lasts, and is gone afterwards. Raises Lost where there is none."""

    def __init__(self, session: Session, work: Callable[[Talk], None], seconds: float) -> None:
        recorder = session.recorder
        assert recorder is not None
        self._recorder, self._pid = recorder, 0
        ours, its = socket.socketpair()
        self._end = ours
        self.talk = Talk(ours, time.monotonic() + seconds)
        numbers = random.getstate()  # Python seeds a child's anew
        collects = gc.isenabled()
        gc.disable()  # what finalizers do outside of this process, the child must not do
        session.forks = True
        try:
            self._pid = recorder.fork(its.fileno())
            if self._pid == 0:
                _be_child(work, Talk(its, time.monotonic() + seconds), numbers)
        except RecorderError as error:
            ours.close()
            raise Lost(str(error)) from error
        finally:
            session.forks = False
            its.close()
            if collects:
                gc.enable()

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *raised: object) -> None:
        self._end.close()
        self._stop()
        with contextlib.suppress(RecorderError):
            self._recorder.forget_child()  # where it was not taken over

    def hear(self) -> Any:
        try:
            told = self.talk.hear()
            if "lost" in told:
                raise Lost(told["lost"])
            return told
        except Lost as lost:
            raise Lost(_WHY.get(self._stop() or 0, str(lost))) from None

    def _stop(self) -> int | None:
        """Its status, where it left by itself."""
        pid, self._pid = self._pid, 0
        if not pid:
            return None
        try:
            # One that has closed its end is about to leave.
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                time.sleep(0.001)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ChildProcessError, ProcessLookupError):  # somebody else has waited for it
            pass
        return None


_WHY = {_SHARES: "it shares more with other processes than can be taken from a copy of this one",
        -signal.SIGSEGV: "its process crashed", -signal.SIGABRT: "its process crashed",
        -signal.SIGBUS: "its process crashed", -signal.SIGFPE: "its process crashed"}


def _be_child(work: Callable[[Talk], None], talk: Talk, numbers: Any) -> None:
    """Does not return. Whoever waits finds the reason in what it said, if it could say one."""
    status = 1
    try:
        gc.freeze()  # nor if somebody asks for it
        random.setstate(numbers)
        torch.set_num_threads(1)
        work(talk)
        status = 0
    except Exception as error:
        with suppress(Lost):
            talk.say({"lost": f"{type(error).__name__}: {error}"})
    finally:
        c.CDLL(None)._exit(status)  # nobody's wrapper of os._exit, nothing at exit
