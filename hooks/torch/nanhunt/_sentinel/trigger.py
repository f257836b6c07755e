# SPDX-License-Identifier: Apache-2.0
"""What follows when a step is bad: what else is, the norms of the steps before, the replay, or why there is none."""
from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nanhunt import _library as lib
from nanhunt._recorder import RecorderError
from nanhunt._sentinel.comparison import CLEAN, DIFFERS, OUTPUT, REFUSED, Facts, compare, measured, read_facts
from nanhunt._sentinel.elsewhere import (
    TOO_LONG,
    Elsewhere,
    Lost,
    Talk,
    has_device,
    noted,
    patience,
    take_over,
    why_not,
)
from nanhunt._sentinel.origin import kept_by, origin_seqs, proofs, prove, tell_proofs
from nanhunt._sentinel.replay import Refused, Replay
from nanhunt._sentinel.tape import BackwardEntry, RootEntry, version_of
from nanhunt._tap.ops import OpWriter

if TYPE_CHECKING:
    from nanhunt._device_reader import Reading
    from nanhunt._sentinel.reading import Reader
    from nanhunt._sentinel.shadow import Slot
    from nanhunt._sentinel.tape import TapeOfStep
    from nanhunt._sentinel.unseen import Unseen
    from nanhunt._session import Session, StepFacts
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
NONE, REPLAY, WAITS, SPENT = range(4)
LEFT_OUT = "operations of further bad steps: those of a few are kept"
TRIGGER_AUDIT, TRIGGER_USER = 6, 8
NO_HARM, SCALED, HARM = range(3)
_LASTING = (lib.MARK_PARAMETER, lib.MARK_STATE)
Norms = deque[tuple[int, list[str], Sequence[float], Sequence[float]]]


def _bit(kind: int) -> int:
    return 1 << kind


class Found:
    """What is bad in a step."""

    __slots__ = ("bad", "bad_tensors", "first_bad", "first_kind", "judged", "unread", "gradient_norm",
                 "weight_norm")

    def __init__(self) -> None:
        self.bad = self.bad_tensors = 0
        self.first_bad = ""
        self.first_kind: int | None = None
        self.judged = False  # what is read on a trip only was read
        self.unread = False  # a boundary of it was not judged: what is not known to be bad is not known to be healthy
        self.gradient_norm = self.weight_norm = math.nan

    def note(self, kind: int, path: str) -> None:
        self.bad |= _bit(kind)
        self.bad_tensors += 1
        if self.first_kind is None or kind in _LASTING and self.first_kind not in _LASTING:
            self.first_kind, self.first_bad = kind, path

    @property
    def trigger(self) -> int:
        if self.first_kind is None:
            return TRIGGER_AUDIT if self.bad else TRIGGER_USER
        return {lib.MARK_LABEL: lib.MARK_BATCH}.get(self.first_kind, self.first_kind)


class Look:
    """A step as it was at its boundary: what a trip needs of it, now or when its readings have come."""

    __slots__ = ("found", "facts", "step", "micro_batch", "tape", "losses", "parameters", "scaler", "scaled", "kept",
                 "older", "measured", "weights", "updates", "slot", "why_no_slot", "unheard")

    def __init__(self, found: Found, facts: StepFacts, step: int, micro_batch: int, tape: TapeOfStep,
                 losses: list[tuple[str, _Tensor | None, bool]], parameters: list[tuple[_Tensor, str]], scaler: Any,
                 scaled: bool, kept: bool, older: bool) -> None:
        self.found, self.facts, self.step, self.micro_batch = found, facts, step, micro_batch
        self.tape, self.losses, self.parameters = tape, losses, parameters
        self.scaler, self.scaled = scaler, scaled  # gradients are multiplied by its scale
        self.kept = kept     # bad gradients were there before the first backward
        self.older = older   # ... gradients were
        # Of gradients on a device: they are no longer what they were.
        self.measured: list[Reading] | None = None
        self.weights: list[Reading] | None = None  # ... of parameters, where they were read
        self.updates = 0     # optimizer steps that had run
        self.unheard = False  # the program has written gradients, and no op of that is on the tape
        self.slot: Slot | None = None
        self.why_no_slot = ""


