# SPDX-License-Identifier: Apache-2.0
"""The package from the source tree and the library from the build tree; skipped where there is no PyTorch."""
from __future__ import annotations

import compileall
import contextlib
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "hooks" / "torch"), str(Path(__file__).parent)]
os.environ.setdefault("OMP_NUM_THREADS", "1")

if "NANHUNT_LIBRARY" not in os.environ:
    build = Path(os.environ.get("NANHUNT_BUILD_DIR", ROOT / "build" / "dev"))
    for library in build.rglob("libnanhunt.so"):
        os.environ["NANHUNT_LIBRARY"] = str(library)
        break

# Bytecode of the package is made here: where Python is told to write none, each process of a test would spend a second
# on compiling it anew.
compileall.compile_dir(ROOT / "hooks" / "torch" / "nanhunt", quiet=2)

collect_ignore_glob: list[str] = []
try:
    import torch
except ImportError:
    collect_ignore_glob = ["test_*.py"]
else:
    from nanhunt._tap import tap_build, tap_library

    with contextlib.suppress(tap_build.TapMissing):  # the tests of what then happens run all the same
        tap_library.load_tap()  # compiled before any test looks at what a run prints


# Files that take longest. They are begun first, so that no process that runs tests is left with one of them at the end
# (tools/test keeps this order). A file that is not here takes less than half a minute.
SLOW = (
    "recipes/test_recipes.py", "programs/test_inside_compiled.py", "tap/test_listening.py", "tap/test_tap_library.py",
    "runs/test_cases.py", "hooks/test_threads.py", "hooks/test_children.py", "hooks/test_endings.py",
    "store/test_upload.py", "autopsy/test_dead_runs.py", "site/test_site.py", "store/test_fetch.py",
    "device/test_device_cases.py", "fleet/test_fleet_verb.py", "checkpoints/test_hostile_files.py",
    "fleet/test_tables.py", "hooks/test_signals.py", "runs/test_run.py", "runs/test_ranks.py", "zoo/test_zoo.py",
    "runs/test_fleet.py", "runs/test_neutrality.py", "checkpoints/test_ranks.py", "runs/test_typing.py",
    "runs/test_case_truth.py", "hooks/test_harmless.py", "runs/test_wheel.py", "runs/test_release_dry_run.py",
)


def pytest_collection_modifyitems(items) -> None:
    place = {name: number for number, name in enumerate(SLOW)}
    items.sort(key=lambda item: place.get("/".join(item.path.parts[-2:]), len(SLOW)))


def pytest_report_header() -> str:
    return "tests/torch: skipped, this Python has no PyTorch" if collect_ignore_glob else ""


@pytest.fixture(autouse=True)
def nothing_compiled():
    """A process that has compiled anything is one of which ops may be unheard: no step of it is watched live."""
    known = sys.modules.get("torch._dynamo.utils")
    if known is not None:
        known.counters.clear()


@pytest.fixture
def library() -> str:
    path = os.environ.get("NANHUNT_LIBRARY", "")
    if not path:
        pytest.skip("libnanhunt.so is not built")
    return path


@pytest.fixture
def no_watch_left():
    """Closes the watch that a test left on."""
    yield
    from nanhunt import _attach

    if _attach.current is not None:
        _attach.current.close()


@pytest.fixture
def graphs_come_from_the_compiler():
    """Each is compiled in the test, and none comes out of a cache without its operations."""
    from torch._functorch import config

    torch.compiler.reset()
    patched = config.patch(enable_autograd_cache=False) if hasattr(config, "enable_autograd_cache") else None
    with patched or contextlib.nullcontext():
        yield
    torch.compiler.reset()
