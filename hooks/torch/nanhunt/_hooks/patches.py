# SPDX-License-Identifier: Apache-2.0
"""Patches of torch, and how they are taken off again."""
from __future__ import annotations

import sys
from typing import Any, Callable

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_STEP_FILE = torch.optim.Optimizer.profile_hook_step.__code__.co_filename


class Patches:
    """What was put in place of torch's own. Others may patch on top of ours: then it stays under theirs, and does
    nothing as long as nothing is watched."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, str], tuple[Any, Any]] = {}  # (owner, name) -> torch's, ours
        self._hooks: list[Any] = []  # handles of the hooks of all optimizers

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
        """`make` gives the patch of what it is given. Once for each place."""
        now = getattr(owner, name)
        known = self._made.get((owner, name))
        if known is not None and now is not known[0]:
            return known[1]
        ours = make(now)
        self._made[owner, name] = now, ours
        setattr(owner, name, ours)
        return ours

    def has(self, owner: Any, name: str) -> bool:
        return (owner, name) in self._made

    def hook_steps(self, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        if not self._hooks:
            self._hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]

    def take_off(self) -> None:
        for (owner, name), (original, ours) in list(self._made.items()):
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
                del self._made[owner, name]
        if not _an_optimizer_steps():
            hooks, self._hooks = self._hooks, []
            for hook in hooks:
                hook.remove()


def _an_optimizer_steps() -> bool:
    """Whether a step is under way in any thread: it goes through its hooks one by one, and they must not change."""
    for top in sys._current_frames().values():
        frame: Any = top
        while frame is not None:
            if frame.f_code.co_name == "wrapper" and frame.f_code.co_filename == _STEP_FILE:
                return True
            frame = frame.f_back
    return False
