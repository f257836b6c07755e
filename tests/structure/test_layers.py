# SPDX-License-Identifier: Apache-2.0
"""Includes and link targets go downwards only. Every rule is first shown a planted mistake, which it must find."""

import pytest
import tree
from layers import FLOOR, PUBLIC_OWNER, check_includes, check_links, floor_of, layer_of

EXISTING = {
    "include/nanhunt/dtype.h",
    "include/nanhunt/trace.h",
    "include/nanhunt/recorder.h",
    "include/nanhunt/analyzer.h",
    "include/nanhunt/engine/tensor.h",
    "src/core/bits.h",
    "src/trace/encoding/chunk.h",
    "src/analyze/whole.h",
    "src/analyze/diff/diff.h",
    "src/analyze/findings/findings.h",
    "src/analyze/graph/birth.h",
    "src/analyze/misc/thing.h",
    "src/analyze/ranks/call.h",
    "src/analyze/rules/run/scaler.h",
    "src/analyze/stream/names.h",
    "src/analyze/wording/text.h",
    "src/record/queue.h",
    "src/hunt/hunt.h",
    "kernels/stats.h",
    "hooks/engine/engine_hooks.h",
    "hooks/cupti/kernel_watch.h",
    "src/c_api/handle.h",
    "tools/nanhunt/verb.h",
    "tests/support/temp_dir.h",
}


def problems(path: str, text: str) -> list[str]:
    return check_includes(path, text, EXISTING.__contains__)


@pytest.mark.parametrize(
    ("path", "line", "expected"),
    [
        ("src/core/bits.cpp", '#include "src/trace/encoding/chunk.h"', "upwards"),
        ("src/core/bits.cpp", '#include "nanhunt/trace.h"', "upwards"),
        ("src/core/bits.cpp", "#include <nanhunt/trace.h>", "upwards"),
        ("include/nanhunt/dtype.h", '#include "nanhunt/trace.h"', "upwards"),
        ("kernels/cpu/stats.cpp", '#include "src/trace/encoding/chunk.h"', "sideways"),
        ("src/trace/reader.cpp", '#include "kernels/stats.h"', "sideways"),
        ("src/analyze/graph.cpp", '#include "nanhunt/recorder.h"', "sideways"),
        ("src/analyze/graph.cpp", '#include "nanhunt/engine/tensor.h"', "sideways"),
        ("src/engine/tensor.cpp", '#include "nanhunt/recorder.h"', "sideways"),
        ("src/engine/tensor.cpp", '  #  include  "hooks/engine/engine_hooks.h"', "upwards"),
        ("reports/text.cpp", '#include "src/hunt/hunt.h"', "sideways"),
        ("src/hunt/hunt.cpp", '#include "hooks/engine/engine_hooks.h"', "upwards"),
        ("hooks/engine/watch.cpp", '#include "hooks/cupti/kernel_watch.h"', "sideways"),
        ("hooks/cupti/session.cpp", '#include "src/c_api/handle.h"', "upwards"),
        ("hooks/engine/watch.cpp", '#include "tools/nanhunt/verb.h"', "upwards"),
        ("src/core/bits.cpp", '#include "tests/support/temp_dir.h"', "belongs to no layer"),
        ("src/trace/reader.cpp", '#include "chunk.h"', "from the root"),
        ("src/trace/reader.cpp", '#include "../trace/chunk.h"', "from the repository root"),
        ("src/trace/reader.cpp", "#include NANHUNT_HEADER", "cannot be checked"),
        ("src/trace/reader.cpp", "#include <cuda_runtime.h>", "CUDA header"),
        ("kernels/cpu/stats.cpp", "#include <cub/cub.cuh>", "CUDA header"),
        ("tests/kernels/stats_test.cpp", "#include <cuda_fp16.h>", "CUDA header"),
        ("include/nanhunt/dtype.h", "#include <fmt/format.h>", "only the standard library"),
        ("include/nanhunt/dtype.h", "#include <unistd.h>", "only the standard library"),
        ("include/nanhunt/trace.h", '#include "src/core/bits.h"', "only the standard library"),
        ("include/nanhunt/new_thing.h", "#include <string>", "PUBLIC_OWNER"),
        ("src/misc/thing.cpp", "#include <string>", "not in the table"),
        ("src/analyze/wording/text.cpp", '#include "src/analyze/stream/names.h"', "upwards"),
        ("src/analyze/graph/birth.h", '#include "src/analyze/ranks/call.h"', "upwards"),
        ("src/analyze/watch/norms.cpp", "#include <src/analyze/rules/run/scaler.h>", "upwards"),
        ("src/analyze/rules/run/scaler.cpp", '#include "src/analyze/findings/findings.h"', "upwards"),
        ("src/analyze/findings/findings.h", '#include "src/analyze/whole.h"', "upwards"),
        ("src/analyze/whole.cpp", '#include "src/analyze/diff/diff.h"', "sideways"),
        ("src/analyze/diff/diff.cpp", '#include "src/analyze/whole.h"', "sideways"),
        ("src/analyze/graph/birth.cpp", '#include "src/analyze/misc/thing.h"', "not in the table"),
        ("src/analyze/misc/thing.cpp", "#include <string>", "not in the table"),
    ],
)
def test_a_planted_wrong_include_is_found(path, line, expected):
    found = problems(path, f"// a file\n#include <string>\n{line}\n")
    assert len(found) == 1, found
    assert expected in found[0]
    if "table" not in expected and expected != "PUBLIC_OWNER":
        assert f"{path}:3:" in found[0]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "src/record/recorder.cpp",
            '#include "nanhunt/recorder.h"\n#include <fmt/format.h>\n#include "kernels/stats.h"',
        ),
        ("src/trace/reader.cpp", '// #include "hooks/engine/engine_hooks.h"'),
        ("src/trace/reader.cpp", '/* old:\n#include "hooks/engine/engine_hooks.h"\n*/'),
        ("src/trace/reader.cpp", 'auto s = R"(\n#include "hooks/engine/engine_hooks.h"\n)";'),
        ("kernels/cuda/stats.cu", '#include <cuda_runtime.h>\n#include "kernels/stats.h"'),
        ("tools/nanhunt/command_line.cpp", '#include "hooks/engine/engine_hooks.h"\n#include "nanhunt/dtype.h"'),
        ("tests/record/queue_test.cpp", '#include "src/record/queue.h"\n#include "tests/support/temp_dir.h"'),
        ("include/nanhunt/recorder.h", '#include <string>\n#include "nanhunt/trace.h"'),
        ("src/analyze/graph/birth.cpp", '#include "nanhunt/analyzer.h"\n#include "src/analyze/graph/birth.h"'),
        (
            "src/analyze/rules/origin/comm.cpp",
            '#include "src/analyze/rules/run/scaler.h"\n#include "src/analyze/ranks/call.h"',
        ),
        (
            "src/analyze/whole.cpp",
            '#include "src/analyze/whole.h"\n#include "src/analyze/findings/findings.h"\n'
            '#include "src/analyze/wording/text.h"',
        ),
        ("src/analyze/diff/diff.cpp", '#include "src/analyze/stream/names.h"\n#include "src/core/bits.h"'),
        ("src/hunt/hunt.cpp", '#include "src/analyze/findings/findings.h"'),
    ],
)
def test_a_right_include_is_left_alone(path, text):
    assert problems(path, text) == []


