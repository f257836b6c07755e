# SPDX-License-Identifier: Apache-2.0
"""What differs between releases of PyTorch is looked up in one place, and a PyTorch that is not supported is told in a
sentence while the run goes on."""
from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from another_pytorch import another_pytorch
from hunting import cli
from nanhunt import _pytorch

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "hooks" / "torch" / "nanhunt"


@pytest.mark.parametrize("version", ["2.4.0", "2.4.1+cu121", "2.11.0a0+eb65b36914.nv26.02", "2.15.0", "3.0.0",
                                     "2.16.0.dev20261101+cu132", "2.4.0rc1", "custom", ""])
def test_releases_from_2_4_on_are_supported_and_so_is_what_says_nothing(version):
    assert _pytorch.why_unsupported(version, has_gil=True) == ""


@pytest.mark.parametrize("version", ["2.3.1", "2.3.1+cu121", "1.13.1", "2.0", "2.3.0a0+git1234"])
def test_older_ones_are_not_and_the_sentence_says_what_is_needed(version):
    assert _pytorch.why_unsupported(version, has_gil=True) == f"PyTorch 2.4 or newer is needed, this is {version}"


def test_a_python_without_the_lock_is_named_as_not_supported():
    assert "global interpreter lock" in _pytorch.why_unsupported("2.15.0", has_gil=False)


TRAIN = """
import torch
m = torch.nn.Linear(2, 1)
o = torch.optim.SGD(m.parameters(), lr=0.1)
(m(torch.ones(2)) / 0).sum().backward()
o.step()
print("trained", "nanhunt._session" in __import__("sys").modules)
"""


def test_a_run_on_an_older_pytorch_is_told_one_sentence_and_goes_on(tmp_path, library):
    # Given a PyTorch that is 2.3.1,
    site = another_pytorch(tmp_path, "real.__version__ = '2.3.1+cu121'")
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    done = subprocess.run([cli(), "run", "--out", tmp_path / "run", "--", sys.executable, program], capture_output=True,
                          text=True, timeout=1800, env={**os.environ, "PYTHONPATH": site})
    assert (done.returncode, done.stdout) == (0, "trained False\n")
    assert "could not attach: PyTorch 2.4 or newer is needed, this is 2.3.1+cu121" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()
    inside = subprocess.run([sys.executable, "-c", "import torch, nanhunt; nanhunt.watch()"], capture_output=True,
                            text=True, timeout=1800,
                            env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{PACKAGE.parent}"})
    assert inside.returncode == 1 and "PyTorch 2.4 or newer is needed, this is 2.3.1+cu121" in inside.stderr


def test_a_private_name_that_is_missing_has_a_stand_in_and_is_noted(monkeypatch):
    monkeypatch.setattr(_pytorch, "missing", [])
    assert _pytorch._find("_C._of_another_release", 7, "it is done without") == 7
    (note,) = _pytorch.missing
    assert note == f"PyTorch {torch.__version__} has no torch._C._of_another_release: it is done without"


def test_this_release_lacks_nothing():
    assert _pytorch.missing == []


def test_no_other_file_asks_which_release_this_is():
    asks = re.compile(r"torch\.__version__|torch\.version\.git|torch\._C\b|torch\.accelerator")
    allowed = {"_pytorch.py", "_tap/tap_build.py"}  # which runs by itself, and names files
    found = [f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}" for path in sorted(PACKAGE.rglob("*.py"))
             if str(path.relative_to(PACKAGE)) not in allowed
             for number, line in enumerate(path.read_text().splitlines(), 1)
             if asks.search(line) and "framework=" not in line]
    assert found == []
    tap = ROOT / "hooks" / "torch" / "tap"
    assert [path.name for path in tap.rglob("*.*") if "TORCH_VERSION" in path.read_text()] == []


