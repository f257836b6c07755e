# SPDX-License-Identifier: Apache-2.0
"""nanhunt.watch: the watch over this process as an object, for people.

A wrong argument raises at once and says what was expected and what was given. Whatever happens later stays inside: the
run goes on as it would have without us.
"""
from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, TypeVar

import torch

from nanhunt import _attach
from nanhunt._ignored import check_file
from nanhunt._library import load_library
from nanhunt._load import Finding, RunError, card, check_format, finding_of, shown
from nanhunt._options import LEVELS, Options
from nanhunt._session import Session
from nanhunt._setup.instances import instances_of
from nanhunt.guard import CheckpointGuard
from nanhunt.store.remote import is_url
from nanhunt.trackers import tracker_of

T = TypeVar("T")


def watch(model: torch.nn.Module | Mapping[str, torch.nn.Module] | Sequence[torch.nn.Module] | None = None,
          optimizer: Any = None, scaler: Any = None, *, out: str | os.PathLike[str] | None = None,
          level: str | None = None, budget: float | None = None, keep: int | None = None,
          captures: bool | None = None, max_trace_mb: int | None = None, kernels: bool | None = None,
          on_fault: Callable[[Finding], Any] | str | None = None, stop_on_fault: bool | None = None,
          quiet: bool | None = None, log_to: Any = None, guard_checkpoints: bool | None = None,
          config: str | os.PathLike[str] | None = None) -> Watch:
    """Watches the training in this process until it is closed, or the process ends.

    model       its module paths are the names in reports. Several: a list, or a dict whose keys go before the paths.
                None: whatever trains is found by itself; steps of bare functions are told by `Watch.step`.
    optimizer   one, a list, or None: optimizers are found when they step.
    scaler      a GradScaler; found by itself as well.
    out         the run folder ("nanhunt-run"). One that is there gets a new attempt: nothing is overwritten. Or a URL
                ("s3://bucket/run"): it is recorded here, and copied there by a process of its own.
    level       "live" (default): every operation of every step is heard, and written where the step was bad, given up,
                the first one or asked for. "ops": every operation of every step is written, with full statistics.
                "steps": loss, gradients, scaler and parameters alone.
    budget      at level "live": percent of the time that hearing operations may take. The first steps are heard in any
                case, and those after a bad one. Without it all are.
    keep        steps whose norms are kept in memory, and written when one goes bad (16).
    captures    keep what the failing operation read in the run folder.
    kernels     on an NVIDIA GPU: name the kernels that ran for an operation and add up their time, through CUPTI, at
                level "ops" (False).
    max_trace_mb  bounds the trace, in megabytes (10^6 bytes; 1024).
    on_fault    called with the Finding while the run goes on, once for each origin (three at most). What it raises is
                swallowed, and stands in the report. Or a URL, to which the fault is posted as JSON, or a command for
                the shell that is given it on stdin: a program of its own does that, and nothing waits for it.
    stop_on_fault  end the process after the first step with a fault, by SystemExit with status 10 (False).
    config      a TOML file that names what is harmless (nanhunt.toml beside the program; see nanhunt.ignore).
    log_to      experiment trackers that bad and skipped steps, loss scale, headroom of gradients and the time that
                watching takes are written to, with one alert at the first fault. Unasked those that are open: a W&B,
                MLflow or trackio run, TensorBoard writers. "off": none. Or which: a run, a SummaryWriter, a logger
                with `log_metrics`, a function of (numbers, step), or a list of them.
    guard_checkpoints  judge each checkpoint that is saved (torch.save, safetensors, Lightning) by `nanhunt check` in a
                process of its own, say which is bad, and keep a copy of the newest good one in the run folder: nothing
                rotates that one away (False).
    quiet       say nothing on stderr when a fault is found (False: a line for each origin, three at most).

    A watch that is on is joined: options that are given must be those that are in force. Under `nanhunt run` those of
    the command line are in force, whatever is given here. Where steps were trained already and none of the parameters
    is known, as in a notebook whose cell runs again, the watch that is on ends and a new attempt begins.
    """
    models, prefixes = _models(model)
    optimizers = _optimizers(optimizer)
    _check_scaler(scaler)
    given: dict[str, Any] = {
        "out": None if out is None else _path("out", out), "level": level, "budget": budget, "keep": keep,
        "captures": captures, "max_trace_mb": max_trace_mb, "kernels": kernels, "quiet": quiet,
        "stop_on_fault": stop_on_fault, "guard_checkpoints": guard_checkpoints,
        "config": None if config is None else str(Path(_path("config", config)).absolute())}
    given = {name: value for name, value in given.items() if value is not None}
    _check_options(given)
    if on_fault is not None and not callable(on_fault) and not isinstance(on_fault, str):
        raise TypeError(f"on_fault: expected a function of a Finding, a URL or a command, got {_kind(on_fault)}")
    if on_fault == "":
        raise ValueError("on_fault: expected a URL or a command, got ''")
    if log_to not in (None, "auto", "off"):
        for one in log_to if isinstance(log_to, (list, tuple)) else [log_to]:
            tracker_of(one)  # what nothing knows is said here
    session = _attach.current
    if session is not None and not session.dead and _is_another_training(session, models):
        kept = {name: getattr(session.options, name) for name in _KEPT}
        given = {**kept, "out": session.options.url or session.options.out, **given}
        session.close()
    if session is None or session.dead:
        options = Options(**given)
        options.command = _command()
        if not is_url(options.out):
            _check_folder(options.out)
        load_library()
        session = _attach.attach(options)
    elif not session.by_command:
        _check_same(session.options, given)
    for one, prefix in zip(models, prefixes):
        session.give_name(one, prefix)
        for text in _unwatchable(one):
            session.note(text)
    for its in optimizers:
        session.tracker.meet(its)
        session.number_of(its)
        _check_held(session, models, its)
    for made in _made_before(models) if not optimizers else ():
        session.tracker.meet(made)  # it trains: its first two forwards are no inference
    if optimizers:
        session.open()  # what comes before the first forward is heard as well
    if log_to is not None:
        session.trackers.use(log_to)
    if isinstance(on_fault, str):
        session.faults.targets.append(on_fault)
    elif on_fault is not None:
        session.faults.callbacks.append(on_fault)
    return Watch(session)


