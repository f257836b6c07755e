# SPDX-License-Identifier: Apache-2.0
"""`bench/overhead.py` where there is little time for it."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "bench" / "overhead.py"


def test_fewer_turns_are_taken_where_all_would_take_longer_than_asked_and_the_figures_kept(tmp_path):
    out = tmp_path / "figures.json"
    words = ["--models", "mlp", "--instruments", "unwatched again", "--turns", "1000000", "--seconds", "1"]
    subprocess.run([sys.executable, str(SCRIPT), *words, "--json", str(out)], timeout=1800, check=True)
    result = json.loads(out.read_text())["results"][0]
    assert 1 <= result["turns"] < 1000000
    assert result["figures"]["unwatched again"]["ratio"] > 0
