# SPDX-License-Identifier: Apache-2.0
"""Other people's trainers under `nanhunt run`: the planted operation is named, and nothing is said of the twin."""
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import ready_python
from hunting import cli, needs_cli, with_package

pytestmark = [pytest.mark.usefixtures("library", "ray_folder"), needs_cli]
HERE = Path(__file__).resolve().parent
BESIDE = Path(sys.prefix) / "beside"  # what tools/fetch_torch keeps from the other packages
TIMEOUT = 1800  # ends what hangs


@dataclass(frozen=True)
class Recipe:
    name: str
    packages: tuple[str, ...]
    module: str = "transformer.h.1.mlp.act"
    launcher: tuple[str, ...] = ()
    ends: bool = True  # the program with the fault ends as if nothing had happened


LAUNCH = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes=1")
RECIPES = (
    Recipe("trl_sft", ("trl", "datasets")),
    Recipe("trl_dpo", ("trl", "datasets")),
    Recipe("trl_grpo", ("trl", "datasets"), ends=False),  # sampling from NaN raises
    Recipe("peft_lora", ("peft",), "base_model.model.transformer.h.1.mlp.act"),
    Recipe("accelerate_loop", ("accelerate",), launcher=LAUNCH),
    Recipe("ray_train", ("ray",)),
    Recipe("timm_train", ("timm",), "blocks.1.mlp.act"),
    Recipe("deepspeed_zero", ("deepspeed",), "module.transformer.h.1.mlp.act"),
)


@pytest.fixture
def ray_folder(monkeypatch):
    """A folder of Ray's own, so that it joins no cluster of another test. Its name is short: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield


def run(recipe: Recipe, folder: Path, *words: str) -> tuple[int, dict]:
    beside = BESIDE / recipe.name
    for package in (*recipe.packages, "transformers"):
        if importlib.util.find_spec(package) is None and not (beside / package).is_dir():
            pytest.skip(f"{package} is not installed")
    environment = {**with_package(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
    if beside.is_dir():
        environment["PYTHONPATH"] = os.pathsep.join([str(beside), environment.get("PYTHONPATH", "")]).strip(os.pathsep)
    # One goes all the way that a user goes: importing torch is then part of what is watched.
    python = [sys.executable] if recipe.name == "trl_sft" else ready_python.command()
    command = [cli(), "run", "--quiet", "--out", str(folder / "run"), "--", *python,
               *recipe.launcher, str(HERE / f"{recipe.name}.py"), *words]  # fmt: skip
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    report = folder / "run" / "report.json"
    assert report.is_file(), done.stdout[-1000:] + done.stderr[-3000:]
    return done.returncode, json.loads(report.read_text(encoding="utf-8"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_planted_operation_and_its_module_are_named(recipe, tmp_path):
    status, report = run(recipe, tmp_path)
    assert report["verdict"]["status"] == "fault" and (status == 0) == recipe.ends
    origin = next(one for one in report["findings"] if one["id"] == report["verdict"]["origin"])
    assert (origin["op"], origin["module"], origin["class"]) == ("aten::log", recipe.module, "divide_by_zero")
    assert origin["call_site"].startswith("support.py:")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_of_the_repaired_twin_nothing_is_said(recipe, tmp_path):
    status, report = run(recipe, tmp_path, "--fixed")
    assert status == 0 and report["verdict"]["status"] == "clean", report["verdict"]


CELLS = (
    "import torch, nanhunt\nmodel = torch.nn.Linear(4, 1)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "watch = nanhunt.watch(model, opt, out='run', quiet=True)",
    "for step in range(4):\n    opt.zero_grad()\n    y = model(torch.ones(2, 4))\n"
    "    loss = torch.log(y * 0 + (FLOOR if step == 2 else 1.0)).sum() + y.square().mean()\n"
    "    loss.backward()\n    opt.step()",
    "watch.close()\nprint(watch.verdict, [finding.op for finding in watch.findings][:1])",
)


@pytest.mark.parametrize("floor, said", [("0.0", "fault ['aten::log']"), ("1.0", "clean []")])
def test_a_notebook_is_watched_by_one_line(tmp_path, floor, said):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    client = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    cells = [nbformat.v4.new_code_cell(cell.replace("FLOOR", floor)) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    package = str(HERE.parents[2] / "hooks" / "torch")
    runner = client.NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3",
                                   resources={"metadata": {"path": str(tmp_path)}})  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep))
        runner.execute()
    assert notebook.cells[-1]["outputs"][0]["text"].strip() == said
