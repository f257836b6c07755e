# SPDX-License-Identifier: Apache-2.0
"""Where an op runs: the module path in forward, the same for its backward, and the line of the user's code."""
from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._known import Known

if TYPE_CHECKING:
    from nanhunt._listener import RootCall

sequence_nr = getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", lambda: 0)
_current_node = getattr(torch._C, "_current_autograd_node", lambda: None)
_graph_task_id = getattr(torch._C, "_current_graph_task_id", lambda: -1)
_ACCUMULATE = (1 << 64) - 1
_MAX_CLAIMS = 1 << 20
LOSS = "<loss>"


class _Claims:
    """Whose the nodes are that one thread has made: autograd counts them for each thread."""

    __slots__ = ("last", "ends", "owners", "previous")

    def __init__(self) -> None:
        self.last = 0                          # the first number that nobody has claimed
        self.ends: list[int] = []              # of intervals of sequence numbers, ascending
        self.owners: list[tuple[str, int]] = []  # path, number of the call site's text
        self.previous = 0                      # where the claims of this step begin

    def forget(self) -> None:
        """What the step before the last claimed."""
        keep = self.previous if len(self.ends) < _MAX_CLAIMS else len(self.ends)
        del self.ends[:keep], self.owners[:keep]
        self.previous = len(self.ends)


class Places:
    """Module paths. Forward: a stack. Backward: autograd numbers its nodes in forward, so the numbers handed out while
    a module was on top belong to it, and those handed out since the op before belong to the op.

    A device's part of a backward runs in a thread of the device. What a checkpoint runs again there is counted there,
    and a backward inside of that backward meets those nodes."""

    def __init__(self, parameters: dict[int, str]) -> None:
        self.parameters = parameters  # id -> path
        self.path = ""
        self.recomputing = 0          # depth of modules that a checkpoint runs again, inside backward
        self._stack: list[str] = []
        self._names: Known[str] = Known()    # of modules of all roots: their paths
        self._roots: Known[str] = Known()
        self._own = self.claims = _Claims()  # of the thread that trains; of the one that runs modules now
        self._threads: dict[int, _Claims] = {}  # of others
        self._thread = threading.get_ident()
        self._outermost = -1  # autograd's number of the backward that the program called

    def enter_root(self, call: RootCall) -> None:
        from nanhunt._session import plain_module, plain_path

        if id(call.module) not in self._roots:
            self._roots.tell(call.module, call.name)
            inner = plain_module(call.module)
            for name, module in inner.named_modules():
                path = plain_path(call.name, name) or type(inner).__name__
                self._names.tell_new(module, path)
            self._names.tell_new(call.module, self._names[id(inner)])
        self.claim(self.path, 0)
        self._stack, self.recomputing = [self.path], 0
        self.path = self._names[id(call.module)]

    def exit_root(self) -> None:
        self.claim(self.path, 0)
        self._stack.clear()
        self.path = LOSS

    def enter(self, module: torch.nn.Module) -> None:
        self.claim(self.path, 0)
        self._stack.append(self.path)
        if _graph_task_id() >= 0:  # inside backward: a checkpoint runs it again
            if not self.recomputing:
                self.path = self.backward()[0]
                self.claims = self._of_this_thread()
            self.recomputing += 1
        self.path = self._names.get(id(module), self.path)

    def exit(self) -> None:
        self.claim(self.path, 0)
        if self._stack:
            self.path = self._stack.pop()
        if self.recomputing:
            self.recomputing -= 1
            if not self.recomputing:
                self.claims = self._own

    def claim(self, path: str, site: int) -> None:
        """Numbers handed out since the last claim are this path's and this call site's."""
        end, claims = sequence_nr(), self.claims
        if end > claims.last:
            claims.last = end
            claims.ends.append(end)
            claims.owners.append((path, site))

    def begin_step(self) -> None:
        """What the step before the last claimed is forgotten."""
        self.claims, self._thread = self._own, threading.get_ident()
        for claims in (self._own, *self._threads.values()):
            claims.forget()
        self.claim("", 0)
        self.path = ""

    def begin_backward(self) -> None:
        """The program calls backward."""
        self._outermost = -1

    def _of_this_thread(self) -> _Claims:
        thread = threading.get_ident()
        return self._own if thread == self._thread else self._threads.setdefault(thread, _Claims())

    def backward(self) -> tuple[str, int]:
        """Path and call site's number of the node that runs now; ("", 0) where there is none."""
        node = _current_node()
        if node is None:
            return LOSS, 0
        number = node._sequence_nr()
        if number == _ACCUMULATE:
            return self.parameters.get(id(getattr(node, "variable", None)), ""), 0
        task = _graph_task_id()
        if self._outermost < 0:
            self._outermost = task
        claims = self._own if task == self._outermost else self._of_this_thread()
        at = bisect_right(claims.ends, number)
        return claims.owners[at] if at < len(claims.owners) else (LOSS, 0)


_OURS = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parent) + os.sep, "<frozen",
         "<eval_with_key")
_IMPORTS = "<frozen importlib"
IMPORTING = -1
# Of file names: the numbers of their lines' texts; None: not the user's; IMPORTING: what runs below is an import.
_users: dict[str, Any] = {}


def _class_of(filename: str) -> Any:
    kind: Any = None
    if filename.startswith(_IMPORTS):
        kind = IMPORTING
    elif not filename.startswith(_OURS):
        kind = filename.rsplit(os.sep, 1)[-1]
    _users[filename] = kind
    return kind


class Sites:
    """Numbers of the texts of call sites: file:line of the nearest frame outside of torch and of nanhunt."""

    def __init__(self) -> None:
        # By file name: the numbers of its lines; None: not the user's; IMPORTING.
        self._lines: dict[str, Any] = {}

    def of(self, frame: Any, recorder: Any) -> int:
        """0: none. IMPORTING: the op belongs to an import, which is not the user's computing."""
        lines = self._lines
        while frame is not None:
            filename = frame.f_code.co_filename
            try:
                known = lines[filename]
            except KeyError:
                kind = _users[filename] if filename in _users else _class_of(filename)
                known = lines[filename] = {} if isinstance(kind, str) else kind
            if known is not None:
                if known is IMPORTING:
                    return IMPORTING
                line = frame.f_lineno
                site = known.get(line)
                if site is None:
                    site = known[line] = recorder.text(f"{_users[filename]}:{line}")
                return site  # type: ignore[no-any-return]
            frame = frame.f_back
        return 0


def call_site(depth: int = 2) -> str:
    """file:line of the nearest frame outside of torch and of nanhunt; "" where there is none."""
    frame: Any = sys._getframe(depth)
    while frame is not None:
        filename = frame.f_code.co_filename
        kind = _users[filename] if filename in _users else _class_of(filename)
        if kind is not None and kind != IMPORTING:
            return f"{kind}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
