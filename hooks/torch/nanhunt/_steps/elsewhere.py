# SPDX-License-Identifier: Apache-2.0
"""Who else may have made a bad batch: another process, another thread of the program. Looked for once, where a step is
bad. Nothing of either is heard."""
from __future__ import annotations

import multiprocessing.process
import sys
import threading
from collections.abc import Iterable
from typing import Any

import torch

from nanhunt._setup.instances import instances_of
from nanhunt._tap.sites import is_own_file

# As src/analyze/findings/elsewhere.cpp.
PROCESS = "operations of the process that made a bad batch"
WORKERS = "operations of a DataLoader's workers"
THREADS = "operations of the program's other threads"


def came_from_process(batch: Iterable[torch.Tensor]) -> bool:
    """Memory that processes share may be another's, where there is one; a device's is not asked."""
    shared = any(t.device.type == "cpu" and t.layout is torch.strided and t.is_shared() for t in batch)
    return shared and _has_children()


def _has_children() -> bool:
    """Processes that the program has begun by multiprocessing; active_children() would wait for those that ended."""
    return bool(getattr(multiprocessing.process, "_children", None))


def _has_workers() -> bool:
    loader = getattr(sys.modules.get("torch.utils.data.dataloader"), "_MultiProcessingDataLoaderIter", None)
    return loader is not None and _has_children() and bool(instances_of([loader]))


def beside() -> str:
    """What runs beside the training; "": nothing that makes data."""
    if _has_workers():
        return WORKERS
    here = threading.current_thread()
    return THREADS if any(one is not here and _is_own(one) for one in threading.enumerate()) else ""


def _is_own(thread: Any) -> bool:
    """Whether a function of the program runs in it. Of a pool's threads, which run what they are given, it is not
    known: most save, send or log."""
    for function in (vars(thread).get("_target"), type(thread).run):
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is not None and is_own_file(code.co_filename):
            return True
    return False
