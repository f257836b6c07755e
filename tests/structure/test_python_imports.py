# SPDX-License-Identifier: Apache-2.0
"""No Python file imports itself by way of others, or another of its name. Rules are first shown what they find."""

import pytest
import tree
from python_imports import circles, imports_of, of_one_name

# What is handed to a part of the package is named by its type, which is imported for the type checker alone.
TYPES_APART = "hooks/torch/"


def found(files: dict[str, str]) -> list[list[str]]:
    def imports(path: str) -> set[str]:
        return imports_of(path, files[path], files.__contains__, types=not path.startswith(TYPES_APART))

    return circles({path: imports(path) for path in files})


@pytest.mark.parametrize(
    "files",
    [
        {"tools/a.py": "import b", "tools/b.py": "import a"},
        {"tools/a.py": "from b import x", "tools/b.py": "try:\n    import c\nexcept ImportError: pass",
         "tools/c.py": "if True:\n    import a"},
        {"tools/a.py": "def f():\n    import b", "tools/b.py": "import a"},
        {"tools/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b", "tools/b.py": "import a"},
        {"hooks/torch/nanhunt/_a.py": "from . import _b", "hooks/torch/nanhunt/_b.py": "from ._a import x",
         "hooks/torch/nanhunt/__init__.py": ""},
        {"hooks/torch/nanhunt/__init__.py": "from ._a import x", "hooks/torch/nanhunt/_a.py": "import nanhunt"},
        {"hooks/torch/nanhunt/_a.py": "from nanhunt.sub import b", "hooks/torch/nanhunt/sub/b.py": "from .. import _a",
         "hooks/torch/nanhunt/__init__.py": "", "hooks/torch/nanhunt/sub/__init__.py": ""},
        {"tests/torch/test_x.py": "import helper", "tests/torch/helper.py": "from test_x import y"},
    ],
    ids=["two", "three", "in a function", "for types", "package", "package itself", "sub-package", "tests"],
)  # fmt: skip
def test_a_planted_circle_is_found(files):
    assert found(files) == [sorted(path for path in files if "import" in files[path])]


def test_what_the_package_names_for_the_type_checker_alone_is_no_circle():
    apart = {
        "hooks/torch/nanhunt/__init__.py": "",
        "hooks/torch/nanhunt/_a.py": "from nanhunt._b import x",
        "hooks/torch/nanhunt/_b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nanhunt._a",
    }
    assert found(apart) == []
    assert found({path.replace("hooks/torch/nanhunt", "tools/nanhunt"): text for path, text in apart.items()}) != []
    called = {**apart, "hooks/torch/nanhunt/_b.py": "def f():\n    from nanhunt._a import y"}
    assert found(called) == [["hooks/torch/nanhunt/_a.py", "hooks/torch/nanhunt/_b.py"]]


def test_no_python_file_imports_itself_by_way_of_others():
    files = {path: tree.read(path) for path in tree.project_files() if path.endswith(".py")}
    assert len(files) > 100
    everything = {p: imports_of(p, text, files.__contains__) for p, text in files.items()}
    assert len(everything["hooks/torch/nanhunt/__init__.py"]) > 1 and everything["tests/torch/runs/test_cases.py"]
    assert found(files) == []


def test_a_planted_helper_of_the_same_name_is_found():
    assert of_one_name(["tools/a/table.py", "tests/gpu/table.py", "tests/torch/table.py"]) == [
        ["tests/gpu/table.py", "tools/a/table.py"]
    ]


def test_no_two_helpers_have_one_name():
    assert of_one_name(path for path in tree.project_files() if path.endswith(".py")) == []
