# SPDX-License-Identifier: Apache-2.0
"""For pytest; there once nanhunt is installed.

    pytest --nanhunt                      # a test whose training has a fault fails, with the report

    from nanhunt.integrations.pytest_plugin import assert_finite
    assert_finite(model(x))               # names the tensors that are not, and counts

    def test_it_trains(nanhunt_watch):
        watch = nanhunt_watch(model, optimizer)   # ended with the test, which fails if there was a fault
"""
from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest

if TYPE_CHECKING:
    from nanhunt._watch import Watch

LEVELS = ("live", "ops", "steps")
_runs = pytest.StashKey[Path]()
_watcher = pytest.StashKey["_Watcher"]()


def assert_finite(tree: Any, name: str = "") -> None:
    """Fails where a tensor is not finite: in nested containers and dataclasses, or of a module, its gradients too."""
    __tracebackhide__ = True
    import torch

    found = ((path, _plain(t)) for path, t in _tensors(tree, name) if _may_be_bad(t))
    bad = [_described(path, t) for path, t in found if not bool(torch.isfinite(t).all())]
    if bad:
        pytest.fail("not finite: " + "; ".join(bad))


def _tensors(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    import torch

    from nanhunt._nested import tensors_in

    if isinstance(tree, torch.nn.Module):
        for path, p in [*tree.named_parameters(), *tree.named_buffers()]:
            yield _joined(name, path), p.detach()
            if p.grad is not None:
                yield _joined(name, path) + ".grad", p.grad
    elif isinstance(tree, float):
        yield name, torch.tensor(tree, dtype=torch.float64)
    else:
        yield from tensors_in(tree, name)


def _joined(name: str, path: str) -> str:
    return f"{name}.{path}" if name else path


def _may_be_bad(t: Any) -> bool:
    return bool(t.is_floating_point() or t.is_complex()) and not t.is_meta


def _plain(t: Any) -> Any:
    """The numbers of t as a tensor of real numbers: of a sparse one those that it holds."""
    import torch

    t = t.detach()
    if t.layout is not torch.strided:
        t = t.coalesce().values() if t.layout is torch.sparse_coo else t.values()
    return torch.view_as_real(t) if t.is_complex() else t


def _described(path: str, t: Any) -> str:
    import torch

    counts = [("NaN", t.isnan()), ("Inf", t.isposinf()), ("-Inf", t.isneginf())]
    words = ", ".join(f"{int(where.sum())} {word}" for word, where in counts if bool(where.any()))
    first = [int(n) for n in (~torch.isfinite(t)).nonzero()[0]]
    kind = str(t.dtype).replace("torch.", "")
    return f"{path or 'tensor'} ({kind}{list(t.shape)}): {words}, first at {first}"


# --nanhunt and the fixture.
def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nanhunt")
    group.addoption("--nanhunt", action="store_true",
                    help="watch every test that trains with PyTorch, and fail those with a numerical fault")
    group.addoption("--nanhunt-level", choices=LEVELS, default="live", help="what is heard (live)")
    group.addoption("--nanhunt-out", metavar="FOLDER", default=None,
                    help="keep the run folders here; otherwise among pytest's temporary folders")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--nanhunt"):
        return
    if importlib.util.find_spec("torch") is None:
        raise pytest.UsageError("--nanhunt: PyTorch is not installed in this Python")
    out = config.getoption("--nanhunt-out")
    if out is not None:
        config.stash[_runs] = Path(out)


class _Watcher:
    """A watch that is over when the test is, and what it found."""

    def __init__(self, folder: Path, level: str) -> None:
        self.folder, self.level = folder, level
        self.watches: list[Watch] = []

    def start(self, *args: Any, **options: Any) -> Watch:
        from nanhunt._watch import watch

        if not self.watches:
            options = {"out": str(self.folder), "level": self.level, "quiet": True, **options}
        made = watch(*args, **options)
        self.watches.append(made)
        return made

    def close(self) -> None:
        for one in self.watches:
            one.close()

    def fault(self) -> str | None:
        """Ends the watch. The report, if there was a fault."""
        self.close()
        if not self.watches:
            return None
        if self.watches[0].verdict != "fault":
            return None
        first, path = self.watches[0].findings[0], shlex.quote(self.watches[0].path)
        line = f" ({first.call_site})" if first.call_site else ""
        # The op, when it is named, begins the title. pytest's summary has room for little more.
        return (f"{first.title}{line}\n\nnanhunt found a fault in the training of this test:\n\n"
                f"{self.watches[0].report()}\n`nanhunt report {path}` shows it again.")


def _folder_of(item: pytest.Item, root: Path) -> Path:
    return root / re.sub(r"[^A-Za-z0-9_.-]+", "-", item.nodeid)[-150:]


def _root(config: pytest.Config) -> Path:
    known = config.stash.get(_runs, None)
    if known is None:
        factory = config._tmp_path_factory  # type: ignore[attr-defined]
        known = config.stash[_runs] = factory.mktemp("nanhunt")
    return known


def _taken() -> bool:
    """Whether somebody else watches this process (`nanhunt run -- pytest`)."""
    from nanhunt import _attach

    return _attach.current is not None and not _attach.current.dead


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    if item.config.getoption("--nanhunt") and not _taken():
        watcher = item.stash[_watcher] = _Watcher(
            _folder_of(item, _root(item.config)), item.config.getoption("--nanhunt-level"))
        watcher.start()
    outcome = yield
    its = item.stash.get(_watcher, None)
    report = its.fault() if its is not None else None
    if report is None:
        return
    if outcome.excinfo is None:
        try:
            pytest.fail(report, pytrace=False)
        except pytest.fail.Exception as failure:
            outcome.force_exception(failure)
    else:  # it failed already: its own words come first
        item.add_report_section("call", "nanhunt", report)


@pytest.fixture
def nanhunt_watch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """nanhunt.watch for one test, which fails if its training had a fault. Under --nanhunt its options are in force."""
    stash = request.node.stash

    def start(*args: Any, **options: Any) -> Any:
        if _watcher not in stash:
            stash[_watcher] = _Watcher(tmp_path / "nanhunt-run", request.config.getoption("--nanhunt-level"))
        watcher = stash[_watcher]
        return watcher.start(*args, **({} if request.config.getoption("--nanhunt") else options))

    yield start
    if _watcher in stash:
        stash[_watcher].close()
