"""Record programs that hang, and ask why: class, culprits and collective, against what was planted.

    python -m benchmarks.hang_bed [--recordings 20] [--ranks 2 4] [--faults NAME ...] [--jobs 2]

Every recording is a torchrun job of ``tests/programs/hangs/hanging.py`` on gloo, under ``zprof record --watch
2``. A hang is ended once all ranks were saved, a healthy job ends by itself. Prints one row per fault and
number of ranks, and the folder of each recording that was not judged right, which is kept. Writes
``hang-bed-DATE.json`` into ``benchmarks/results`` if all faults were recorded.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.conditions import ROOT, conditions, load_average, today
from tests.support.forked_ranks import free_port
from zprof.analysis.hang.find_hang import find_hang
from zprof.base.errors import BadInput
from zprof.model.hang import Hang, HangClass, HangStatus
from zprof.run.reader import Run, load

PROGRAM = ROOT / "tests" / "programs" / "hangs" / "hanging.py"
RESULTS = Path(__file__).parent / "results"
WATCH_S, TIME_LIMIT_S = 2, 120.0
#: Steps before the one in which something goes wrong.
HEALTHY_STEPS = 5
COLUMNS = ("recordings", "class", "culprits", "collective", "line", "right")


class Truth(Struct, frozen=True, kw_only=True):
    """What a recording of a fault has to say; no ``kinds``: that nothing is stuck.

    ``both_of_two``: of two ranks, nobody can tell which of them is wrong. ``everyone``: all ranks of a circle
    may be named. ``operations``: the collective that cannot finish; ``waits``: the fault whose line it is at,
    if not the fault's own.
    """

    kinds: tuple[HangClass, ...] = ()
    both_of_two: bool = False
    everyone: bool = False
    operations: tuple[str, ...] = ()
    is_host_line: bool = False


_HOST_STUCK = Truth(kinds=(HangClass.HOST_STUCK,), operations=("all_reduce",), is_host_line=True)
TRUTHS: Mapping[str, Truth] = {
    # Rank 1 waits in the next collective of another group.
    "skipped_all_reduce": Truth(kinds=(HangClass.NEVER_ENTERED,), operations=("all_reduce",)),
    # Rank 1 has entered nothing since: its host computes, and nothing tells that it will not come.
    "skipped_in_pair": Truth(kinds=(HangClass.NEVER_ENTERED,), operations=("all_reduce",)),
    "skipped_barrier": Truth(
        kinds=(HangClass.HOST_STUCK, HangClass.NEVER_ENTERED), operations=("barrier",), is_host_line=True
    ),
    "more_elements": Truth(kinds=(HangClass.MISMATCHED,), both_of_two=True, operations=("all_reduce",)),
    "different_kind": Truth(
        kinds=(HangClass.DIFFERENT_COLLECTIVES,), both_of_two=True, operations=("reduce", "broadcast")
    ),
    # Neither order was seen before the step. Of four ranks, one leaves the order of the others.
    "different_order": Truth(
        kinds=(HangClass.CIRCULAR_WAIT, HangClass.NEVER_ENTERED), everyone=True, operations=("all_reduce",)
    ),
    # gloo and the launcher notice: the job ends at once, and was never stuck.
    "killed": Truth(),
    # A stopped process has no stack to save: that it is there is all that is known of it.
    "stopped": Truth(kinds=(HangClass.HOST_STUCK, HangClass.RANK_MISSING), operations=("all_reduce",)),
    "endless_loop": _HOST_STUCK,
    "lock_held": _HOST_STUCK,
    "gil_held": _HOST_STUCK,
    "stuck_loader": _HOST_STUCK,
    # The launcher notices: the job ends, and was never stuck.
    "left_early": Truth(),
    "checkpoint": Truth(),
    "evaluation": Truth(),
    "compilation": Truth(),
    "none": Truth(),
}


class Case(Struct, frozen=True):
    """A recording to make."""

    fault: str
    ranks: int
    number: int


class Verdict(Struct, frozen=True, kw_only=True):
    """How the answer of one recording compares with the truth. ``error``: why there is no answer."""

    case: Case
    answer: str = ""
    error: str = ""
    folder: str = ""
    is_class_right: bool = False
    are_culprits_right: bool = False
    is_collective_right: bool = False
    is_line_right: bool = False

    @property
    def is_right(self) -> bool:
        """Whether class, culprits, collective and line are right."""
        return (
            self.is_class_right
            and self.are_culprits_right
            and self.is_collective_right
            and self.is_line_right
        )


def main() -> None:
    """Record, judge, print and write the results."""
    arguments = _parse_arguments()
    before = conditions()
    cases = [
        Case(fault, ranks, number)
        for number in range(arguments.recordings)
        for ranks in arguments.ranks
        for fault in arguments.faults or TRUTHS
    ]
    folder = Path(arguments.keep or tempfile.mkdtemp(prefix="hang-bed-"))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        verdicts = list(pool.map(lambda case: _judge_case(case, folder), cases))
    table = tabulate_verdicts(verdicts)
    print(format_table(table))
    if not arguments.faults:
        document = {
            "conditions": before | {"load_average_after": load_average()},
            "benchmark": "hang_bed",
            "watch_s": WATCH_S,
            "rows": table,
            "missed": [
                {"fault": each.case.fault, "ranks": each.case.ranks, "answer": each.answer or each.error}
                for each in verdicts
                if not each.is_right
            ],
        }
        (RESULTS / f"hang-bed-{today()}.json").write_text(json.dumps(document, indent=1) + "\n")


def _judge_case(case: Case, parent: Path) -> Verdict:
    """Record a fault and compare; print the folder if the answer is wrong, else remove it."""
    folder = parent / f"{case.fault}-{case.ranks}-{case.number}"
    folder.mkdir(parents=True)
    try:
        run = record(case, folder)
        verdict = compare(case, find_hang(run), str(folder))
    except (BadInput, RuntimeError) as error:
        verdict = Verdict(case=case, error=str(error), folder=str(folder))
    if verdict.is_right:
        shutil.rmtree(folder)
    else:
        print(f"missed: {verdict.error or verdict.answer}; {folder}", flush=True)
    return verdict


def record(case: Case, folder: Path) -> Run:
    """Record the program; a hang is ended by SIGTERM to the launcher once all ranks were saved.

    Raises:
        RuntimeError: the job did not hang, or did not end.
    """
    run = folder / "run.zprof"
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={case.ranks}"]
    launch += [f"--master-port={free_port()}", str(PROGRAM)]
    command = [sys.executable, "-m", "zprof", "record", "--watch", str(WATCH_S), "-o", str(run), "--"]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TMPDIR": str(folder),
    }
    options = ["--fault", case.fault, "--pause", str(2 * WATCH_S)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, sys.executable, *launch, *options],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
        )
        try:
            if TRUTHS[case.fault].kinds:
                _wait_until_saved(run, case.ranks, process)
                process.send_signal(signal.SIGTERM)
            process.wait(TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError("the job did not end") from None
        finally:
            if process.poll() is None:
                _end(process)
    return load(run)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Let the launcher end its ranks, which takes half a minute for one that is stopped."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(TIME_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_saved(run: Path, ranks: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait until the last thing known of every rank is that it is stuck, in the faulty step."""
    end, saved = time.monotonic() + TIME_LIMIT_S, 0
    while time.monotonic() < end and process.poll() is None:
        saved = saved + 1 if _is_saved(run, ranks) else 0
        if saved > 1:
            return
        time.sleep(0.5)
    raise RuntimeError("the job ended, or its ranks were not saved in time")


