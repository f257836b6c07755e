# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests of the tools."""

import pytest
from carried_parts import Carried


@pytest.fixture
def carried(tmp_path) -> Carried:
    return Carried(tmp_path / "carried")
