# SPDX-License-Identifier: Apache-2.0
"""Documents agree with the tree: maps name what exists, links lead somewhere, the README's code is compiled code."""

import re
from pathlib import PurePosixPath

import pytest
import source_rules as rules
import tree

DOCUMENTS = [path for path in tree.project_files() if path.endswith(".md")]
MAPPED = ["include", "src", "hooks", "tools", "tests"]


def folders_below(parent: str) -> set[str]:
    depth = len(PurePosixPath(parent).parts)
    found = {PurePosixPath(path).parts for path in tree.project_files() if path.startswith(parent + "/")}
    return {parts[depth] for parts in found if len(parts) > depth + 1}


def folders_named(map_text: str) -> set[str]:
    """First column of a map's tables: | `name/` | ..."""
    return {name.rstrip("/") for name in re.findall(r"^\|\s*`([\w.-]+/)`", map_text, re.MULTILINE)}


@pytest.mark.parametrize("parent", MAPPED)
def test_a_map_names_exactly_the_folders_that_exist(parent):
    named = folders_named(tree.read(f"{parent}/README.md"))
    assert named == folders_below(parent)


def test_the_readme_names_every_folder_of_the_top_level():
    named = folders_named(tree.read("README.md"))
    top = {path.split("/", 1)[0] for path in tree.project_files() if "/" in path and not path.startswith(".")}
    assert named == top


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_local_link_of_a_document_leads_somewhere(document):
    folder = PurePosixPath(document).parent
    text = re.sub(r"```.*?```", "", tree.read(document), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        if not (tree.ROOT / folder / target).exists():
            broken.append(target)
    assert broken == []


def test_a_planted_orphan_is_found():
    documents = {
        "README.md": "| `src/` | x |\n[guide](hooks/GUIDE.md#a)",
        "src/README.md": "",
        "hooks/GUIDE.md": "[up](../a.md)",
        "a.md": "",
    }
    assert rules.orphans(documents) == []
    more = {**documents, "src/deep/README.md": "", "src/GUIDE.md": ""}
    assert rules.orphans(more) == ["src/GUIDE.md", "src/deep/README.md"]


def test_every_document_is_reached_from_the_front_page():
    assert rules.orphans({path: tree.read(path) for path in DOCUMENTS}) == []


FOLDERS_OF_SCENARIOS = sorted({path.parent for path in map(PurePosixPath, tree.cpp_files())
                               if path.parent.parent.as_posix() == "tools/nanhunt/scenarios"})


@pytest.mark.parametrize("folder", FOLDERS_OF_SCENARIOS, ids=lambda folder: folder.name)
def test_the_table_of_a_recipe_lists_each_of_its_scenarios(folder):
    sources = [path for path in tree.cpp_files() if PurePosixPath(path).parent == folder]
    scenarios = {name for path in sources for name in re.findall(r'\.name = "([a-z0-9-]+)"', tree.read(path))}
    table = tree.read(f"{folder}/README.md")
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.MULTILINE)) == scenarios


@pytest.mark.parametrize("table", ["README.md", "tools/nanhunt/GUIDE.md"])
def test_the_tables_of_verbs_list_every_verb(table):
    sources = [path for path in tree.cpp_files() if path.startswith("tools/nanhunt/verbs/")]
    verbs = {PurePosixPath(path).stem.replace("_", "-") for path in sources}
    rows = tree.read(table).split("| verb | what it does |", 1)[1].split("\n\n", 1)[0]
    first_cells = re.findall(r"^\| ([^|]+) \|", rows, re.MULTILINE)[1:]
    assert sorted(name for cell in first_cells for name in re.findall(r"`([a-z-]+)`", cell)) == sorted(verbs)


@pytest.mark.parametrize("document, name", [("README.md", "readme"), ("include/GUIDE.md", "guide")])
def test_the_examples_in_cpp_are_the_compiled_ones(document, name):
    source = tree.read("tests/structure/readme_example.cpp")
    example = re.search(rf"// {name}: begin\n(.*?)// {name}: end\n", source, re.DOTALL).group(1)
    blocks = re.findall(r"```cpp\n(.*?)```", tree.read(document), re.DOTALL)
    assert [block.strip() for block in blocks] == [example.strip()]


# Measurements with machine, date and command: they are as long as there are measurements.
MEASUREMENTS = {"tests/bench/README.md", "tests/campaign/README.md"}


def test_a_planted_long_readme_is_found():
    assert rules.readme_too_long("README.md", "x\n" * 151)
    assert rules.readme_too_long("src/core/README.md", "x\n" * 41)
    assert not rules.readme_too_long("README.md", "x\n" * 150)
    assert not rules.readme_too_long("src/core/README.md", "x\n" * 40)


def test_readmes_are_short():
    readmes = {path for path in DOCUMENTS if PurePosixPath(path).name == "README.md"}
    long = {path for path in readmes if rules.readme_too_long(path, tree.read(path))}
    assert long - MEASUREMENTS == set(), "purpose, map, how to add; the rest belongs into GUIDE.md"


def test_a_planted_unmapped_folder_is_found():
    readmes = {"README.md": "| `src/` | layers |\n", "src/README.md": "| `core/` | numbers |\n`trace/` is no row\n"}
    sources = ["src/a.cpp", "src/core/b.cpp", "src/core/deep/c.cpp", "src/trace/d.cpp", "hooks/e.py", "f.py"]
    assert rules.unmapped_folders(sources, readmes) == ["hooks", "src/core/deep", "src/trace"]
    readmes["src/README.md"] += "| `core/deep/`, `trace/` | the rest |\n"
    assert rules.unmapped_folders(sources, readmes) == ["hooks"]


def test_every_folder_with_sources_has_a_readme_or_a_row():
    sources = [path for path in tree.project_files() if tree.is_source(path) and not path.startswith(".")]
    readmes = {path: tree.read(path) for path in DOCUMENTS if PurePosixPath(path).name == "README.md"}
    assert rules.unmapped_folders(sources, readmes) == []
