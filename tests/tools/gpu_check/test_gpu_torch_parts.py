# SPDX-License-Identifier: Apache-2.0
"""Parts of `tools/gpu_check` that run PyTorch, against programs that were made up."""

import json
import shutil

import pytest
from carried_parts import ROOT, Carried, by_check

# 12: programs whose verdict is known.

VERDICTS = """
if words[0] == "run":
    print('{"bits": 1}' if "train.py" in " ".join(words) else "trained to its end")
elif "--json" in words:
    fixed = words[1].endswith("True")
    found = {"id": "f1", "class": "overflow", "op": "aten::_foreach_mul", "module": "peak", "phase": "forward",
             "step": 6, "severity": "fault"}
    found.update(json.loads(os.environ.get("SAID", "{}")))
    loud = not fixed or os.environ.get("LOUD_TWIN")
    print(json.dumps({"verdict": {"status": "fault" if loud else "clean", "origin": "f1" if loud else None},
                      "findings": [found] if loud else [],
                      "coverage": {"unwatched": [os.environ.get("NOTE", "nothing")]}}))
"""
CARDS = """
if words[0] == "-c":
    print("loaded" if "ctypes" in words[1] else
          json.dumps({"torch": "2.13.0", "cuda": "13.0", "python": "3.11", "usable": True}))
elif "--list" in words:
    print(json.dumps([["fused", {"cls": "overflow", "op": "aten::mul", "module": "peak", "phase": None, "step": 6,
                                 "status": "fault"}]]))
else:
    print('{"bits": 1}')
"""


def programs_of_torch(carried: Carried, **environment: str) -> tuple[int, dict]:
    carried.in_package(VERDICTS)
    carried.program("torch_python", CARDS)
    shutil.copytree(ROOT / "tests" / "torch" / "cases", carried.at / "tests" / "torch" / "cases", dirs_exist_ok=True)
    carried.environment.update(
        NANHUNT_TORCH_PYTHON=str(carried.at / "bin" / "torch_python"), GPU_CHECK_CASES="fused", GPU_CHECK_MODELS="mlp",
        **environment)  # fmt: skip
    status, rows = carried.run(12)
    return status, by_check(rows)


def test_a_program_that_gets_its_verdict_on_the_card_and_a_silent_twin_pass(carried):
    status, found = programs_of_torch(carried)
    names = {f"PyTorch fused{twin}, level {level}" for twin in ("", ", repaired") for level in ("live", "ops")}
    assert status == 0 and names <= set(found), found
    assert all(found[name][0] == "passed" and "PyTorch 2.13.0" in found[name][1] for name in names)


@pytest.mark.parametrize(
    ("environment", "failed", "told"),
    [
        ({"SAID": '{"op": "aten::add"}'}, "PyTorch fused, level live", "op aten::add, not aten::mul"),
        ({"SAID": '{"step": 7}'}, "PyTorch fused, level ops", "step 7, not 6"),
        ({"LOUD_TWIN": "1"}, "PyTorch fused, repaired, level live", "verdict fault, 1 findings"),
        ({"NOTE": "errors inside nanhunt"}, "PyTorch fused, level live", "errors inside"),
        ({"NOTE": "so they are copied to the host: no CUDA"}, "PyTorch fused, level live", "copied to the host"),
    ],
)
def test_a_program_that_gets_another_verdict_on_the_card_fails(carried, environment, failed, told):
    status, found = programs_of_torch(carried, **environment)
    assert status == 1 and found[failed][0] == "failed" and told in found[failed][1], found


# 14: kernels of PyTorch's ops.

REPORT = {
    "verdict": {"status": "fault", "origin": "f1"},
    "findings": [{"id": "f1", "op": "aten::log", "kernel": "log_kernel"}],
    "device_time": {"kernels": 9, "own_kernels": 4, "rows": [{"op": "aten::log", "kernel": "log_kernel"}]},
    "coverage": {"unwatched": ["kernels that no watched op launched (2)"]},
}
WATCHES = """
if words[0] == "doctor":
    print('{"cupti": {"path": "/there"}}')
elif words[0] == "run":
    assert "--kernels" in words
    print(os.environ["BITS_WATCHED"] if "train.py" in " ".join(words) else "weights finite")
else:
    print(os.environ["REPORT"])
"""
PROFILES = """
if words[0] == "-c":
    print("loaded" if "ctypes" in words[1] else
          json.dumps({"torch": "2.13.0", "cuda": "13.0", "python": "3.11", "usable": True}))
else:
    if "--json" in words:
        figures = {name: {"ratio": ratio} for name, ratio in (("unwatched", 1), ("ops", 2), ("ops+kernels", 2.5))}
        json.dump({"results": [{"turns": 30, "figures": figures}]}, open(words[words.index("--json") + 1], "w"))
    print('{"bits": 1}' if words[0].endswith("train.py") else os.environ["PROFILED"])
"""


def profiled(watched: int, note: str) -> str:
    both = {"alone": 4, "watched": watched, "notes": [note]}
    return json.dumps({"which came first": both, "which came later": both})


def kernels_of_torch(carried: Carried, report: dict, bits: str, profiler: str) -> tuple[int, dict]:
    carried.program("nanhunt", WATCHES)
    carried.in_package(WATCHES)
    carried.program("torch_python", PROFILES)
    carried.environment.update(
        NANHUNT_TORCH_PYTHON=str(carried.at / "bin" / "torch_python"), REPORT=json.dumps(report), BITS_WATCHED=bits,
        PROFILED=profiler)  # fmt: skip
    status, rows = carried.run(14)
    cost = [row.get("ratio") for row in rows if "watched over not watched" in row["check"]]
    assert cost == [1.25]
    return status, by_check(rows)


def test_the_kernel_of_a_pytorch_origin_is_told_with_the_version(carried):
    status, found = kernels_of_torch(carried, REPORT, '{"bits": 1}', profiled(4, "kernels: ... (Kineto) ..."))
    assert status == 0, found
    named = found["PyTorch kernels: the origin's is named"]
    assert named[0] == "passed" and "PyTorch 2.13.0 (CUDA 13.0)" in named[1] and "log_kernel" in named[1]
    assert found["PyTorch kernels: no bit differs"][0] == "passed"


@pytest.mark.parametrize(
    ("report", "bits", "profiler", "failed"),
    [
        ({**REPORT, "findings": [{"id": "f1", "op": "aten::log", "kernel": None}]}, '{"bits": 1}',
         profiled(4, "Kineto"), "PyTorch kernels: the origin's is named"),
        ({**REPORT, "device_time": None}, '{"bits": 1}', profiled(4, "Kineto"),
         "PyTorch kernels: they belong to ops"),
        (REPORT, '{"bits": 2}', profiled(4, "Kineto"), "PyTorch kernels: no bit differs"),
        (REPORT, '{"bits": 1}', profiled(3, "Kineto"), "PyTorch kernels: torch.profiler goes first, which came later"),
        (REPORT, '{"bits": 1}', profiled(4, "nothing"), "PyTorch kernels: torch.profiler goes first, which came first"),
        (REPORT, '{"bits": 1}', "no JSON", "PyTorch kernels: torch.profiler goes first"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_kernels_of_pytorch_fails(carried, report, bits, profiler, failed):
    status, found = kernels_of_torch(carried, report, bits, profiler)
    assert status == 1 and found[failed][0] == "failed", found
