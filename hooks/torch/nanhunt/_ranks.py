# SPDX-License-Identifier: Apache-2.0
"""Which rank this process is, and what it gives to the others: calls of a process group."""
from __future__ import annotations

import os
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from nanhunt import _library as lib
from nanhunt._values import flat

if TYPE_CHECKING:
    from nanhunt._plans import Plan

_NAMES = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
          ("PMIX_RANK", "PMIX_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))


def rank_and_world() -> tuple[int, int]:
    """(rank, world size): of an initialised process group, else from what launchers put into the environment; (0, 1)
    where nothing says otherwise."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank, world in _NAMES:
        a, b = os.environ.get(rank, ""), os.environ.get(world, "")
        if a.isdigit():
            size = int(b) if b.isdigit() else 1
            return int(a), max(size, int(a) + 1)
    return 0, 1


class Call(NamedTuple):
    """One call of a process group, as a collective row has it."""

    group: str
    call: int
    kind: int
    reduction: int
    peer: int
    ranks: list[int]


# Kind, argument that this rank gives, argument that names the root or the other end.
_KINDS: dict[str, tuple[int, str, str]] = {
    "allreduce_": (lib.ALLREDUCE, "tensors", ""), "allreduce_coalesced_": (lib.ALLREDUCE, "tensors", ""),
    "broadcast_": (lib.BROADCAST, "tensors", "root_rank"), "reduce_": (lib.REDUCE, "tensors", "root_rank"),
    "allgather_": (lib.ALLGATHER, "input_tensors", ""), "_allgather_base_": (lib.ALLGATHER, "input_tensor", ""),
    "allgather_coalesced_": (lib.ALLGATHER, "input_list", ""),
    "allgather_into_tensor_coalesced_": (lib.ALLGATHER, "inputs", ""),
    "reduce_scatter_": (lib.REDUCE_SCATTER, "input_tensors", ""),
    "_reduce_scatter_base_": (lib.REDUCE_SCATTER, "input_tensor", ""),
    "reduce_scatter_tensor_coalesced_": (lib.REDUCE_SCATTER, "inputs", ""),
    "alltoall_": (lib.ALLTOALL, "input_tensors", ""), "alltoall_base_": (lib.ALLTOALL, "input", ""),
    "scatter_": (lib.SCATTER, "input_tensors", "root_rank"), "gather_": (lib.GATHER, "input_tensors", "root_rank"),
    "send": (lib.SEND, "tensors", "dst"), "recv_": (lib.RECV, "", "src"), "barrier": (lib.BARRIER, "", "")}
_REDUCING = (lib.ALLREDUCE, lib.REDUCE, lib.REDUCE_SCATTER)
_REDUCTIONS = {"SUM": lib.SUM, "AVG": lib.AVG, "MIN": lib.MIN, "MAX": lib.MAX, "PRODUCT": lib.PRODUCT}


class Calls:
    """Numbers the calls of each group as all its ranks do: collectives together, sends and receives by peer."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int, int], int] = defaultdict(int)

    def begin(self, op: str, arguments: dict[str, Any]) -> tuple[Call, Any] | None:
        """The call that is about to run, and what this rank gives; None for what is no call between ranks."""
        known = _KINDS.get(op.split("::")[-1])
        group = _group_of(arguments)
        if known is None or group is None:
            return None
        kind, given, end = known
        import torch.distributed as dist

        ranks = list(dist.get_process_group_ranks(group))
        peer = -1
        if end:
            at = arguments.get(end)
            peer = ranks[at] if isinstance(at, int) and 0 <= at < len(ranks) else -1
        lane = (str(group.group_name), kind if kind in (lib.SEND, lib.RECV) else -1, peer if kind in (
            lib.SEND, lib.RECV) else -1)
        number = self._made[lane]
        self._made[lane] += 1
        reduction = _reduction() if kind in _REDUCING else lib.NO_REDUCTION
        return Call(lane[0], number, kind, reduction, peer, ranks), arguments.get(given) if given else None


def _group_of(arguments: dict[str, Any]) -> Any:
    import torch

    boxed = arguments.get("process_group")
    return torch.distributed.ProcessGroup.unbox(boxed) if isinstance(boxed, torch.ScriptObject) else None


def _reduction() -> int:
    """The dispatcher's argument cannot be read from Python; that of the public function can. Reducers add up."""
    frame: Any = sys._getframe(2)
    for _ in range(12):
        if frame is None:
            break
        if frame.f_code.co_filename.endswith("distributed_c10d.py") and "op" in frame.f_locals:
            name = str(frame.f_locals["op"]).split(".")[-1]
            return _REDUCTIONS.get(name, lib.NO_REDUCTION)
        frame = frame.f_back
    return lib.SUM


class Pending:
    """A collective that was begun: its results are there when its work has ended."""

    __slots__ = ("plan", "args", "kwargs", "result", "where", "work", "call", "storages")

    def __init__(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any,
                 where: tuple[str, int], call: Call | None) -> None:
        import torch

        self.call = call
        self.storages = {t.untyped_storage()._cdata for t in flat((args, kwargs or {}))}
        self.plan, self.args, self.kwargs, self.result, self.where = plan, args, kwargs, result, where
        self.work: Any = None
        if plan.op.startswith("c10d::"):
            work = result[-1] if isinstance(result, (tuple, list)) and result else result
            if isinstance(work, torch.ScriptObject):
                self.work = torch._C._distributed_c10d.Work.unbox(work)

    def ended(self, waited: Any, read: set[int]) -> bool:
        """`waited`: the result that the run waits for now; None: for none. `read`: storages that an op is about to
        read: a run does that only when they are there, which its work may not say yet."""
        if self.plan.op.startswith("c10d::"):
            return self.work is None or bool(self.work.is_completed()) or not self.storages.isdisjoint(read)
        if waited is None:
            return False
        results = self.result if isinstance(self.result, (tuple, list)) else (self.result,)
        return any(t.untyped_storage()._cdata == waited.untyped_storage()._cdata for t in results)
