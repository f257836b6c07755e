# SPDX-License-Identifier: Apache-2.0
"""Which rank this process is."""
from __future__ import annotations

import os
import sys

_NAMES = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
          ("PMIX_RANK", "PMIX_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))

_JOBS = (("slurm", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
         ("torchelastic", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"))


def rank_and_world() -> tuple[int, int]:
    """(rank, world size): of an initialised process group, else from what launchers put into the environment; (0, 1)
    where nothing says otherwise."""
    if is_distributed():
        distributed = sys.modules["torch.distributed"]
        return distributed.get_rank(), distributed.get_world_size()
    for rank, world in _NAMES:
        a, b = os.environ.get(rank, ""), os.environ.get(world, "")
        if a.isdigit():
            size = int(b) if b.isdigit() else 1
            return int(a), max(size, int(a) + 1)
    return 0, 1


def job() -> dict[str, str]:
    """{"job": what all ranks of one launch share, and other launches have not}; {} where no launcher says it."""
    parts = [".".join([f"{launcher} {os.environ[name]}", *[os.environ.get(n) or "0" for n in further]])
             for launcher, name, *further in _JOBS if os.environ.get(name)]
    return {"job": ", ".join(parts)} if parts else {}


def is_distributed() -> bool:
    """Whether there is a process group of PyTorch's."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())
