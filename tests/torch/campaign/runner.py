# SPDX-License-Identifier: Apache-2.0
"""One run: drawn again until its fault does harm and comes about as planned, by runs without nanhunt; then watched.

    python runner.py KEY KIND NAME faulty|twin     # the program alone; under `nanhunt run` where it ends its process
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch
from kinds import Fault, Name, all_faults, all_healthy
from score import SEEN, Answer, Place, answer_of, faults_of, origin_right
from settings import draw
from training import Training

DRAWS = 30
OPTIONS: dict[str, dict[str, str]] = {"default": {}, "ops": {"level": "ops"}}
# Infinities that a program writes on purpose: no number went bad there.
WRITERS = ("masked_fill", "masked_fill_", "fill_", "full", "full_like", "where", "scalar_tensor", "index_put_")
WRITTEN = tuple(f"aten::{op}" for op in WRITERS)


class Ended(BaseException):
    """os._exit, in a process that goes on."""


def ended_by(program: Training) -> str:
    """Runs it in this process."""

    def end(status: int) -> None:
        raise Ended(status)

    leave, os._exit = os._exit, end  # type: ignore[assignment]
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program.run()
    except (Exception, SystemExit, Ended) as error:
        return type(error).__name__
    finally:
        os._exit = leave
    return ""


class Alone:
    """What a program did, and how it ended, without nanhunt."""

    def __init__(self, program: Training) -> None:
        copied = [[t.detach().double().clone() for t in its] for its in (program.parameters, program.kept)]
        self.start, self.copies_start = copied
        self.ended = ended_by(program)
        self.losses = program.losses
        self.end, self.copies = ([t.detach().double() for t in its] for its in (program.parameters, program.kept))
        states = program.optimizer.state.values() if program.optimizer is not None else ()
        state = [t for s in states for t in s.values() if isinstance(t, torch.Tensor)]
        self.state = state + [t for t in program.model.buffers() if t.is_floating_point()]


def distance(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float((x - y).pow(2).sum()) for x, y in zip(a, b, strict=False)))


def turned_bad(bad: list[torch.Tensor], clean: list[torch.Tensor]) -> bool:
    pairs = zip(bad, clean, strict=False)
    return any(bool(torch.isfinite(c).all()) and not bool(torch.isfinite(b).all()) for b, c in pairs)


def went_elsewhere(bad: list[torch.Tensor], start: list[torch.Tensor], clean: list[torch.Tensor]) -> bool:
    """Farther from where the clean run ended than a quarter of its way."""
    return distance(bad, clean) > distance(start, clean) / 4


def harm(bad: Alone, clean: Alone) -> str:
    """What it was done to, by the pair, as tests/campaign has it; nothing: none."""
    if bad.ended != clean.ended:
        return "end"
    if any(math.isfinite(c) and not math.isfinite(b) for b, c in zip(bad.losses, clean.losses, strict=False)):
        return "loss"
    if turned_bad([*bad.end, *bad.state], [*clean.end, *clean.state]) or went_elsewhere(bad.end, bad.start, clean.end):
        return "parameters"
    if turned_bad(bad.copies, clean.copies) or went_elsewhere(bad.copies, clean.copies_start, clean.copies):
        return "copies"
    return ""


def first_bad(program: Training) -> dict[str, Any] | None:
    """Where a plain dispatch mode sees the first number go bad."""
    from first_bad import FirstBad, Modules

    class Steps:
        inside = 0

        def done(self) -> int:
            return program.i

    lines: list[dict[str, Any]] = []
    modules = Modules()
    try:
        with FirstBad(Steps(), modules, lines.append):
            ended_by(program)
    finally:
        modules.close()
    born = [n for n in lines if n["lifecycle"] in ("appear", "transform")]
    return next((n for n in born if "nan" in n["outputs"] or n["op"] not in WRITTEN), None)


def place_of(fault: Fault, program: Training, seen: dict[str, Any] | None) -> Place | None:
    """What must be named; None: the fault did not come about as planned."""
    e, at = fault.expected, program.drawn.at
    step = 0 if e.from_start else None if e.step is None else at + e.step
    module = e.module(program) if callable(e.module) else e.module
    if not e.seen:
        return Place(step, e.phases, module, e.ops[0] if e.ops else None)
    if seen is None or e.ops and seen["op"] not in e.ops or seen["step"] != (0 if e.from_start else at):
        return None
    if module is not None and module not in (SEEN, seen["module"]):
        return None
    return Place(step, e.phases, module and seen["module"], seen["op"])


@dataclass
class Result:
    kind: str
    name: str
    key: str
    settings: str = ""
    harm: str = ""
    place: Place | None = None
    cls: str = ""
    redrawn: list[str] = field(default_factory=list)
    right: dict[str, tuple[bool, bool]] = field(default_factory=dict)  # by level: origin, class
    answers: dict[str, Answer] = field(default_factory=dict)
    healthy: dict[str, list[str]] = field(default_factory=dict)  # faults of the twin, or of the healthy run
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)


def make(name: Name, key: str, faulty: bool) -> Training:
    programs = {**{of: fault.program for of, fault in all_faults().items()}, **all_healthy()}
    return programs[name](draw(key), faulty)


def watched(name: Name, key: str, faulty: bool, level: str, out: Path, alone: bool) -> dict[str, Any]:
    """The report of nanhunt."""
    if alone:
        from hunting import hunt

        watching = "live" if level == "default" else level
        return hunt(out, watching, Path(__file__), key, *name, "faulty" if faulty else "twin").report
    import nanhunt
    from saved import report_of

    program = make(name, key, faulty)
    with nanhunt.watch(program.model, program.optimizer, out=out, quiet=True, **OPTIONS[level]):
        ended_by(program)
    return report_of(out)


def judge_fault(name: Name, key: str, levels: list[str], folder: Path) -> Result:
    fault = all_faults()[name]
    result = Result(*name, key, cls=fault.expected.cls)
    for attempt in range(DRAWS):
        result.key = f"{key} {attempt}"
        program = make(name, result.key, faulty=True)
        result.settings = program.drawn.text
        bad, clean = Alone(program), Alone(make(name, result.key, faulty=False))
        result.harm = harm(bad, clean)
        if not result.harm or not all(map(math.isfinite, clean.losses)):
            result.redrawn.append("harmless")
            continue
        again = make(name, result.key, faulty=True)
        result.place = place_of(fault, again, first_bad(again) if fault.expected.seen else None)
        if result.place is not None:
            break
        result.redrawn.append("not as planned")
    if result.place is None:
        return result
    for level in levels:
        twin = watched(name, result.key, False, level, folder / f"{level}-twin", fault.alone)
        result.healthy[level] = faults_of(twin)
        report = result.reports[level] = watched(name, result.key, True, level, folder / level, fault.alone)
        answer = result.answers[level] = answer_of(report)
        result.right[level] = origin_right(result.place, answer), answer.cls == fault.expected.cls
    return result


def judge_healthy(name: Name, key: str, levels: list[str], folder: Path) -> Result:
    result = Result(*name, f"{key} 0", settings=draw(f"{key} 0").text)
    for level in levels:
        report = result.reports[level] = watched(name, result.key, False, level, folder / level, False)
        result.healthy[level] = faults_of(report)
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    make((sys.argv[2], sys.argv[3]), sys.argv[1], sys.argv[4] == "faulty").run()
