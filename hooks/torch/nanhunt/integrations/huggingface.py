# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Transformers.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[NanhuntCallback(out="run")])
    trainer.train()

Steps are those of the optimizer; gradient accumulation and `Trainer`'s own scaler and clipping are seen by themselves.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.utils.logging import get_logger

from nanhunt._watch import Watch, watch
from nanhunt.integrations.accelerate import plain_optimizer


class NanhuntCallback(TrainerCallback):  # type: ignore[misc]
    """Watches each `Trainer.train()`. Takes the options of nanhunt.watch; changes nothing of the training. A fault is
    told in Transformers' own log while the training goes on."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.watch: Watch | None = None  # of the last training: `callback.watch.report()`

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None,
                       **kwargs: Any) -> None:
        optimizers = [] if optimizer is None else [plain_optimizer(optimizer)]
        self.watch = watch(model, optimizers, **self.options)
        self.watch.say_by(get_logger("transformers.nanhunt").warning)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        guard = None if self.watch is None else self.watch.guard
        if guard is not None and state.is_world_process_zero:  # the folder is whole now
            guard.saved(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.watch is not None:
            self.watch.close()
