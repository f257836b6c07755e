# SPDX-License-Identifier: Apache-2.0
"""Each public header compiles alone, needs nothing but the standard library, and stands being included twice."""

import os
import shutil
import subprocess

import pytest
import tree

HEADERS = [path.removeprefix("include/") for path in tree.cpp_files() if path.startswith("include/")]
FLAGS = [
    "-std=c++20",
    "-fsyntax-only",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wno-sign-conversion",
    "-Werror",
]


def compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        pytest.skip("no C++ compiler on PATH (set CXX)")
    return found


def compile_alone(header: str, include_dir) -> subprocess.CompletedProcess:
    source = f'#include "{header}"\n#include "{header}"\n'
    command = [compiler(), *FLAGS, "-I", str(include_dir), "-x", "c++", "-"]
    return subprocess.run(command, input=source, text=True, capture_output=True)


@pytest.mark.parametrize("header", HEADERS)
def test_a_public_header_compiles_alone(header):
    done = compile_alone(header, tree.ROOT / "include")
    assert done.returncode == 0, done.stderr


def test_a_planted_header_that_forgets_an_include_is_found(tmp_path):
    (tmp_path / "bad.h").write_text("#pragma once\ninline std::string name() { return {}; }\n")
    assert compile_alone("bad.h", tmp_path).returncode != 0


def test_a_planted_header_without_a_guard_is_found(tmp_path):
    (tmp_path / "bad.h").write_text("struct Twice {};\n")
    assert compile_alone("bad.h", tmp_path).returncode != 0