def test_a_planted_wrong_link_is_found():
    assert check_links("nanhunt_layer(trace SOURCES a.cpp DEPS nanhunt::core nanhunt::record)") == [
        "nanhunt_layer(trace) links record, which is not below it"
    ]
    assert check_links("nanhunt_layer(hunt SOURCES h.cpp DEPS nanhunt::reports)") != []
    assert check_links("nanhunt_layer(misc SOURCES m.cpp DEPS nanhunt::core)") != []
    assert (
        check_links("nanhunt_layer(hooks_engine SOURCES h.cpp DEPS nanhunt::hunt PRIVATE_DEPS nanhunt_dep_blas)") == []
    )


def test_every_include_of_the_project_goes_downwards():
    exists = set(tree.project_files()).__contains__
    found = [p for path in tree.cpp_files() for p in check_includes(path, tree.read(path), exists)]
    assert found == []


def test_every_link_of_the_project_goes_downwards():
    files = [path for path in tree.cmake_files() if not path.startswith("tools/cmake/")]
    found = [f"{path}: {p}" for path in files for p in check_links(tree.without_hash_comments(tree.read(path)))]
    assert found == []


def test_the_table_of_floors_names_exactly_the_folders_that_exist():
    assert {floor_of(path) for path in tree.cpp_files()} - {None} == set(FLOOR)


def test_every_public_header_has_an_owner():
    public = [path for path in tree.project_files() if path.startswith("include/") and path.endswith(".h")]
    assert public
    assert [path for path in public if layer_of(path).startswith("unknown")] == []
    assert [path for path in public if not (path.startswith("include/nanhunt/engine/") or path in PUBLIC_OWNER)] == []
