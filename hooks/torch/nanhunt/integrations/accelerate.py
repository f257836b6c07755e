# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    watch = watch_prepared(accelerator, model, optimizer, out="run")
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nanhunt._watch import Watch, watch

if TYPE_CHECKING:
    from accelerate import Accelerator


def plain_optimizer(optimizer: Any) -> Any:
    """The torch optimizer inside of Accelerate's."""
    inner = getattr(optimizer, "optimizer", None)
    return optimizer if inner is None else inner


def watch_prepared(accelerator: Accelerator, model: Any, optimizer: Any = None, **options: Any) -> Watch:
    """nanhunt.watch for what `Accelerator.prepare` gave back; takes its options."""
    models = [accelerator.unwrap_model(one) for one in (model if isinstance(model, (list, tuple)) else [model])]
    given = [] if optimizer is None else optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    scaler = getattr(accelerator, "scaler", None)
    return watch(models[0] if len(models) == 1 else models, [plain_optimizer(one) for one in given], scaler, **options)
