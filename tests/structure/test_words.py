# SPDX-License-Identifier: Apache-2.0
"""Functions and classes are called by terms of the field, not by words of our own."""

import re

import pytest
from tree import project_files, read

# Each was somebody's own word for the term behind it.
OWN_WORDS = {
    "tell": "notify, record, report",
    "told": "notified, recorded, reported",
    "borders": "step tracker",
    "trip": "trigger",
    "deaf": "disabled",
}


def own_words_in(name: str) -> list[str]:
    return [part for part in re.split(r"_|(?<=[a-z])(?=[A-Z])", name) if part.lower() in OWN_WORDS]


def names_of(path: str, text: str) -> list[str]:
    if path.endswith(".py"):
        return re.findall(r"^\s*(?:async )?(?:def|class) (\w+)", text, re.M)
    return re.findall(r"^[^/\n]*?\b(\w+)\([^;{]*\)[^;{]*\{", text, re.M)


EXAMPLES = {"tell_notes": ["tell"], "_told": ["told"], "StepTracker": [], "intell": []}


@pytest.mark.parametrize("name, found", EXAMPLES.items())
def test_a_name_is_taken_apart_into_its_words(name, found):
    assert own_words_in(name) == found


def test_functions_of_the_pytorch_package_have_no_words_of_our_own():
    found = [
        f"{path}: {name}"
        for path in project_files()
        if path.startswith("hooks/torch/") and path.endswith((".py", ".h", ".cpp"))
        for name in names_of(path, read(path))
        if own_words_in(name)
    ]
    assert found == [], f"use the field's terms: {OWN_WORDS}"
