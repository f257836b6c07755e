# SPDX-License-Identifier: Apache-2.0
"""Rules every file keeps: licence, length, flags, no globbing, no traces of the machine it was written on."""

import json
import os
import re
import stat
from pathlib import Path

import pytest
import source_rules as rules
import tree

TOP_LEVEL = {
    "CMakeLists.txt", "include", "src", "hooks", "kernels", "reports", "tests", "tools", "README.md",
    ".clang-format", ".clang-tidy", ".gitignore", ".gitattributes", ".ci", "CMakePresets.json", "pyproject.toml",
    "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md",
}  # fmt: skip


def offenders(paths, rule) -> list[str]:
    return [f"{path}: {found}" for path in paths for found in [rule(path)] if found]


def test_every_source_file_names_its_licence():
    assert rules.missing_spdx("#pragma once\n\n\n// SPDX-License-Identifier: Apache-2.0\n")
    assert not rules.missing_spdx("#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n")

    sources = [path for path in tree.project_files() if tree.is_source(path) or path == "pyproject.toml"]
    assert len(sources) > 20
    assert [path for path in sources if rules.missing_spdx(tree.read(path))] == []


def test_no_source_file_is_longer_than_600_lines():
    assert rules.too_long("x\n" * 601)
    assert not rules.too_long("x\n" * 600)

    assert [path for path in tree.project_files() if tree.is_source(path) and rules.too_long(tree.read(path))] == []


def record_lists() -> list[str]:
    return re.findall(r"KIND\(k[A-Z]\w+, (\w+)\)", tree.read("src/trace/record_kind.h"))


@pytest.mark.parametrize(
    "planted",
    ["for (const NoteRecord& row : rows)", "emit(batch.notes);", "Kind<&RecordBatch::notes>", '{"notes", rows}'],
)
def test_a_kind_of_records_that_is_spelled_again_is_found(planted):
    assert len(record_lists()) == 25
    assert rules.kinds_spelled(planted, record_lists())
    assert not rules.kinds_spelled("for (const trace::RecordKind& kind : trace::record_kinds())", record_lists())


def test_whoever_shows_rows_names_no_kind_of_them():
    shows = ("src/c_api/tables/", "tools/nanhunt/dump/", "tools/nanhunt/verbs/dump.", "tools/nanhunt/verbs/export.",
             "src/trace/record_kinds.cpp", "src/trace/batch.cpp")  # fmt: skip
    paths = [path for path in tree.cpp_files() if path.startswith(shows)]
    assert len(paths) > 8

    def spelled(path):
        return rules.kinds_spelled(tree.without_cpp_comments(tree.read(path)), record_lists())

    assert offenders(paths, spelled) == []


def test_no_folder_has_more_than_30_source_files():
    many = [f"a/b/x{number}.cpp" for number in range(31)]
    assert rules.crowded_folders(many) == ["a/b"]
    assert rules.crowded_folders([*many[:30], "a/b/README.md", "a/b/c/more.h", "a/more.h"]) == []

    assert rules.crowded_folders(tree.project_files()) == []


OP_TABLE = "src/core/ops/"
NAMES_OPS = {
    "src/engine/ops/": "what the engine's ops are called",
    "hooks/engine/replay/": "which function of the engine is behind an op's name",
    "hooks/torch/tap/": "what PyTorch's schemas do not say of its ops: what is written, selects, or has no contents",
}


def test_what_an_op_is_stands_in_one_table():
    ops = {"exp", "log", "sqrt", "add", "mul", "sum"}
    planted = 'kPoles = {{"aten::log", 1}, {"sqrt_backward", 2}, {"exp"}, {"add_", 3}}; "sum"; "mullet"; "a mul"'
    assert rules.ops_named(planted, ops) == {"exp", "log", "sqrt", "add"}

    ops = rules.op_names("".join(tree.read(path) for path in tree.cpp_files() if path.startswith(OP_TABLE)))
    assert len(ops) > 500

    def second_table(path):
        named = rules.ops_named(tree.without_cpp_comments(tree.read(path)), ops)
        return sorted(named) if len(named) > rules.MAX_OPS_NAMED else []

    others = [path for path in tree.cpp_files() if not path.startswith((OP_TABLE, "tests/"))]
    excused = [path for path in others if path.startswith(tuple(NAMES_OPS))]
    assert offenders(set(others) - set(excused), second_table) == []
    # and each excuse is still needed
    for place in NAMES_OPS:
        assert any(second_table(path) for path in excused if path.startswith(place)), place


@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast", "--use_fast_math", "-ffp-contract=fast"])
def test_a_planted_fast_math_flag_is_found(flag):
    assert rules.fast_math_flags(f"target_compile_options(x PRIVATE -O2 {flag})") == [flag]


def test_no_build_file_asks_for_fast_math():
    def flags(path):
        return rules.fast_math_flags(tree.without_hash_comments(tree.read(path)))

    build_files = [*tree.cmake_files(), "CMakePresets.json", "tools/test", "tools/quickstart"]
    assert offenders(build_files, flags) == []


