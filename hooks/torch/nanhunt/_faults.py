# SPDX-License-Identifier: Apache-2.0
"""Faults, told while the run goes on: a line on stderr, the user's callbacks, a webhook or a command (`on_fault`), and
the end of the process where that was asked for.

The analyzer judges here as well: after a step in which something is not finite the report of what is recorded so far is
read. How often is bounded, for most such steps come from one cause, or are the loss scaler's.
"""
from __future__ import annotations

import json
import math
import os
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from nanhunt import _library as lib
from nanhunt._load import Finding, finding_of, render
from nanhunt.store.remote import is_url

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._step_judge import StepFacts

STOPPED = 10   # exit status of a run that was ended at its first fault
_LINES = 3     # a run
_LOOKS = 8     # at the report, whatever they take; more as far as they take at most this share of the time
_SHARE = 0.01
_CLIP = 300


def printable(text: str) -> str:
    """Nothing in it can steer a terminal."""
    return "".join(ch if ch.isprintable() else "?" for ch in text)


def _line(finding: Finding, step: str, run: str, rank: int, world: int) -> str:
    """One line, printable."""
    where = f" ({finding.call_site})" if finding.call_site else ""
    title = printable(finding.title + where)
    near = run if is_url(run) else os.path.relpath(run)
    run = run if near.startswith("..") else near
    of_rank = f"rank {rank}, " if world > 1 else ""
    whole = "watch.report()" if "ipykernel" in sys.modules else f"nanhunt report {shlex.quote(run)}"
    return f"nanhunt: {of_rank}{step} {finding.step}: {title[:_CLIP]}; full report: {whole}"


def _bar_is_shown() -> bool:
    """Whether a progress bar of tqdm's stands on the last line of the terminal."""
    bars = getattr(getattr(sys.modules.get("tqdm.std"), "tqdm", None), "_instances", ())
    return any(not getattr(bar, "disable", True) for bar in list(bars))


