# SPDX-License-Identifier: Apache-2.0
"""The watch over this process: one at a time. Owns the options, the recorder and the listeners; counts steps.

The recorder is opened at the first sign of training (an optimizer, a root module's call; where operations are heard the
first one that reads floating-point numbers), so that data-loader workers, launchers and programs that only import torch
leave no trace.
"""
from __future__ import annotations

import atexit
import math
import multiprocessing
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from nanhunt import _ignored
from nanhunt import _library as lib
from nanhunt import _step_judge as steps
from nanhunt._drops import Drops
from nanhunt._faults import Faults
from nanhunt._listener import Notifier
from nanhunt._names import plain_module, plain_path
from nanhunt._options import LEVELS, Options
from nanhunt._pending import Pending
from nanhunt._program import packages, repository
from nanhunt._step_judge import StepFacts, StepJudge
from nanhunt._step_mode import StepMode
from nanhunt._step_tracker import StepTracker
from nanhunt._steps.inference import Inference
from nanhunt._threads import Threads
from nanhunt._weak_id_dict import WeakIdDict
from nanhunt.trackers import OFF, Trackers

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from nanhunt._recorder import Recorder
    from nanhunt._steps.open_graph import GraphOpener
    from nanhunt._tap.kernels import Kernels
    from nanhunt._tap.places import Places
    from nanhunt._tap.tap import Tap
    from nanhunt._tap.values import Values
    from nanhunt.guard import CheckpointGuard

_NOTES_EVERY = 16  # steps
MAX_ERRORS = 100  # of our own: past this the watch is off for good