class Outcome(NamedTuple):
    """Of a replay."""

    result: int
    text: str
    learns: bool   # it came out otherwise, or changed what it did not know of: its modules are learnt anew
    strayed: bool  # ... its forward did, not only gradients, which the program may have written


class Trips:
    def __init__(self, session: Session, values: Values, reader: Reader, norms: Norms, weights: Norms,
                 unseen: Unseen) -> None:
        self.session, self.values, self.reader = session, values, reader
        self._norms, self._weights, self._unseen = norms, weights, unseen
        self._library = lib.load_library().fast
        self._policy = self._library.nanhunt_trigger_policy_new(session.options.max_trips, session.options.distance)
        self._last_spent = -2
        self.updates = 0     # optimizer steps that have run, ever
        self.threads = 1     # that the run computes with, and a replay does not
        self.usual_step: Callable[[], float] = lambda: 0.0  # seconds
        self._ended = ""     # why nothing is replayed any more

    def _harm(self, look: Look) -> int:
        bad = look.found.bad & ~(_bit(lib.MARK_BATCH) | _bit(lib.MARK_LABEL))
        if not bad:
            return NO_HARM
        # What is bad after unscaling was not when the scaler looked.
        scaled = look.scaler is not None and look.scaled and getattr(look.scaler, "_enabled", True)
        held_back = scaled or self.session.drops.drops  # by a scaler of the program's own, as likely as not
        return SCALED if held_back and not look.kept and bad == _bit(lib.MARK_GRADIENT) else HARM

    def trip(self, look: Look) -> None:
        session, recorder = self.session, self.session.recorder
        assert recorder is not None
        if not look.found.judged:
            self._look_further(look)
        answer = self._library.nanhunt_trigger_policy_judge(self._policy, session.step, self._harm(look))
        if session.live and answer in (WAITS, SPENT):
            session.note(LEFT_OUT)
        if answer in (NONE, WAITS):
            return
        if answer == SPENT:
            told = session.step <= self._last_spent + 1
            self._last_spent = session.step
            if told:
                return
        for kind, ring in ((lib.MARK_PARAMETER, self._weights), (lib.MARK_GRADIENT, self._norms)):
            for step, paths, norms, amaxes in ring:
                for path, norm, amax in zip(paths, norms, amaxes):
                    recorder.norm(step, kind, path, norm, amax)
            ring.clear()
        if session.live:
            session.wants_ops = answer == REPLAY
            return
        if not self._is_over(look):
            self._unseen.tell(look.parameters, look.step)
        if answer == SPENT:
            self._refuse(look, "No replay is left for this step: the number of replays of a run is limited.")
            return
        self.replay(look)

    def _is_over(self, look: Look) -> bool:
        """An optimizer has run since: parameters and gradients are those of a later step."""
        return look.updates != self.updates

    def _look_further(self, look: Look) -> None:
        """What is read on a trip only: parameters, optimizer state, the batch."""
        found = look.found
        found.judged = True
        over, slot = self._is_over(look), look.slot
        items = []
        if not over:
            items = [(lib.MARK_PARAMETER, path, p) for p, path in look.parameters]
            for optimizer in self.session._keep:
                for p, path in self.session.parameters_of(optimizer):
                    for name, state in optimizer.state.get(p, {}).items():
                        if isinstance(state, _Tensor) and state.is_floating_point() and state.numel() > 1:
                            items.append((lib.MARK_STATE, f"{path}.{name}", state))
        elif slot is not None:
            copies = [(path, slot.copy_of(p)) for p, path in look.parameters]
            items = [(lib.MARK_PARAMETER, path, copy) for path, copy in copies if copy is not None]
            items += [(lib.MARK_STATE, name, t) for name, t in zip(slot.state_names, slot.states)]
        else:
            for reading in look.weights or ():
                if reading.bad:
                    found.note(lib.MARK_PARAMETER, reading.name)
        for kind, path in self.reader.bad_among(items):
            found.note(kind, path)
        batch: list[tuple[int, str, _Tensor]] = []
        for entry in look.tape.calls:
            if isinstance(entry, RootEntry):
                batch += [(lib.MARK_BATCH, f"input {i}", h.tensor) for i, h in enumerate(entry.inputs)
                          if h.tensor.is_floating_point() and (not over or h.is_unchanged())]
        for kind, path in self.reader.bad_among(batch):
            if found.first_kind not in _LASTING:
                found.first_kind, found.first_bad = kind, path
            found.note(kind, path)

    def _original(self, look: Look, needed: Sequence[Any], unfinished: bool) -> Facts:
        told = {path for entry in needed if isinstance(entry, BackwardEntry) for path, _ in entry.loss or ()}
        items = [(lib.MARK_LOSS, path, t) for path, t, _ in look.losses if t is not None and path in told]
        # Of a step that was given up before its backward they are those of an earlier one.
        older = unfinished and not any(isinstance(entry, BackwardEntry) for entry in needed)
        if look.measured is None and not older:
            items += [(lib.MARK_GRADIENT, path, p.grad) for p, path in look.parameters if p.grad is not None]
        for entry in needed:
            if not isinstance(entry, RootEntry):
                continue
            for i, (reference, version) in enumerate(entry.seen):
                t = reference()
                if t is not None and version_of(t) == version:
                    items.append((OUTPUT, f"{i} of call {entry.index} of {entry.name or type(entry.module).__name__}",
                                  t))
        facts = read_facts(self.session, self.values, items)
        facts.update(measured(look.measured or ()))
        return facts

    def may_replay(self, step: int) -> bool:
        may = bool(self._library.nanhunt_trigger_policy_judge(self._policy, step, HARM) == REPLAY)
        if not may and self.session.live:
            self.session.note(LEFT_OUT)
        return may

    def replay(self, look: Look, unfinished: bool = False) -> None:
        if not self.session.options.replay or self._ended:
            why = self._ended or "nothing is computed again in this run (no replay was asked for)"
            self._refuse(look, f"The step was not replayed: {why}.")
            return
        over = self._is_over(look)
        if over and look.slot is None:
            self._refuse(look, f"The step was not replayed: {look.why_no_slot}.")
            return
        with look.slot.in_place() if over and look.slot is not None else nullcontext():
            self._replay(look, over, unfinished)

    def _replay(self, look: Look, over: bool, unfinished: bool) -> None:
        session, recorder = self.session, self.session.recorder
        assert recorder is not None
        tap = self.values.tap
        if tap is None:
            self._refuse(look, "The step was not replayed: operations cannot be watched here.")
            return
        why = why_not(session)
        if why and not has_device(session):
            self._refuse(look, f"The step was not replayed: {why}.")
            return
        writer = OpWriter(session, tap)
        replay = Replay(session, self.values, writer, look.tape, look.parameters, look.slot if over else None)
        replay.scale = session.last_scale if look.scaled else 1.0
        replay.by_measure = look.measured is not None
        replay.unfinished = unfinished
        replay.kept = look.kept and not over
        try:
            needed = replay.needed()
            replay.check(needed)
        except Refused as refused:
            self._refuse(look, f"The step was not replayed: {refused}.")
            return
        recorder.replay(session.step, look.found.trigger, 0)
        if why:
            outcome = self._play(look, over, replay, needed)
            self._conclude(look, replay, needed, outcome)
            if outcome.result != REFUSED:
                prove(session, tap)
        else:
            self._replay_elsewhere(look, over, replay, needed)

    def _play(self, look: Look, over: bool, replay: Replay, needed: Sequence[Any]) -> Outcome:
        session = self.session
        original = self._original(look, needed, replay.unfinished)
        try:
            with nullcontext() if session.kernels is None else session.kernels.in_replay():
                replay.run(needed)
        except Refused as why:
            return Outcome(REFUSED, f"The replay did not end: {why}.", why.changed, why.changed)
        except Exception as error:
            session.note(f"replays that did not end: {type(error).__name__}")
            text = f"The replay did not end: {type(error).__name__}: {_first_line(error)}"
            return Outcome(REFUSED, text, False, False)
        if look.older:  # what this backward does not reach is older than the step
            original = {name: fact for name, fact in original.items()
                        if name in replay.facts or name[0] != lib.MARK_GRADIENT or not fact[0]}
        result, text = compare(original, replay.facts, not look.older and not is_reduced())
        if not original:
            raised = [entry.raised.__name__ for entry in needed if isinstance(entry, RootEntry) and entry.raised]
            text = (f"The replay raised {raised[-1]} as the step did." if raised else
                    "The step left nothing that the replay could be compared with.")
        if result == CLEAN and look.unheard:
            return Outcome(REFUSED, "The replay came out finite, but between backward and the optimizer the program "
                           "has written gradients, for the first time: that was not heard and may have made what is "
                           "bad.", False, False)
        if result == CLEAN and _has_hooks_on_gradients(look, needed):
            return Outcome(REFUSED, "The replay came out finite, but hooks that the program has put on gradients do "
                           "not run in it: one of them may have made what is bad.", False, False)
        forward = compare({name: fact for name, fact in original.items() if name[0] != lib.MARK_GRADIENT}, replay.facts)
        strayed = forward[0] in (CLEAN, DIFFERS)
        remarks = self._remarks(look, result, over)
        if result == DIFFERS and self.threads > 1:
            again, words = compare(original, replay.facts, bits=False)
            if again != DIFFERS:
                result, text = again, words
                remarks.append(f"The run computes with {self.threads} threads and the replay with one, so only "
                               "finiteness was compared.")
        return Outcome(result, " ".join([text, *remarks, *replay.notes]), result in (CLEAN, DIFFERS), strayed)

    def _conclude(self, look: Look, replay: Replay, needed: Sequence[Any], outcome: Outcome,
                  elsewhere: bool = False) -> None:
        session, recorder = self.session, self.session.recorder
        assert recorder is not None
        if outcome.learns:
            replay.learn_again(needed)
        if outcome.result == REFUSED:
            self._refuse(look, outcome.text)
        else:
            recorder.replay(session.step, look.found.trigger, outcome.result, outcome.text)
        if outcome.strayed and not elsewhere and not _is_compiled(look):
            self._ended = "an earlier replay came out otherwise than its step, and may have changed the run"
            session.note("replays after one that came out otherwise than its step, which may have changed the run")
            print(f"nanhunt: step {session.step} was computed again on the device of the run and came out otherwise. "
                  f"That may have changed the run; nothing is computed again from now on. {outcome.text}",
                  file=sys.stderr)

    # In a forked child.
    def _replay_elsewhere(self, look: Look, over: bool, replay: Replay, needed: Sequence[Any]) -> None:
        session, recorder, tap = self.session, self.session.recorder, self.values.tap
        assert recorder is not None and tap is not None
        self.threads = torch.get_num_threads()

        def work(talk: Talk) -> None:
            session.notes, session.errors, replay.elsewhere = {}, 0, True
            outcome = self._play(look, over, replay, needed)
            kept = kept_by(tap) if outcome.result != REFUSED else []
            tap.settle()
            tap.tell_notes()
            recorder.end_child()
            talk.say({"outcome": outcome, "storages": tap.storages(), "proves": bool(kept), **noted(session)})
            if kept:
                session.notes, session.errors = {}, 0
                found = proofs(session, kept, talk.hear())
                talk.say({"proofs": found, **noted(session)})

        concluded = False
        try:
            with Elsewhere(session, work, patience(self.usual_step())) as child:
                told = child.hear()
                tap.storages(told["storages"])
                take_over(session, told)
                recorder.absorb_child()
                tap.forget()  # the child has named what there is, and what it made of it
                concluded = True
                self._conclude(look, replay, needed, Outcome(*told["outcome"]), elsewhere=True)
                if told["proves"]:
                    child.talk.say(origin_seqs(session))
                    told = child.hear()
                    take_over(session, told)
                    tell_proofs(session, told["proofs"])
        except (Lost, RecorderError) as error:
            if concluded:
                session.note(f"origins that were not computed again: {error}")
                return
            session.note(f"replays that did not end: {error}")
            if str(error) == TOO_LONG:  # the next one would be waited for as long
                self._ended = f"an earlier replay did not end: {error}"
            tap.forget()
            self._refuse(look, f"The replay did not end: {error}.")

    def _remarks(self, look: Look, result: int, over: bool) -> list[str]:
        remarks = []
        if is_reduced():
            remarks.append("Gradients of the step were reduced over all ranks, those of the replay are this rank's.")
        elif look.older:
            remarks.append("Gradients were there before the step's backward, so only finiteness was compared.")
        elif look.measured:
            remarks.append("Gradients were compared by their norms and largest magnitudes.")
        if over:
            remarks.append("Parameters were put back from the shadow copy of the step.")
        if result in (CLEAN, DIFFERS) and _is_compiled(look):
            remarks.append("The step ran compiled code, and the replay the same code as it was written.")
        return remarks

    def tell_written_last(self, look: Look) -> None:
        """Parameters are bad that no later step will read: nothing of the step made them so, and none is replayed."""
        if self.session.live:  # who wrote them is held
            self.session.wants_ops = True
        else:
            self._unseen.tell(look.parameters, look.step)
        self._mark_bad(look)

    def _refuse(self, look: Look, why: str) -> None:
        """Without a replay the analyzer has at least what is bad now."""
        session, recorder = self.session, self.session.recorder
        assert recorder is not None
        recorder.replay(session.step, look.found.trigger, REFUSED, why)
        if self._is_over(look):  # what is there now is another step's; the health row tells what was bad
            return
        self._mark_bad(look)

    def _mark_bad(self, look: Look) -> None:
        items: list[tuple[int, str, _Tensor]] = [(lib.MARK_PARAMETER, path, p) for p, path in look.parameters]
        items += [(lib.MARK_GRADIENT, path, p.grad) for p, path in look.parameters if p.grad is not None]
        bad = set(self.reader.bad_among(items))
        self._mark([one for one in items if one[:2] in bad])

    def _mark(self, items: Sequence[tuple[int, str, _Tensor]]) -> None:
        session, recorder = self.session, self.session.recorder
        assert recorder is not None
        if session.live and session.tap is not None:
            session.tap.hand_over()
        for kind, path, t in items:
            if not session.live:
                self.values.renew(t)
            value = self.values.describe(t.detach())
            if value is not None:
                recorder.rows([lib.ROW_MARK, kind, session.step, session.micro_batch, recorder.text(path), *value])
        self.values.release_hosts()

    def tell_sound(self, parameters: Sequence[tuple[_Tensor, str]]) -> None:
        """Of a program without an optimizer, whose steps may have no end: what is bad of them later became so."""
        if self.session.recorder is None or self.session.live:
            return
        self._mark([(lib.MARK_PARAMETER, path, p) for p, path in parameters])


def _is_compiled(look: Look) -> bool:
    return any(type(e.module).__name__ == "OptimizedModule" for e in look.tape.calls if isinstance(e, RootEntry))


def _has_hooks_on_gradients(look: Look, needed: Sequence[Any]) -> bool:
    outputs = [seen() for entry in needed if isinstance(entry, RootEntry) for seen, _ in entry.seen]
    return any(t is not None and t._backward_hooks for t in outputs) or any(
        getattr(p, "_post_accumulate_grad_hooks", None) for p, _ in look.parameters)


def is_reduced() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed is not None and distributed.is_available() and distributed.is_initialized()
                and distributed.get_world_size() > 1)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else "no message"
