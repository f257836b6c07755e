# SPDX-License-Identifier: Apache-2.0
"""What a watch writes into the experiment trackers that a program has open: the real packages, without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nanhunt
import pytest
import torch
from hunting import cli, needs_cli, with_package
from torch import nn

pytestmark = pytest.mark.usefixtures("library", "no_watch_left")
NAMES = ("nanhunt/bad_steps", "nanhunt/skipped_steps", "nanhunt/gradient_headroom_bits", "nanhunt/watching")
BAD = 5


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Nothing is sent, and what is kept lies here."""
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "WANDB_DATA_DIR": str(tmp_path),
        "WANDB_CACHE_DIR": str(tmp_path),
        "WANDB_CONFIG_DIR": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NANHUNT_LOG_TO", raising=False)
    monkeypatch.chdir(tmp_path)
    if "wandb" in sys.modules:  # it has read another test's environment
        sys.modules["wandb"].teardown()


def train(steps=40, bad=True, guards=True, each=lambda step, loss: None, **options):
    """A run whose step 5 is bad: its loss is the root of a negative number. `guards`: it skips that step itself, else
    all that follow are bad. Returns its losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    with nanhunt.watch(model, opt, quiet=True, **options):
        for step in range(steps):
            x = torch.rand(16, 4)
            y = torch.sqrt(model(x).square() - (1e6 if bad and step == BAD else 0)).mean()
            opt.zero_grad()
            y.backward()
            if y.isfinite() or not guards:
                opt.step()
            losses.append(y.item())
            each(step, y.item())
    return losses


def collected(**options):
    """What a function is given: rows of (step, numbers), and the text of the alert."""
    rows, alerts = [], []

    def take(numbers, step):
        (alerts if "nanhunt/fault" in numbers else rows).append((step, dict(numbers)))

    train(log_to=take, out="run", **options)
    return rows, alerts


def test_a_function_gets_counts_headroom_and_the_share_of_time_every_16_steps_and_one_alert():
    rows, alerts = collected(guards=False)
    assert {0, 16, 32} <= {step for step, _ in rows}
    assert all(set(NAMES) - {"nanhunt/gradient_headroom_bits"} <= set(numbers) for _, numbers in rows)
    last = rows[-1][1]
    assert rows[-1][0] == 39 and last["nanhunt/bad_steps"] == 40 - BAD and last["nanhunt/skipped_steps"] == 0
    assert 0 < last["nanhunt/watching"] <= 1
    # A gradient of about 1 in fp32 can double about 127 times.
    assert 100 < rows[0][1]["nanhunt/gradient_headroom_bits"] < 160
    ((step, alert),) = alerts
    assert step == BAD and "sqrt" in alert["nanhunt/fault"] and "nanhunt report" in alert["nanhunt/fault"]


def test_a_step_that_the_program_skips_itself_counts_as_skipped():
    rows, alerts = collected()
    assert rows[-1][1]["nanhunt/bad_steps"] == 0 and rows[-1][1]["nanhunt/skipped_steps"] == 1 and len(alerts) == 1


def test_of_a_healthy_run_there_is_no_alert_and_no_bad_step():
    rows, alerts = collected(bad=False)
    assert not alerts and rows[-1][1]["nanhunt/bad_steps"] == 0


def test_a_scaler_gives_its_scale_and_skipped_steps_and_its_headroom_is_that_of_fp16(tmp_path):
    rows = []
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=1000)
    with nanhunt.watch(model, opt, scaler, out="run", quiet=True, log_to=lambda numbers, step: rows.append(numbers)):
        for step in range(34):
            opt.zero_grad()
            loss = model(torch.ones(8, 4)).sum() * (float("inf") if step in (3, 4) else 1.0)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    last = [row for row in rows if "nanhunt/loss_scale" in row][-1]
    assert (
        last["nanhunt/loss_scale"] == 2.0**18 and last["nanhunt/skipped_steps"] == 2 and last["nanhunt/bad_steps"] == 0
    )
    # Gradients of 8, scaled by 2^18, are 2^21: beyond what fp16 holds by 5 bits.
    assert last["nanhunt/gradient_headroom_bits"] == pytest.approx(16 - 21, abs=0.01)


def test_off_writes_nothing_also_where_one_is_open(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    with tensorboard.SummaryWriter(tmp_path / "tb") as writer:
        train(each=lambda step, loss: writer.add_scalar("loss", loss, step), out="run", log_to="off")
    assert set(scalars(tmp_path / "tb")) == {"loss"}


def test_the_environment_turns_off_what_is_found_and_not_what_is_given(tmp_path, monkeypatch):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    monkeypatch.setenv("NANHUNT_LOG_TO", "off")
    rows = []
    with tensorboard.SummaryWriter(tmp_path / "tb") as writer:
        train(each=lambda step, loss: writer.add_scalar("loss", loss, step), out="run")
        train(out="given", log_to=lambda numbers, step: rows.append(numbers))
    assert set(scalars(tmp_path / "tb")) == {"loss"} and rows


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_an_open_writer_of_tensorboard_is_found_and_a_closed_one_is_not_opened_again(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    closed = tensorboard.SummaryWriter(tmp_path / "closed")
    closed.close()
    files = sorted((tmp_path / "closed").iterdir())
    with tensorboard.SummaryWriter(tmp_path / "tb") as writer:
        train(each=lambda step, loss: writer.add_scalar("loss", loss, step), out="run")
    found = scalars(tmp_path / "tb")
    assert set(NAMES) <= set(found) and len(found["loss"]) == 40
    assert found["nanhunt/skipped_steps"][-1][1] == 1
    assert sorted((tmp_path / "closed").iterdir()) == files


def test_writers_that_are_opened_late_are_found(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    writers = []

    def each(step, loss):
        if step in (100, 200):
            writers.append(tensorboard.SummaryWriter(tmp_path / str(step)))

    train(steps=300, bad=False, each=each, out="run")
    for writer in writers:
        writer.close()
    first = [[step for step, _ in scalars(tmp_path / name)["nanhunt/watching"]][0] for name in ("100", "200")]
    assert first == [112, 208]


def test_an_open_run_of_wandb_gets_numbers_in_the_programs_own_rows(tmp_path):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")

    def run(name, **options):
        with wandb.init(project="p", dir=str(tmp_path), settings=wandb.Settings(console="off")) as open_run:
            train(each=lambda step, loss: open_run.log({"loss": loss}), out=name, **options)
            return dict(open_run.summary), open_run.step

    watched, steps = run("watched")
    alone, steps_alone = run("off", log_to="off")
    assert steps == steps_alone == 40
    assert set(NAMES) <= set(watched) and watched["nanhunt/skipped_steps"] == 1 and "sqrt" in watched["nanhunt/fault"]
    assert not [name for name in alone if name.startswith("nanhunt")]


def log_records(log):
    """Of LevelDB's format: blocks of 32 KiB; of each piece a checksum, its length and which piece of a record it is."""
    at, record = 7, b""  # after the file's own head
    while at + 7 <= len(log):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = int.from_bytes(log[at + 4 : at + 6], "little"), log[at + 6]
        record += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, last
            yield record
            record = b""


