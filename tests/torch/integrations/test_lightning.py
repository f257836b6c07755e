# SPDX-License-Identifier: Apache-2.0
"""The callback for Lightning, with small random modules."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
L = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
import nanhunt  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("library", "no_watch_left"),
    pytest.mark.filterwarnings("ignore"),
]
STEPS = 4


class Module(L.LightningModule):
    """`training_step` calls a part of the module, never the module."""

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        self.floor = floor

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        y = self.net(batch)
        return torch.log(torch.relu(y) * 0 + self.floor).mean() + y.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class InForward(Module):
    """The fault is in a layer."""

    def __init__(self, floor: float) -> None:
        super().__init__(1.0)
        self.net.insert(2, Log(floor))


class Log(torch.nn.Module):
    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor = floor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x + self.floor)


def fit(tmp_path, module: torch.nn.Module, callbacks: list, **options: object) -> torch.nn.Module:
    data = torch.randn(2 * STEPS, 4, generator=torch.Generator().manual_seed(1))
    trainer = L.Trainer(
        max_steps=STEPS, accelerator="cpu", enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=str(tmp_path), callbacks=callbacks, **{"logger": False, **options},
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=2))
    return module


def made(kind: type[Module], floor: float) -> Module:
    torch.manual_seed(0)
    return kind(floor)


@pytest.mark.parametrize("level", ["ops", "live"])
def test_the_callback_names_a_planted_fault_and_is_silent_on_its_twin(tmp_path, level):
    from nanhunt.integrations.lightning import NanhuntCallback

    for kind, place in ((InForward, ("net.2", "forward")), (Module, ("<loss>", "loss"))):
        bad = NanhuntCallback(out=tmp_path / f"bad-{kind.__name__}", level=level)
        fit(tmp_path, made(kind, 0.0), [bad])
        (first, *_) = bad.watch.findings
        assert (first.op, first.module, first.phase) == ("aten::log", *place)

        good = NanhuntCallback(out=tmp_path / f"good-{kind.__name__}", level=level)
        fit(tmp_path, made(kind, 1.0), [good])
        assert good.watch.verdict == "clean", good.watch.report()
        assert nanhunt.load(good.watch.path).data["coverage"]["steps"] == STEPS


@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_a_fault_is_told_in_lightnings_own_log_while_it_trains(tmp_path, floor, capsys):
    import logging

    from nanhunt.integrations.lightning import NanhuntCallback

    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append
    seen = []
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    try:
        fit(tmp_path, made(InForward, floor), [NanhuntCallback(out=tmp_path / "run", on_fault=seen.append)])
    finally:
        logger.removeHandler(handler)
    lines = [record.getMessage() for record in told if record.getMessage().startswith("nanhunt:")]
    assert len(lines) == len(seen) == int(floor == 0.0)
    assert all("aten::log in net.2" in line for line in lines)


@pytest.mark.parametrize("level", ["ops", "live"])
def test_the_callback_changes_no_bit_of_a_training(tmp_path, level):
    from nanhunt.integrations.lightning import NanhuntCallback

    options = {"gradient_clip_val": 0.5, "precision": "bf16-mixed"}
    watched = NanhuntCallback(out=tmp_path / "run", level=level)
    one = fit(tmp_path, made(InForward, 1.0), [watched], **options)
    other = fit(tmp_path, made(InForward, 1.0), [], **options)
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_a_training_that_raises_ends_the_watch(tmp_path):
    from nanhunt.integrations.lightning import NanhuntCallback

    class Broken(Module):
        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            if index == 2:
                raise RuntimeError("of the user")
            return super().training_step(batch, index)

    callback = NanhuntCallback(out=tmp_path / "run", level="ops")
    with pytest.raises(RuntimeError, match="of the user"):
        fit(tmp_path, made(Broken, 1.0), [callback])
    assert "closed" in repr(callback.watch)
    assert nanhunt.load(tmp_path / "run").data["coverage"]["steps"] == 2


def columns(folder) -> set[str]:
    return {name for file in folder.rglob("metrics.csv") for name in file.read_text().splitlines()[0].split(",")}


def test_the_loggers_of_the_trainer_get_what_trackers_get_and_nothing_where_it_is_off(tmp_path):
    from lightning.pytorch.loggers import CSVLogger
    from nanhunt.integrations.lightning import NanhuntCallback

    for name, options in (("on", {}), ("off", {"log_to": "off"})):
        logger = CSVLogger(tmp_path / name)
        fit(tmp_path, made(Module, 0.0), [NanhuntCallback(out=tmp_path / f"run-{name}", **options)], logger=logger)
        logger.save()
        assert ("nanhunt/bad_steps" in columns(tmp_path / name)) == (name == "on")
