# SPDX-License-Identifier: Apache-2.0
"""Parameters that other ranks hold too, and must hold alike: a checksum of them now and then, which whoever reads all
ranks compares. Said only of what the program itself declares (DistributedDataParallel, replicated DTensors), and only
as long as all ranks have taken the same steps: those of an optimizer of these parameters, and no others."""
from __future__ import annotations

import weakref
import zlib
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._hooks.root_names import data_parallel_wrapper
from nanhunt._names import plain_module
from nanhunt._steps.reading import Reader
from nanhunt._weak_id_dict import WeakIdDict

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_EVERY = 64  # steps: whose parameters have a checksum; so have those of the first _FIRST
_FIRST = 8


class _Model:
    """One that is replicated: those of its parameters that are trained when it is met."""

    def __init__(self, model: torch.nn.Module, wrapper: Any) -> None:
        self._model = weakref.ref(model)
        self._wrapper = None if wrapper is None else weakref.ref(wrapper)
        ignored = getattr(wrapper, "parameters_to_ignore", ())
        self.names = [name for name, p in model.named_parameters() if p.requires_grad and name not in ignored]

    def parameters(self) -> dict[str, torch.Tensor]:
        """By name; {}: the model is gone, or has other parameters than it had."""
        model = self._model()
        there = dict(model.named_parameters()) if model is not None else {}
        return {name: there[name] for name in self.names} if there.keys() >= set(self.names) else {}

    def is_local(self) -> bool:
        """Whether gradients of its next backward are left to this rank (no_sync), or models are averaged in their
        place: then its parameters are not those of the others."""
        wrapper = self._wrapper() if self._wrapper is not None else None
        return wrapper is not None and (not getattr(wrapper, "require_backward_grad_sync", True) or any(
            "localSGD" in getattr(hook, "__name__", "") for hook, _ in getattr(wrapper, "_comm_hooks", ())))


class Replicated:
    def __init__(self, session: Session, values: Values) -> None:
        self.session = session
        self._reader = Reader(session, values)
        self.models: list[_Model] = []  # none: nothing is compared, and none of what is below meet() is called
        self._ranks: list[int] = []  # that hold them
        self._ended = False    # nothing is compared any more
        self._stepped = False  # an optimizer of theirs has, in the step at hand
        self._local = False    # its gradients are this rank's own
        self._optimizers: WeakIdDict[bool] = WeakIdDict()  # whether they are theirs

    def meet(self, model: torch.nn.Module) -> list[int]:
        """The ranks that hold it; []: it is not known to be replicated."""
        ranks, wrapper = _replicas_of(model)
        if len(ranks) < 2 or self._ended:
            return ranks
        if self._ranks and ranks != self._ranks or not self.models and self.session.state.step > 0:
            self._end()
        else:
            self._ranks = ranks
            self.models.append(_Model(plain_module(model), wrapper))
            self._optimizers.clear()
            names = "\n".join(name for one in self.models for name in [*one.names, ""])
            self._write(f"{zlib.crc32(names.encode()):08x}", min(ranks), len(ranks))
        return ranks

    def enter(self) -> None:
        self._local = any(model.is_local() for model in self.models)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        own = self._optimizers.get(id(optimizer))
        if own is None:
            theirs = {id(p) for model in self.models for p in model.parameters().values()}
            own = any(id(p) in theirs for group in optimizer.param_groups for p in group["params"])
            self._optimizers.set(optimizer, own)
        self._stepped = self._stepped or own

    def end_step(self, step: int) -> None:
        """A step that is none of theirs may be this rank's alone: from then on steps are not counted alike."""
        stepped, self._stepped = self._stepped, False
        if not stepped or self._local:
            self._end()
        elif (step < _FIRST or step % _EVERY == 0) and self.session.options.level != "ops":  # which has no row for it
            parameters = [(p, name) for model in self.models for name, p in model.parameters().items()]
            if len(parameters) == sum(len(model.names) for model in self.models):
                self.session.facts.weight_checksum = self._reader.checksum(parameters)
            else:
                self._end()

    def _end(self) -> None:
        self._ended = True
        self.models.clear()
        self._write("", 0, 0)

    def _write(self, of: str, lowest: int, count: int) -> None:
        if self.session.recorder is not None:
            self.session.recorder.setup(self.session.state.step, lib.REPLICAS, of, number=lowest, text=str(count))


def _replicas_of(model: torch.nn.Module) -> tuple[list[int], Any]:
    """The ranks that hold the same parameters of it: those of DistributedDataParallel, which is given too, or along the
    dimensions of a mesh over which every one of its DTensors is replicated. []: none is known to."""
    wrapper = data_parallel_wrapper(model)
    if wrapper is not None:
        return torch.distributed.get_process_group_ranks(wrapper.process_group), wrapper
    found: list[int] = []
    for parameter in model.parameters():
        mesh, placements = getattr(parameter, "device_mesh", None), getattr(parameter, "placements", ())
        if mesh is None or mesh.get_coordinate() is None:
            return [], None
        here = tuple(slice(None) if placement.is_replicate() else place
                     for placement, place in zip(placements, mesh.get_coordinate()))
        replicas = mesh.mesh[here].flatten().tolist()
        if found and replicas != found:
            return [], None
        found = replicas
    return found, None
