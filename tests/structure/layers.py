# SPDX-License-Identifier: Apache-2.0
"""The layers, the floors inside of one, and who may include whom: downwards only, never upwards, never sideways.

`check_includes` takes the text it judges, so that tests can hand it planted mistakes.
"""

import re

from tree import without_cpp_comments

# Rank of each layer, lowest first. Layers of one rank must not know each other.
RANKS = (
    ("core",),
    ("kernels", "trace"),
    ("record", "analyze", "engine", "checkpoint"),
    ("hunt", "reports"),
    ("fleet", "autopsy"),
    ("hooks/engine", "hooks/cupti"),
    ("c_api",),
    ("tools", "hooks/torch"),
)
RANK = {layer: rank for rank, layers in enumerate(RANKS) for layer in layers}

# Floors of a layer's folder, lowest first: the folders right below it, and "." for the files right in it.
FLOORS = {
    "src/analyze": (
        ("wording",),
        ("stream",),
        ("graph",),
        ("watch",),
        ("ranks",),
        ("rules",),
        ("findings",),
        (".", "diff"),
    ),
}
FLOOR = {
    f"{layer}/{name}": floor for layer, floors in FLOORS.items() for floor, names in enumerate(floors) for name in names
}

# Owner of each public header; a new one must be entered here.
PUBLIC_OWNER = {
    "include/nanhunt/dtype.h": "core",
    "include/nanhunt/tensor_view.h": "core",
    "include/nanhunt/tensor_stats.h": "core",
    "include/nanhunt/event.h": "core",
    "include/nanhunt/lr_range.h": "core",
    "include/nanhunt/precision.h": "core",
    "include/nanhunt/status.h": "core",
    "include/nanhunt/trace.h": "trace",
    "include/nanhunt/recorder.h": "record",
    "include/nanhunt/analyzer.h": "analyze",
    "include/nanhunt/reporter.h": "reports",
    "include/nanhunt/c_api.h": "c_api",
    "include/nanhunt/c_adapter.h": "c_api",
}

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include(?:_next)?\b[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_OWN_ROOTS = ("nanhunt/", "src/", "kernels/", "hooks/", "reports/", "tools/", "tests/", "include/")
_CUDA = re.compile(
    r"^(cuda|cublas|cupti|curand|cusparse|cusolver|cufft|cudnn|nvrtc|nvml|nccl|nvtx|nvToolsExt|driver_types|device_|"
    r"vector_types|cooperative_groups|cub/|thrust/|cute/|cutlass/|generated_cuda|builtin_types|math_constants)"
)
_CUDA_FOLDERS = ("kernels/cuda/", "hooks/cupti/")

STANDARD_HEADERS = frozenset(
    """
    algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits
    clocale cmath codecvt compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint
    cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception execution filesystem format forward_list fstream
    functional future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
    memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view
    strstream syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility
    valarray variant vector version
    """.split()
)
# The C ABI header is read by C compilers too.
C_HEADERS = frozenset({"stddef.h", "stdint.h", "stdbool.h"})


def layer_of(path: str) -> str | None:
    """The layer a file belongs to; None for tests, which may look at anything."""
    if path.startswith("include/nanhunt/engine/"):
        return "engine"
    if path.startswith("include/"):
        return PUBLIC_OWNER.get(path, f"unknown (enter {path} in PUBLIC_OWNER)")
    parts = path.split("/")
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[0] == "hooks" and len(parts) > 2:
        return f"hooks/{parts[1]}"
    if parts[0] in ("kernels", "reports", "tools"):
        return parts[0]
    return None


def floor_of(path: str) -> str | None:
    """The floor a file belongs to, with its layer's folder; None where that has none."""
    for layer in FLOORS:
        if path.startswith(layer + "/"):
            below, _, file = path.removeprefix(layer + "/").partition("/")
            return f"{layer}/{below if file else '.'}"
    return None


def includes_of(text: str) -> list[tuple[int, str]]:
    """(line, spelling with its quotes or brackets) of each #include outside comments."""
    clean = without_cpp_comments(text)
    return [(clean.count("\n", 0, match.start()) + 1, match.group(1)) for match in _INCLUDE.finditer(clean)]


def resolve(name: str, exists) -> str | None:
    """Repository path of an include written from the root or from include/."""
    for candidate in (f"include/{name}", name):
        if exists(candidate):
            return candidate
    return None


def check_includes(path: str, text: str, exists) -> list[str]:
    """What is wrong with the includes of `path`, one sentence each.

    `exists` tells whether a repository path is there.
    """
    problems = []
    own_layer = layer_of(path)
    if own_layer is not None and own_layer not in RANK:
        problems.append(f"{path}: layer '{own_layer}' is not in the table of layers")
    own_floor = floor_of(path)
    if own_floor is not None and own_floor not in FLOOR:
        problems.append(f"{path}: {own_floor} is not in the table of floors")
    for line, spelling in includes_of(text):
        problem = _check_one(path, own_layer, spelling, exists)
        if problem:
            problems.append(f"{path}:{line}: {problem}")
    return problems


def _check_one(path: str, own_layer: str | None, spelling: str, exists) -> str | None:
    match = re.fullmatch(r'"([^"]+)"|<([^>]+)>', spelling)
    if match is None:
        return f"#include {spelling}: cannot be checked; name the file"
    quoted, angled = match.groups()
    name = quoted or angled
    if _CUDA.match(name) and not path.startswith(_CUDA_FOLDERS):
        return f"includes the CUDA header {name}; only {' and '.join(_CUDA_FOLDERS)} may"
    is_public = path.startswith("include/")
    if quoted is None and not name.startswith(_OWN_ROOTS):
        if is_public and name not in STANDARD_HEADERS and not (path.endswith("/c_api.h") and name in C_HEADERS):
            return f"a public header includes <{name}>; only the standard library and nanhunt/ may be there"
        return None
    if ".." in name.split("/"):
        return f'"{name}": write includes from the repository root'
    if is_public and not name.startswith("nanhunt/"):
        return f'a public header includes "{name}"; only the standard library and nanhunt/ may be there'
    target = resolve(name, exists)
    if target is None:
        return f'"{name}" is not in the repository; write includes from the root or from include/'
    if own_layer is None or own_layer not in RANK:
        return None
    target_layer = layer_of(target)
    if target_layer is None:
        return f"{own_layer} includes {target}, which belongs to no layer (tests are not for shipping)"
    if target_layer not in RANK:
        return f"{target} is in layer '{target_layer}', which is not in the table of layers"
    if target_layer != own_layer and RANK[target_layer] >= RANK[own_layer]:
        way = "sideways" if RANK[target_layer] == RANK[own_layer] else "upwards"
        return f"{own_layer} includes {target} of {target_layer}: {way}"
    return _check_floor(floor_of(path), target)


def _check_floor(own: str | None, target: str) -> str | None:
    """Same rule inside of one layer. Public headers lie below its floors."""
    floor = floor_of(target)
    if own not in FLOOR or floor is None or floor == own or floor.rpartition("/")[0] != own.rpartition("/")[0]:
        return None
    if floor not in FLOOR:
        return f"{target} is in {floor}, which is not in the table of floors"
    if FLOOR[floor] < FLOOR[own]:
        return None
    way = "sideways" if FLOOR[floor] == FLOOR[own] else "upwards"
    return f"{own} includes {target} of {floor}: {way}"


def check_links(text: str) -> list[str]:
    """Same rule for the DEPS of each nanhunt_layer(...) in a CMake file."""
    problems = []
    for match in re.finditer(r"\bnanhunt_layer\s*\(\s*(\w+)([^)]*)\)", text):
        name, body = match.groups()
        own = _link_layer(name)
        for dependency in re.findall(r"\bnanhunt(?:::|_)(\w+)", body):
            target = _link_layer(dependency)
            if dependency.startswith("dep_") or dependency == "flags":
                continue
            if target not in RANK or own not in RANK:
                unknown = dependency if own in RANK else name
                problems.append(f"nanhunt_layer({name}): no layer is called '{unknown}'")
            elif target != own and RANK[target] >= RANK[own]:
                problems.append(f"nanhunt_layer({name}) links {dependency}, which is not below it")
    return problems


def _link_layer(name: str) -> str:
    return name.replace("hooks_", "hooks/", 1)
