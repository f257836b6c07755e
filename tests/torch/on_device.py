# SPDX-License-Identifier: Apache-2.0
"""Tests that run in a process which has the device of device/: `@on_device` above a test.

The process is made once and runs one test after another. A test that kills it (host code that touches the device's
memory dies of SIGSEGV) fails with the stack on which it died, and the next test gets a new process.
"""
from __future__ import annotations

import atexit
import functools
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSIDE = "NANHUNT_TEST_DEVICE"


class _Worker:
    """Asked by a pipe with (module, function, arguments), it answers with what went wrong, or None."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()
        environment = dict(os.environ, **{INSIDE: "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
        self._process = subprocess.Popen([sys.executable, str(Path(__file__).resolve())], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._errors, env=environment)
        atexit.register(self.end)

    def ask(self, *question) -> str | None:
        pickle.dump(question, self._process.stdin)
        self._process.stdin.flush()
        try:
            return pickle.load(self._process.stdout)
        except EOFError:
            status = self._process.wait()
            self._errors.seek(0)
            told = self._errors.read().decode(errors="replace")[-6000:]
            reason = signal.Signals(-status).name if status < 0 else f"status {status}"
            raise AssertionError(f"the process with the device died of {reason}\n{told}") from None

    def end(self) -> None:
        atexit.unregister(self.end)
        self._process.stdin.close()
        self._process.wait()


_worker: _Worker | None = None


def on_device(test):
    """The test runs where the device is. Its arguments must be of kinds that can be pickled."""
    if os.environ.get(INSIDE):
        return test

    @functools.wraps(test)
    def asking(**arguments):
        import pytest

        sys.path.insert(0, str(HERE / "device"))
        import walled

        global _worker
        try:
            walled.compiled()
        except walled.CannotCompile as reason:
            pytest.skip(str(reason))
        _worker = _worker or _Worker()
        try:
            wrong = _worker.ask(test.__module__, test.__qualname__, arguments)
        except BaseException:
            _worker = None
            raise
        if wrong:
            pytest.fail(wrong, pytrace=False)

    return asking


def _answer() -> None:
    """The loop of the process."""
    import faulthandler

    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what tests print is not an answer
    sys.path.insert(0, str(HERE / "device"))
    import walled

    walled.load()
    questions = sys.stdin.buffer
    while True:
        try:
            module, name, arguments = pickle.load(questions)
        except EOFError:
            return
        wrong = None
        try:
            getattr(importlib.import_module(module), name)(**arguments)
        except BaseException:
            wrong = traceback.format_exc()
        pickle.dump(wrong, answers)
        answers.flush()


if __name__ == "__main__":
    _answer()
