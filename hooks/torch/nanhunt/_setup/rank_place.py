# SPDX-License-Identifier: Apache-2.0
"""Where this rank stands among the others of its run: its place along each dimension, its card, and which ranks hold
the same parameters. Read from what the program set up itself: device meshes, Megatron's groups, wrappers of models."""
from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Callable

import torch

from nanhunt import _library as lib
from nanhunt._hooks.root_names import data_parallel_wrapper
from nanhunt._listener import Listener, RootCall
from nanhunt._names import plain_module
from nanhunt._ranks import is_distributed, rank_and_world
from nanhunt._steps.reading import Reader

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

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
    def __init__(self, session: Session, values: Values) -> None:
        self.session = session
        self._reader = Reader(session, values)
        self._written: dict[tuple[int, str], object] = {}
        # Models that other ranks hold too, and how; what is of no such model is nobody's replica.
        self._models: list[tuple[weakref.ref[torch.nn.Module], Any]] = []
        self._ranks: list[int] = []  # that hold them; of all the same
        self._local = False  # a step was taken by this rank alone, or models are held by different ranks
        self._synced = True  # gradients of the last forward are those of all ranks
        session.at_open.append(self._begin)

    def _begin(self) -> None:
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
        ranks, wrapper = _replicas_of(call.module)
        if len(ranks) < 2 or self._local:
            return
        if self._ranks and ranks != self._ranks:
            self._give_up()
            return
        self._ranks = ranks
        self._models.append((weakref.ref(plain_module(call.module)), wrapper))
        self._write(lib.REPLICAS, "", min(ranks), str(len(ranks)))
        if not _meshes and not _of_megatron():
            self._write(lib.COORDINATE, "data", sorted(ranks).index(rank_and_world()[0]))

    def on_root_enter(self, call: RootCall) -> None:
        if self._models:
            self._synced = all(getattr(wrapper, "require_backward_grad_sync", True) for _, wrapper in self._models)

    def on_step_end(self, step: int, skipped: bool) -> None:
        if not self._models or self._local:
            return
        if not self._synced or any(_averages_models(wrapper) for _, wrapper in self._models):
            self._give_up()
        elif step < _FIRST or step % _EVERY == 0:
            self.session.facts.weight_checksum = self._reader.checksum(self._parameters())

    def _give_up(self) -> None:
        """Replicas may differ from here on, as the program means them to."""
        self._local = True
        self._write(lib.REPLICAS, "", 0, "0")

    def _parameters(self) -> list[tuple[torch.Tensor, str]]:
        found: dict[int, tuple[torch.Tensor, str]] = {}
        for reference, wrapper in self._models:
            model = reference()
            ignored = getattr(wrapper, "parameters_to_ignore", ())
            for name, parameter in model.named_parameters() if model is not None else ():
                if name not in ignored:
                    found.setdefault(id(parameter), (parameter, name))
        return list(found.values())

    def _write_coordinates(self) -> None:
        for dimension, place in {**_of_megatron(), **_meshes}.items():
            self._write(lib.COORDINATE, dimension, place)

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


def _averages_models(wrapper: Any) -> bool:
    """Whether DistributedDataParallel leaves gradients to its rank, and the program averages models now and then."""
    return any("localSGD" in getattr(hook, "__name__", "") for hook, _ in getattr(wrapper, "_comm_hooks", ()))


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
