# SPDX-License-Identifier: Apache-2.0
"""The choice of tests that run on each release of PyTorch (releases.txt).

Named to pytest (`-p releases --releases all`) it runs those that the list names, and notes the column of the table that
each counts to in the results. Imported by tools/check_releases: the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIST = HERE / "releases.txt"
LEVELS = {"live": "default"}  # as the table calls them
COLUMN = "column"  # the property of a test's result


@dataclass(frozen=True)
class Choice:
    """Tests of a file that count to a column: all of them, or those whose names have all words of one of `names`."""

    column: str
    file: str
    names: tuple[tuple[str, ...], ...]
    quick: bool

    def has(self, name: str) -> bool:
        return not self.names or any(all(word in name for word in words) for words in self.names)


def read_choices(path: Path = LIST) -> list[Choice]:
    """The list: `[column]`, and under it lines of `file` or `file: words of a name | of another`; with + if quick."""
    choices, column = [], ""
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("["):
            column = line.strip("[]")
        elif line:
            file, _, names = line.lstrip("+ ").partition(":")
            words = tuple(tuple(name.split()) for name in names.split("|") if name.strip())
            choices.append(Choice(column, file.strip(), words, line.startswith("+")))
    return choices


def columns(choices: list[Choice]) -> list[str]:
    """Of the table, in its order. Programs have one for each level."""
    found: dict[str, None] = {}
    for choice in choices:
        by_level = [f"{choice.column}, default", f"{choice.column}, ops"]
        found.update(dict.fromkeys(by_level if choice.column == "programs" else [choice.column]))
    return list(found)


def column_of(choices: list[Choice], file: str, name: str, level: str | None) -> str | None:
    """The column that a test counts to, by the first line that names it, else by one that has all of its file. None:
    it is not chosen."""
    for choice in sorted(choices, key=lambda choice: not choice.names):
        if choice.file == file and choice.has(name):
            if choice.column != "programs":
                return choice.column
            return f"programs, {LEVELS.get(level or 'live', level)}"
    return None


def pytest_addoption(parser) -> None:
    parser.addoption("--releases", choices=["all", "quick"], help="only the tests that tests/torch/releases.txt names")


def pytest_collection_modifyitems(config, items) -> None:
    wanted = config.getoption("releases")
    if wanted is None:
        return
    choices = [choice for choice in read_choices() if choice.quick or wanted == "all"]
    kept, left_out = [], []
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        file = item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else ""
        column = column_of(choices, file, item.name, parameters.get("level"))
        if column is None:
            left_out.append(item)
        else:
            item.user_properties.append((COLUMN, column))
            kept.append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept
