# SPDX-License-Identifier: Apache-2.0
"""Which values are the loss, gradients at the boundary, parameters, state, buffers, the batch. While rows of a step
stay in the tap, unread, most of it is marked when they are wanted: most often they are not."""
from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._device_reader import Readings
from nanhunt._hooks.scaler import read
from nanhunt._listener import Listener, RootCall
from nanhunt._nested import tensors_in
from nanhunt._pytorch import no_torch_function
from nanhunt._step_judge import HAS_GRADIENTS, LEFT_BATCH_OUT
from nanhunt._tap.plain import PLAIN, local
from nanhunt._tap.tap_library import unheard

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.lasting_tensors import ModuleTensors
    from nanhunt._tap.tap import Tap
    from nanhunt._tap.values import Values


_LEFT_OUT = "the loss of a batch without a backward"  # as src/analyze/watch/endings.cpp


def mark_left_out(session: Session) -> bool:
    """Of a step that ends, and had a number that is not finite: whether it is sound, and went on without the batch
    whose loss that is, which is marked then."""
    tap, recorder = session.tap, session.recorder
    if tap is None or recorder is None or not session.judge.facts() & LEFT_BATCH_OUT or (
            session.judge.bad(session.state.step)):
        return False
    return tap.mark_bad_number(lib.MARK_LOSS, recorder.text(_LEFT_OUT))


