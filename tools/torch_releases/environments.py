# SPDX-License-Identifier: Apache-2.0
"""One Python environment for each release of PyTorch: made once, without what only a GPU needs, and used again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from stand_ins import CannotMake, make_stand_ins  # noqa: E402

LIST = Path(__file__).resolve().parent / "releases.txt"
PACKAGES = ("numpy", "pytest", "pytest-xdist")  # what the tests need beside what PyTorch needs
MADE = "nanhunt-environment.json"  # written when an environment is whole

# What PyTorch asks for on this Python, without what only a GPU needs: some gigabytes.
_ASKED = """
import importlib.metadata, sys
from pip._vendor.packaging.requirements import Requirement
for line in importlib.metadata.requires("torch") or ():
    one = Requirement(line)
    is_asked = one.marker is None or one.marker.evaluate({"extra": ""})
    if is_asked and not one.name.startswith(("nvidia", "triton", "cuda")):
        print(f"{one.name}{one.specifier}")
"""
_FOUND = "import torch, platform; print(torch.__version__, platform.python_version())"
_HAD = """
import importlib.metadata, platform, pytest, xdist
print(importlib.metadata.version("torch"), platform.python_version())
"""


class NotToBeHad(Exception):
    """Why there is no environment, or no result, for a release."""


class TimeIsUp(NotToBeHad):
    """The time given is over."""


@dataclass(frozen=True)
class Release:
    version: str
    python: str
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Environment:
    python: Path
    torch: str  # with what it was built for: "2.13.0+cpu"
    python_version: str


@dataclass
class Clock:
    """The time that is left of `seconds`; None: all of it."""

    seconds: float | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float | None:
        return None if self.seconds is None else self.seconds - (time.monotonic() - self.started)

    @property
    def is_up(self) -> bool:
        return self.left is not None and self.left <= 0


def read_releases(path: Path = LIST) -> list[Release]:
    """Those that have a Python to be tested with."""
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [Release(row[0], row[1], tuple(row[2:])) for row in rows if not row[0].startswith("#") and row[1] != "-"]


def run(command: list[str | Path], clock: Clock, what: str, log: Path | None = None, **options) -> tuple[int, str]:
    """Exit status and output. With its time it ends, and so does what it started."""
    if clock.is_up:
        raise TimeIsUp(f"{what}: no time left of {clock.seconds:.0f} s")
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("w", encoding="utf-8")) if log is not None else subprocess.PIPE
        process = stack.enter_context(
            subprocess.Popen([str(word) for word in command], stdout=output, stderr=subprocess.STDOUT, text=True,
                             stdin=subprocess.DEVNULL, start_new_session=True, errors="replace", **options)
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=clock.left)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeIsUp(f"{what}: not done within {clock.seconds:.0f} s") from None
            raise
    return process.returncode, printed or ""


def find_python(version: str) -> str:
    """A Python of this version: the distribution's, else one on PATH."""
    for candidate in ("/usr/bin/python3", shutil.which(f"python{version}"), shutil.which("python3")):
        if candidate and Path(candidate).exists():
            asked = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([candidate, "-c", asked], capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.strip() == version:
                return candidate
    raise NotToBeHad(f"there is no Python {version} that can make an environment")


class Maker:
    """Makes environments in a folder. `say` is given what it does; `ready` is one that may have the release already."""

    def __init__(
        self, folder: Path, clock: Clock, say: Callable[[str], None], wheels: Path | None, ready: Path
    ) -> None:
        self._folder, self._clock, self._say, self._wheels, self._ready = folder, clock, say, wheels, ready

    def environment(self, release: Release) -> Environment:
        """That of the release, made if it is not there."""
        if self._clock.is_up:
            raise TimeIsUp(f"no time left of {self._clock.seconds:.0f} s")
        for folder in (self._folder / release.version, self._ready):
            found = self._found(folder, release)
            if found is not None:
                return found
        return self._make(self._folder / release.version, release)

    def _found(self, folder: Path, release: Release) -> Environment | None:
        python = folder / "bin" / "python"
        if folder != self._ready:
            try:
                torch, version = json.loads((folder / MADE).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return None
            return Environment(python, torch, version) if python.exists() else None
        if not python.exists():
            return None
        status, printed = run([python, "-c", _HAD], self._clock, "looking for PyTorch")
        words = printed.split()
        if status != 0 or len(words) != 2 or words[0].partition("+")[0] != release.version:
            return None
        return Environment(python, *words) if words[1].startswith(f"{release.python}.") else None

    def _make(self, folder: Path, release: Release) -> Environment:
        clock, what = self._clock, f"PyTorch {release.version}"
        python = folder / "bin" / "python"
        interpreter = find_python(release.python)
        shutil.rmtree(folder, ignore_errors=True)  # what an earlier call did not finish
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._say(f"{what}: making an environment with Python {release.python}")
        status, printed = run([interpreter, "-m", "venv", folder], clock, what)
        if status != 0:
            raise NotToBeHad(f"no environment: {_last_line(printed)}")
        try:
            # The wheel is large: no copy of it is kept, and what is not imported is not compiled.
            self._install(python, ["--no-deps", "--no-compile", "--no-cache-dir", f"torch=={release.version}"], what)
            status, printed = run([python, "-c", _ASKED], clock, what)
            if status != 0:
                raise NotToBeHad(f"what it needs is not to be read: {_last_line(printed)}")
            self._install(python, [*printed.split("\n")[:-1], *PACKAGES, *release.packages], f"packages of {what}")
            return self._imported(python, folder, what)
        except NotToBeHad:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _install(self, python: Path, wanted: list[str], what: str) -> None:
        command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off",
                   "--only-binary", ":all:", "--retries", "1", "--timeout", "30"]  # fmt: skip
        tries: list[tuple[str, list[str]]] = [("fetching", [])]
        if self._wheels is not None:
            tries.insert(0, ("looking among the wheels for", ["--no-index", "--find-links", str(self._wheels)]))
        printed = ""
        for doing, options in tries:
            self._say(f"{what}: {doing} {' '.join(word for word in wanted if not word.startswith('--'))}")
            status, printed = run([*command, *options, *wanted], self._clock, what)
            if status != 0 and "constraint" in printed:
                # pip is told to hold a package down: an environment that is for one release alone names it exactly.
                self._say(f"{what}: pip's configuration has a constraint against it; without its constraints")
                environment = {**os.environ, "PIP_CONSTRAINT": os.devnull}
                status, printed = run([*command, *options, *wanted], self._clock, what, env=environment)
            if status == 0:
                return
        raise NotToBeHad(f"pip did not find it: {_last_line(printed)}")

    def _imported(self, python: Path, folder: Path, what: str) -> Environment:
        status, printed = run([python, "-c", _FOUND], self._clock, what)
        if status != 0 and "cannot open shared object file" in printed:
            libraries = next(folder.glob("lib/python*/site-packages/torch/lib"))
            try:
                made = make_stand_ins(libraries)
            except CannotMake as error:
                raise NotToBeHad(f"no stand-ins for CUDA's libraries: {error}") from None
            self._say(f"{what}: stand-ins for {len(made)} libraries of CUDA's")
            status, printed = run([python, "-c", _FOUND], self._clock, what)
        words = printed.split("\n")[-2].split() if printed.count("\n") else []
        if status != 0 or len(words) != 2:
            raise NotToBeHad(f"it cannot be imported: {_last_line(printed)}")
        (folder / MADE).write_text(json.dumps(words), encoding="utf-8")
        return Environment(python, *words)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("[notice]")]
    return lines[-1][:200] if lines else "it said nothing"
