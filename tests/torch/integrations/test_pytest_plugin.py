# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: assert_finite, --nanhunt and the fixture. Each run is a pytest of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import ready_python

torch = pytest.importorskip("torch")
import nanhunt  # noqa: E402
from nanhunt.integrations.pytest_plugin import assert_finite  # noqa: E402

TESTS = '''
import pytest, torch

def train(floor):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    fit(net, optimizer, floor)

def fit(net, optimizer, floor):
    for _ in range(2):
        optimizer.zero_grad()
        torch.log(torch.relu(net(torch.ones(2, 4))) * 0 + floor).mean().backward()
        optimizer.step()

def test_bad():
    train(0.0)

def test_good():
    train(1.0)

def test_no_training():
    assert torch.ones(1).item() == 1

def test_fails_by_itself():
    train(0.0)
    assert "words" == "of the test"

@pytest.mark.xfail
def test_known_bad():
    train(0.0)
'''
WITH_FIXTURE = '''
import torch
from test_training import fit

def run(nanhunt_watch, floor, **options):
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    nanhunt_watch(net, optimizer, **options)
    fit(net, optimizer, floor)

def test_watched_bad(nanhunt_watch):
    run(nanhunt_watch, 0.0, level="ops")

def test_watched_good(nanhunt_watch):
    run(nanhunt_watch, 1.0, level="ops")
'''


def run_pytest(folder: Path, library: object, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_training.py").write_text(TESTS)
    (folder / "test_watched.py").write_text(WITH_FIXTURE)
    environment = {**os.environ, "PYTHONPATH": str(Path(nanhunt.__file__).parents[1]), "NANHUNT_LIBRARY": str(library)}
    plugin = ["-p", "nanhunt.integrations.pytest_plugin", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    return subprocess.run([*ready_python.command(), "-m", "pytest", "-q", "-rA", *plugin, *arguments, str(folder)],
                          env=environment, cwd=folder, text=True, capture_output=True, timeout=1800)  # fmt: skip


@pytest.mark.parametrize("level", ["ops", "live"])
def test_the_option_fails_tests_whose_training_has_a_fault_and_no_other(tmp_path, library, level):
    runs = tmp_path / "runs"
    done = run_pytest(tmp_path, library, "--nanhunt", "--nanhunt-level", level, "--nanhunt-out", str(runs))
    for name in ("training.py::test_good", "training.py::test_no_training", "watched.py::test_watched_good"):
        assert f"PASSED test_{name}" in done.stdout, done.stdout
    for name in ("test_bad", "test_fails_by_itself"):
        assert f"FAILED test_training.py::{name}" in done.stdout, done.stdout
    assert "FAILED test_watched.py::test_watched_bad" in done.stdout
    assert "XFAIL test_training.py::test_known_bad" in done.stdout
    assert "nanhunt found a fault" in done.stdout and "aten::log" in done.stdout
    assert "of the test" in done.stdout  # a test's own words are kept
    # ... and the runs are kept where they were asked for
    assert nanhunt.load(runs / "test_training.py-test_bad").verdict == "fault"
    assert not (runs / "test_training.py-test_no_training").exists()


def test_without_the_option_nothing_is_watched_but_what_asks_for_it(tmp_path, library):
    done = run_pytest(tmp_path, library)
    assert "PASSED test_training.py::test_bad" in done.stdout, done.stdout + done.stderr
    assert "PASSED test_watched.py::test_watched_good" in done.stdout
    assert "FAILED test_watched.py::test_watched_bad" in done.stdout
    assert "ERROR" not in done.stdout


# assert_finite
def test_finite_tensors_pass_in_any_container():
    assert_finite(torch.ones(2))
    assert_finite({"a": [torch.zeros(1), (torch.tensor(3), None, "text")], "b": torch.tensor([True])})
    assert_finite(torch.nn.Linear(2, 2))
    assert_finite([torch.empty(0), torch.ones(2, device="meta")])
    assert_finite(1.5)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (torch.tensor([1.0, float("nan"), float("inf")]), ["tensor (float32[3])", "1 NaN, 1 Inf", "first at [1]"]),
        ({"a": [torch.ones(1), torch.tensor([[1.0, -float("inf")]])]}, ["a.1 (float32[1, 2])", "1 -Inf", "[0, 1]"]),
        (torch.tensor([1 + 1j, complex(float("nan"), 0)]), ["1 NaN"]),
        (torch.tensor([0.0, float("inf")]).to_sparse(), ["1 Inf"]),
        (float("nan"), ["1 NaN"]),
    ],
)
def test_what_is_not_finite_is_named_and_counted(tree, words):
    with pytest.raises(pytest.fail.Exception) as failed:
        assert_finite(tree)
    for word in words:
        assert word in str(failed.value)


def test_a_module_is_finite_with_its_gradients():
    net = torch.nn.Linear(2, 1)
    net(torch.tensor([[float("inf"), 1.0]])).sum().backward()
    with pytest.raises(pytest.fail.Exception, match=r"net\.weight\.grad .*1 Inf, first at \[0, 0\]"):
        assert_finite(net, "net")