def wandb_file(folder):
    """The rows of history and the definitions of metrics, of the one run that is kept there. Its process may still be
    writing when the run has finished here: the last record of a whole file is the exit."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.rglob("*.wandb")
    end, rows, metrics, kinds = time.monotonic() + 600, [], [], set()
    while "exit" not in kinds:
        assert time.monotonic() < end, kinds
        rows, metrics, kinds = [], [], set()
        for data in log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            kinds.add(kind)
            if kind == "history":
                rows.append({one.key or one.nested_key[0]: json.loads(one.value_json) for one in record.history.item})
            elif kind == "metric":
                metrics.append(record.metric)
        time.sleep(0.05)
    return rows, metrics


@pytest.mark.parametrize("every, own_step", [(1, False), (8, False), (8, True)])
def test_each_number_in_a_row_of_wandb_stands_beside_the_step_that_it_is_of(tmp_path, every, own_step):
    """The program puts several steps into one row, or numbers its rows itself."""
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    given = {}

    def take(numbers, step):
        given[step] = numbers

    def each(step, loss):
        if own_step:
            if step % every == 0:
                open_run.log({"loss": loss}, step=10 * step + 10)
        else:
            open_run.log({"loss": loss}, commit=step % every == every - 1)

    with wandb.init(project="p", dir=str(tmp_path), settings=wandb.Settings(console="off")) as open_run:
        open_run.log({"start": 1})
        train(each=each, out="run", guards=False, log_to=[open_run, take])
    rows, metrics = wandb_file(tmp_path)
    ours = [row for row in rows if "nanhunt/step" in row]
    assert len(ours) >= 3 and {row["nanhunt/step"] for row in ours} >= {BAD, 16, 32}
    for row in ours:
        numbers = {name: row[name] for name in row if name.startswith("nanhunt/") and row[name] is not None}
        step = numbers.pop("nanhunt/step")
        assert numbers == {name: value for name, value in given[step].items() if name in numbers}
        assert set(numbers) == set(given[step]) - {"nanhunt/fault"}
    defined = {metric.name or metric.glob_name: metric.step_metric for metric in metrics}
    assert defined["nanhunt/*"] == "nanhunt/step"
    assert len([metric for metric in metrics if metric.glob_name == "nanhunt/*"]) == 1


def test_an_active_run_of_mlflow_gets_metrics_and_a_tag(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as run:
        train(each=lambda step, loss: mlflow.log_metric("loss", 0.0, step=step), out="run")
        mlflow.flush_async_logging()
    client = mlflow.MlflowClient()
    history = client.get_metric_history(run.info.run_id, "nanhunt/skipped_steps")
    assert {point.step for point in history} >= {0, 16, 32} and max(point.value for point in history) == 1
    assert "sqrt" in client.get_run(run.info.run_id).data.tags["nanhunt.fault"]


def test_an_open_run_of_trackio_keeps_its_own_steps(tmp_path, capfd):
    trackio = pytest.importorskip("trackio", reason="trackio is not installed")
    run = trackio.init(project="p", embed=False)
    rows = []
    log = run.log
    run.log = lambda metrics, step=None: (rows.append((dict(metrics), step)), log(metrics, step))[1]
    train(each=lambda step, loss: trackio.log({"loss": loss}), out="run")
    trackio.finish()
    ours = [(metrics, step) for metrics, step in rows if any(name.startswith("nanhunt/") for name in metrics)]
    assert ours and all(step is not None for _, step in ours) and len(rows) - len(ours) == 40
    assert any("sqrt" in str(metrics.get("nanhunt/fault")) for metrics, _ in ours)


class Broken:
    def log_metrics(self, numbers, step):
        raise OSError("the server is gone")


def test_a_tracker_that_raises_is_noted_once_and_the_run_goes_on():
    alone = train(out="off", log_to="off")
    losses = train(out="run", log_to=Broken())
    assert str(losses) == str(alone)
    assert [text for text in nanhunt.load("run").unwatched if "the server is gone" in text]


@pytest.mark.parametrize("log_to", [7, object(), ["wandb", 3], "wandb"])
def test_what_is_no_tracker_is_said_at_once(log_to):
    with pytest.raises((TypeError, ValueError), match="log_to"):
        nanhunt.watch(nn.Linear(2, 2), log_to=log_to, out="run")


SCRIPT = """
import torch
from torch.utils.tensorboard import SummaryWriter
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
with SummaryWriter("tb") as writer:
    for step in range(20):
        loss = model(torch.ones(2, 4)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        writer.add_scalar("loss", loss.item(), step)
"""


@needs_cli
@pytest.mark.parametrize("words, written", [([], True), (["--log-to", "off"], False)])
def test_nanhunt_run_finds_trackers_and_has_an_option_that_turns_it_off(tmp_path, words, written):
    pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    Path("train.py").write_text(SCRIPT)
    command = [cli(), "run", "--out", "run", *words, "--", sys.executable, "train.py"]
    subprocess.run(command, check=True, env=with_package() | {"PYTHONPATH": ""}, capture_output=True, timeout=1800)
    assert ("nanhunt/watching" in scalars(tmp_path / "tb")) == written
    assert os.environ.get("NANHUNT_LOG_TO") is None