def test_no_source_switches_fast_math_on():
    assert rules.fast_math_in_code('#pragma GCC optimize("fast-math")')
    assert rules.fast_math_in_code("#pragma STDC FP_CONTRACT ON")

    def pragmas(path):
        return rules.fast_math_in_code(tree.without_cpp_comments(tree.read(path)))

    assert offenders(tree.cpp_files(), pragmas) == []


def test_contraction_is_switched_off_for_every_target():
    assert "-ffp-contract=off" in tree.without_hash_comments(tree.read("tools/cmake/NanhuntTargets.cmake"))


def test_the_compiler_was_really_called_that_way():
    build = os.environ.get("NANHUNT_BUILD_DIR")
    database = Path(build or "/nonexistent", "compile_commands.json")
    if not database.is_file():
        pytest.skip("no build to look at: tools/test names one in NANHUNT_BUILD_DIR")

    commands = [entry for entry in json.loads(database.read_text()) if entry["file"].endswith(".cpp")]

    assert commands
    assert [entry["file"] for entry in commands if "-ffp-contract=off" not in entry["command"]] == []
    assert [entry["file"] for entry in commands if rules.fast_math_flags(entry["command"])] == []


def test_a_launch_gives_its_own_status_and_not_the_last_error():
    assert rules.launches_without_status("run<<<1, 2, 0, stream>>>(kernel);")
    assert rules.launches_without_status('check(cudaGetLastError(), "launching");')
    assert not rules.launches_without_status("static_cast<void>(cudaGetLastError());")

    def launches(path):
        return rules.launches_without_status(tree.without_cpp_comments(tree.read(path)))

    ours = [path for path in tree.project_files() if path.startswith(("kernels/", "hooks/", "src/")) and
            Path(path).suffix in tree.CPP]  # fmt: skip
    assert offenders(ours, launches) == []


def test_cmake_lists_its_sources_and_downloads_nothing():
    assert rules.globs_or_downloads("file(GLOB_RECURSE sources *.cpp)") == ["GLOB_RECURSE"]
    assert rules.globs_or_downloads("FetchContent_Declare(fmt)") == ["FetchContent_Declare"]

    def found(path):
        return rules.globs_or_downloads(tree.without_hash_comments(tree.read(path)))

    assert offenders(tree.cmake_files(), found) == []


def test_public_headers_do_not_depend_on_build_options():
    assert rules.preprocessor_conditions("#pragma once\n#ifdef WITH_CUDA\n#endif\n") == ["#ifdef WITH_CUDA"]
    assert rules.preprocessor_conditions("#ifdef __cplusplus\n#endif\n") == []

    def conditions(path):
        return rules.preprocessor_conditions(tree.without_cpp_comments(tree.read(path)))

    assert offenders([path for path in tree.cpp_files() if path.startswith("include/")], conditions) == []


def test_no_file_names_a_path_of_the_machine_it_was_written_on():
    planted = "/".join(("", "home", "someone", "nanhunt"))
    assert rules.machine_paths(f'path = "{planted}"') and rules.machine_paths(planted)
    assert rules.machine_paths("src/home/x ../data/y https://example.org/root/z") == []

    def found(path):
        return [] if b"\0" in (tree.ROOT / path).read_bytes() else rules.machine_paths(tree.read(path))

    assert offenders(tree.project_files(), found) == []


def test_scripts_are_executable_and_nothing_else_is():
    scripts = {path for path in tree.project_files() if (tree.ROOT / path).read_bytes()[:2] == b"#!"}
    assert {"tools/setup", "tools/quickstart", "tools/test", ".ci/run"} <= scripts

    executable = {path for path in tree.project_files() if (tree.ROOT / path).stat().st_mode & stat.S_IXUSR}
    assert executable == scripts

    committed = tree.git_modes()
    if committed is not None:
        assert [path for path in scripts if committed.get(path, "100755") != "100755"] == []
        assert [path for path, mode in committed.items() if mode == "100755" and path not in scripts] == []


def test_the_top_level_holds_only_what_belongs_there():
    assert {path.split("/", 1)[0] for path in tree.project_files()} <= TOP_LEVEL


def test_files_are_plain_text_with_unix_lines():
    def odd(path):
        data = (tree.ROOT / path).read_bytes()
        if not (tree.is_source(path) or path.endswith(".md")):
            return []
        wrong = [] if not data or data.endswith(b"\n") else ["no newline at the end"]
        wrong += ["carriage returns"] if b"\r\n" in data else []
        wrong += ["tabs"] if re.search(rb"^\t", data, re.MULTILINE) else []
        return wrong

    assert offenders(tree.project_files(), odd) == []


@pytest.mark.parametrize("planted", [
    "// Words are those of design" + " section 2.", "// Design\n// section" + " 6.", "widen exactly (N" + "5).",
    "// (rules G" + "1-G14)",
    "by the formulas of rule O" + "1", "no step is held back (P" + "15)",
])
def test_a_planted_citation_of_an_absent_document_is_found(planted):
    assert len(rules.absent_citations(planted)) == 1


def test_nothing_cites_a_document_that_is_not_in_the_tree():
    assert rules.absent_citations("// Design of the rules: README.md, section Thresholds; (N) and (O2 sensor)") == []
    checked = [path for path in tree.project_files() if tree.is_source(path) or path.endswith(".md")]
    assert {path: found for path in checked if (found := rules.absent_citations(tree.read(path)))} == {}
