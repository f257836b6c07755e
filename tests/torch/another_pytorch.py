# SPDX-License-Identifier: Apache-2.0
"""A PyTorch that says something else of itself than the real one does."""
from __future__ import annotations

from pathlib import Path

import torch


def another_pytorch(tmp_path, then):
    """A folder with a package torch that is the real one, changed."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "torch.py").write_text(f"""
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

spec = PathFinder.find_spec("torch", [{str(Path(torch.__file__).parents[1])!r}])
real = sys.modules["torch"] = module_from_spec(spec)
spec.loader.exec_module(real)
{then}
""")
    return str(folder)
