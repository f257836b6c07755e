# SPDX-License-Identifier: Apache-2.0
"""The names that anomaly mode gives backward functions are torch's, and so are its words.

anomaly_test.cpp holds the engine to the same table.
"""

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_backward_functions_are_called_what_torch_calls_them(torch_python):
    command = [torch_python, "-W", "ignore", HERE / "torch_backward_names.py"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, run.stderr
    *names, nan, inf = run.stdout.splitlines()
    assert names == (HERE / "torch_backward_names.txt").read_text().splitlines()
    assert nan == "sqrt * 0: Function 'SqrtBackward0' returned nan values in its 0th output."
    assert inf == "sqrt * 1: passes"
