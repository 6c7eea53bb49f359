"""Every cause planted in simulated jobs: is it the first finding, and does its range hold what it costs?

    python -m benchmarks.diagnosis [--seeds 5] [--strengths 0.5 1 2] [--healthy 50] [--causes NAME ...]

Simulates each cause of a slow step with each seed and strength, as the traces of NVIDIA GPUs and of gloo CPU
ranks, imports and diagnoses them, and simulates the same jobs cured: the difference of the steps is what the
cause truly costs.  Then healthy jobs, on a fast network and on one that only just keeps up.  Prints the
confusion matrix and writes ``benchmarks/results/diagnosis-DATE.json``.  Jobs in which the cause costs less
than 2 % of the step are counted apart: nothing need be found there.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from benchmarks.conditions import conditions, today
from benchmarks.matrix.cases import HEALTHY, cases, outcome
from benchmarks.matrix.pairs import pair_cases, pair_outcome, pairs_markdown
from benchmarks.matrix.table import healthy_markdown, markdown, rows
from zprof.simulator.causes import Cause
from zprof.simulator.plan import Vendor

RESULTS = Path(__file__).parent / "results"
_VENDORS = (Vendor.NVIDIA, Vendor.GLOO)
_Case, _Outcome = TypeVar("_Case"), TypeVar("_Outcome")


def spread(work: Callable[[_Case], _Outcome], wanted: Sequence[_Case], processes: int) -> list[_Outcome]:
    """All of them, in their order, each in one of so many processes."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(work, wanted, chunksize=4))


def main() -> None:
    """Simulate, diagnose, print, write."""
    arguments = _arguments()
    chosen = [Cause(name) for name in arguments.causes] or [c for c in Cause if c not in HEALTHY]
    sick = cases(chosen, _VENDORS, arguments.seeds, arguments.strengths)
    well = cases(HEALTHY, _VENDORS, arguments.healthy, ())
    outcomes = spread(outcome, [*sick, *well], arguments.processes)
    pairs = spread(pair_outcome, pair_cases(_VENDORS, arguments.pairs), arguments.processes)
    planted, healthy = rows(outcomes[: len(sick)]), rows(outcomes[len(sick) :])
    print(markdown(planted))
    print(healthy_markdown(healthy))
    print(pairs_markdown(pairs))
    result = {
        "conditions": conditions(),
        "benchmark": "diagnosis",
        "seeds": arguments.seeds,
        "strengths": arguments.strengths,
        "planted": planted,
        "healthy": healthy,
        "pairs": [asdict(each) for each in pairs],
        "missed": [each.tree() for each in outcomes[: len(sick)] if each.is_missed],
    }
    if not arguments.causes:
        target = RESULTS / f"diagnosis-{today()}.json"
        target.write_text(json.dumps(result, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--strengths", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--healthy", type=int, default=50, help="seeds of healthy jobs")
    parser.add_argument("--pairs", type=int, default=5, help="seeds of jobs with two causes")
    parser.add_argument("--causes", nargs="*", default=[], help="only these, and nothing is written")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
