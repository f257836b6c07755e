# SPDX-License-Identifier: Apache-2.0
"""Level ops: every op that the dispatcher runs, in forward, loss, backward, unscale, clip, optimizer and update."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._listener import Listener, RootCall
from nanhunt._modes import InfraMode, hide_from_dynamo
from nanhunt._places import Places
from nanhunt._values import PLAIN
from nanhunt._writer import OpWriter

if TYPE_CHECKING:
    from nanhunt._kernels import Kernels
    from nanhunt._plans import Plan
    from nanhunt._session import Session
    from nanhunt._values import Values

__all__ = ["OpMode", "OpWriter", "OpsLevel"]
_Tensor = torch.Tensor
_stack_depth = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_stack_at = getattr(torch._C, "_get_dispatch_stack_at", lambda i: None)


class OpMode(InfraMode):
    """Hands each op and its result to `record`."""

    def __init__(self, writer: OpWriter) -> None:
        super().__init__()
        hide_from_dynamo()
        self._writer = writer
        self._plans = writer.plans
        self._kernels = writer.session.kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plan = self._plans.get(id(func))
        if plan is None:
            plan = self._writer.plan_of(func)
        if types and not PLAIN.issuperset(types):
            if plan.args and _stack_depth() == 0:
                return NotImplemented  # a subclass answers for other tensors: its ops on those come here next
            return func(*args, **(kwargs or {}))  # the mode below (tracing, fake tensors) answers
        if self._writer.pending:
            self._writer.tell_finished(plan, args)  # before this op can change what a collective brought
        if self._kernels is not None and self._kernels.on and not plan.skip:
            return self._with_kernels(self._kernels, plan, args, kwargs)
        result = plan.call(*args, **kwargs) if kwargs else plan.call(*args)
        if plan.simple:
            if plan.skip:
                self._writer.claim_views()
            else:
                self._writer.record(plan, args, kwargs, result)
            return result
        return self._writer.record_special(plan, args, kwargs, result)

    def _with_kernels(self, kernels: Kernels, plan: Plan, args: Any, kwargs: Any) -> Any:
        """The same; what the op launches is tied to its row, and what we launch to read it is told from that."""
        writer = self._writer
        recorder = writer.session.recorder
        step = writer.session.step if writer.step is None else writer.step
        ticket, seq = kernels.push(), lib.NO_SEQ
        try:
            result = plan.call(*args, **kwargs) if kwargs else plan.call(*args)
            own = kernels.push_own()
            try:
                first = recorder.next_seq() if recorder is not None else 0
                if plan.simple:
                    writer.record(plan, args, kwargs, result)
                else:
                    result = writer.record_special(plan, args, kwargs, result)
                # The row of a collective comes when it has ended: what came now may be that of another one.
                if recorder is not None and not plan.collective and recorder.next_seq() != first:
                    seq = first  # of a list of tensors: the library finds the bad one
            finally:
                kernels.pop_own(own)
        finally:
            kernels.pop(ticket, seq, step)
        return result


class OpsLevel(Listener):
    """Keeps the mode on from the first root call to the end."""

    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self.places = session.places = Places(session.parameter_names)
        self.writer = OpWriter(session, values, self.places)
        self.mode: OpMode | None = None

    def _on(self) -> None:
        """Only at the bottom of the stack: otherwise a `with` of the user's would end our mode instead of its own."""
        if self.mode is not None or self.session.recorder is None:
            return
        if _stack_depth() > 0:
            self.session.note("ops before the run's own dispatch mode ended")
            return
        self.mode = OpMode(self.writer)
        self.mode.__enter__()

    def on_root_enter(self, call: RootCall) -> None:
        if call.index == 0:
            self.places.begin_step()
        self.places.enter_root(call)
        self._on()

    def on_root_exit(self, call: RootCall, output: Any) -> None:
        self.places.exit_root()

    def on_step_begin(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.places.begin_step()  # without a root module, too
        self._on()

    def before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        self._own(optimizer)

    def before_clip(self, parameters: Sequence[torch.Tensor], name: str, bound: float) -> None:
        names = self.session.parameter_names
        self._own_tensors([(p.grad, names.get(id(p), "")) for p in parameters if isinstance(p, _Tensor)])

    def after_clip(self, total_norm: Any) -> None:
        self.writer.owners.clear()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._on()
        self._own(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.writer.owners.clear()

    def on_step_end(self, step: int, skipped: bool) -> None:
        self.writer.tell_finished(None, ())
        recorder = self.session.recorder
        if recorder is not None and self.values.dead:
            recorder.rows(self.values.dead_rows())

    def _own(self, optimizer: torch.optim.Optimizer) -> None:
        """Whose parameter, gradient or state a storage is."""
        self._own_tensors([(t, path) for p, path in self.session.parameters_of(optimizer)
                           for t in (p, p.grad, *optimizer.state.get(p, {}).values())])

    def _own_tensors(self, tensors: list[tuple[Any, str]]) -> None:
        owners, identity = self.writer.owners, self.values.identity
        owners.clear()
        for t, path in tensors:
            if isinstance(t, _Tensor):
                try:
                    owners[identity(t) >> 24] = path
                except Exception:
                    continue

    def on_close(self) -> None:
        self.writer.tell_finished(None, ())
        if self.writer.pending:
            self.session.note("collectives that had not ended", len(self.writer.pending))
            self.writer.pending.clear()
        self.writer.off = True
        if self.mode is not None:
            mode, self.mode = self.mode, None
            if _stack_depth() and _stack_at(_stack_depth() - 1) is not mode:
                return  # under a mode of the user's: it stays, and does nothing
            try:
                mode.__exit__(None, None, None)
            except Exception as error:
                self.session.failed(error, "leaving the mode")
