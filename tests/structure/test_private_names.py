# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package hold what it does, not what it is made of: where one takes hold of a private name stands
here, and that list can only get shorter."""

import re

import pytest
import tree

# Lines that name a private module of the package, or the session inside of a watch. Helpers hold what no run shows.
MOST = {
    "tests/torch/conftest.py": 4,
    "tests/torch/fake_cupti.py": 6,
    "tests/torch/hooks/test_pytorch_facts.py": 2,
    "tests/torch/listening.py": 4,
    "tests/torch/mistakes.py": 4,
    "tests/torch/op_rows.py": 12,
    "tests/torch/read_there.py": 8,
    "tests/torch/runs/test_wheel.py": 3,
    "tests/torch/tap/test_tap_library.py": 1,
}
PRIVATE = re.compile(r"\bnanhunt\.(\w+\.)*_[a-z]|\bfrom nanhunt(\.\w+)* import .*\b_[a-z]|\b_attach\b|\._session\b")


def private_lines(text: str) -> int:
    return sum(bool(PRIVATE.search(line)) for line in text.splitlines())


@pytest.mark.parametrize("planted", [
    "from nanhunt._steps import live", "from nanhunt import _attach", "    from nanhunt import _levels, _device",
    "import nanhunt._tap.tap", "nanhunt._library.library_path()", "session = watch._session",
    'code = "from nanhunt._tap import tap_build"',
])  # fmt: skip
def test_a_planted_private_name_is_found(planted):
    assert private_lines(planted) == 1


@pytest.mark.parametrize("public", [
    "import nanhunt", "run = nanhunt.load(folder)", "from nanhunt.integrations.lightning import NanhuntCallback",
    "torch._C._len_torch_dispatch_stack()", "nanhunt.__file__",
])  # fmt: skip
def test_a_public_name_is_not_taken_for_one(public):
    assert private_lines(public) == 0


def test_tests_of_the_package_use_no_private_name_more():
    paths = [path for path in tree.project_files() if path.startswith("tests/torch/") and path.endswith(".py")]
    assert len(paths) > 100
    found = {path: count for path in paths if (count := private_lines(tree.read(path)))}
    assert {path: count for path, count in found.items() if count > MOST.get(path, 0)} == {}
    fewer = {path: found.get(path, 0) for path, most in MOST.items() if found.get(path, 0) < most}
    assert fewer == {}, "lower the bound to that"
