# SPDX-License-Identifier: Apache-2.0
"""Lightning.

    trainer = lightning.pytorch.Trainer(callbacks=[NanhuntCallback(out="run")])
    trainer.fit(module, loader)

Module paths are those of the LightningModule, whatever `training_step` calls of it.
"""
from __future__ import annotations

import logging
from typing import Any

from nanhunt._watch import Watch, watch

try:
    from lightning.pytorch import Callback
except ImportError:  # the package's older name
    from pytorch_lightning import Callback


class NanhuntCallback(Callback):  # type: ignore[misc]
    """Watches each `Trainer.fit()`. Takes the options of nanhunt.watch; changes nothing of the training. A fault is
    said in Lightning's own log while the training goes on, and the loggers of the trainer get what trackers get
    (`log_to="off"`: nothing)."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.watch: Watch | None = None  # of the last fit: `callback.watch.report()`

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        plugin = getattr(trainer, "precision_plugin", None)
        loggers = getattr(trainer, "loggers", None)  # none: trackers are found by themselves
        options = {"log_to": list(loggers), **self.options} if loggers else self.options
        self.watch = watch(pl_module, list(trainer.optimizers), getattr(plugin, "scaler", None), **options)
        self.watch.say_by(logging.getLogger(Callback.__module__.rpartition(".callbacks")[0]).warning)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self.watch is not None:
            self.watch.close()
