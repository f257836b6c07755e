# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def binaries() -> Path:
    folder = os.environ.get("NANHUNT_BIN_DIR")
    if not folder:
        pytest.skip("NANHUNT_BIN_DIR is not set: run by tools/test, or name the folder of built programs")
    return Path(folder)
