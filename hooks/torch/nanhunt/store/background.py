# SPDX-License-Identifier: Apache-2.0
"""A watched run whose `out` is a URL: recorded in a folder here, which a process of its own copies there."""
from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from nanhunt.store.remote import RemoteError, shown
from nanhunt.store.upload import seconds_at_the_end

_PATIENCE_S = 30.0   # until the folder is named
_AT_EXIT_S = 60.0    # at most until all is copied; then that process goes on by itself
# Not `-m`, which looks for every module in the working directory first.
_RUN = ("import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; "
        "runpy.run_module('nanhunt.store', run_name='__main__', alter_sys=True)")


class BackgroundUpload:
    """Begins with this object. Raises RemoteError where the URL cannot be opened here."""

    def __init__(self, url: str, quiet: bool) -> None:
        self.url, self.quiet = url, quiet
        self.pid = os.getpid()
        package = Path(__file__).absolute().parents[1]
        environment = {name: value for name, value in os.environ.items() if name != "NANHUNT_RUN_DIR"}
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(package.parent), environment.get("PYTHONPATH", "")]))
        words = [sys.executable, "-c", _RUN, "upload", url, "--detach", "--pid", str(self.pid)]
        try:
            begun = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     env=environment, start_new_session=True)
        except OSError as error:
            raise RemoteError(f"{url}: {sys.executable} cannot be started: {error.strerror}") from error
        assert begun.stdin is not None and begun.stdout is not None
        self._input, self._output = begun.stdin, begun.stdout
        begun.wait()  # at once: what copies is no child of ours
        answer = self._answer(_PATIENCE_S)
        if "folder" not in answer:
            self._close()
            raise RemoteError(answer.get("error", f"{shown(url)}: the program that copies to it did not begin"))
        self.folder = str(answer["folder"])
        atexit.register(self._wait)

    def end(self) -> None:
        """Everything is recorded. Does not wait."""
        if os.getpid() == self.pid:
            with suppress(OSError, ValueError):
                self._input.write(b".")
                self._input.flush()  # not closed: what was recorded stays here until this process ends

    def _wait(self) -> None:
        """A container ends with its program, and would take what is not copied with it."""
        if os.getpid() != self.pid:
            return
        self.end()
        answer = self._answer(min(_AT_EXIT_S, seconds_at_the_end() + 10))
        self._close()
        if answer.get("left") == 0 or self.quiet:
            return
        place = shown(self.url)
        if answer.get("late"):
            print(f"nanhunt: what is left of {self.folder} is still being copied to {place}", file=sys.stderr)
            return
        left = f"{answer['left']} files" if "left" in answer else "what is left"
        print(f"nanhunt: {left} could not be copied to {place} ({answer.get('why', 'the program that copies ended')}). "
              f"It is kept in {self.folder}: `python -m nanhunt.store upload {place} --from {self.folder}` tries "
              "again.", file=sys.stderr)

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The next line; {"late": True}: it did not come in time; {}: none will."""
        line, deadline = b"", time.monotonic() + seconds
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._output], [], [], left)[0]:
                return {"late": True}
            more = os.read(self._output.fileno(), 65536)
            if not more:
                break
            line += more
        with suppress(ValueError):
            answer = json.loads(line)
            return answer if isinstance(answer, dict) else {}
        return {}

    def _close(self) -> None:
        for pipe in (self._input, self._output):
            with suppress(OSError, ValueError):
                pipe.close()
