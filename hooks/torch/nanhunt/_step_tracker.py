# SPDX-License-Identifier: Apache-2.0
"""Where a step ends: which optimizers have passed their boundaries in it, and which are still to come.

Nobody says what a loop is made of, so it is taken from the steps before. In the first one, every optimizer that trains
something of its own is waited for (a GAN has two), until a module is called that has been trained already. Whenever one
may step that did not before, it is waited for where the step has called or differentiated what it trains.
"""
from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class StepTracker:
    def __init__(self) -> None:
        self.alive: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # optimizers that were made
        # By id, in the order of their boundaries: of this step, of the last one, and of the one before that.
        self.passed: dict[int, None] = {}
        self.last: list[int] = []
        self.before: Collection[int] = ()
        self.idle: set[int] = set()  # those that could have stepped in the last step, and did not
        self.unsure = True           # there are some of which nothing is known
        self.called: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # in this step, as long as that is so

    def meet(self, optimizer: torch.optim.Optimizer) -> None:
        self.alive.add(optimizer)
        self.unsure = True

    def belongs_to_last(self, optimizer: torch.optim.Optimizer) -> bool:
        """Of one that has stepped though nothing ran since the last step ended, and trains something of its own: it was
        made after the others of that step had stepped, as libraries do that have one for each parameter. It is waited
        for from now on."""
        if self.passed or not self.last or id(optimizer) in self.last:
            return False
        covered = {id(p) for o in self.alive if id(o) in self.last for p in _parameters(o)}
        if all(id(p) in covered for p in _parameters(optimizer)):
            return False
        self.last.append(id(optimizer))
        self.idle.discard(id(optimizer))
        return True

    def forget(self, key: int) -> None:
        """An optimizer ended: its id is soon another's."""
        self.passed.pop(key, None)
        self.idle.discard(key)
        self.last = [other for other in self.last if other != key]
        self.before = [other for other in self.before if other != key]

    def is_over(self, alone: bool = True, next_call: torch.nn.Module | None = None) -> bool:
        """Whether nobody is waited for any more. One has passed its boundary in this step.

        Of the last step's: whoever came in the step before it as well, and whoever came after the one that has just
        passed. An optimizer that comes now and then, first in its step, is over for the others' sake."""
        passed = self.passed
        if not passed:
            return False
        now = next(reversed(passed))
        follows = False
        for key in self.last:
            if key == now:
                follows = True
            elif key not in passed and (follows or not self.before or key in self.before):
                return False
        return not (self.unsure and self._is_one_to_come(alone, next_call))

    def _is_one_to_come(self, alone: bool, next_call: torch.nn.Module | None) -> bool:
        """`alone`: no other thread trains. One that does may be writing the gradients that would be looked at."""
        unknown = [o for o in self.alive
                   if id(o) not in self.passed and id(o) not in self.last and id(o) not in self.idle]
        if not unknown:
            return False
        covered = {id(p) for o in self.alive if id(o) in self.passed for p in _parameters(o)}
        begins_anew = next_call is not None and all(id(p) in covered for p in next_call.parameters() if p.requires_grad)
        if not self.last and not begins_anew:
            return any(p.requires_grad and id(p) not in covered for o in unknown for p in _parameters(o))
        called = {id(p) for module in self.called for p in module.parameters()}
        return any(p.requires_grad and id(p) not in covered and (id(p) in called or alone and p.grad is not None)
                   for o in unknown for p in _parameters(o))

    def end(self) -> None:
        """The step is over."""
        if self.unsure:
            self.called.clear()
        passed = list(self.passed)
        if not passed:
            return
        knows_all = passed == self.last and not self.unsure and not self.idle  # and nobody is new
        self.before, self.last, self.passed = self.last, passed, {}
        if not knows_all:
            alive = list(self.alive)
            self.idle = {id(o) for o in alive if id(o) not in self.last and (
                id(o) in self.idle or id(o) in self.before or any(p.requires_grad for p in _parameters(o)))}
            self.unsure = len(alive) > len(self.last) + len(self.idle)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
