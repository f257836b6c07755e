# SPDX-License-Identifier: Apache-2.0
"""`nanhunt run` before what is more than one plain script: workers, modules, torchrun, programs that do not train."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# The loss of step 2 is the root of a negative number, unless it is told to be good.
SCRIPT = """
import os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def main(workers=0, method=None, bad=True, steps=6):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(steps * 8, 4))
    loader = DataLoader(data, batch_size=8, num_workers=workers, multiprocessing_context=method)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x,) in enumerate(loader):
        out = model(x).abs()
        loss = (out + (-100 if bad and step == 2 else 1)).sqrt().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("trained", len(model.state_dict()), [p.double().sum().item() for p in model.parameters()])
"""


@pytest.fixture(scope="session")
def program() -> Path:
    folder = Path(os.environ.get("NANHUNT_BUILD_DIR", Path(__file__).resolve().parents[3] / "build" / "dev"))
    found = folder / "bin" / "nanhunt"
    if not found.exists() or not (folder / "lib" / "libnanhunt.so").exists():
        pytest.skip("nanhunt and libnanhunt.so are not built (NANHUNT_BUILD_DIR names a build)")
    return found


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("NANHUNT", "PYTHON"))}


@pytest.fixture
def run(program, tmp_path):
    (tmp_path / "training.py").write_text(SCRIPT)

    def run_nanhunt(*words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
        command = [str(program), "run", "--out", "run", *options, "--", sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stderr
        return done

    return run_nanhunt


def ranks(folder: Path) -> list[str]:
    return sorted(path.parent.parent.name for path in folder.glob("run/rank-*/attempt-*/run.json"))


def test_output_is_that_of_the_run_without_us(run, tmp_path):
    script = "import training; training.main(bad=False)"
    alone = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=1800
    )
    assert run("-c", script).stdout == alone.stdout


def test_level_steps_names_a_bad_step_and_why_no_operation_is_known(run, tmp_path):
    # Given a bad step whose operations are not heard,
    script = "import training; training.main(bad=True)"
    done = run("-c", script, options=("--level", "steps"))
    # then it is told, and why no operation is named.
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["verdict"]["status"] == "fault", done.stdout
    assert "level steps reads steps alone" in str(report["findings"]), report["findings"]


def test_a_module_run_by_its_name_is_watched(run, tmp_path):
    with (tmp_path / "training.py").open("a") as file:
        file.write("\nif __name__ == '__main__':\n    main()\n")
    told = run("-m", "training").stderr
    assert "fault: invalid: aten::sqrt" in told
    assert re.search(r"fault: invalid: aten::sqrt.* \(training\.py:\d+\), phase", told), told


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_write_nothing(run, tmp_path, method):
    (tmp_path / "main.py").write_text(
        f"import training\nif __name__ == '__main__':\n    training.main(workers=2, method={method!r})\n"
    )
    assert "fault: invalid: aten::sqrt" in run("main.py").stderr
    assert ranks(tmp_path) == ["rank-00000"]


def test_torchrun_leaves_one_trace_for_each_rank(run, tmp_path):
    (tmp_path / "main.py").write_text(
        """
import os
import torch.distributed
import training
torch.distributed.init_process_group("gloo")
training.main(bad=os.environ["RANK"] == "1")
torch.distributed.destroy_process_group()
"""
    )
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "main.py")
    assert done.stdout.count("trained") == 2
    assert ranks(tmp_path) == ["rank-00000", "rank-00001"]
    assert "fault: invalid: aten::sqrt" in done.stderr
    findings = json.loads((tmp_path / "run" / "report.json").read_text())["findings"]
    assert {finding["rank"] for finding in findings if finding["severity"] == "fault"} == {1}


def test_a_rank_that_is_known_after_the_first_operation_is_the_one_that_is_recorded(run, tmp_path):
    (tmp_path / "main.py").write_text(
        """
import subprocess, sys
started = [subprocess.Popen([sys.executable, "rank.py", str(rank)]) for rank in range(2)]
sys.exit(max(process.wait() for process in started))
"""
    )
    (tmp_path / "rank.py").write_text(
        """
