# SPDX-License-Identifier: Apache-2.0
"""As sitecustomize.py on PYTHONPATH: time that passes where a test says so, and not because a machine is slow.

MADE_UP_TIME names a file. `time.sleep(s)` returns at once and writes there that s seconds passed. A program that hangs
writes "hang" and its process group (`time.sleep(math.inf)` does): whoever waits for it has then waited as long as it
meant to. Every other wait takes as long as it must.
"""

import math
import os
import select
import subprocess
import threading  # noqa: F401 - it keeps the real clock, and so does subprocess
import time
import types
from pathlib import Path

PATIENCE = 600
_clock = Path(os.environ["MADE_UP_TIME"])
_real_monotonic, _real_sleep, _real_select = time.monotonic, time.sleep, select.select


def _lines() -> list[str]:
    return _clock.read_text().splitlines() if _clock.exists() else []


def _write(line: str) -> None:
    with _clock.open("a") as file:
        file.write(line + "\n")


def monotonic() -> float:
    return 1000 + sum(float(line) for line in _lines() if not line.startswith("hang"))


def sleep(seconds: float) -> None:
    if math.isfinite(seconds):
        _write(str(seconds))
        return
    _write(f"hang {os.getpgid(0)}")
    while True:
        _real_sleep(PATIENCE)


def _waiting(real):
    def wait(self, *args, timeout=None, **named):
        if timeout is None:
            return real(self, *args, **named)
        ends = _real_monotonic() + PATIENCE
        while True:
            try:
                return real(self, *args, timeout=0.05, **named)
            except subprocess.TimeoutExpired:
                if f"hang {self.pid}" in _lines() or _real_monotonic() > ends:
                    _write(str(timeout))
                    raise subprocess.TimeoutExpired(self.args, timeout) from None

    return wait


def _select(read, write, bad, timeout=None):
    return _real_select(read, write, bad, PATIENCE if timeout else timeout)


time.monotonic, time.sleep, select.select = monotonic, sleep, _select
subprocess.time = types.SimpleNamespace(sleep=_real_sleep)  # it polls
subprocess.Popen.wait = _waiting(subprocess.Popen.wait)
subprocess.Popen.communicate = _waiting(subprocess.Popen.communicate)