class Watch:
    """One holder of the watch over this process. The last one to close ends it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._open = True
        session.holders += 1  # until close(): a watch that nobody keeps goes on

    @property
    def path(self) -> str:
        """The run folder: `nanhunt report PATH` reads it."""
        return self._session.options.out

    @property
    def guard(self) -> CheckpointGuard | None:
        """Of checkpoints, with `guard_checkpoints`, once training has begun: which were bad, where the good one is."""
        return self._session.guard

    @property
    def level(self) -> str:
        return self._session.options.level

    @property
    def step_number(self) -> int:
        """The step that runs, from 0."""
        return self._session.state.step

    @property
    def notes(self) -> dict[str, int]:
        """What is not watched, and how often that was met so far."""
        return dict(self._session.notes)

    def step(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls fn as one step of training, whatever it does inside, and returns what it returns."""
        session = self._session
        begun = session.begin_exact_step(fn, args, kwargs)
        try:
            return fn(*args, **kwargs)
        finally:
            if begun:
                session.end_exact_step()

    def say_by(self, say: Callable[[str], object]) -> None:
        """Where the line about a fault goes while the run goes on: a logger's method, say."""
        self._session.faults.say = say

    def flush(self) -> None:
        """Puts what is recorded so far into the run folder."""
        self._session.flush()

    def report(self, format: str = "text") -> str:
        """The report of what is recorded so far, as "text" (ten lines), "full" (all of it), "json" or "html" (the
        page). A notebook shows a card."""
        check_format(format)
        return self._made(lambda path: shown(path, format), format)

    def _made(self, make: Callable[[str], str], format: str) -> str:
        self.flush()
        why = "nothing is recorded yet: no step of training was seen"
        if self._session.recorder is not None and self._session.has_begun():
            try:
                return make(self.path)
            except (RunError, OSError, ValueError) as error:
                why = str(error)
        return _empty_report(format, why)

    @property
    def verdict(self) -> str:
        """ "clean", "calibrating", "warning", "fault" or "inconclusive", of what is recorded so far."""
        return str(json.loads(self.report("json"))["verdict"]["status"])

    @property
    def findings(self) -> list[Finding]:
        """What is recorded so far amounts to these; the verdict's finding first."""
        return [finding_of(row) for row in json.loads(self.report("json"))["findings"]]

    def close(self) -> None:
        """Ends the watch, if nobody else holds it. Safe to call twice."""
        if self._open:
            self._open = False
            self._session.holders -= 1
            if self._session.holders <= 0:
                self._session.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return self._made(card, "card")

    def __repr__(self) -> str:
        state = "on" if self._open and not self._session.dead else "closed"
        return f"<nanhunt watch at level {self.level}, {state}, into {self.path!r}>"