class Marks(Listener):
    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self.marked: dict[int, ModuleTensors] = {}  # of roots, by id; level live: in this step
        self._inputs: dict[str, int] = {}  # what inputs of that path are called

    def mark(self, kind: int, path: str, t: torch.Tensor) -> None:
        self._mark_all([(kind, path, t)])

    def _mark_all(self, marks: Sequence[tuple[int, str, torch.Tensor]]) -> None:
        tap = self.session.tap
        if tap is None or not marks:
            return
        with no_torch_function():
            tap.mark(tap.named([(local(t), path) for _, path, t in marks]), array("q", [kind for kind, _, _ in marks]))

    def mark_call(self, tap: Tap, call: RootCall) -> None:
        tensors = self.values.tensors_of_root(call.module, call.name)
        key = id(call.module)
        if key not in self.marked or self.marked[key] is not tensors:
            self.marked[key] = tensors
            tap.mark_set(tensors.marked.handle, *tensors.at_kinds)
        kinds: list[int] = []
        texts: list[int] = []
        addresses: list[int] = []
        parts: list[torch.Tensor] = []  # they live until they are marked
        for (path, t), is_floating in zip(call.tensors, call.are_floating):
            if path not in self._inputs:
                self._inputs[path] = tap.text(f"input {path}")
            if type(t) in PLAIN:
                addresses += t._cdata,
            else:
                with no_torch_function():  # a subclass of the user's is not asked
                    t = local(t)
                    addresses += t._cdata,
            kinds += lib.MARK_BATCH if is_floating else lib.MARK_LABEL,
            texts += self._inputs[path],
            parts += t,
        words = array("q", (*kinds, *texts, *addresses))
        at, n = words.buffer_info()[0], len(kinds)
        tap.mark_at(at, at + 8 * n, at + 16 * n, n, False)

    def on_validated(self, module: torch.nn.Module, output: Any) -> None:
        if self.session.state.held:
            return
        with no_torch_function():
            outputs = [(lib.MARK_OUTPUT, "", t) for _, t in tensors_in(output) if t.is_floating_point()]
        self._mark_all(outputs)

    def mark_losses(self, tensors: Sequence[torch.Tensor]) -> None:
        names = self.session.parameter_names
        self._mark_all([(lib.MARK_PARAMETER, names.get(id(t), ""), t) for t in self.session.alive_leaves()])
        for t in tensors:
            if t.numel() == 1:
                self.mark(lib.MARK_LOSS, "loss", t)
                known = self.session.facts.loss
                if known is None or math.isnan(known):
                    self._read_loss(t)

    def _read_loss(self, t: torch.Tensor) -> None:
        session, scale = self.session, self.session.last_scale
        facts = session.facts

        def take(number: float | None) -> None:
            if number is not None and scale > 0:
                facts.loss = number / scale

        if t.is_cpu or not self._is_read_there(t):
            take(read(t))  # where tensors are waited for anyway
            return
        readings = Readings(session)
        readings.number(t)
        if readings.send():
            def finish() -> None:
                readings.take()
                take(readings.numbers[0])

            session.pending.expect(readings.fetches, finish)

    def _is_read_there(self, t: torch.Tensor) -> bool:
        value = self.values.describe(t)
        self.values.release_hosts()
        return value is not None and value[3] >> 32 > 0

    def mark_boundary(self, optimizer: torch.optim.Optimizer) -> None:
        """Of an optimizer, or of one that a scaler has kept from it."""
        tap = self.session.tap
        if tap is not None:
            tensors = self.values.tensors_of(optimizer)
            tap.mark(tensors.marked, array("q", [lib.MARK_GRADIENT] * tensors.parameters), gradients=True)
            self._mark_all([(lib.MARK_GRADIENT, path, p.grad) for p, path in tensors.sharded if p.grad is not None])

    def on_kept(self) -> None:
        if self.session.judge.facts() & HAS_GRADIENTS and not self.session.state.held:
            self._mark_gradients()

    def on_gradients_made(self) -> None:
        if not self.session.has_optimizer() and not self.session.state.held:
            self._mark_gradients()

    def on_updated_by_hand(self) -> None:
        if not self.session.state.held:
            self._mark_all([(lib.MARK_PARAMETER, path, p) for p, path in self._trained()])

    def on_drop(self) -> None:
        if not self.session.state.held:
            self._mark_gradients()

    def on_unfinished(self, ending: int) -> None:
        """Gradients of the last step, which nothing takes or clears any more."""
        if ending != lib.BY_NEXT_FORWARD and not self.session.state.held and self.session.judge.facts() & HAS_GRADIENTS:
            self._mark_gradients()

    def _mark_gradients(self) -> None:
        marks: dict[int, tuple[int, str, torch.Tensor]] = {}
        for reference, _ in list(self.session.roots.values()):
            root = reference()
            for name, p in root.named_parameters() if root is not None else ():
                if p.grad is not None:
                    marks[id(p)] = (lib.MARK_GRADIENT, self.session.parameter_names.get(id(p), name), p.grad)
        for p in self.session.alive_leaves():
            if p.grad is not None:
                marks[id(p)] = (lib.MARK_GRADIENT, self.session.parameter_names.get(id(p), ""), p.grad)
        self._mark_all(list(marks.values()))

    def mark_updated(self, tap: Tap, optimizer: torch.optim.Optimizer) -> None:
        tensors = self.values.tensors_of(optimizer)
        tap.mark(tensors.marked, tensors.kinds)

    def before_last_end(self) -> None:
        """What was written past PyTorch after the last op that was heard is read by nobody else, without an
        optimizer."""
        tap, recorder = self.session.tap, self.session.recorder
        # At level live StepWatch reads it. What an op or an optimizer left bad is known.
        if tap is None or self.session.options.level != "ops" or recorder is None:
            return
        if self.session._keep or recorder.bad_since(0):
            return
        bad: list[tuple[int, str, torch.Tensor]] = []
        with no_torch_function(), unheard():
            for p, path in self._trained():
                if p.is_cpu and p.is_floating_point() and p.layout is torch.strided and not bool(p.isfinite().all()):
                    bad.append((lib.MARK_PARAMETER, path, p))
            for _, _, p in bad:
                tap.written(p.untyped_storage()._cdata)
        self._mark_all(bad)

    def _trained(self) -> list[tuple[torch.Tensor, str]]:
        session = self.session
        alive = [part for part in [reference() for reference, _ in session.roots.values()] if part is not None]
        found = [p for root in alive for p in root.parameters()]
        found += session.alive_leaves()
        unique = {id(p): p for p in found if p.requires_grad}
        return [(local(p), session.parameter_names.get(id(p), "")) for p in unique.values()]

    def mark_buffers(self, tap: Tap) -> None:
        for module, name in list(self.session.roots.values()):
            root = module()
            if root is not None:
                buffers = self.values.tensors_of_root(root, name).marked_buffers
                tap.mark(buffers, array("q", [lib.MARK_BUFFER] * buffers.count))
