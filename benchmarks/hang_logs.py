"""Read the logs of simulated jobs that hang: what they prove of each rank, and whom they accuse.

    python -m benchmarks.hang_logs [--logs 400] [--first-seed 1000] [--cuts NAME ...] [--keep FOLDER]
    python -m benchmarks.hang_logs --show SEED        one log: its text, its truth and the answer

The logs and their truths are of :mod:`benchmarks.hang_jobs`, which was written without knowledge of the
reader. *States* are the ranks and groups whose state the lines prove, *decided* the logs whose lines decide
the cause, *accused* the logs in which an innocent rank is named with more than low confidence, *unproved*
those in which all ranks are said to have entered a group whose size no line states. Writes
``benchmarks/results/hang-logs-DATE.json`` if all cuts were drawn.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.conditions import conditions, today
from benchmarks.diagnosis import spread
from benchmarks.hang_jobs import FAULTS, draw_job
from benchmarks.hang_jobs.log_cuts import CUTS
from benchmarks.hang_jobs.log_truth import LogState, LogTruth
from benchmarks.hang_jobs.logs import list_versions, write_logs
from benchmarks.hangs import RESULTS, judge
from zprof.base.errors import ZprofError
from zprof.model.findings import Confidence
from zprof.model.hang import Hang, HangClass
from zprof.run.log_evidence import DEFAULT_GROUP

_COLUMNS = ("logs", "states", "right states", "decided", "right", "accused", "unproved", "refused", "failed")


class Case(Struct, frozen=True):
    """A log to judge."""

    seed: int
    cuts: tuple[str, ...]
    keep: str = ""


class Verdict(Struct, frozen=True, kw_only=True):
    """How an answer compares with the truth; ``hang`` is None if the log was refused, with ``error``."""

    truth: LogTruth
    hang: Hang | None = None
    error: str = ""
    is_refused: bool = False
    wrong_states: tuple[str, ...] = ()
    is_cause_right: bool = False
    accused: tuple[int, ...] = ()
    is_unproved: bool = False


def main() -> None:
    """Draw, write, judge, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--logs", type=int, default=400)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--cuts", nargs="+", choices=CUTS, default=[])
    parser.add_argument("--keep", default="")
    parser.add_argument("--show", type=int)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    cuts = tuple(arguments.cuts or CUTS)
    if arguments.show is not None:
        _show(judge_case(Case(arguments.show, cuts, arguments.keep or tempfile.mkdtemp())))
        return
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.logs)
    cases = [Case(seed, cuts, arguments.keep) for seed in seeds]
    verdicts = spread(judge_case, cases, arguments.processes)
    table = tabulate(verdicts)
    for row in (dict(zip(("name", *_COLUMNS), ("", *_COLUMNS), strict=True)), *table):
        print("  ".join(f"{row[name]!s:>13}" for name in ("name", *_COLUMNS)))
    for verdict in verdicts:
        if problem := _describe_problem(verdict):
            print(f"--show {verdict.truth.seed} --cuts {verdict.truth.cut}: {problem}")
    if not arguments.cuts:
        document = {
            "conditions": conditions(),
            "benchmark": "hang_logs",
            "first_seed": arguments.first_seed,
            "rows": table,
        }
        (RESULTS / f"hang-logs-{today()}.json").write_text(json.dumps(document, indent=1) + "\n")


