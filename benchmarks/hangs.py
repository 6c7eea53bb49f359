"""Find out why simulated jobs hang: class, culprits and operation, against what was planted.

    python -m benchmarks.hangs [--jobs 55] [--first-seed 1000] [--faults NAME ...] [--large 10]
    python -m benchmarks.hangs --pairs                        jobs with groups of two, which have the faults
    python -m benchmarks.hangs --show SEED --faults NAME      one job: its truth, and the answer
    python -m benchmarks.hangs --keep FOLDER                  the dumps too
    python -m benchmarks.hangs --scale [--keep FOLDER]        one job of 1024 ranks with 2000 entries each;
                                                              dumps that are there already are used again

The jobs are of :mod:`benchmarks.hang_jobs`, which was written without knowledge of the analyser. Where two
answers are as defensible from the dumps, either counts. *Accused* are ranks outside of every right answer
that are named with more than low confidence.  Writes ``benchmarks/results/hangs-DATE.json`` if all faults
were drawn.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import encode

from benchmarks.conditions import conditions, today
from benchmarks.diagnosis import spread
from benchmarks.hang_jobs import FAULTS, HEALTHY, Truth, draw_job, make_large_job, write_dumps
from benchmarks.processes import ProcessUse, run_process
from zprof.model.findings import Confidence
from zprof.model.hang import Hang, HangClass, HangStatus

RESULTS = Path(__file__).parent / "results"
_IMPORT = """# import
import sys
from pathlib import Path
from zprof.collectors.read.imports.import_paths import import_paths
import_paths([Path(sys.argv[1])], Path(sys.argv[2]))
"""
_ANALYSIS = """# analysis
import sys
from pathlib import Path
from zprof.analysis.hang.find_hang import find_hang
from zprof.run.reader import Run
find_hang(Run(Path(sys.argv[2])))
"""
COLUMNS = ("jobs", "class", "culprits", "operation", "accused", "failed")


class Case(Struct, frozen=True):
    """A job to judge."""

    seed: int
    fault: str
    is_large: bool = False
    keep: str = ""
    has_pairs: bool = False


class Verdict(Struct, frozen=True, kw_only=True):
    """How an answer compares with the truth. ``error``: what the analyser raised."""

    truth: Truth
    seconds: float = 0.0
    hang: Hang | None = None
    error: str = ""
    is_class_right: bool = False
    are_culprits_right: bool = False
    is_operation_right: bool = False
    accused: tuple[int, ...] = ()

    @property
    def is_right(self) -> bool:
        """Whether class and culprits are right, and nobody else is accused."""
        return self.is_class_right and self.are_culprits_right and not self.accused


def main() -> None:
    """Draw, write, judge, print and write the results."""
    arguments = _parse_arguments()
    if arguments.scale:
        _measure_scale(arguments.first_seed, arguments.keep)
        return
    faults = arguments.faults or [*FAULTS, *HEALTHY]
    if arguments.show is not None:
        for fault in faults:
            _show(judge_case(Case(arguments.show, fault, False, arguments.keep, arguments.pairs)))
        return
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.jobs)
    cases = [Case(seed, faults[seed % len(faults)], False, arguments.keep, arguments.pairs) for seed in seeds]
    cases += [
        Case(seed, faults[seed % len(faults)], True, arguments.keep)
        for seed in list(seeds)[: 0 if arguments.pairs else arguments.large]
    ]
    verdicts = spread(judge_case, cases, arguments.processes)
    table = tabulate_verdicts(verdicts)
    print(format_table(table))
    missed = [each for each in verdicts if not each.is_right]
    for verdict in missed:
        option = "--pairs " if arguments.pairs else ""
        case = f"{option}--show {verdict.truth.seed} --faults {verdict.truth.fault}"
        print(f"missed: {case}: {_compare(verdict)}")
    if not arguments.faults:
        document = {
            "conditions": conditions(),
            "benchmark": "hangs",
            "first_seed": arguments.first_seed,
            "rows": table,
            "missed": [json.loads(encode(each)) for each in missed],
        }
        name = "hangs-of-pairs" if arguments.pairs else "hangs"
        (RESULTS / f"{name}-{today()}.json").write_text(json.dumps(document, indent=1) + "\n")


def judge_case(case: Case) -> Verdict:
    """Write the dumps of a job, ask for the cause, and compare."""
    job = draw_job(case.seed, case.fault, large=case.is_large, has_pairs=case.has_pairs)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(case.keep or temporary) / f"{case.fault}-{case.seed}"
        write_dumps(job, folder)
        start = time.perf_counter()
        try:
            hang = judge(folder)
        except Exception as error:
            return Verdict(truth=job.truth, error=f"{type(error).__name__}: {error}")
        return compare(job.truth, hang, time.perf_counter() - start)


def compare(truth: Truth, hang: Hang, seconds: float = 0.0) -> Verdict:
    """Compare an answer with the truth."""
    named = tuple(sorted(each.rank for each in hang.culprits))
    may_be_named = {rank for ranks in truth.culprits for rank in ranks}
    is_sure = hang.status == HangStatus.STUCK and hang.confidence != Confidence.LOW
    are_right = named in {tuple(sorted(ranks)) for ranks in truth.culprits}
    if not are_right and not set(truth.planted).intersection(named):
        may_be_named = set()  # beside the planted rank another may be named, and not in its place
    return Verdict(
        truth=truth,
        seconds=seconds,
        hang=hang,
        is_class_right=_is_class_right(truth, hang),
        are_culprits_right=are_right,
        is_operation_right=_is_operation_right(truth, hang),
        accused=tuple(rank for rank in named if is_sure and rank not in may_be_named),
    )


def _is_class_right(truth: Truth, hang: Hang) -> bool:
    if not truth.kinds:
        return hang.status != HangStatus.STUCK
    if hang.kind == HangClass.RANK_MISSING and not set(truth.missing) <= set(hang.ranks_missing):
        return False
    return hang.status == HangStatus.STUCK and hang.kind in truth.kinds


def _is_operation_right(truth: Truth, hang: Hang) -> bool:
    """Compare the first stuck operation by its group and sequence (a send's may be unknown)."""
    if not truth.operations or not hang.operations:
        return not truth.operations and not hang.operations
    first = hang.operations[0]
    return any(
        first.group == each.group and (not each.sequences or first.sequence in each.sequences)
        for each in truth.operations
    )


def tabulate_verdicts(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return one row per fault, then one per class, then the total: jobs, and how many are right in what."""
    faults = list(dict.fromkeys(each.truth.fault for each in verdicts))
    classes = [kind for kind in HangClass if any(kind in each.truth.kinds[:1] for each in verdicts)]
    return [
        *(
            _count(fault, [each for each in verdicts if each.truth.fault == fault])
            for fault in sorted(faults)
        ),
        *(
            _count(f"class {kind}", [each for each in verdicts if each.truth.kinds[:1] == (kind,)])
            for kind in classes
        ),
        _count("all", verdicts),
    ]


def _count(name: str, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "name": name,
        "jobs": len(verdicts),
        "class": sum(each.is_class_right for each in verdicts),
        "culprits": sum(each.are_culprits_right for each in verdicts),
        "operation": sum(each.is_operation_right for each in verdicts),
        "accused": sum(bool(each.accused) for each in verdicts),
        "failed": sum(bool(each.error) for each in verdicts),
        "right": sum(each.is_right for each in verdicts),
    }


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table as text; *right %*: class and culprits right, and nobody accused."""
    lines = [f"{'':28}" + "".join(f"{column:>11}" for column in COLUMNS) + f"{'right %':>11}"]
    for row in rows:
        share = 100 * row["right"] / max(row["jobs"], 1)
        lines.append(
            f"{row['name']:28}" + "".join(f"{row[column]:>11}" for column in COLUMNS) + f"{share:>11.1f}"
        )
    return "\n".join(lines)


def _compare(verdict: Verdict) -> str:
    truth, hang = verdict.truth, verdict.hang
    wanted = f"{'/'.join(truth.kinds) or 'no hang'} {list(truth.culprits[0])}"
    if hang is None:
        return f"{wanted}, got {verdict.error}"
    named = [each.rank for each in hang.culprits]
    return f"{wanted}, got {hang.kind or hang.status} {named} ({hang.confidence})"


def _show(verdict: Verdict) -> None:
    print(_compare(verdict))
    for operation in verdict.truth.operations:
        print(f"  truth: {operation}")
    if verdict.truth.note:
        print(f"  note: {verdict.truth.note}")
    if verdict.hang is not None:
        for found in verdict.hang.operations[:3]:
            print(f"  found: {found}")


def _measure_scale(seed: int, keep: str) -> None:
    """Write and judge one job of 1024 ranks; print the seconds and the memory that this takes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(keep or temporary) / f"scale-{seed}"
        if not folder.exists():
            spread(_write_large_job, [(seed, str(folder))], 1)
        paths = list(folder.iterdir())
        size = sum(path.stat().st_size for path in paths)
        print(f"{len(paths)} dumps, {size / 1e6:.0f} MB")
        for work in (_IMPORT, _ANALYSIS):
            used = run_process([sys.executable, "-c", work, str(folder), str(Path(temporary) / "run.zprof")])
            print(f"{work.splitlines()[0][2:]:9} {_format_use(used)}")
        command = [sys.executable, "-m", "zprof", "hang", str(folder)]
        for is_tree_sampled in (False, True):
            cache = Path(temporary) / f"cache{is_tree_sampled}"
            used = run_process(
                command,
                environment={**os.environ, "XDG_CACHE_HOME": str(cache)},
                is_tree_sampled=is_tree_sampled,
            )
            print(f"zprof hang {_format_use(used)}")


def _format_use(used: ProcessUse) -> str:
    peak = f"{used.peak_mib:.0f} MiB in the largest process"
    if used.tree_peak_mib is not None:
        return f"{peak}, {used.tree_peak_mib:.0f} MiB in all at the same time (sampled)"
    return f"{used.cpu_s:.1f} processor s, {used.seconds:.1f} s, {peak}"


def _write_large_job(case: tuple[int, str]) -> None:
    gc.disable()  # millions of entries without a cycle: collecting them takes longer than making them
    seed, folder = case
    job = make_large_job(seed)
    temporary = Path(f"{folder}.part")
    write_dumps(job, temporary)
    temporary.rename(folder)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=550, help="seeds; the faults take turns")
    parser.add_argument("--first-seed", type=int, default=1000, help="below 1000: for work on the analyser")
    parser.add_argument("--large", type=int, default=11, help="of these jobs, again with 256 to 1024 ranks")
    parser.add_argument("--pairs", action="store_true", help="jobs of 4 to 16 ranks with groups of two")
    parser.add_argument("--faults", nargs="*", default=[], choices=[*FAULTS, *HEALTHY], help="only these")
    parser.add_argument("--show", type=int, metavar="SEED", help="one job of each fault")
    parser.add_argument("--keep", default="", metavar="FOLDER", help="leave the dumps here")
    parser.add_argument("--scale", action="store_true", help="one job of 1024 ranks with 2000 entries each")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def judge(folder: Path) -> Hang:
    """Return what zprof finds in a folder of dumps."""
    from zprof.analysis.hang.find_hang import find_hang
    from zprof.collectors.read.imports.import_paths import import_paths
    from zprof.run.reader import Run

    with tempfile.TemporaryDirectory() as temporary:
        imported = import_paths([folder], Path(temporary) / "run.zprof")
        return find_hang(Run(imported.run))


if __name__ == "__main__":
    main()
