# SPDX-License-Identifier: Apache-2.0
"""The tap listens at one of two places in PyTorch's dispatcher. At either it names the same faults and changes nothing,
and it takes the second where somebody else has the first."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ready_python
from hunting import cli

ROOT = Path(__file__).resolve().parents[3]
PATHS = os.pathsep.join([str(ROOT / "hooks" / "torch"), str(ROOT / "tests" / "torch")])
PLACES = ["below_autograd", "above_autograd"]


def run(code, *words, **environment):
    done = subprocess.run([*ready_python.command(), "-c", code, *map(str, words)], capture_output=True, text=True,
                          timeout=1800, env={**os.environ, "PYTHONPATH": PATHS, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


TAKES = {
    "a fallback": 'Fake = torch._C._dispatch_library("IMPL", "_", "Fake"); Fake.fallback_fallthrough()',
    "a kernel of one operator": 'library = torch.library.Library("aten", "IMPL", "Fake"); '
                                'library.impl("mul.Tensor", lambda *args: None)',
}
WHERE = """
import torch
{take}
import listening
print(listening.place(), listening.hears_python())
"""


@pytest.mark.parametrize("what", TAKES)
def test_where_somebody_has_the_first_place_it_takes_the_second(what):
    assert run(WHERE.format(take=TAKES[what]), NANHUNT_LISTEN="") == "above_autograd False\n"
    assert run(WHERE.format(take=""), NANHUNT_LISTEN="").startswith("below_autograd")


def test_where_both_are_somebodys_the_reason_names_them_and_the_run_goes_on(tmp_path, library):
    take = "; ".join(TAKES["a fallback"].replace("Fake", key) for key in ("Fake", "TESTING_ONLY_GenericMode"))
    code = f"""
import torch, nanhunt
{take}
with nanhunt.watch(out={str(tmp_path / "run")!r}, quiet=True):
    m = torch.nn.Linear(2, 1)
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    (m(torch.ones(2)) / 0).sum().backward()
    o.step()
print("trained")
"""
    assert run(code, NANHUNT_LISTEN="") == "trained\n"
    import nanhunt

    notes = " ".join(nanhunt.load(tmp_path / "run").unwatched)
    assert "the tap is missing" in notes and "key Fake" in notes and "key TESTING_ONLY_GenericMode" in notes


def test_the_doctor_says_where_it_listens():
    for place in PLACES:
        environment = {**os.environ, "NANHUNT_LISTEN": place, "NANHUNT_PYTHON": sys.executable}
        done = subprocess.run([cli(), "doctor", "--env", "--json"], capture_output=True, text=True, timeout=1800,
                              check=True, env=environment)
        assert f'"listens": "{place}"' in done.stdout


PROGRAM = """
import sys, hashlib, torch, nanhunt
from torch import nn
out, level, fault = sys.argv[1:4]
watch = nanhunt.watch(out=out, level=level, quiet=True) if level != "unwatched" else None
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
    def forward(self, x, bad):
        h = torch.nn.functional.dropout(torch.relu_(self.norm(self.first(x))), 0.1)
        if fault == "log":
            h = torch.log(h * (0.0 if bad else 1.0) + (0.0 if bad else 1.0))
        h[:, 0] += 1
        y = torch.utils.checkpoint.checkpoint(self.last, h, use_reentrant=False)
        return y * 1e4 * (1e4 if bad and fault == "autocast" else 1.0) if fault == "autocast" else y
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, foreach=True)
for step in range(12):
    optimizer.zero_grad()
    x = torch.randn(4, 6)
    with torch.autocast("cpu", dtype=torch.float16, enabled=fault == "autocast"):
        y = net(x, bad=step == 9 and fault != "none")
        loss = torch.nn.functional.mse_loss(y, torch.zeros_like(y))
    loss.backward()
    if fault == "backward" and step == 9:
        (torch.sqrt(net.last.bias * 0).sum()).backward()
    optimizer.step()
if watch is not None:
    watch.close()
    run = nanhunt.load(out)
    print(run.verdict, [(f.class_, f.op, f.call_site, f.phase, f.step, f.confidence) for f in run.findings][:1])
state = b"".join(t.detach().numpy().tobytes() for t in [*net.parameters(), *(
    v for s in optimizer.state.values() for v in s.values())]) + torch.get_rng_state().numpy().tobytes()
print(hashlib.sha256(state).hexdigest())
"""


@pytest.mark.parametrize("fault", ["none", "log", "autocast", "backward"])
@pytest.mark.parametrize("level", ["live", "ops"])
def test_either_place_names_the_same_and_changes_no_bit(tmp_path, library, level, fault):
    unwatched = run(PROGRAM, "-", "unwatched", fault)
    said = {place: run(PROGRAM, tmp_path / place, level, fault, NANHUNT_LISTEN=place).splitlines() for place in PLACES}
    assert said["above_autograd"] == said["below_autograd"]
    verdict, bits = said["above_autograd"]
    assert bits == unwatched.strip()
    assert verdict.startswith("clean" if fault == "none" else "fault"), verdict


def test_the_tests_of_the_tap_pass_at_the_second_place_too():
    if os.environ.get("NANHUNT_LISTEN"):
        pytest.skip("they run at a chosen place now")
    names = ["test_ops.py", "test_paths.py", "test_sites.py", "test_identity.py", "test_calls.py",
             "test_ops_bad_input.py", "test_ops_ranks.py"]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *(Path(__file__).parent / name for name in names)],
                          capture_output=True, text=True, timeout=1800, cwd=ROOT,
                          env={**os.environ, "NANHUNT_LISTEN": "above_autograd"})
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) > 80