def _command() -> list[str]:
    return [sys.executable, *getattr(sys, "orig_argv", sys.argv)[1:]]


def _empty_report(format: str, why: str) -> str:
    if format in ("text", "full"):
        return f"INCONCLUSIVE  {why}\n"
    if format == "card":
        return f"<p><b>nanhunt</b> {_escaped(why)}</p>"
    if format == "html":
        return f"<!doctype html><title>nanhunt</title><p>Inconclusive: {_escaped(why)}</p>\n"
    return json.dumps({"schema": "nanhunt.report", "schema_version": 1, "findings": [],
                       "verdict": {"status": "inconclusive", "headline": why, "origin": None}})


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


# Checking arguments.
def _kind(value: object) -> str:
    return type(value).__name__


def _models(model: Any) -> tuple[list[torch.nn.Module], list[str | None]]:
    """Modules, and what goes before their paths; None: a name is found when there is more than one."""
    if model is None:
        return [], []
    if isinstance(model, torch.nn.Module):
        return [model], [None]
    if isinstance(model, Mapping):
        modules, names = list(model.values()), [str(name) for name in model]
    elif isinstance(model, (list, tuple)):
        modules, names = list(model), [None] * len(model)  # type: ignore[list-item]
    else:
        raise TypeError(f"model: expected a torch.nn.Module, a dict or a list of them, got {_kind(model)}")
    for one in modules:
        if not isinstance(one, torch.nn.Module):
            raise TypeError(f"model: expected a torch.nn.Module in the {_kind(model)}, got {_kind(one)}")
    return modules, list(names)


def _made_before(models: Sequence[torch.nn.Module]) -> list[torch.optim.Optimizer]:
    """Optimizers of the models' parameters that there are already."""
    held = {id(p) for model in models for p in model.parameters()}
    made = instances_of([torch.optim.Optimizer]) if held else []
    return [one for one in made if any(id(p) in held for p in _given_to(one))]


