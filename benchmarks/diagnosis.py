"""Diagnose simulated jobs with planted causes: is the cause first, and does its range hold its cost?

    python -m benchmarks.diagnosis [--jobs 10] [--unplanted 20] [--first-seed 1000] [--causes NAME ...]
    python -m benchmarks.diagnosis --own [--seeds 5] [--strengths 0.5 1 2] [--healthy 50] [--causes NAME ...]

The main table is of :mod:`zprof.simulator`, which was written without knowledge of the rules: a number
of jobs for each cause and each pair of causes, and recordings in which nothing was planted.  Seeds below 1000
are for work on the rules; reported figures use seeds from 1000 on.  ``--own`` are regular jobs: each
cause at several strengths, on NVIDIA GPUs and on gloo CPU ranks.

Writes ``benchmarks/results/diagnosis-DATE.json`` (``diagnosis-own-DATE.json``).  Jobs in which a cause costs
less than 2 % of the step are counted separately: nothing need be found there.  So are causes visible only in
sizes or types of messages, in traces that have neither: nobody can find them there.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.conditions import conditions, today
from benchmarks.diagnosis_jobs import format_job_table, judge_job, list_job_cases, tabulate_jobs
from benchmarks.diagnosis_own import (
    diagnose_case,
    diagnose_pair,
    format_healthy_table,
    format_matrix,
    format_pair_table,
    list_cases,
    list_pair_cases,
    tabulate_outcomes,
)
from zprof.simulator.job import CAUSES, HEALTHY, Vendor

RESULTS = Path(__file__).parent / "results"
_VENDORS: tuple[Vendor, ...] = ("nvidia", "gloo")
_Case, _Outcome = TypeVar("_Case"), TypeVar("_Outcome")


def main() -> None:
    """Simulate, diagnose, print and write the results."""
    arguments = _arguments()
    name, result = _own(arguments) if arguments.own else _independent(arguments)
    if not arguments.causes:
        document = {"conditions": conditions(), "benchmark": "diagnosis", **result}
        (RESULTS / f"{name}-{today()}.json").write_text(json.dumps(document, indent=1) + "\n")


def _independent(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    causes = arguments.causes or list(CAUSES)
    wanted = list_job_cases(arguments.first_seed, arguments.jobs, causes, arguments.unplanted)
    outcomes = spread(judge_job, wanted, arguments.processes)
    table = tabulate_jobs(outcomes)
    print(format_job_table(table))
    return "diagnosis", {
        "first_seed": arguments.first_seed,
        "jobs_of_each": arguments.jobs,
        "unplanted_of_each": arguments.unplanted,
        "rows": table,
        "missed": [asdict(each) for each in outcomes if each.is_missed],
    }


def _own(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    chosen = arguments.causes or list(CAUSES)
    planted_cases = list_cases(chosen, _VENDORS, arguments.seeds, arguments.strengths)
    healthy_cases = list_cases(HEALTHY, _VENDORS, arguments.healthy, ())
    outcomes = spread(diagnose_case, [*planted_cases, *healthy_cases], arguments.processes)
    pairs = spread(diagnose_pair, list_pair_cases(_VENDORS, arguments.pairs), arguments.processes)
    planted, healthy = (
        tabulate_outcomes(outcomes[: len(planted_cases)]),
        tabulate_outcomes(outcomes[len(planted_cases) :]),
    )
    print(format_matrix(planted))
    print(format_healthy_table(healthy))
    print(format_pair_table(pairs))
    return "diagnosis-own", {
        "seeds": arguments.seeds,
        "strengths": arguments.strengths,
        "planted": planted,
        "healthy": healthy,
        "pairs": [asdict(each) for each in pairs],
        "missed": [each.tree() for each in outcomes[: len(planted_cases)] if each.is_missed],
    }


def spread(work: Callable[[_Case], _Outcome], wanted: Sequence[_Case], processes: int) -> list[_Outcome]:
    """Return all outcomes in the order of the cases, computed in ``processes`` processes."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(work, wanted, chunksize=4))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10, help="of each cause and pair")
    parser.add_argument("--unplanted", type=int, default=20, help="recordings of each shape without a cause")
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--own", action="store_true", help="regular jobs, of NVIDIA's and of gloo's form")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--strengths", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--healthy", type=int, default=50, help="seeds of healthy jobs")
    parser.add_argument("--pairs", type=int, default=5, help="seeds of jobs with two causes")
    parser.add_argument("--causes", nargs="*", default=[], help="only these, and nothing is written")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