class Session(Notifier):
    """Everything nanhunt knows of this process's training. Calls of listeners come from the training thread."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        if options.level not in LEVELS:
            raise ValueError(f"level: expected one of {', '.join(LEVELS)}, got {options.level!r}")
        self.options = options
        self.recorder: Recorder | None = None
        self.kernels: Kernels | None = None  # where they are asked for, once there is a recorder
        self.pid = os.getpid()
        self._place = 0, 1           # rank and world size, when the recorder was opened
        self.is_closing = False
        self.hurries = False         # the process is about to end: nothing may be waited for
        self.at_end: list[Callable[[], None]] = []  # of who put it on: hooks come off, nobody finds it any more
        self.forks = False           # for itself: the child goes on as this process would
        self.is_suspect = False      # an exception ended it before the first forward, with something bad in hand
        self.dead = False            # nothing is watched any more: closed, too many errors, or a fork's child
        self.threads = Threads(self)
        self.notes: dict[str, int] = {}
        self._noted: dict[str, int] = {}
        self.errors = 0
        self.last_error = ""
        # Counters of what is going on.
        self.state = lib.State(phase=lib.DATA)  # which step, micro-batch and phase run: the tap reads it
        self.tap: Tap | None = None
        self.judge = StepJudge(options.max_triggers, options.distance)  # how far the step that runs has come
        self.values: Values | None = None       # of the level's listeners
        self.facts = StepFacts()     # of the step that runs
        self.inputs: list[weakref.ref[torch.Tensor]] = []  # of the last root call
        self.pending = Pending(self)
        self.faults, self.trackers = Faults(self), Trackers(self, options.log_to)
        self.guard: CheckpointGuard | None = None  # of what the program saves, where that was asked for
        self._began_ns = perf_counter_ns()  # the last step's end
        self.watch_ns = 0            # time of the training thread that watching took
        self.roots: dict[int, tuple[weakref.ref[Any], str]] = {}
        self.leaves: list[weakref.ref[Any]] = []  # tensors that the program trains without a module or an optimizer
        self.models: dict[int, tuple[weakref.ref[Any], str]] = {}  # that roots are part of
        self.optimizers: dict[int, int] = {}  # id -> number in order of first use
        self.parameter_names: WeakIdDict[str] = WeakIdDict()  # paths of the parameters of all roots
        self._kept: list[weakref.ref[Any]] = []  # optimizers whose id is used above
        self._used: set[int] = set()  # of them, those that have passed a boundary
        self._made = 0
        self.tracker = StepTracker()
        self.drops, self.inference = Drops(self), Inference(self)
        self.overran = False         # the step ended at its last boundary: what came since belongs to the next
        self.scaler: Any = None      # last one used in this step
        self.optimizer_ran = False   # the last GradScaler.step called its optimizer's
        self.exact = False           # inside of Watch.step: only that ends the step
        self.holders = 0             # watches that are open; the last one closes the session
        self.applies_gradients = False  # those of torch.autograd.grad, which is its backward
        self.by_command = False      # attached by `nanhunt run`, whose options hold
        self.given: WeakIdDict[str] = WeakIdDict()  # paths of modules, as watch() gave them
        self.met: WeakIdDict[bool] = WeakIdDict()   # roots that were called
        self.mode = StepMode.UNHEARD
        self.hears_exits = True  # listeners hear where root calls end, in the step that runs
        self.at_open: list[Callable[[], None]] = []  # once there is a recorder
        self.graphs: GraphOpener | None = None  # once a compiled graph is called
        self.places: Places | None = None  # hears of every module call inside a root, where operations are heard

    def parameters_of(self, optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, str]]:
        """Parameters of an optimizer with their paths; by place where no root has them."""
        names = self.parameter_names
        return [(p, names.get(id(p)) or f"param_groups.{g}.{i}") for g, group in enumerate(optimizer.param_groups)
                for i, p in enumerate(group["params"])]

    def give_name(self, module: torch.nn.Module, prefix: str | None) -> None:
        """Names a module and what is in it before it runs. None: "" for the first one, then its class."""
        module = plain_module(module)
        if id(module) in self.given:
            return
        if prefix is None:
            taken = set(self.given.values())
            prefix, n = ("", 1) if "" not in taken else (type(module).__name__, 1)
            while prefix in taken:
                n += 1
                prefix = f"{type(module).__name__}{n}"
        for name, inner in module.named_modules():
            self.given.set_new(inner, plain_path(prefix, name))
        for name, parameter in module.named_parameters():
            self.parameter_names.set_new(parameter, plain_path(prefix, name))

    def given_name(self, module: torch.nn.Module) -> str | None:
        """The path that watch() gave; None: none."""
        return self.given.get(id(plain_module(module)))

    # The recorder.
    def open(self) -> Recorder | None:
        """The recorder, opened now if it was not. None: nothing can be recorded, which was said once on stderr."""
        if self.recorder is None and not self.dead and self.threads.claim():
            self._open()
        return self.recorder if self.threads.watched == threading.get_ident() or self.threads.is_watched() else None

    def meet(self) -> None:
        """Before a model or an optimizer is met: which rank this is may be known only since the recorder was opened."""
        if self.recorder is not None and not self.has_begun() and not self.dead:
            from nanhunt._ranks import rank_and_world

            if self._place != rank_and_world():
                self.begin_again(keeps_faults=False)

    def _open(self) -> None:
        import torch

        from nanhunt._pytorch import accelerator, missing
        from nanhunt._ranks import job, rank_and_world
        from nanhunt._recorder import Recorder

        self._place = rank, world = rank_and_world()
        commit, tree = repository()
        budget = self.options.budget
        options = {"python": sys.version.split()[0], "budget": "none" if budget is None else f"{budget:g}%", **job()}
        details: dict[str, Any] = {"command": self.options.command, "run": self.options.run, "dtypes": [],
                                   "options": options, "packages": packages(), "commit": commit, "tree": tree}
        try:
            self.recorder = Recorder(
                run_dir=self.options.folder(), level=self.options.level, framework=f"torch {torch.__version__}",
                device=accelerator() or "cpu", rank=rank, world_size=world,
                drop=self.options.level != "ops", trust_inputs=self.options.level == "ops",
                max_trace_bytes=max(self.options.max_trace_mb, 5) * 1_000_000, details=details,
                writes_digests=world > 1 or bool(self.options.url))
        except Exception as error:  # a full disk, no permission: the run goes on unwatched
            self.end_watching()
            print(f"nanhunt: nothing is recorded: {error}", file=sys.stderr)
            return
        self.pid = os.getpid()
        self.recorder.flush_at_signals()
        self.recorder.judge_at_signals(self.judge.handle, bool(multiprocessing.current_process().daemon))
        for lack in missing:
            self.note(lack)
        if self.options.kernels:
            self._watch_kernels()
        wrong = _ignored.read_file(self.options.config)
        if wrong:
            self.note(f"the configuration: {wrong}")
            print(f"nanhunt: {wrong}", file=sys.stderr)
        for part in self.at_open:
            part()
        self.write_notes()

    def _watch_kernels(self) -> None:
        try:
            from nanhunt._tap.kernels import Kernels

            kernels = Kernels(self)
            if kernels.attach():
                self.kernels = kernels
        except Exception as error:
            self.failed(error, "watching kernels")

    # Guarding the run.
    def note(self, text: str, count: int = 1) -> None:
        """Counts something that is not watched; the report names it."""
        self.notes[text] = self.notes.get(text, 0) + count

    def write_notes(self, final: bool = True) -> None:
        """`final` False: what grows with each step is told each time it has doubled."""
        if self.recorder is None:
            return
        _ignored.write(self)
        if self.tap is not None:
            self.tap.write_notes()
        for text, count in list(self.notes.items()):  # other threads add to them
            written = self._noted.get(text, 0)
            if written != count and (final or count >= 2 * written):
                self._noted[text] = count
                self.recorder.note(self.state.step, text, count)

    def failed(self, error: BaseException, where: str) -> None:
        """A mistake of ours must not reach the run: it is counted; too many of them end the watch."""
        self.errors += 1
        self.last_error = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.note(f"errors inside nanhunt, in {where}: {type(error).__name__}")
        if os.environ.get("NANHUNT_DEBUG"):
            print(self.last_error, file=sys.__stderr__ or sys.stderr)
        if self.errors >= MAX_ERRORS:
            self.note("nothing any more: too many errors inside nanhunt")
            self.close()

    def end_watching(self) -> None:
        """No thread is watched from here on: hooks ask for that first."""
        self.dead, self.threads.watched = True, None

    # Whether the calling thread is one of a device, in which a backward runs that the watched thread waits for.
    in_backward: Callable[[], bool] = staticmethod(lambda: False)

    def hears(self, trains: bool = True) -> bool:
        """Whether the calling thread is the one that is watched. `trains`: only who trains asks."""
        return not self.dead and (self.threads.watched == threading.get_ident() or self.threads.hears(trains))

    # Steps: one ends when every active optimizer has passed its boundary, or just before one passes it a second time.
    # With a scaler it ends after the scaler's update.
    def number_of(self, optimizer: Any) -> int:
        key = id(optimizer)
        if key not in self.optimizers:
            self.optimizers[key] = self._made
            self._made += 1
            self._kept.append(weakref.ref(optimizer, lambda kept: self._gone(key, kept)))
            self.tracker.alive.add(optimizer)
        return self.optimizers[key]

    def _gone(self, key: int, kept: weakref.ref[Any]) -> None:
        """An optimizer ended: its id is soon another's."""
        self.optimizers.pop(key, None)
        self._used.discard(key)
        self.tracker.forget(key)
        if kept in self._kept:
            self._kept.remove(kept)

    @property
    def _keep(self) -> list[Any]:
        """Where another thread trains as well, those that this one has used: what another thread writes is not read."""
        alive = []
        for kept in self._kept:
            optimizer = kept()
            if optimizer is not None and (not self.threads.others or id(optimizer) in self._used):
                alive.append(optimizer)
        return alive

    def at_boundary(self, optimizer: Any) -> None:
        """Before an optimizer passes its boundary."""
        if self.recorder is None and self.open() is None:
            return
        if id(optimizer) in self.tracker.passed and not self.exact:
            self.end_step(overran=True)
        if id(optimizer) not in self._used:
            self.number_of(optimizer)
            self._used.add(id(optimizer))
            self.notify("on_optimizer_met", optimizer)

    def passed_boundary(self, optimizer: Any, skipped: bool, scaler: Any) -> None:
        if scaler is None and self.scaler is None and not (self.exact or self.judge.is_open()) and (
                self.tracker.belongs_to_last(optimizer)):
            return
        self.tracker.passed[id(optimizer)] = None
        self.judge.enter(steps.OPTIMIZER)
        self.facts.skipped = self.facts.skipped or skipped
        if scaler is not None:
            self.scaler = scaler
        elif self.scaler is None and not self.exact and self.tracker.is_over(not self.threads.others):
            self.end_step()

    def after_update(self) -> None:
        if self.tracker.passed:
            self.scaler = None
            self.judge.enter(steps.UPDATED)
            self.begins_work()

    def has_optimizer(self) -> bool:
        """Whether one of PyTorch's is alive or was used; without one the program updates by itself, if at all."""
        return bool(self._used or self.tracker.alive)

    def updates_by_hand(self) -> bool:
        """Whether the step at hand is over though there is no optimizer of PyTorch's: the program has written
        parameters since backward, or where that is not heard has used its gradients up."""
        if self.has_optimizer() or self.exact or not self.judge.facts() & steps.HAS_GRADIENTS:
            return False
        if self.mode is StepMode.UNHEARD:
            return self.drops.used_up()
        return bool(self.state.stepped)

    def end_by_hand(self, message: str = "") -> None:
        """The program is its own optimizer, and has updated its parameters. `message`: of what it raised then."""
        self.judge.enter(steps.OPTIMIZER)
        self.notify("on_updated_by_hand")
        self.end_step(message=message)

    def gives_up(self) -> bool:
        """Before a root is called: whether the program has left the step at hand without an optimizer. That may be
        meant (several models, a call without a loss), so a number that is not finite must speak for it."""
        if self.tracker.passed or self.exact or not self.judge.is_open():
            return False
        if self.drops.gave_up():
            return True
        answer = self.judge.gives_up()
        return answer == steps.GIVES_UP or answer == steps.GIVES_UP_IF_BAD_NUMBER and (
            bool(self.state.bad_number) or self.saw_bad_number())

    # Whether the step has made a single number that is not finite, where the tap does not hear it.
    saw_bad_number: Callable[[], bool] = staticmethod(lambda: False)

    def unfinished(self, ending: int, message: str = "") -> None:
        """No optimizer ends the step at hand."""
        if self.recorder is not None and not self.dead:
            self.notify("before_unfinished")
        if not self.judge.is_open() or self.recorder is None or self.dead:
            return
        if ending != lib.BY_NEXT_FORWARD and self.updates_by_hand():  # who calls a forward has asked that before
            self.end_by_hand(message if ending == lib.BY_EXCEPTION else "")
            return
        if self.tap is not None:
            self.tap.settle(False)
        self.notify("on_unfinished", ending)
        self.end_step(ending=ending, message=message)

    def has_begun(self) -> bool:
        """Whether there is a step, be it open, or a scaler was used."""
        return self.state.step > 0 or bool(self.judge.is_open()) or self.has_scaler or bool(self.tracker.passed)

    def forget_work(self) -> None:
        """What was done so far was no training."""
        self.judge.restart()
        self.leaves.clear()
        self.drops.end_step()

    def alive_leaves(self) -> list[torch.Tensor]:
        return [leaf for leaf in [reference() for reference in self.leaves] if leaf is not None]

    def begins_work(self, module: torch.nn.Module | None = None) -> None:
        """A forward (of `module`) or backward begins, or a boundary was passed: a step whose boundaries are all passed
        is over."""
        if self.tracker.passed and not self.exact and self.tracker.is_over(not self.threads.others, module):
            self.end_step()

    def begin_exact_step(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Watch.step: what runs from now on is one step. False: not ours to mark (another thread, a step inside)."""
        try:
            if self.exact:
                return False
            self.threads.begin_training()
            if self.hears():
                self.inference.begin_training()
            if not self.hears() or self.open() is None:
                return False
            if self.tracker.passed:
                self.end_step()
            self.exact = True
            self.state.phase = lib.FORWARD
            self.notify("on_step_begin", fn, args, kwargs)
            return True
        except Exception as error:
            self.failed(error, "the beginning of a step")
            return self.exact

    def end_exact_step(self) -> None:
        self.exact = False
        self.end_step()

    def end_step(self, overran: bool = False, ending: int = lib.BY_OPTIMIZER, message: str = "") -> None:
        recorder = self.recorder
        if recorder is None or self.dead:
            return
        began, was_timed = perf_counter_ns(), self.since_ns
        # One op stands for others, a pause of the thread included: never more than there was.
        before = min(self.spent_ns + (began - was_timed if was_timed else 0) + self.state.spent_ns,
                     began - self._began_ns)
        self._began_ns = self.since_ns = began
        self.spent_ns = self.state.spent_ns = 0
        try:
            self.state.phase, self.overran = lib.UPDATE, overran
            facts, step, lr = self.facts, self.state.step, math.nan
            for kept in self._kept:
                optimizer = kept()
                if optimizer is not None and (not self.threads.others or id(optimizer) in self._used):
                    given = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
                    lr = float(given) if isinstance(given, (int, float)) else math.nan
                    break
            self.notify("on_step_end", step, facts.skipped)
            try:
                if not self.pending.items:
                    self._write_step(step, facts, lr, ending, message, before)
                else:
                    self.pending.later(lambda: self._write_step(step, facts, lr, ending, message, before))
                    with self.own_launches():
                        self.pending.poll()
                if self.kernels is not None:
                    self.kernels.end_step(step)
                if step % _NOTES_EVERY == 0:
                    self.write_notes(final=False)
            except Exception as error:
                self.failed(error, "the end of a step")
            self.notify("on_step_recorded", step)
            self.tracker.end()
            if not overran:
                self.inputs = []
            self.overran = False
            self.facts, self.scaler = StepFacts(), None
            self.judge.end(ending, overran)
            self.state.bad_number = self.state.left_bad = self.state.wrote = self.state.stepped = 0
            self.state.compiling = 0  # should a compilation have ended without a word
            self.drops.end_step()
            self.state.step += 1
            self.state.micro_batch = 0
            self.state.phase = lib.DATA
            self.watch_ns += before
            if step % _NOTES_EVERY == 0:
                self.trackers.log(step)
            faults, loss = self.faults, facts.loss
            if faults.is_open or faults.suspected or facts.skipped or loss is not None and not math.isfinite(loss):
                faults.after_step(facts, ending)
        finally:
            if not was_timed:
                self.spent_ns, self.since_ns = perf_counter_ns() - began, 0

    def _write_step(self, step: int, facts: StepFacts, lr: float, ending: int, message: str, spent_ns: int) -> None:
        if facts.loss is None and ending == lib.BY_OPTIMIZER:  # a NaN would be told as one
            self.note("the loss of steps in which it could not be read without waiting")
        if self.recorder is not None:
            if facts.loss is not None and math.isfinite(facts.loss):
                self._last_loss = facts.loss
            unknown = self._last_loss if ending == lib.BY_OPTIMIZER else math.nan
            loss = unknown if facts.loss is None else facts.loss
            self.before_step_row()
            # A factor of 8 or more is a scale, as likely as not; before there was one it is a weight of the loss.
            scale = self.last_scale
            if facts.factor is not None and not self.has_scaler:
                self._scales = self._scales or facts.factor >= 8
                scale = facts.factor if self._scales else 1.0
            self.recorder.step(step, facts.skipped, loss, lr, scale, ending, message, spent_ns)

    @contextmanager
    def as_of(self, step: int, micro_batch: int) -> Iterator[None]:
        """Rows are of that step, which is over."""
        now = self.state.step, self.state.micro_batch
        self.state.step, self.state.micro_batch = step, micro_batch
        try:
            yield
        finally:
            self.state.step, self.state.micro_batch = now

    # Largest magnitudes of the newest gradients, by parameter, as the optimizer uses them; whether some are of fp16.
    newest_gradients: Callable[[], tuple[Sequence[float], bool]] = staticmethod(lambda: ((), False))

    # What was recorded so far becomes an attempt of its own.
    begin_again: Callable[..., None] = staticmethod(lambda **_: None)

    # The row of a step is about to be written.
    before_step_row: Callable[[], None] = staticmethod(lambda: None)

    # Whether a root or a backward runs.
    is_inside: Callable[[], bool] = staticmethod(lambda: False)

    def settle(self) -> None:
        """Whoever asks for what is recorded so far waits for what a device has not told yet."""
        if self.pending.items and not self.dead and not self.is_inside() and self.hears():
            with self.own_launches():
                self.pending.drain()

    def flush(self) -> None:
        """Puts what is recorded so far into the run folder."""
        if self.recorder is None or self.dead:
            return
        for part in (self.settle, self.write_notes, self.recorder.flush):
            try:
                part()
            except Exception as error:
                self.failed(error, "flush")

    last_scale = 1.0
    has_scaler = False  # one that tells its scale
    _scales = False     # the program itself
    _last_loss = 0.0    # finite: stands for that of a step which has none of its own, as of a second optimizer

    # The end.
    def close(self) -> None:
        """Ends the trace. Whatever happens later is not watched. Safe to call twice, and in a forked child."""
        if self.dead or self.is_closing:
            return
        if os.getpid() != self.pid:
            self.end_watching()
            return
        self.is_closing = True  # what fails from here on does not come back
        interrupted: BaseException | None = None
        is_kept = True
        try:
            interrupted = self.end_attempt()
            is_kept = self.has_begun() and (not self.is_suspect or self.inference.is_kept())
        finally:
            self.end_watching()
            self.close_recorder(is_kept)
            atexit.unregister(self.close)
            self._let_go()
        if interrupted is not None:
            raise interrupted

    def end_attempt(self) -> BaseException | None:
        """Whatever fails, the others let go of the run: no op may find the recorder gone."""
        interrupted = None
        parts = (self._end_last_step, self._wait_for_pending, lambda: self.notify("on_close"),
                 self._end_kernels, self._end_guard, self._log_last, self.write_notes)
        for part in parts if self.recorder is not None else ():
            try:
                part()
            except Exception as error:
                self.failed(error, "the end of the watch")
            except BaseException as error:  # Ctrl-C
                interrupted = error
        return interrupted

    def close_recorder(self, is_kept: bool) -> None:
        tap, self.tap = self.tap, None
        if tap is not None:
            tap.close()
        if self.recorder is not None:
            self.recorder.close("" if is_kept else self.options.out)

    def _end_last_step(self) -> None:
        if not self.hurries:
            self.notify("before_last_end")
        if self.tracker.passed:
            self.end_step()
        else:
            self.unfinished(lib.ENDED)
        if self.is_closing:
            self.faults.end()

    def _wait_for_pending(self) -> None:
        with self.own_launches():
            if self.hurries:
                self.pending.poll()
            else:
                self.pending.drain()

    def _end_guard(self) -> None:
        if self.guard is not None and not self.hurries:
            self.guard.end(self.faults.bad_steps > 0)

    def _log_last(self) -> None:
        if not self.hurries and self.state.step > 0:
            self.trackers.log(self.state.step - 1)

    def _end_kernels(self) -> None:
        if self.kernels is not None:
            self.kernels.detach()

    def _let_go(self) -> None:
        """Whoever keeps a closed watch, to ask for its report, keeps nothing of the run."""
        for part in self.at_end:
            try:
                part()
            except Exception as error:
                self.failed(error, "the end of the watch")
        # They hold tensors of the last step.
        self.pending = Pending(self)
        self.forget_listeners()
        self.places, self.scaler, self.values, self.graphs = None, None, None, None
        self.at_open, self.at_end = [], []
        self.trackers = Trackers(self, OFF)
        self.newest_gradients = lambda: ((), False)  # type: ignore[method-assign]
        self.saw_bad_number = self.is_inside = lambda: False  # type: ignore[method-assign]
        self.before_step_row, self.begin_again = lambda: None, lambda **_: None  # type: ignore[method-assign]
