# SPDX-License-Identifier: Apache-2.0
import os

import pytest


@pytest.fixture(scope="session")
def torch_python() -> str:
    """A Python that has PyTorch; the one that runs the tests need not."""
    python = os.environ.get("NANHUNT_TORCH_PYTHON")
    if not python:
        pytest.skip("NANHUNT_TORCH_PYTHON is not set: no Python with PyTorch (tools/setup makes one where it can)")
    return python
