# SPDX-License-Identifier: Apache-2.0
"""Gradients that the program gives up: cleared, or left alone, though no optimizer took them.

So does a loss scaler that a program wrote for itself, or a loop that skips what is not finite. A loop that adds
gradients up, takes them apart or clears some of several models' does not: only bad gradients that are all cleared end
a step.
"""
from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._pytorch import no_torch_function
from nanhunt._step_judge import AMID, HAS_GRADIENTS, USUAL
from nanhunt._step_mode import StepMode
from nanhunt._tap.tap_library import unheard

if TYPE_CHECKING:
    from nanhunt._session import Session

_USED = 2        # of `stepped`: parameters were written with what was made of gradients
_BAD_NUMBER = 2  # of `looked`: a number that is not finite was made of gradients


class Drops:
    def __init__(self, session: Session) -> None:
        self._session = session
        self.began: int | None = None       # number of the first op of this step's backward
        self._watched: torch.Tensor | None = None  # a trained parameter, with a gradient where backward gave any
        self._last: weakref.ref[torch.Tensor] | None = None  # the one that was found last
        self._versions: tuple[int, int | None] = (0, None)  # as they were after backward
        self.drops = False    # gradients are being given up
        self.notified = False    # ... and listeners have been told
        self._looks = False   # the program reads numbers made of gradients, as far as ops are heard
        self._bad = False     # ... and were not finite

    def _parameters(self) -> Iterable[torch.Tensor]:
        for reference, _ in list(self._session.roots.values()):
            root = reference()
            if root is not None:
                yield from root.parameters()
        yield from self._session.alive_leaves()

    def after_backward(self) -> None:
        try:
            last = self._last() if self._last is not None else None
            if last is None or last.grad is None:  # one that had one before most often has one again
                last = next((p for p in self._parameters() if p.grad is not None), None)
                self._last = weakref.ref(last) if last is not None else None
            if last is None:
                last = next((p for p in self._parameters() if p.requires_grad), None)
            self._watched = last
            if last is not None:
                self._versions = last._version, last.grad._version if last.grad is not None else None
        except Exception as error:
            self._session.failed(error, "the end of backward")

    def may_come(self) -> bool:
        """Whether gradients that are there may be given up."""
        session = self._session
        return not (self.notified or session.tracker.passed or session.exact)

    def before_clearing(self, owner: Any) -> None:
        """Gradients of this optimizer's or module's go. Whatever else has one is not given up."""
        try:
            groups = getattr(owner, "param_groups", None)
            gone = {id(p) for group in groups or () for p in group["params"]}
            if groups is None and isinstance(owner, torch.nn.Module):
                gone = {id(p) for p in owner.parameters()}
            left = [p for p in self._parameters() if p.grad is not None and id(p) not in gone]
            if not left and any(p.grad is not None for p in self._parameters()):
                self._notify()
        except Exception as error:
            self._session.failed(error, "gradients that are cleared")

    def _notify(self) -> None:
        session = self._session
        self.notified = self.drops = True
        session.notify("on_drop")
        self.drops = False
        if session.tap is not None:
            session.tap.settle(False)
        # What the program has written of them into parameters since backward has used them (SAM's first step).
        self._bad = not session.state.stepped & _USED and (session.facts.gradients_are_bad or self._heard_bad())
        session.facts.skipped = session.facts.skipped or self._bad

    def _heard_bad(self) -> bool:
        """Backward, or what the program did with gradients after it, made something that is not finite. Finite
        gradients that are as backward left them speak against it: what was made is a batch, a mask or a metric."""
        recorder = self._session.recorder
        if recorder is None or self.began is None or not recorder.bad_since(self.began):
            return False
        return self.used_up() or bool(self._session.state.looked & _BAD_NUMBER) or not self._are_sound()

    def _are_sound(self) -> bool:
        """Those that are there, as far as the host can read them."""
        gradients = [p.grad for p in self._parameters() if p.grad is not None]
        if not gradients or any(not g.is_cpu or g.layout is not torch.strided for g in gradients):
            return False
        with no_torch_function(), unheard():
            return all(bool(g.isfinite().all()) for g in gradients)

    def gave_up(self) -> bool:
        """Before the next forward: whether the step is over without an optimizer."""
        if not self._session.judge.facts() & HAS_GRADIENTS:
            return False
        if not self.notified and self._are_abandoned():
            self._notify()
        return self._bad

    def _are_abandoned(self) -> bool:
        """No optimizer took them although the program has looked at them. Where no op is heard: although it looks, and
        has called as many modules as in other steps."""
        session = self._session
        if session.has_scaler and not self._is_gone():  # that decides; who looks at what is still scaled writes it down
            return False
        if self._is_gone() or session.state.looked and not session.judge.facts() & AMID:
            return self._heard_bad()
        return session.mode is StepMode.UNHEARD and self._looks and bool(session.judge.facts() & USUAL)

    def used_up(self) -> bool:
        """Since backward the parameter or its gradient was written, or the gradient was cleared."""
        return self._watched is not None and _versions_of(self._watched) != self._versions

    def _is_gone(self) -> bool:
        return self._watched is not None and self._versions[1] is not None and self._watched.grad is None

    def end_step(self) -> None:
        self._looks = self._looks or bool(self._session.state.looked)
        self._session.state.looked = 0
        self.began, self._watched = None, None
        self.notified = self._bad = False


def _versions_of(p: torch.Tensor) -> tuple[int, int | None]:
    """PyTorch's counts of writes to a parameter and to its gradient; None: it has none."""
    return p._version, p.grad._version if p.grad is not None else None