def judge_case(case: Case) -> Verdict:
    """Write a log, ask for the cause, and compare."""
    faults = [*FAULTS]
    job = draw_job(case.seed, faults[case.seed % len(faults)], has_pairs=case.seed % 3 == 0)
    versions = list_versions(job)
    version, cut = versions[case.seed * 7 % len(versions)], case.cuts[case.seed // 3 % len(case.cuts)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(case.keep or temporary) / f"{case.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        truth = write_logs(job, folder, version, cut, case.seed)
        try:
            return compare(truth, judge(folder / truth.path))
        except ZprofError as error:
            return Verdict(truth=truth, error=error.message, is_refused=True)
        except Exception as error:
            return Verdict(truth=truth, error=f"{type(error).__name__}: {error}")


def compare(truth: LogTruth, hang: Hang) -> Verdict:
    """Compare an answer with the truth."""
    named = tuple(sorted(each.rank for each in hang.culprits))
    sizes = {group.name: group.size for group in truth.groups}
    first = hang.operations[0] if hang.operations else None
    is_sure = hang.confidence is not Confidence.LOW
    return Verdict(
        truth=truth,
        hang=hang,
        wrong_states=tuple(_list_wrong_states(truth, hang)),
        is_cause_right=hang.kind in truth.kinds
        and named in {tuple(sorted(ranks)) for ranks in truth.culprits},
        accused=tuple(rank for rank in named if is_sure and rank in truth.innocent),
        is_unproved=hang.kind is HangClass.NOT_FINISHED and (first is None or sizes.get(first.group) is None),
    )


def _list_wrong_states(truth: LogTruth, hang: Hang) -> list[str]:
    said = {(each.rank, each.group): each for each in hang.ranks if each.rank is not None}
    by_place = {(each.group_rank, each.group): each for each in hang.ranks}
    wrong = []
    for state in _list_known(truth):
        answer = said.get((state.rank, state.group))
        if answer is None and not state.is_global:
            answer = by_place.get((state.rank, state.group))
        if answer is None or answer.state.value != state.state:
            got = "nothing" if answer is None else f"{answer.state.value} #{answer.sequence}"
            wrong.append(
                f"rank {state.rank} of {state.group or '?'}: {state.state} #{state.sequence}, said {got}"
            )
    return wrong


def _list_known(truth: LogTruth) -> list[LogState]:
    """Return the states that can be compared.

    Without a name of the group, which operation is meant cannot be said. No line says that a group which
    gathers over as many ranks as the job has is that of all ranks.
    """
    return [
        state
        for state in truth.states
        if state.group and (state.state != "silent" or state.group == DEFAULT_GROUP)
    ]


def tabulate(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return one row per cut and per version, then the total."""
    rows = []
    for name in (*CUTS, *dict.fromkeys(each.truth.version for each in verdicts), "all"):
        mine = [each for each in verdicts if name in (each.truth.cut, each.truth.version, "all")]
        if not mine:
            continue
        answered = [each for each in mine if each.hang is not None]
        states = sum(len(_list_known(each.truth)) for each in answered)
        decided = [each for each in mine if each.truth.decides]
        rows.append(
            {
                "name": name,
                "logs": len(mine),
                "states": states,
                "right states": states - sum(len(each.wrong_states) for each in answered),
                "decided": len(decided),
                "right": sum(each.is_cause_right for each in decided),
                "accused": sum(bool(each.accused) for each in mine),
                "unproved": sum(each.is_unproved for each in mine),
                "refused": sum(each.is_refused for each in mine),
                "failed": sum(bool(each.error) and not each.is_refused for each in mine),
            }
        )
    return rows


def _describe_problem(verdict: Verdict) -> str:
    truth, hang = verdict.truth, verdict.hang
    head = f"{truth.fault} {truth.version} {truth.cut}: "
    if hang is None:
        has_facts = bool(truth.states or truth.exits)
        return f"{head}{verdict.error}" if has_facts or not verdict.is_refused else ""
    named = [each.rank for each in hang.culprits]
    if truth.decides and not verdict.is_cause_right:
        wanted = f"{[each.value for each in truth.kinds]} {truth.culprits}"
        return f"{head}{hang.kind} {named}, should be {wanted}"
    if verdict.accused:
        return f"{head}accused {verdict.accused} ({hang.kind}, {hang.confidence})"
    if verdict.is_unproved:
        return f"{head}all are said to have entered"
    return head + "; ".join(verdict.wrong_states[:2]) if verdict.wrong_states else ""


def _show(verdict: Verdict) -> None:
    print(_describe_problem(verdict) or "right")
    print(verdict.truth)
    print(verdict.hang)


if __name__ == "__main__":
    main()
