# SPDX-License-Identifier: Apache-2.0
"""Tensors that a program trains by hand: no module has them, and no optimizer steps them. A backward shows them."""
from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._hooks.root_names import name_by_holder
from nanhunt._pytorch import no_torch_function, unwrapped
from nanhunt._step_judge import FORWARD
from nanhunt._tap.first_op import await_next_forward

if TYPE_CHECKING:
    from nanhunt._session import Session

_MOST = 20_000  # nodes of a graph that are looked at
_ASKED = 4      # parameters of which no module is known: to ask for one goes through all objects


def find_leaves(session: Session, tensors: Sequence[Any]) -> None:
    """Before a backward from these tensors. Where there is a module or an optimizer, they say what is trained."""
    if session.roots or session.tracker.alive or session.open() is None:
        return
    with no_torch_function():
        found = [leaf for leaf in _leaves_of(tensors) if id(leaf) not in session.parameter_names]
    names, is_first, without = _names_of(found) if found else {}, not session.leaves, 0
    for leaf in found:
        name = names.get(id(leaf), "")
        is_unknown = not name and id(leaf) not in session.parameter_names
        if is_unknown and type(leaf) is torch.nn.Parameter and without < _ASKED:
            name = name_by_holder(session, leaf)  # with those that its model has beside it
            without += not name
        session.parameter_names.set_new(leaf, name or f"tensor {len(session.leaves)}")
        session.leaves.append(weakref.ref(leaf))
    if session.leaves:
        session.judge.enter(FORWARD)
        if is_first:
            await_next_forward(session)


def begin_grad(session: Session, losses: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor]] | None:
    """The losses of torch.autograd.grad, where a program trains tensors of its own by the gradients that it gets."""
    find_leaves(session, losses)
    return ([unwrapped(loss) for loss in losses],) if session.leaves else None


def _leaves_of(tensors: Sequence[Any]) -> list[torch.Tensor]:
    todo = [t.grad_fn for t in tensors if isinstance(t, torch.Tensor)]
    seen: dict[Any, None] = {}
    found = []
    while todo and len(seen) < _MOST:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen[node] = None
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        todo += [following for following, _ in node.next_functions]
    return found


def _names_of(leaves: Sequence[torch.Tensor]) -> dict[int, str]:
    """What the program calls them, where they are variables of its modules. Those of functions are not asked for: that
    would keep them alive."""
    wanted = {id(leaf) for leaf in leaves}
    names: dict[int, str] = {}
    frame: Any = sys._getframe(1)
    while frame is not None:
        for name, value in list(frame.f_globals.items()) if not _is_ours_or_torchs(frame) else ():
            if id(value) in wanted:
                names.setdefault(id(value), name)
        frame = frame.f_back
    return names


def _is_ours_or_torchs(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("nanhunt", "torch")
