# SPDX-License-Identifier: Apache-2.0
"""At level ops: which values are the loss, gradients at the boundary, parameters, state, buffers, the batch."""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._away import Readings
from nanhunt._known import Known
from nanhunt._listener import Listener, RootCall
from nanhunt._scaler import read
from nanhunt._session import plain_path
from nanhunt._values import no_torch_function

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._values import Values


def tensors_in(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in nested containers and dataclasses, with a path: "0", "images", "out.logits"."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth > 6:
        return
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", range(len(value)))
        for name, item in zip(names, value):
            yield from tensors_in(item, f"{path}.{name}" if path else str(name), depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            item = getattr(value, field.name, None)
            yield from tensors_in(item, f"{path}.{field.name}" if path else field.name, depth + 1)


class Marks(Listener):
    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self._known: Known[bool] = Known()  # roots whose parameters and buffers were marked

    def mark(self, kind: int, path: str, t: torch.Tensor) -> None:
        self._mark_all([(kind, path, t)])

    def _mark_all(self, marks: Iterable[tuple[int, str, torch.Tensor]]) -> None:
        """One call for all: their number is that of the parameters."""
        session, values = self.session, self.values
        recorder = session.recorder
        if recorder is None:
            return
        step, micro_batch = session.step, session.micro_batch
        words: list[int] = []
        for kind, path, t in marks:
            value = values.describe(t)
            if value is not None:
                words += (lib.ROW_MARK, kind, step, micro_batch, recorder.text(path), *value)
        if words:
            recorder.rows(words)
        values.release_hosts()

    def on_root_enter(self, call: RootCall) -> None:
        marks: list[tuple[int, str, torch.Tensor]] = []
        if id(call.module) not in self._known:
            self._known.tell(call.module, True)
            for name, p in call.module.named_parameters():
                marks.append((lib.MARK_PARAMETER, self.session.parameter_names.get(id(p), name), p))
            marks += self._buffers(call.module, call.name)
        with no_torch_function():  # a subclass of the user's is not asked
            for path, t in tensors_in((call.args, call.kwargs)):
                place = path.split(".", 1)[1] if "." in path else path
                marks.append((lib.MARK_BATCH if t.is_floating_point() else lib.MARK_LABEL, f"input {place}", t))
        self._mark_all(marks)

    def _buffers(self, root: torch.nn.Module, prefix: str) -> list[tuple[int, str, torch.Tensor]]:
        return [(lib.MARK_BUFFER, plain_path(prefix, name), b) for name, b in root.named_buffers()
                if b.is_floating_point()]

    def before_backward(self, tensors: Sequence[torch.Tensor], gradients: Any, kwargs: dict[str, Any]) -> None:
        for t in tensors:
            if t.numel() == 1:
                self.mark(lib.MARK_LOSS, "loss", t)
                if math.isnan(self.session.loss):
                    self._read_loss(t)

    def _read_loss(self, t: torch.Tensor) -> None:
        session, scale = self.session, self.session.last_scale
        facts = session.facts

        def told(number: float | None) -> None:
            if number is not None and scale > 0:
                facts.loss = number / scale

        if t.is_cpu or not self.values.streams.word_of(t):
            told(read(t))  # where tensors are waited for anyway
            return
        readings = Readings(session)
        readings.number(t)
        if readings.send():
            def tell() -> None:
                readings.take()
                told(readings.numbers[0])

            session.pending.expect(readings.fetches, tell)

    def _boundary(self, optimizer: torch.optim.Optimizer) -> None:
        self._mark_all((lib.MARK_GRADIENT, path, p.grad) for p, path in self.session.parameters_of(optimizer)
                       if p.grad is not None)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._boundary(optimizer)

    def after_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer, error: BaseException | None) -> None:
        from nanhunt._taps import optimizer_ran

        if not optimizer_ran():
            self._boundary(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        marks: list[tuple[int, str, torch.Tensor]] = []
        for p, path in self.session.parameters_of(optimizer):
            marks.append((lib.MARK_PARAMETER, path, p))
            for name, state in optimizer.state.get(p, {}).items():
                if isinstance(state, torch.Tensor) and state.numel() > 1:
                    marks.append((lib.MARK_STATE, f"{path}.{name}", state))
        self._mark_all(marks)

    def on_step_end(self, step: int, skipped: bool) -> None:
        for module, name in list(self.session.roots.values()):
            root = module()
            if root is not None:
                self._mark_all(self._buffers(root, name))