import os, sys
import torch
import torch.distributed
import training
rank = int(sys.argv[1])
print("scaled", (torch.arange(4.0) / 4).sum().item())
torch.distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/ranks", rank=rank, world_size=2)
training.main(bad=rank == 1)
torch.distributed.destroy_process_group()
"""
    )
    done = run("main.py")
    assert done.stdout.count("trained") == 2
    assert ranks(tmp_path) == ["rank-00000", "rank-00001"], "one attempt each"
    findings = json.loads((tmp_path / "run" / "report.json").read_text())["findings"]
    assert {finding["rank"] for finding in findings if finding["severity"] == "fault"} == {1}


NO_TRAINING = {
    "floating numbers": ("print(torch.ones(2).sum().item())", "2.0\n"),
    "whole numbers": ("print(torch.arange(3).sum().item())", "3\n"),
    "a higher-order operation": (
        "from torch._higher_order_ops.cond import cond_op\n"
        "print(cond_op(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.arange(2),)).tolist())",
        "[1, 2]\n"),
    "floating numbers in a pool": (
        "import multiprocessing\ndef half(n): return (torch.tensor(float(n)) / 2).item()\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(half, [1, 2]))", "[0.5, 1.0]\n"),
}


@pytest.mark.parametrize("what", NO_TRAINING)
def test_a_program_that_computes_and_does_not_train_is_told_so(run, tmp_path, what):
    script, printed = NO_TRAINING[what]
    done = run("-c", "import torch\n" + script)
    assert done.stdout == printed
    assert "torch was imported, but no model was called" in done.stderr
    assert not (tmp_path / "run").exists()


POOL = """
import multiprocessing
import torch
import training

def half(n):
    return (torch.tensor(float(n)) / 2).item()

def train(bad):
    training.main(bad=bad)

if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map({work}, {given}, 1))
    {last}
"""


@pytest.mark.parametrize("last", ["pass", "training.main(bad=False)"])
def test_workers_that_a_pool_ends_and_that_only_compute_leave_nothing(run, tmp_path, last):
    (tmp_path / "main.py").write_text(POOL.format(method="spawn", work="half", given=[1, 2], last=last))
    done = run("main.py")
    assert "[0.5, 1.0]" in done.stdout
    assert ranks(tmp_path) == (["rank-00000"] if "training" in last else []), done.stderr
    if "training" in last:
        verdict = json.loads((tmp_path / "run" / "report.json").read_text())["verdict"]
        assert verdict["status"] == "clean" and "has not ended" not in verdict["headline"], verdict


@pytest.mark.parametrize("bad", [False, True])
def test_the_end_of_a_pool_is_how_workers_that_trained_end(run, tmp_path, bad):
    (tmp_path / "main.py").write_text(POOL.format(method="fork", work="train", given=[False, bad], last="pass"))
    run("main.py")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["verdict"]["status"] == ("fault" if bad else "clean"), report["verdict"]
    assert bad or "has not ended" not in report["verdict"]["headline"], report["verdict"]


PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile
x = torch.zeros(4, 3)
with profile(activities=[ProfilerActivity.CPU]) as of:
    scaled = x / x.std(0)
    y = scaled.nan_to_num().mul_(2)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = (model(y + 1).square() / FLOOR).sum()
        loss.backward()
        optimizer.step()
print(sorted((event.key, event.count) for event in of.key_averages()))
"""


@pytest.mark.parametrize("floor", ["1.0", "torch.zeros(2)"])
def test_a_profile_of_the_program_s_holds_nothing_of_ours(run, tmp_path, floor):
    (tmp_path / "main.py").write_text(PROFILED.replace("FLOOR", floor))
    alone = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env=environment(), capture_output=True,
                           text=True, timeout=1800, check=True)
    assert run("main.py").stdout == alone.stdout
    status = json.loads((tmp_path / "run" / "report.json").read_text())["verdict"]["status"]
    assert status == ("clean" if floor == "1.0" else "fault")