def _claims(finding: Finding, folder: str) -> bool:
    """Whether this rank is the first to tell of that step: a file in the run folder says who was. A rank to which
    others gave the bad numbers is silent once one has told."""
    attempt, run = Path(folder).name, Path(folder).parents[1]
    kind = "between" if finding.class_ == "comm" else "own"
    try:
        (run / f".told-{attempt}-{finding.step}-{kind}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return kind == "own" or not (run / f".told-{attempt}-{finding.step}-own").exists()


class Faults:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.callbacks: list[Callable[[Finding], Any]] = []
        given = session.options.on_fault
        self.targets: list[str] = [given] if given else []  # webhooks and commands: on_fault.start
        self.say: Callable[[str], object] = self._print  # integrations say it in their own logs
        self._known: set[tuple[Any, ...]] = set()  # origins that were told
        self.suspected = False  # something was not finite in a step that was judged since the last one ended
        self.bad_steps = self.skipped_steps = 0  # of the run; a step that a scaler skipped is not bad
        self._bad_steps = 0  # in a row
        self._looks = 0
        self._spent, self._began = 0.0, time.perf_counter()
        self._alerted = False  # trackers get one alert: the first fault
        self._given_up = False  # the last step, which was bad
        self._asks_always = session.options.level == "ops"
        self.is_open = self._asks_always  # `after_step` is to be called of the next step, be it healthy
        self._first_seq = 0  # of the step that runs
        self._waits = False  # data of forwards were bad, which may be sorted out before a training

    def _print(self, line: str) -> None:
        if not self.session.options.quiet and sys.stderr is not None:
            print(f"\n{line}" if _bar_is_shown() else line, file=sys.stderr, flush=True)

    def after_step(self, facts: StepFacts, ending: int) -> None:
        """A step is recorded: one that was not healthy, or each where this `is_open`. Raises SystemExit where the run
        shall end, and nothing else."""
        session, recorder, options = self.session, self.session.recorder, self.session.options
        bad = self.suspected or facts.loss is not None and not math.isfinite(facts.loss)
        if facts.skipped:
            self.skipped_steps += 1
        elif bad:
            self.bad_steps += 1
        if recorder is None:
            self.suspected = False
            return
        silent = options.quiet and not self.callbacks and not self.targets and not session.trackers.in_use
        try:
            if self._asks_always:
                bad = bool(recorder.bad_since(self._first_seq)) or bad
                self._first_seq = recorder.next_seq()
            self.suspected = False
            # What a program that gives a step up makes of it shows in the next one.
            waits, self._given_up = self._given_up, bool(bad) and ending == lib.BY_NEXT_FORWARD
            bad = waits or bad and not self._given_up
            self._bad_steps = self._bad_steps + 1 if bad else 0
            self.is_open = self._asks_always or self._given_up or bool(bad)
            if not bad:
                return
            ends = ending not in (lib.BY_OPTIMIZER, lib.BY_NEXT_FORWARD, lib.BY_FORWARD)
            if session.hurries or len(self._known) >= _LINES or not (ends or self._may_look()):
                return
            self._looks += 1
            if silent and not options.stop_on_fault:
                recorder.write_digest()  # for who reads the folder, or its copy, while this runs
                return
            began = time.perf_counter()
            found = self._new_faults()
            self._spent += time.perf_counter() - began
            for finding in found:
                self._report(finding)
        except Exception as error:
            session.failed(error, "telling of a fault")
            return
        if found and options.stop_on_fault and not ends:
            self._stop(found[0].step)

    def end(self) -> None:
        """Of the run: what waited for a training is told where none came."""
        if self._waits and self.session.recorder is not None and not self.session.hurries:
            self._waits = False
            for finding in self._new_faults():
                self._report(finding)

    def begin_attempt(self) -> None:
        self._waits = False
        self.suspected = self._given_up = False
        self.is_open = self._asks_always
        self._bad_steps = self._first_seq = 0

    def _may_look(self) -> bool:
        """At bad steps in a row the 1st, 2nd, 4th, 8th and so on."""
        if self._bad_steps & (self._bad_steps - 1):
            return False
        return self._looks < _LOOKS or self._spent <= _SHARE * (time.perf_counter() - self._began)

    def _new_faults(self) -> list[Finding]:
        session, recorder = self.session, self.session.recorder
        assert recorder is not None
        session.flush()
        report = json.loads(render(recorder.folder(), "json"))
        if report["verdict"]["status"] != "fault":
            return []
        new = []
        may_train = session.state.course in lib.INFERS and not session.is_closing and not session.options.stop_on_fault
        for row in report["findings"]:
            if may_train and row["severity"] == "fault" and (row["class"] == "bad_input" or row["phase"] == "data"):
                self._waits = True
                continue
            key = (row["class"], row["op"], row["module"], row["call_site"])
            if row["severity"] == "fault" and key not in self._known and len(self._known) < _LINES:
                self._known.add(key)
                new.append(finding_of(row))
        if new:
            recorder.write_digest()
        return new

    def _report(self, finding: Finding) -> None:
        from nanhunt._ranks import rank_and_world

        step = "forward" if self.session.state.course in lib.INFERS else "step"
        rank, world = rank_and_world()
        if world == 1 or self.session.recorder is not None and _claims(finding, self.session.recorder.folder()):
            if not self.session.options.quiet:
                self.say(_line(finding, step, self.session.options.place, rank, world))
            if not self._alerted:
                self._alerted = True
                self.session.trackers.alert(finding)
            self._hand_over(finding, rank)
        for callback in list(self.callbacks):
            try:
                callback(finding)
            except Exception as error:  # the run is not ended by it: stop_on_fault does that
                self.session.note(f"on_fault: the callback raised {type(error).__name__}: {error}"[:_CLIP])

    def _hand_over(self, finding: Finding, rank: int) -> None:
        """To webhooks and commands: each fault once, of several ranks by the first that has it."""
        for target in dict.fromkeys(self.targets):
            try:
                from nanhunt import on_fault

                on_fault.start(target, on_fault.describe(finding, self.session.options.place, rank))
            except Exception as error:
                self.session.note(f"on_fault: it was not started: {type(error).__name__}: {error}"[:_CLIP])

    def _stop(self, step: int) -> None:
        session = self.session
        session.close()
        print(f"nanhunt: the run is ended after step {step}, as stop on fault asks for (exit status {STOPPED})",
              file=sys.stderr, flush=True)
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(STOPPED)
        sys.stdout.flush()
        os._exit(STOPPED)  # in another thread an exception would end the thread alone
