# SPDX-License-Identifier: Apache-2.0
"""The guard of checkpoints: a bad one is said, and the newest good one outlives whatever rotates the others away."""
from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import nanhunt
import pytest
import torch
from hunting import cli, needs_cli, with_package
from torch import nn

pytestmark = [pytest.mark.usefixtures("library", "no_watch_left"), needs_cli, pytest.mark.filterwarnings("ignore")]
KEPT = "run/rank-00000/attempt-0/last-good"


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.setenv("NANHUNT_PROGRAM", cli())
    monkeypatch.chdir(tmp_path)


def train(saves, steps=6, bad_from=3, guard=True, quiet=True):
    """Calls `saves(step, model, optimizer)` after each step; from `bad_from` on the weights hold NaN. What it found."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    opt = torch.optim.Adam(model.parameters())
    with nanhunt.watch(model, opt, out="run", quiet=quiet, guard_checkpoints=guard, log_to="off") as watch:
        for step in range(steps):
            opt.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            opt.step()
            if step == bad_from:
                with torch.no_grad():
                    model.weight[0, 0] = float("nan")
            saves(step, model, opt)
            if watch.guard is not None:
                watch.guard.close()  # each is judged before the next is saved, as in a long run
        found = watch.guard
    return found


def sound(path):
    return all(t.isfinite().all() for t in torch.load(path, weights_only=True).values())


def test_the_last_good_one_of_a_rotated_series_is_kept_and_the_bad_ones_are_named():
    def saves(step, model, opt):
        torch.save(model.state_dict(), f"step_{step}.pt")
        if step > 0:
            Path(f"step_{step - 1}.pt").unlink()  # a rotation that keeps one

    guard = train(saves)
    assert [Path(path).name for path in guard.bad] == ["step_3.pt", "step_4.pt", "step_5.pt"]
    assert [path.name for path in Path(KEPT).iterdir()] == ["step_2.pt"] and sound(f"{KEPT}/step_2.pt")
    assert guard.last_good == Path(KEPT, "step_2.pt").absolute()


def end_of(capsys, bad_from, quiet=False):
    """What is said at the end of a run that saves one file again and again."""
    train(lambda step, model, opt: torch.save(model.state_dict(), "model.pt"), bad_from=bad_from, quiet=quiet)
    return [line for line in capsys.readouterr().err.splitlines() if "last good checkpoint" in line]


def test_the_end_of_a_run_with_something_bad_names_the_checkpoint_that_was_kept(capsys):
    assert end_of(capsys, 3) == [f"nanhunt: last good checkpoint: model.pt, kept in {KEPT}/model.pt"]


def test_the_end_of_a_healthy_run_and_of_a_quiet_one_says_nothing(capsys):
    assert end_of(capsys, 99) == end_of(capsys, 3, quiet=True) == []


def test_those_that_were_removed_before_they_could_be_judged_are_counted(capsys):
    def saves(step, model, opt):
        torch.save(model.state_dict(), f"step_{step}.pt")
        if step in (1, 2):
            Path(f"step_{step}.pt").unlink()

    train(saves, bad_from=3, quiet=False)
    said = [line for line in capsys.readouterr().err.splitlines() if "last good checkpoint" in line]
    assert said == [f"nanhunt: last good checkpoint: step_0.pt, kept in {KEPT}/step_0.pt; 2 later ones were removed or "
                    "saved over before they could be judged and kept"]  # fmt: skip


def test_one_file_that_is_written_over_leaves_its_last_good_contents():
    guard = train(lambda step, model, opt: torch.save(model.state_dict(), "model.pt"))
    assert not sound("model.pt") and sound(f"{KEPT}/model.pt") and len(guard.bad) == 3


def test_contents_that_were_kept_do_not_change_with_the_file_whatever_writes_it(tmp_path):
    def saves(step, model, opt):
        folder = Path("epoch-1")
        folder.mkdir(exist_ok=True)
        torch.save(model.state_dict(), folder / "model.pt")
        with Path("stream.pt").open("wb") as file:  # not heard
            torch.save(model.state_dict(), file)

    guard = train(saves)
    assert sound(f"{KEPT}/epoch-1/model.pt") and not sound("epoch-1/model.pt") and len(guard.bad) == 1


def test_of_each_series_one_is_kept_and_the_programs_links_modes_and_folders_stay(tmp_path):
    def saves(step, model, opt):
        torch.save(model.state_dict(), "model.pt")
        torch.save(opt.state_dict(), "optimizer.pt")
        Path("scratch").mkdir()
        torch.save(model.state_dict(), "scratch/x.pt")
        Path("scratch/x.pt").unlink()
        Path("scratch").rmdir()  # nothing of ours is in it
        if step == 0:
            Path("model.pt").chmod(0o600)
            Path("latest.pt").symlink_to("model.pt")
            os.link("model.pt", "second.pt")
        torch.save(model.state_dict(), "latest.pt")

    train(saves)
    kept = {path.name for folder in Path(KEPT).parent.glob("last-good*") for path in folder.iterdir()}
    assert {"optimizer.pt", "latest.pt"} <= kept
    assert Path("model.pt").stat().st_mode & 0o777 == 0o600 and Path("latest.pt").is_symlink()
    assert Path("second.pt").samefile("model.pt")
    names = sorted(path.name for path in Path().iterdir())
    assert names == ["latest.pt", "model.pt", "optimizer.pt", "run", "second.pt"]


def test_a_healthy_run_has_nothing_bad_and_keeps_its_newest():
    guard = train(lambda step, model, opt: torch.save(model.state_dict(), f"step_{step}.pt"), bad_from=99)
    assert guard.bad == [] and [path.name for path in Path(KEPT).iterdir()] == ["step_5.pt"]


def test_without_the_option_nothing_is_kept_and_torch_save_is_torchs_own():
    original = torch.save
    assert train(lambda step, model, opt: torch.save(model.state_dict(), "model.pt"), guard=False) is None
    assert not Path(KEPT).exists() and torch.save is original


def test_torch_save_is_torchs_own_again_after_the_watch_and_buffers_are_left_alone():
    original, buffer = torch.save, io.BytesIO()
    guard = train(lambda step, model, opt: torch.save(model.state_dict(), buffer))
    assert torch.save is original and guard.bad == [] and not Path(KEPT).exists()


def test_torch_save_can_be_pickled_and_a_thread_that_cannot_start_ends_no_save(monkeypatch):
    def saves(step, model, opt):
        assert pickle.loads(pickle.dumps(torch.save)) is torch.save is torch.serialization.save
        torch.save(model.state_dict(), "model.pt")

    monkeypatch.setattr(threading.Thread, "start", cannot_start)
    assert train(saves, steps=2).bad == []
    assert [text for text in nanhunt.load("run").unwatched if "checkpoints" in text]


def cannot_start(thread):
    raise RuntimeError("can't start new thread")


def test_a_save_that_raises_raises_what_it_would_alone():
    def saves(step, model, opt):
        with pytest.raises(RuntimeError, match="nowhere"):
            torch.save(model.state_dict(), "nowhere/model.pt")

    assert train(saves, steps=2).bad == []


def test_files_of_one_folder_are_one_checkpoint():
    def saves(step, model, opt):
        folder = Path(f"checkpoint-{step}")
        folder.mkdir()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        torch.save(opt.state_dict(), folder / "optimizer.pt")

    guard = train(saves)
    assert [Path(path).name for path in guard.bad] == ["checkpoint-3", "checkpoint-4", "checkpoint-5"]
    assert sorted(path.name for path in Path(KEPT, "checkpoint-2").iterdir()) == ["optimizer.pt", "pytorch_model.bin"]


def test_trainer_rotates_its_checkpoints_and_the_last_good_one_stays(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from nanhunt.integrations.huggingface import NanhuntCallback

    class Poison(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            if state.global_step == 4:
                with torch.no_grad():
                    next(model.parameters()).view(-1)[0] = float("nan")

    class Judged(transformers.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            ours.watch.guard.close()

    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
                                     intermediate_size=8, num_labels=2, hidden_dropout_prob=0.0)  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    data = [{"input_ids": torch.randint(0, 32, (6,)), "labels": torch.tensor(i % 2)} for i in range(16)]
    args = transformers.TrainingArguments(output_dir="out", max_steps=6, save_steps=1, save_total_limit=1, report_to=[],
                                          per_device_train_batch_size=2, use_cpu=True, disable_tqdm=True)  # fmt: skip
    ours = NanhuntCallback(out="run", guard_checkpoints=True, quiet=True)
    transformers.Trainer(model, args, train_dataset=data, callbacks=[ours, Judged(), Poison()]).train()
    assert [Path(path).name for path in ours.watch.guard.bad] == ["checkpoint-4", "checkpoint-5", "checkpoint-6"]
    assert [path.name for path in Path("out").iterdir() if path.is_dir()] == ["checkpoint-6"]
    (kept,) = Path(KEPT).iterdir()
    assert kept.name == "checkpoint-3" and (kept / "trainer_state.json").is_file()
    check = subprocess.run([cli(), "check", str(kept)], capture_output=True, text=True, timeout=600)
    assert check.returncode == 0, check.stdout


def test_lightning_saves_and_the_last_good_one_stays(tmp_path):
    L = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from lightning.pytorch.callbacks import ModelCheckpoint
    from nanhunt.integrations.lightning import NanhuntCallback

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 1)

        def training_step(self, batch, index):
            if self.global_step == 3:
                with torch.no_grad():
                    self.net.weight[0, 0] = float("nan")
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def on_train_batch_start(self, batch, index):
            if ours.watch.guard is not None:
                ours.watch.guard.close()

    ours = NanhuntCallback(out="run", guard_checkpoints=True, quiet=True)
    each = ModelCheckpoint("saved", every_n_train_steps=1, save_top_k=1, filename="{step}")
    trainer = L.Trainer(max_steps=6, accelerator="cpu", logger=False, enable_progress_bar=False,
                        enable_model_summary=False, callbacks=[ours, each])  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=2))
    assert [Path(path).name for path in ours.watch.guard.bad] == ["step=4.ckpt", "step=5.ckpt", "step=6.ckpt"]
    assert [path.name for path in Path(KEPT).iterdir()] == ["step=3.ckpt"]


SCRIPT = """
import torch
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    opt.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    opt.step()
    if step == 2:
        model.weight.data[0, 0] = float("nan")
    torch.save(model.state_dict(), f"step_{step}.pt")
"""


@pytest.mark.parametrize("words, kept", [(["--guard-checkpoints"], True), ([], False)])
def test_nanhunt_run_guards_where_it_is_asked_to(tmp_path, words, kept):
    Path("train.py").write_text(SCRIPT)
    command = [cli(), "run", "--out", "run", *words, "--", sys.executable, "train.py"]
    environment = {key: value for key, value in with_package().items() if key not in ("NANHUNT_PROGRAM", "PYTHONPATH")}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=1800)
    assert ("checkpoint" in done.stderr and "step_2.pt" in done.stderr) == kept, done.stderr
    assert Path(KEPT).exists() == kept and done.returncode == 0
    assert ("last good checkpoint: step_" in done.stderr) == kept
    if kept:
        (good,) = Path(KEPT).iterdir()
        assert good.name in ("step_0.pt", "step_1.pt") and good.stat().st_size > 0
