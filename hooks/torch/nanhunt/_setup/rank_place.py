# SPDX-License-Identifier: Apache-2.0
"""Where this rank stands among the others of its run: its place along each dimension, and its card. Read from what the
program set up itself: device meshes, Megatron's groups, wrappers of models."""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable

import torch

from nanhunt import _library as lib
from nanhunt._listener import Listener, RootCall
from nanhunt._ranks import is_distributed, rank_and_world
from nanhunt._setup.replicated import Replicated

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

# Aliases of dimensions; others keep their names.
_DIMENSIONS = {"dp": "data", "data_parallel": "data", "tp": "tensor", "tensor_parallel": "tensor", "mp": "tensor",
               "pp": "pipeline", "pipeline_parallel": "pipeline", "ep": "expert", "expert_parallel": "expert",
               "cp": "context", "context_parallel": "context"}
_MEGATRON = {"data": "get_data_parallel_rank", "tensor": "get_tensor_model_parallel_rank",
             "pipeline": "get_pipeline_model_parallel_rank", "expert": "get_expert_model_parallel_rank",
             "context": "get_context_parallel_rank"}


class RankPlace(Listener):
    def __init__(self, session: Session, values: Values) -> None:
        self.session = session
        self._replicas = Replicated(session, values)
        self._written: dict[tuple[int, str], object] = {}
        session.at_open.append(self._begin)

    def _begin(self) -> None:
        if rank_and_world()[1] == 1:
            self.leaves_out = frozenset(("on_root_enter", "before_step", "before_scaler_step", "on_step_end"))
        if self.session.recorder is not None:
            self._write_coordinates()
            self.session.recorder.write_digest()

    def on_root_met(self, call: RootCall) -> None:
        if not is_distributed():
            return
        self._write_coordinates()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            card = torch.cuda.get_device_properties(torch.cuda.current_device())
            self._write(lib.ACCELERATOR, str(getattr(card, "uuid", "")), 0, card.name)
        ranks = self._replicas.meet(call.module)
        if ranks and not _meshes and not _of_megatron():
            self._write(lib.COORDINATE, "data", sorted(ranks).index(rank_and_world()[0]))

    def on_root_enter(self, call: RootCall) -> None:
        if self._replicas.models:
            self._replicas.enter()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._replicas.models:
            self._replicas.step(optimizer)

    def before_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        if self._replicas.models:
            self._replicas.step(optimizer)

    def on_step_end(self, step: int, skipped: bool) -> None:
        if self._replicas.models:
            self._replicas.end_step(step)

    def _write_coordinates(self) -> None:
        for dimension, place in {**_of_megatron(), **_meshes}.items():
            self._write(lib.COORDINATE, dimension, place)

    def _write(self, fact: int, path: str, number: int, text: str = "") -> None:
        recorder = self.session.recorder
        if recorder is not None and self._written.get((fact, path)) != (number, text):
            self._written[fact, path] = (number, text)
            recorder.setup(self.session.state.step, fact, path, number=number, text=text)


_meshes: dict[str, int] = {}  # this rank's place along dimensions of device meshes, by name: of the first that has it


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
            _meshes.setdefault(_DIMENSIONS.get(name, name), int(place))
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
