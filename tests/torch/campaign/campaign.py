# SPDX-License-Identifier: Apache-2.0
"""Faults in programs that use PyTorch, planted at random places: how often are origin and class right?

    build/venv/bin/python tests/torch/campaign/campaign.py --seed 1 --runs 100 --levels default ops
    build/venv/bin/python tests/torch/campaign/campaign.py --seed 1 --runs 100 --only 17   # one again, told in full

Every fault has its twin. NANHUNT_LIBRARY and NANHUNT_BIN_DIR name what was built.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2] / "hooks" / "torch")]

import torch  # noqa: E402
from kinds import Name, all_faults, all_healthy  # noqa: E402
from runner import Result, judge_fault, judge_healthy  # noqa: E402
from score import LEVELS  # noqa: E402

COLUMNS = ("kind", "level", "faults", "origin right", "class right", "healthy", "faults on healthy",
           "redrawn: harmless, not as planned")  # fmt: skip


def plan(runs: int) -> list[tuple[bool, Name]]:
    """`runs` faults, in turn of each name; after them a healthy run for every fifth."""
    faults, healthy = list(all_faults()), list(all_healthy())
    drawn = [(True, faults[n % len(faults)]) for n in range(runs)]
    return drawn + [(False, healthy[n % len(healthy)]) for n in range(runs // 5)]


def run_one(seed: int, number: int, what: tuple[bool, Name], levels: list[str]) -> Result:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    faulty, name = what
    judge = judge_fault if faulty else judge_healthy
    with tempfile.TemporaryDirectory() as folder:
        return judge(name, f"{seed} {number}", levels, Path(folder))


def missed(result: Result) -> list[str]:
    """Levels at which something is wrong."""
    wrong = {level for level, right in result.right.items() if not all(right)}
    return sorted(wrong | {level for level, titles in result.healthy.items() if titles})


def differ(result: Result) -> bool:
    """Whether levels name another class, op, phase or step."""
    return len({(a.cls, a.op, a.phase, a.step) for a in result.answers.values()}) > 1


def show(result: Result) -> str:
    lines = [f"{result.kind}, {result.name}: {result.settings}", f"  harm: {result.harm}; redrawn: {result.redrawn}"]
    if result.place is not None:
        lines.append(f"  expected {result.cls}: {result.place}")
    for level, report in result.reports.items():
        lines.append(f"  {level}: {report['verdict']['status']}")
        for f in report["findings"]:
            place = f"step {f['step']} {f['phase']} {f['module']} {f['op']}"
            lines.append(f"    {f['severity']} {f['class']} {place} | {f['title']}")
    return "\n".join(lines + [f"  faults on healthy at {level}: {its}" for level, its in result.healthy.items() if its])


def table(results: list[Result], levels: list[str]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "| --- " * len(COLUMNS) + "|"]
    for kind in [*sorted({r.kind for r in results}), "all"]:
        its = [r for r in results if kind in (r.kind, "all")]
        redrawn = Counter(why for r in its for why in r.redrawn)
        for level in levels:
            right = [r.right[level] for r in its if level in r.right]
            healthy = [r.healthy[level] for r in its if level in r.healthy]
            hits = [str(sum(one[k] for one in right)) for k in range(2)]
            if kind == "all" and right:
                hits = [f"{100 * int(hit) / len(right):.1f} %" for hit in hits]
            row = [kind.replace("_", " "), f"`{level}`", len(right), *hits, len(healthy),
                   sum(map(bool, healthy)), f"{redrawn['harmless']}, {redrawn['not as planned']}"]  # fmt: skip
            lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=100, help="faults; each with its twin")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--only", type=int, nargs="+", help="numbers of runs, told in full")
    parser.add_argument("--names", nargs="+", help="faults of these names alone")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    chosen = [(n, what) for n, what in enumerate(plan(args.runs)) if not args.names or what[1][1] in args.names]
    if args.only is not None:
        chosen = [(n, what) for n, what in chosen if n in args.only]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        running = [(n, what, pool.submit(run_one, args.seed, n, what, args.levels)) for n, what in chosen]
        results = []
        for n, (faulty, _), future in running:
            result = future.result()
            results.append(result)
            if args.only is not None or missed(result) or differ(result) or (faulty and result.place is None):
                again = f"campaign.py --seed {args.seed} --runs {args.runs} --only {n}"
                told = f"wrong at {missed(result)}{', levels differ' if differ(result) else ''}"
                print(f"{again}: {told}\n{show(result)}", flush=True)
    print(table(results, args.levels))


if __name__ == "__main__":
    main()
