# SPDX-License-Identifier: Apache-2.0
"""Where the work of many ranks is done: processes of this machine, or a Ray cluster."""
from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, Callable, Protocol

from nanhunt.fleet.tables import Rank, TableError, ranks_of
from nanhunt.store.remote import is_url


class Engine(Protocol):
    def ranks(self, run: str) -> list[Rank]:
        """Those of the run, wherever their traces lie."""

    def submit(self, work: Callable[..., Any], *given: Any, rank: int | None = None) -> None:
        """Begins a piece of work; of a rank: where its trace is."""

    def results(self) -> Iterator[Any]:
        """What came of the pieces, as they end; more may be submitted meanwhile. Raises what one of them raised."""

    def close(self) -> None: ...


class LocalEngine:
    def __init__(self, jobs: int = 0) -> None:
        # Not forked: a process may have threads, and libraries that do not survive it.
        self._pool = ProcessPoolExecutor(jobs or len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn"))
        self._running: set[Future[Any]] = set()

    def ranks(self, run: str) -> list[Rank]:
        return ranks_of(run)

    def submit(self, work: Callable[..., Any], *given: Any, rank: int | None = None) -> None:
        self._running.add(self._pool.submit(work, *given))

    def results(self) -> Iterator[Any]:
        while self._running:
            done, self._running = wait(self._running, return_when=FIRST_COMPLETED)
            for one in done:
                yield one.result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class RayEngine:
    """`address`: as ray.init() takes it; None: the cluster that this machine is part of, or a new one here.

    Where RUN is a folder, each rank's work is done on a node that has its trace; OUT is a folder that all of them see.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise TableError("the engine 'ray' needs Ray: pip install 'nanhunt[ray]'") from error
        self._ray = ray
        package = str(Path(__file__).absolute().parents[2])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
        settings = {"PYTHONPATH": path}
        for name, value in os.environ.items():  # what opens a URL here shall open it there
            if name.startswith(("AWS_", "NANHUNT_", "FSSPEC_")):
                settings[name] = value
        self._began = not ray.is_initialized()
        if self._began and address:
            _check_answers(address)
        try:
            if self._began:
                ray.init(address=address, runtime_env={"env_vars": settings}, log_to_driver=False,
                         include_dashboard=False, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _no_cluster(address or "this machine", error) from error
        self._running: list[Any] = []
        self._nodes_of: dict[int, list[str]] = {}

    def ranks(self, run: str) -> list[Rank]:
        if is_url(run):
            return ranks_of(run)
        asked = {node["NodeID"]: self._remote(_ranks_here, node["NodeID"]).remote(run)
                 for node in self._ray.nodes() if node["Alive"]}
        newest: dict[int, Rank] = {}
        for node, answer in sorted(asked.items()):
            for rank in self._ray.get(answer):
                known = newest.get(rank.rank)
                if known is None or rank > known:
                    newest[rank.rank], self._nodes_of[rank.rank] = rank, [node]
                elif rank == known:
                    self._nodes_of[rank.rank].append(node)
        if not newest:
            return ranks_of(run)  # says why
        return [newest[number] for number in sorted(newest)]

    def submit(self, work: Callable[..., Any], *given: Any, rank: int | None = None) -> None:
        nodes = [] if rank is None else self._nodes_of.get(rank, [])
        node = nodes[(rank or 0) % len(nodes)] if nodes else None
        self._running.append(self._remote(work, node).remote(*given))

    def results(self) -> Iterator[Any]:
        while self._running:
            done, self._running = self._ray.wait(self._running, num_returns=1)
            for one in done:
                yield self._ray.get(one)

    def close(self) -> None:
        if self._began:
            self._ray.shutdown()

    def _remote(self, work: Callable[..., Any], node: str | None) -> Any:
        options: dict[str, Any] = {"num_cpus": 1, "max_retries": 3}
        if node is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ray.remote(**options)(work)


def _no_cluster(place: str, error: Exception) -> TableError:
    why = " ".join(str(error).split())[:300]
    return TableError(f"no Ray cluster at {place}: {why}. `ray start --head` begins one; --address names it.")


def _check_answers(address: str) -> None:
    """Ray ends the process where nothing answers there."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():  # "auto", "local"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise _no_cluster(address, error) from error


def _ranks_here(run: str) -> list[Rank]:
    try:
        return ranks_of(run)
    except TableError:
        return []