def _given_to(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Its parameters, if it was made to the end: an exception keeps what failed."""
    try:
        return [p for group in optimizer.param_groups for p in group["params"]]
    except Exception:
        return []


def _optimizers(optimizer: Any) -> list[torch.optim.Optimizer]:
    if optimizer is None:
        return []
    found = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for one in found:
        if not isinstance(one, torch.optim.Optimizer):
            raise TypeError(f"optimizer: expected a torch.optim.Optimizer or a list of them, got {_kind(one)}")
    return found


def _check_scaler(scaler: Any) -> None:
    if scaler is not None and not all(hasattr(scaler, name) for name in ("scale", "unscale_", "step", "update")):
        raise TypeError(f"scaler: expected a torch.amp.GradScaler, got {_kind(scaler)}")


def _path(name: str, given: Any) -> str:
    try:
        path = os.fspath(given)
    except TypeError:
        path = None
    if not isinstance(path, str):
        raise TypeError(f"{name}: expected a path, got {given!r}")
    return path


def _check_options(given: Mapping[str, Any]) -> None:
    if "level" in given and given["level"] not in LEVELS:
        raise ValueError(f"level: expected one of {', '.join(LEVELS)}, got {given['level']!r}")
    for name, least in (("keep", 1), ("max_trace_mb", 5)):
        value = given.get(name, least)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    budget = given.get("budget", 0)
    if not isinstance(budget, (int, float)) or isinstance(budget, bool) or not 0 <= budget <= 100:
        raise ValueError(f"budget: expected percent of the time, from 0 to 100, got {budget!r}")
    for name in ("captures", "kernels", "quiet", "stop_on_fault", "guard_checkpoints"):
        if not isinstance(given.get(name, True), bool):
            raise TypeError(f"{name}: expected True or False, got {given[name]!r}")
    if given.get("out", "run") == "":
        raise ValueError("out: expected a folder, got ''")
    if "config" in given:
        check_file(given["config"])


def _check_folder(out: str) -> None:
    """That a run can be recorded there, without making anything: a process that never trains leaves no trace."""
    path = Path(out).absolute()
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    if not path.is_dir():
        raise NotADirectoryError(f"out: expected a folder that can be written, got {out!r}: {path} is no folder")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"out: expected a folder that can be written, got {out!r}: no permission in {path}")


def _check_same(options: Options, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        now = getattr(options, name)
        if name == "out":
            same = value == options.url if options.url else Path(now).absolute() == Path(value).absolute()
        else:
            same = now == value
        if not same:
            raise ValueError(f"{name}: expected {now!r}, with which this process is watched already, got {value!r}. "
                             "Close that watch first, or leave the option out to join it.")


_KEPT = ("out", "level", "budget", "keep", "captures", "max_trace_mb", "kernels", "quiet", "stop_on_fault", "config",
         "guard_checkpoints")


def _is_another_training(session: Session, models: Sequence[torch.nn.Module]) -> bool:
    """Whether the models have nothing to do with what was trained so far, and that is gone."""
    if session.by_command or session.state.step == 0 or not models:
        return False
    if any(root() is not None for root, _ in session.roots.values()):
        return False
    parameters = [p for one in models for p in one.parameters()]
    return bool(parameters) and not any(session.parameter_names.get(id(p)) for p in parameters)


def _check_held(session: Session, models: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer) -> None:
    if not models:
        return
    known = {id(p) for one in models for p in one.parameters()}
    foreign = sum(id(p) not in known for group in optimizer.param_groups for p in group["params"])
    if foreign:
        session.note("parameters of an optimizer that no watched model holds", foreign)


def _unwatchable(model: torch.nn.Module) -> Iterator[str]:
    """What of a model cannot be watched, one sentence each; empty is good."""
    name = type(model).__name__
    parameters = list(model.parameters())
    if not any(p.requires_grad for p in parameters):
        yield f"{name}: it has no parameter that is trained"
    if isinstance(model, torch.jit.ScriptModule):
        yield f"inside of {name}: it is a ScriptModule, whose parts call no hooks"
    if any(p.is_meta for p in parameters):
        yield f"{name}: it has parameters on the meta device, without numbers"
    sharded = [p for p in parameters if type(p).__name__ == "DTensor" or hasattr(p, "_local_tensor")]
    if sharded:
        yield f"{name}: it has parameters that are sharded over ranks; each rank sees its share"
    if any(p.is_sparse or p.is_complex() for p in parameters):
        yield f"{name}: it has sparse or complex parameters, which are read in part"
