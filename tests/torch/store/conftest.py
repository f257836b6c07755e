# SPDX-License-Identifier: Apache-2.0
"""A bucket for each test, and a run, recorded once."""
from __future__ import annotations

from pathlib import Path

import pytest
from s3_server import bucket, no_bucket, server, settings  # noqa: F401
from stores import nanhunt


@pytest.fixture(scope="session")
def eps_run(tmp_path_factory) -> Path:
    """A recorded run with a fault in it."""
    out = tmp_path_factory.mktemp("eps") / "run"
    done = nanhunt("train", "adam-eps", "--steps", "6", "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out
