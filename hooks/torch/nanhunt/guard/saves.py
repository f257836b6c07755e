# SPDX-License-Identifier: Apache-2.0
"""What saves checkpoints in a program, and tells its guard: torch.save, safetensors, Lightning."""
from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from nanhunt._hooks.frames import take_frames_off
from nanhunt._hooks.patches import Patches
from nanhunt.guard import CheckpointGuard

if TYPE_CHECKING:
    from nanhunt._session import Session

# Where a function stands (module, class), its name, and the place and name of its argument with the path. One function
# that stands in several places gets one patch, so that it is found where its name says (pickle looks there).
_SAVES = (
    ((("torch", ""), ("torch.serialization", "")), "save", 1, "f"),
    ((("safetensors.torch", ""),), "save_file", 1, "filename"),
    ((("transformers.modeling_utils", ""),), "safe_save_file", 1, "filename"),
    ((("lightning.fabric.plugins.io.torch_io", "TorchCheckpointIO"),), "save_checkpoint", 2, "path"),
)
_FOLDER = re.compile(r"(checkpoint|ckpt|step|global_step|epoch|iter)[-_=]?\d+$")


def checkpoint_of(path: object) -> object:
    """A file in a folder "checkpoint-200" is part of that one. What is no path stays what it is."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    place = os.fspath(path)
    if not isinstance(place, str):
        return None
    folder = Path(os.path.abspath(place)).parent  # noqa: PTH100
    return folder if _FOLDER.search(folder.name) else place


def put_on(session: Session) -> CheckpointGuard:
    """Once training begins: what saves has been imported by then."""
    def folder() -> Path:
        """Beside the trace of this rank; of a run that is copied to a URL, where the program runs."""
        if session.options.url or session.recorder is None:
            return Path.cwd() / "nanhunt-checkpoints"
        return Path(session.recorder.folder()).absolute()

    kept_in = folder()
    guard = CheckpointGuard(lambda: kept_in, lambda line: None if session.options.quiet else session.faults.say(line),
                            session.note)
    guard.patches = Patches()
    for places, name, place, key in _SAVES:
        ours: dict[int, Any] = {}
        for module, class_name in places:
            owner: Any = sys.modules.get(module)
            owner = getattr(owner, class_name, None) if owner is not None and class_name else owner
            if owner is not None and hasattr(owner, name):
                guard.patches.put(owner, name, functools.partial(_guarded, guard, place, key, ours))
    return guard


def _guarded(guard: CheckpointGuard, place: int, key: str, made: dict[int, Any],
             original: Callable[..., Any]) -> Callable[..., Any]:
    if id(original) in made:
        return made[id(original)]  # type: ignore[no-any-return]

    @functools.wraps(original)
    def saves(*args: Any, **kwargs: Any) -> Any:
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            take_frames_off(error)
            raise
        path = args[place] if len(args) > place else kwargs.get(key)
        try:
            guard.saved(checkpoint_of(path))
        except Exception as error:  # __fspath__ of the program's own
            guard._note(f"checkpoints: one was not checked: {type(error).__name__}: {error}"[:300])
        return result

    made[id(original)] = saves
    return saves
