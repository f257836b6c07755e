# SPDX-License-Identifier: Apache-2.0
"""Workers that time training steps on demand, and their times set against each other turn by turn.

A worker says "ready PARAMETERS LOSS [VERSION]" after a first step; for each line with a count N on its input it runs N
steps and prints the number of the first and the milliseconds of each (gpu_engine.cpp, torch/gpt_steps.py).
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from part import BIN, DEVICE, Rows, left
from processes import ended

SIZES = os.environ.get("GPU_CHECK_SIZES", "gpt124m gpt124m-small-batch gpt10m gpt1m").split()
LAST_SECONDS = 2.0  # of the part, in which no turn is begun


class Gone(Exception):
    """A worker that did not answer, and why."""


class Worker:
    def __init__(self, name: str, command: list[str | Path], env: dict[str, str] | None = None):
        self.name, self.parameters, self.loss, self.version, self.read = name, 0, 0.0, "", b""
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise Gone(f"{name}: {command[0]} could not be started: {error.strerror or error}") from error

    def line(self, seconds: float) -> str:
        """One line of it, waited for no longer than that."""
        ends = time.monotonic() + seconds
        while b"\n" not in self.read:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, ends - time.monotonic()))
            chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not chunk:
                raise Gone(f"{self.name}: {self.death() if ready else f'no answer within {seconds:.0f} s'}")
            self.read += chunk
        line, self.read = self.read.split(b"\n", 1)
        return line.decode("utf-8", "replace")

    def death(self) -> str:
        try:
            how = ended(self.process.wait(timeout=10))
        except subprocess.TimeoutExpired:
            how = "closed its output"
        self.errors.seek(0)
        said = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        return f"{how}: {said[-1]}" if said else how

    def wait_ready(self, seconds: float) -> None:
        words = self.line(seconds).split()
        try:
            _, parameters, loss = words[:3] if words[0] == "ready" else ()
            self.parameters, self.loss = int(parameters), float(loss)
        except (ValueError, IndexError) as error:
            raise Gone(f"{self.name}: it is not ready but says {' '.join(words)[:200]!r}") from error
        self.version = " ".join(words[3:])

    def steps(self, count: int, seconds: float) -> tuple[int, list[float]]:
        try:
            self.process.stdin.write(f"{count}\n".encode())
            self.process.stdin.flush()
        except OSError as error:
            raise Gone(f"{self.name}: {self.death()}") from error
        line = self.line(seconds)
        try:
            first, *times = line.split()
            numbers = [float(word) for word in times]
            if len(numbers) != count or not all(number > 0 for number in numbers):
                raise ValueError
            return int(first), numbers
        except ValueError as error:
            raise Gone(f"{self.name}: no times but {line[:200]!r}") from error

    def end(self) -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(timeout=20)
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def engine(size: str, how: str) -> list[str | Path]:
    """The command of a worker that trains the engine's transformer of a size, watched so."""
    return [BIN / "gpu_engine", "step", size, how, "--device", DEVICE]


def size_that_fits(rows: Rows, name: str, most_ms: float) -> str:
    """The largest of which an unwatched step of the engine takes no longer; empty, and rows that say why: none."""
    for size in SIZES:
        check, worker = f"{name}: size {size}", None
        try:
            worker = Worker(f"{size} unwatched", engine(size, "off"))
            worker.wait_ready(min(120.0, left()))
            took = min(worker.steps(3, 60)[1])
        except Gone as error:
            rows.skip(check, str(error))
            continue
        finally:
            if worker is not None:
                worker.end()
        if took <= most_ms:
            rows.write(check, "measured", f"{worker.parameters} parameters, {took:.2f} ms a step")
            return size
        rows.skip(check, f"a step takes {took:.0f} ms: {most_ms:.0f} ms are what fits into the part")
    rows.fail(name, "no size could be measured; the rows before say why")
    return ""


def start(
    commands: dict[str, list[str | Path]], env: dict[str, str] | None = None
) -> tuple[dict[str, Worker], dict[str, str]]:
    """Those that became ready, and why the others did not. They make their models at the same time, on a core each."""
    begun: dict[str, Worker] = {}
    ready: dict[str, Worker] = {}
    gone: dict[str, str] = {}
    for name, command in commands.items():
        try:
            begun[name] = Worker(name, command, env)
        except Gone as error:
            gone[name] = str(error)
    ends = time.monotonic() + min(180.0, left())
    for name, worker in begun.items():
        try:
            worker.wait_ready(max(1.0, ends - time.monotonic()))
            ready[name] = worker
        except Gone as error:
            gone[name] = str(error)
            worker.end()
    return ready, gone


def turns(
    workers: dict[str, Worker], at_least: int, at_most: int, seconds: float
) -> tuple[dict[str, list], dict[str, str]]:
    """Each worker's (first step, times) by turn, in random order within a turn; who fails drops out, and why."""
    taken: dict[str, list] = {name: [] for name in workers}
    gone: dict[str, str] = {}
    shuffle, ends = random.Random(1), time.monotonic() + seconds
    for turn in range(-2, at_most):  # two to warm up
        if (turn >= at_least and time.monotonic() > ends) or left() < LAST_SECONDS:
            break
        order = [name for name in workers if name not in gone]
        shuffle.shuffle(order)
        for name in order:
            try:
                first, times = workers[name].steps(1, max(1.0, left()))
            except Gone as error:
                gone[name] = str(error)
                continue
            if turn >= 0:
                taken[name].append((first, times[0]))
    return taken, gone


def ratio(taken: list, base: list) -> tuple[float, str] | None:
    """Median over turns of the time against the other's of the same turn, and how it spreads; None: there is none."""
    ratios = [time_ / other for (_, time_), (_, other) in zip(taken, base)]  # noqa: B905
    if not ratios:
        return None
    value = statistics.median(ratios)
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [value] * 3
    return value, f"{len(ratios)} pairs, quartiles {quarters[0]:.3f} to {quarters[2]:.3f}"


def median_ms(taken: list) -> float:
    return statistics.median(time_ for _, time_ in taken) if taken else float("nan")
