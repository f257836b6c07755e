# SPDX-License-Identifier: Apache-2.0
"""What saves checkpoints in a program, and tells its guard: torch.save, safetensors, Lightning."""
from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import torch

from nanhunt._hooks.frames import take_frames_off
from nanhunt._hooks.patches import Patches
from nanhunt.guard import CheckpointGuard

if TYPE_CHECKING:
    from nanhunt._session import Session

# Module, class ("": a function of the module), function, place and name of the argument with the path.
_SAVES = (
    ("torch", "", "save", 1, "f"),
    ("safetensors.torch", "", "save_file", 1, "filename"),
    ("transformers.modeling_utils", "", "safe_save_file", 1, "filename"),
    ("lightning.fabric.plugins.io.torch_io", "TorchCheckpointIO", "save_checkpoint", 2, "path"),
)
_FOLDER = re.compile(r"(checkpoint|ckpt|step|global_step|epoch|iter)[-_=]?\d+$")


def checkpoint_of(path: object) -> object:
    """A file in a folder "checkpoint-200" is part of that one."""
    if not isinstance(path, (str, os.PathLike)):
        return path
    folder = Path(os.path.abspath(path)).parent  # noqa: PTH100
    return folder if _FOLDER.search(folder.name) else path


def put_on(session: Session) -> CheckpointGuard:
    """Once training begins: what saves has been imported by then."""
    guard = CheckpointGuard(lambda line: None if session.options.quiet else session.faults.say(line), session.note)
    guard.patches = Patches()
    for module, class_name, name, place, key in _SAVES:
        owner = torch if module == "torch" else sys.modules.get(module)
        owner = getattr(owner, class_name, None) if owner is not None and class_name else owner
        if owner is not None and hasattr(owner, name):
            guard.patches.put(owner, name, functools.partial(_guarded, guard, place, key))
    return guard


def _guarded(guard: CheckpointGuard, place: int, key: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def saves(*args: Any, **kwargs: Any) -> Any:
        path = args[place] if len(args) > place else kwargs.get(key)
        try:
            guard.before_save(path)
            result = original(*args, **kwargs)
            guard.saved(checkpoint_of(path))
            return result
        except BaseException as error:
            take_frames_off(error)
            raise

    return saves
