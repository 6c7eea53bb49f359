"""Record programs in which nothing is wrong, and see what is said of them.

    python -m benchmarks.healthy [--programs NAME ...] [--rounds 1] [--busy]

Every recording is a torchrun job of ``tests/programs`` on two gloo ranks under ``zprof record``; with
``--busy`` beside two busy processes. Each program writes when its steps began: *steps* counts the recordings
whose steps are these, the same ones on both ranks. *Accused*: a finding has more than low confidence, and the
program does not have that cause by its nature. Writes ``benchmarks/results/healthy-DATE.json``, or
``healthy-busy-DATE.json``, if all programs were recorded.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import encode

from benchmarks.conditions import conditions, load_average, today
from tests.programs.bed import Cell, NotRecorded, Outcome, busy_process, list_healthy_cells, record_cell
from zprof.model.findings import Confidence

RESULTS = Path(__file__).parent / "results"
#: As by default: two steps are skipped, two are for memory, eight are timed.
STEPS = 16
BUSY_PROCESSES = 2
#: What is true of a program by its nature.
INHERENT = {
    # It keeps the activations of all micro-batches.
    "pipeline --schedule gpipe": {"activations_dominate"},
    # It sums whole gradients, then gathers parameters.
    "zero_redundancy": {"unhidden_optimizer_gather"},
    # Each hook sends one layer, and waits for it.
    "optimizers --form hooks": {"blocking_sync", "latency_bound_collectives"},
}
COLUMNS = ("recordings", "steps", "accused", "failed")


class Recording(Struct, frozen=True, kw_only=True):
    """What was said of a program. ``accused``: id and confidence of the findings above low confidence."""

    program: str
    load: list[float] | None
    are_steps_right: bool = False
    accused: tuple[str, ...] = ()
    status: str = ""
    sentence: str = ""
    error: str = ""


def main() -> None:
    """Record, print and write the results."""
    arguments = _parse_arguments()
    cells = [cell for cell in list_healthy_cells() if cell.is_installed()]
    chosen = [cell for cell in cells if not arguments.programs or cell.name in arguments.programs]
    recordings = []
    with ExitStack() as busy:
        for _ in range(BUSY_PROCESSES if arguments.busy else 0):
            busy.enter_context(busy_process())
        for cell in chosen * arguments.rounds:
            recordings.append(record(cell))
            print(_describe(recordings[-1]), flush=True)
    rows = tabulate(recordings)
    print(format_table(rows))
    if len(chosen) == len(cells):
        document = {
            "conditions": conditions(),
            "benchmark": "healthy",
            "busy_processes": BUSY_PROCESSES if arguments.busy else 0,
            "rows": rows,
            "recordings": json.loads(encode(recordings)),
        }
        name = "healthy-busy" if arguments.busy else "healthy"
        (RESULTS / f"{name}-{today()}.json").write_text(json.dumps(document, indent=1) + "\n")


def record(cell: Cell) -> Recording:
    """Record a program, and compare."""
    load = load_average()
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcome = record_cell(cell, Path(folder), schedule=(), steps=STEPS)
        except (NotRecorded, OSError) as error:
            return Recording(program=cell.name, load=load, error=str(error))
        return _judge(cell, load, outcome)


def _judge(cell: Cell, load: list[float] | None, outcome: Outcome) -> Recording:
    report = outcome.report
    return Recording(
        program=cell.name,
        load=load,
        are_steps_right=outcome.are_steps_right(),
        accused=tuple(
            f"{each.id} {each.cause} ({each.confidence}): {each.sentence}"
            for each in report.findings
            if each.confidence is not Confidence.LOW and each.cause not in INHERENT.get(cell.name, ())
        ),
        status=report.verdict.status,
        sentence=report.verdict.sentence,
        error="" if outcome.code == 0 else f"exit code {outcome.code}",
    )


def tabulate(recordings: Sequence[Recording]) -> list[dict[str, Any]]:
    """Return one row per program, and the total."""
    names = list(dict.fromkeys(each.program for each in recordings))
    parts = {name: [each for each in recordings if each.program == name] for name in names}
    return [_count(name, part) for name, part in (*parts.items(), ("all", recordings))]


def _count(name: str, recordings: Sequence[Recording]) -> dict[str, Any]:
    return {
        "name": name,
        "recordings": len(recordings),
        "steps": sum(each.are_steps_right for each in recordings),
        "accused": sum(bool(each.accused) for each in recordings),
        "failed": sum(bool(each.error) for each in recordings),
    }


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table as text."""
    lines = [f"{'':40}" + "".join(f"{column:>12}" for column in COLUMNS)]
    lines += [f"{row['name']:40}" + "".join(f"{row[column]:>12}" for column in COLUMNS) for row in rows]
    return "\n".join(lines)


def _describe(recording: Recording) -> str:
    steps = "right" if recording.are_steps_right else "WRONG"
    lines = [f"{recording.program}: steps {steps}, {recording.status}: {recording.sentence}"]
    lines += [f"  accused: {each}" for each in recording.accused]
    return "\n".join([*lines, f"  failed: {recording.error}"] if recording.error else lines)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", nargs="+", default=[], help="only these, by the names that are printed")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--busy", action="store_true", help="beside two busy processes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
