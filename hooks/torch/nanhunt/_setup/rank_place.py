# SPDX-License-Identifier: Apache-2.0
"""Where this rank stands among the others of its run: its place along each dimension, its card, and which ranks hold
the same parameters. Read from what the program set up itself: device meshes, Megatron's groups, wrappers of models."""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable

import torch

from nanhunt import _library as lib
from nanhunt._hooks.root_names import data_parallel_wrapper
from nanhunt._listener import Listener, RootCall
from nanhunt._names import plain_module
from nanhunt._ranks import is_distributed, rank_and_world
from nanhunt._steps.step_watch import StepWatch

if TYPE_CHECKING:
    from nanhunt._session import Session

_EVERY = 64  # steps: whose parameters have a checksum; so have those of the first _FIRST
_FIRST = 8
# Dimensions by the names that people give them; others keep theirs.
_DIMENSIONS = {"dp": "data", "data_parallel": "data", "tp": "tensor", "tensor_parallel": "tensor", "mp": "tensor",
               "pp": "pipeline", "pipeline_parallel": "pipeline", "ep": "expert", "expert_parallel": "expert",
               "cp": "context", "context_parallel": "context"}
_MEGATRON = {"data": "get_data_parallel_rank", "tensor": "get_tensor_model_parallel_rank",
             "pipeline": "get_pipeline_model_parallel_rank", "expert": "get_expert_model_parallel_rank",
             "context": "get_context_parallel_rank"}


class RankPlace(Listener):
    def __init__(self, session: Session, steps: StepWatch) -> None:
        self.session, self._steps = session, steps
        self._written: dict[tuple[int, str], object] = {}
        self._replicas: tuple[int, int] | None = None  # the lowest, how many; (0, 0): they differ between models
        session.at_open.append(self._begin)

    def _begin(self) -> None:
        if self.session.recorder is not None:
            self._look(None)
            self.session.recorder.write_digest()

    def on_root_met(self, call: RootCall) -> None:
        if is_distributed():
            self._look(call.module)

    def on_step_end(self, step: int, skipped: bool) -> None:
        replicas = self._replicas
        if replicas is not None and replicas[1] > 1 and (step < _FIRST or step % _EVERY == 0):
            self.session.facts.weight_checksum = self._steps.checksum()

    def _look(self, model: torch.nn.Module | None) -> None:
        for dimension, place in {**_of_megatron(), **_meshes}.items():
            self._write(lib.COORDINATE, dimension, place)
        if model is None:
            return
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            card = torch.cuda.get_device_properties(torch.cuda.current_device())
            self._write(lib.ACCELERATOR, str(getattr(card, "uuid", "")), 0, card.name)
        ranks = _replicated_by(model)
        if ranks:
            if not _meshes and not _of_megatron():
                self._write(lib.COORDINATE, "data", sorted(ranks).index(rank_and_world()[0]))
            found = (min(ranks), len(ranks))
            self._replicas = found if self._replicas in (None, found) else (0, 0)
            if self._replicas == found:
                self._write(lib.REPLICAS, "", found[0], str(found[1]))
        elif any(p.requires_grad for p in plain_module(model).parameters()):
            self._replicas = (0, 0)  # a part that each rank trains for itself

    def _write(self, fact: int, path: str, number: int, text: str = "") -> None:
        recorder = self.session.recorder
        if recorder is not None and self._written.get((fact, path)) != (number, text):
            self._written[fact, path] = (number, text)
            recorder.setup(self.session.step, fact, path, number=number, text=text)


_meshes: dict[str, int] = {}  # this rank's place along the dimensions of device meshes, by name


def listen(patch: Callable[..., None]) -> None:
    """`patch`: of hooks."""
    if torch.distributed.is_available():
        from torch.distributed.device_mesh import DeviceMesh

        patch(DeviceMesh, "__init__", _mesh_made, trains=False)


def _mesh_made(session: Session, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = original(*args, **kwargs)
    try:
        mesh = args[0]
        places = mesh.get_coordinate()
        for name, place in zip(mesh.mesh_dim_names or (), places or ()):
            _meshes[_DIMENSIONS.get(name, name)] = int(place)
    except Exception as error:
        session.failed(error, "a device mesh")
    return result


def _of_megatron() -> dict[str, int]:
    groups = sys.modules.get("megatron.core.parallel_state")
    found = {}
    try:
        if groups is not None and groups.model_parallel_is_initialized():
            for dimension, function in _MEGATRON.items():
                found[dimension] = int(getattr(groups, function)())
    except Exception:  # of another version, or without such groups
        pass
    return found


def _replicated_by(model: torch.nn.Module) -> list[int]:
    """The ranks that hold the same parameters of it: those of DistributedDataParallel, or along the dimensions of a
    mesh over which every one of its DTensors is replicated. []: none is known to."""
    wrapper = data_parallel_wrapper(model)
    if wrapper is not None:
        ranks: list[int] = torch.distributed.get_process_group_ranks(wrapper.process_group)
        return ranks
    found: list[int] = []
    for parameter in model.parameters():
        mesh, placements = getattr(parameter, "device_mesh", None), getattr(parameter, "placements", ())
        if mesh is None or mesh.get_coordinate() is None:
            return []
        here = tuple(slice(None) if placement.is_replicate() else place
                     for placement, place in zip(placements, mesh.get_coordinate()))
        replicas = mesh.mesh[here].flatten().tolist()
        if found and replicas != found:
            return []
        found = replicas
    return found