@pytest.fixture
def built_for_cuda(monkeypatch):
    """A PyTorch built for CUDA that has not begun to use it; who begins it fails."""
    def begun(*_):
        raise AssertionError("CUDA was begun")

    monkeypatch.setattr(_pytorch, "_current", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", begun)
    monkeypatch.setattr(torch.cuda, "device_count", begun)
    monkeypatch.setattr(torch.cuda, "_lazy_init", begun)
    if hasattr(torch._C, "_cuda_getDeviceCount"):  # not in a build for the CPU
        monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", begun)
    return monkeypatch


@pytest.mark.parametrize(("counted", "files", "is_there"), [
    (0, ["/"], False), (1, [], True), (-1, ["/nonexistent"], False), (-1, ["/nonexistent", "/"], True)])
def test_asking_for_an_accelerator_does_not_begin_cuda(built_for_cuda, counted, files, is_there):
    built_for_cuda.setattr(_pytorch, "_count_devices", lambda: counted)
    built_for_cuda.setattr(_pytorch, "_counts", {})
    built_for_cuda.setattr(_pytorch, "_DRIVER_FILES", files)
    assert _pytorch.accelerator() == ("cuda" if is_there else "")
    built_for_cuda.setattr(_pytorch, "_current", None)  # as up to 2.6
    built_for_cuda.setattr(torch.version, "cuda", "12.4")
    assert _pytorch.accelerator() == ("cuda" if is_there else "")


@pytest.mark.parametrize("trouble", [UserWarning("Can't initialize NVML"), RuntimeError("of the driver's")])
def test_a_driver_that_does_not_answer_warns_nobody_and_stops_nothing(built_for_cuda, recwarn, trouble):
    def count():
        if isinstance(trouble, Warning):
            warnings.warn(trouble, stacklevel=1)
            return 0
        raise trouble

    built_for_cuda.setattr(_pytorch, "_count_devices", count)
    built_for_cuda.setattr(_pytorch, "_counts", {})
    built_for_cuda.setattr(_pytorch, "_DRIVER_FILES", [])
    warnings.simplefilter("error")
    assert _pytorch.accelerator() == "" and not recwarn.list


def test_a_watch_over_a_run_that_uses_the_cpu_does_not_begin_cuda(built_for_cuda, tmp_path, library, no_watch_left):
    import nanhunt

    built_for_cuda.setattr(_pytorch, "_count_devices", lambda: 1)
    built_for_cuda.setattr(_pytorch, "_counts", {})
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nanhunt.watch(out=tmp_path / "run", quiet=True) as watch:
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        assert watch.report()
    run = nanhunt.load(tmp_path / "run")
    assert run.verdict == "clean" and not any("CUDA was begun" in note for note in run.unwatched)


def test_torch_compile_does_not_look_at_what_is_ours(tmp_path, library):
    """Frames that Dynamo looks at are the program's and PyTorch's: no others watched than unwatched."""
    code = """
import sys, sysconfig, torch
from pathlib import Path
from torch._dynamo import convert_frame
import nanhunt
if sys.argv[1] == "watched":
    watch = nanhunt.watch(out=sys.argv[2], quiet=True)
seen = []
before = convert_frame.ConvertFrameAssert.__call__
def call(self, frame, *args, **kwargs):
    seen.append(frame.f_code)
    return before(self, frame, *args, **kwargs)
convert_frame.ConvertFrameAssert.__call__ = call
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
@torch.compile(backend="eager")
def step(x):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    return loss
for _ in range(2):
    optimizer.zero_grad()
    step(torch.ones(2, 3))
its = (sysconfig.get_paths()["stdlib"], "<frozen", "<string>")  # Python's own, which Dynamo passes by
print("frames:", *sorted(f"{Path(code.co_filename).name}:{code.co_name}" for code in seen
              if not code.co_filename.startswith(its) or "packages" in code.co_filename))
"""
    said = {}
    for how in ("watched", "unwatched"):
        done = subprocess.run([sys.executable, "-c", code, how, tmp_path / "run"], capture_output=True, text=True,
                              timeout=1800, env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)})
        assert done.returncode == 0, done.stderr
        said[how] = done.stdout.split()
    assert len(said["unwatched"]) > 2, "the test would notice nothing"
    assert set(said["watched"]) <= set(said["unwatched"])