def _is_saved(run: Path, ranks: int) -> bool:
    try:
        recorded = load(run)
        steps = [recorded.last_step(rank) or 0 for rank in recorded.ranks]
        kinds = [
            [kind for kind in recorded.frame(rank, "mark")["kind"] if kind in ("stuck", "resumed")][-1:]
            for rank in recorded.ranks
        ]
    except (BadInput, KeyError):  # the run is being written
        return False
    return kinds == [["stuck"]] * ranks and max(steps) >= HEALTHY_STEPS - 1


def compare(case: Case, hang: Hang | None, folder: str) -> Verdict:
    """Compare the answer with the truth."""
    truth = TRUTHS[case.fault]
    if hang is None:
        is_healthy = not truth.kinds
        return Verdict(
            case=case,
            answer="no hang",
            folder=folder,
            is_class_right=is_healthy,
            are_culprits_right=is_healthy,
            is_collective_right=is_healthy,
            is_line_right=is_healthy,
        )
    named = tuple(each.rank for each in hang.culprits)
    first = hang.operations[0] if hang.operations else None
    location = first.location if first is not None else None
    is_collective = first is not None and first.operation in truth.operations
    wanted = _list_culprits(case)
    places = {(each.line if each is not None else None) for each in (location,)}
    is_line = location is not None and location.line in _find_lines(case.fault)
    if truth.is_host_line:
        stacks = [frame.line for each in hang.culprits for frame in each.stack if _is_program(frame.file)]
        is_line = is_line and any(line in stacks for line in _find_lines(case.fault, "fault"))
    if not truth.kinds:
        is_collective = is_line = hang.status != HangStatus.STUCK
    return Verdict(
        case=case,
        answer=f"{hang.kind or hang.status} {list(named)} ({hang.confidence}) in "
        f"{first.operation if first else None} at lines {sorted(places, key=str)}",
        folder=folder,
        is_class_right=hang.kind in truth.kinds if truth.kinds else hang.status != HangStatus.STUCK,
        are_culprits_right=named in wanted,
        is_collective_right=is_collective,
        is_line_right=is_line,
    )


def _list_culprits(case: Case) -> tuple[tuple[int, ...], ...]:
    """Return the right answers to who is the culprit: rank 1, or everyone where nobody can tell."""
    truth, everyone = TRUTHS[case.fault], tuple(range(case.ranks))
    if not truth.kinds:
        return ((),)
    if truth.everyone:
        return (everyone,) if case.ranks == 2 else ((1,), everyone)
    return (everyone, (1,)) if truth.both_of_two and case.ranks == 2 else ((1,),)


def _is_program(file: str) -> bool:
    return Path(file).name == PROGRAM.name


def _find_lines(fault: str, *words: str) -> set[int]:
    """Return the lines of the program with a comment on a fault."""
    pattern = re.compile(rf"# ({'|'.join(words or ('fault', 'waits'))}): .*\b{fault}\b")
    lines = PROGRAM.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if pattern.search(line)}


def tabulate_verdicts(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return one row per fault and number of ranks, and the total: how many are right in what."""
    keys = sorted({(each.case.fault, each.case.ranks) for each in verdicts})
    rows = [
        _count(
            f"{fault}, {ranks} ranks",
            [each for each in verdicts if (each.case.fault, each.case.ranks) == (fault, ranks)],
        )
        for fault, ranks in keys
    ]
    return [*rows, _count("all", verdicts)]


def _count(name: str, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "name": name,
        "recordings": len(verdicts),
        "class": sum(each.is_class_right for each in verdicts),
        "culprits": sum(each.are_culprits_right for each in verdicts),
        "collective": sum(each.is_collective_right for each in verdicts),
        "line": sum(each.is_line_right for each in verdicts),
        "right": sum(each.is_right for each in verdicts),
    }


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table as text."""
    lines = [f"{'':30}" + "".join(f"{column:>12}" for column in COLUMNS)]
    lines += [f"{row['name']:30}" + "".join(f"{row[column]:>12}" for column in COLUMNS) for row in rows]
    return "\n".join(lines)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recordings", type=int, default=20, help="of each fault and number of ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--faults", nargs="+", default=[], choices=TRUTHS, help="only these")
    parser.add_argument("--jobs", type=int, default=1, help="recordings at the same time")
    parser.add_argument("--keep", default="", metavar="FOLDER", help="leave what was missed here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
