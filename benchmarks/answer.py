"""What a user waits for: whole processes, as typed, each beside its peer in the same run.

    python -m benchmarks.answer [--rounds 5] [--only NAME ...] [--small] [--megabytes MB ...] [--ranks N ...]

Runs the processes of a group in turn, so that other load on the machine affects all of them, first once
without timing, which warms the disk.  Each starts with an empty cache folder, but for *kept*, which runs
after another in the same one.  Prints a table and writes ``benchmarks/results/answer-DATE.json``: medians of
the seconds, ratios to the peer's medians beside the limits, and the peak memory of all processes of a command
at the same time (``benchmarks.processes.run_process`` says how).  A quiet machine is assumed: the load before
and after is in the results.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from benchmarks.conditions import conditions, load_average, today
from benchmarks.contenders import Comparison, Group, Medians, Quantity, Row, compare, format_rows, run_group
from benchmarks.inputs import import_traces, simulate_traces, write_trace
from benchmarks.whole_commands import (
    ANSWER,
    IMPORTS,
    KEPT_ANSWER,
    RECORDED_RUN,
    START,
    make_answers,
    make_command,
    make_first_screens,
    make_hta,
    make_imports,
    make_json_load,
    make_start,
)
from tests.support.real_traces import TRACES

RESULTS = Path(__file__).parent / "results"
_REAL_TRACE = TRACES / "hta_df_index_resolver.json.gz"
_REAL_NAME = "a real trace of 54 MB"
#: Maximum seconds beside HTA's, and memory, by the megabytes of JSON of a trace.
_MAX_OF_HTA_SECONDS = {50: 1 / 4, 500: 1 / 15}
_MAX_OF_HTA_MEMORY = {500: 1 / 8}
_FILES, _FILE_MEGABYTES = 8, 50
_TUI_RANKS, _MAX_TUI_S = 64, 3.0
#: From the smallest to the largest number of ranks, beyond linear.
_MAX_GROWTH, _MANY_RANKS = 1.3, 1024


class Sizes(Struct, frozen=True, kw_only=True):
    """How much the processes read: megabytes of JSON of single traces, and numbers of ranks."""

    megabytes: tuple[int, ...] = (50, 500)
    ranks: tuple[int, ...] = (64, 1024)


def plan_start(folder: Path, _: Sizes) -> Group:
    """Start-up, and the answer of a run that was recorded."""
    missing = make_command("report nosuch", "report", "nosuch", exit_code=2)
    return Group(
        name="start",
        contenders=(make_start(), missing, make_imports(), *make_answers(ANSWER, "diagnose", RECORDED_RUN)),
        comparisons=(
            Comparison(contender=START),
            Comparison(contender=IMPORTS, peer=START),
            Comparison(contender="report nosuch", peer=START, max_ratio=3),
            Comparison(contender=ANSWER, peer=IMPORTS, max_ratio=3),
            Comparison(contender=KEPT_ANSWER, peer=IMPORTS, max_ratio=1.5),
        ),
    )


def plan_traces(folder: Path, sizes: Sizes) -> tuple[Group, ...]:
    """One raw trace at a time, beside HTA and the standard library."""
    groups = []
    for megabytes in sizes.megabytes:
        path = folder / f"trace-{megabytes}.json.gz"
        write_trace(path, megabytes)
        groups.append(_plan_trace(path, f"a trace of {megabytes} MB", megabytes))
    if _REAL_TRACE.exists() and min(_MAX_OF_HTA_SECONDS) in sizes.megabytes:
        groups.append(_plan_trace(_REAL_TRACE, _REAL_NAME, min(_MAX_OF_HTA_SECONDS)))
    return tuple(groups)


def _plan_trace(path: Path, name: str, megabytes: int) -> Group:
    answers = make_answers(f"diagnose {name}", "diagnose", path)
    hta, parse = make_hta(path, name), make_json_load(path, name)
    limits = {
        Quantity.SECONDS: _MAX_OF_HTA_SECONDS.get(megabytes),
        Quantity.MEMORY: _MAX_OF_HTA_MEMORY.get(megabytes),
    }
    return Group(
        name=name,
        contenders=(*answers, parse, *hta),
        comparisons=(
            *(
                Comparison(contender=answers[0].name, peer=peer.name, quantity=quantity, max_ratio=limit)
                for peer in hta
                for quantity, limit in limits.items()
            ),
            Comparison(contender=answers[0].name, peer=parse.name),
            Comparison(contender=answers[0].name, peer=parse.name, quantity=Quantity.MEMORY),
            Comparison(contender=answers[1].name, peer=answers[0].name),
        ),
    )


def plan_files(folder: Path, _: Sizes) -> Group:
    """An import of several files, by two processes and by one."""
    traces = folder / "files"
    traces.mkdir()
    for rank in range(_FILES):
        write_trace(traces / f"rank{rank}.json.gz", _FILE_MEGABYTES, rank)
    name, run = f"import {_FILES} x {_FILE_MEGABYTES} MB", folder / "files.zprof"
    one, two = (
        make_command(f"{name} --workers {workers}", *_import(traces, run), "--workers", str(workers))
        for workers in (1, 2)
    )
    return Group(
        name="files",
        contenders=(one, two),
        comparisons=(
            Comparison(contender=one.name),
            Comparison(contender=two.name, peer=one.name, max_ratio=1 / 1.7),
        ),
    )


def plan_ranks(folder: Path, sizes: Sizes) -> Group:
    """Jobs of many small ranks: import, and report of what was imported."""
    contenders, comparisons = [], []
    for ranks in sizes.ranks:
        traces, run = folder / f"traces{ranks}", folder / f"ranks{ranks}.zprof"
        simulate_traces(traces, ranks)
        imported = make_command(f"import {ranks} ranks", *_import(traces, run))
        reported = make_command(f"report {ranks} ranks", "report", run)
        contenders += [imported, reported]
        comparisons += [
            Comparison(contender=imported.name),
            Comparison(
                contender=reported.name,
                peer=imported.name,
                max_ratio=1 if ranks == _MANY_RANKS else None,
            ),
        ]
    fewest, most = min(sizes.ranks), max(sizes.ranks)
    if fewest < most:
        growth = Comparison(
            contender=f"report {most} ranks",
            peer=f"report {fewest} ranks",
            work_ratio=most / fewest,
            max_ratio=_MAX_GROWTH,
            title=f"report {most} ranks, per rank",
        )
        comparisons.append(growth)
    return Group(name="ranks", contenders=tuple(contenders), comparisons=tuple(comparisons))


def _import(traces: Path, run: Path) -> tuple[str | Path, ...]:
    return "import", traces, "-o", run, "--force"


def plan_tui(folder: Path, _: Sizes) -> Group:
    """The terminal UI until the numbers of the verdict are on the screen."""
    traces, run = folder / "tui-traces", folder / "tui.zprof"
    simulate_traces(traces, _TUI_RANKS)
    import_traces(traces, run)
    screens = make_first_screens(run, f"tui on {_TUI_RANKS} ranks, verdict on the screen")
    return Group(
        name="tui",
        contenders=screens,
        comparisons=tuple(Comparison(contender=one.name, max_seconds=_MAX_TUI_S) for one in screens),
    )


def plan_check(folder: Path, _: Sizes) -> Group:
    """A check of the recorded run against a baseline that was saved of it."""
    baseline = folder / "baseline.json"
    save = make_command("baseline save", "baseline", "save", RECORDED_RUN, "-o", baseline, "--force")
    checks = make_answers("check a recorded run", "check", RECORDED_RUN, "--baseline", baseline)
    return Group(
        name="check",
        contenders=(make_imports(), save, *checks),
        comparisons=tuple(Comparison(contender=one.name, peer=IMPORTS) for one in checks),
    )


PLANS: dict[str, Callable[[Path, Sizes], Group | tuple[Group, ...]]] = {
    "start": plan_start,
    "traces": plan_traces,
    "files": plan_files,
    "ranks": plan_ranks,
    "tui": plan_tui,
    "check": plan_check,
}


def measure(names: Sequence[str], sizes: Sizes, rounds: int) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows of the table, and all figures by group."""
    rows, figures = [], {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="zprof-bench-") as path:
            planned = PLANS[name](Path(path), sizes)
            for group in planned if isinstance(planned, tuple) else (planned,):
                before, medians = load_average(), run_group(group, rounds, Path(path))
                rows += list_rows(group, medians)
                figures[group.name] = {
                    "load_average_before": before,
                    "load_average_after": load_average(),
                    "median_of": msgspec.to_builtins(medians),
                }
    return rows, figures


def list_rows(group: Group, medians: dict[str, Medians]) -> list[Row]:
    """Return the rows of a group, without those of processes that were not measured."""
    rows = (compare(comparison, medians) for comparison in group.comparisons)
    return [row for row in rows if row is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, help="timed rounds (default: 5)")
    parser.add_argument("--only", nargs="+", choices=PLANS, default=list(PLANS), metavar="NAME")
    parser.add_argument("--small", action="store_true", help="50 MB, 64 ranks, 1 round: do all rows run?")
    parser.add_argument("--megabytes", type=int, nargs="+", metavar="MB", help="of JSON of single traces")
    parser.add_argument("--ranks", type=int, nargs="+", metavar="N")
    parser.add_argument("--output", type=Path, default=RESULTS / f"answer-{today()}.json")
    options = parser.parse_args()
    default = Sizes(megabytes=(50,), ranks=(64,)) if options.small else Sizes()
    sizes = Sizes(
        megabytes=tuple(options.megabytes or default.megabytes), ranks=tuple(options.ranks or default.ranks)
    )
    rounds = options.rounds or (1 if options.small else 5)
    found_on = conditions()
    rows, figures = measure(options.only, sizes, rounds)
    result = {
        "conditions": found_on,
        "benchmark": "answer",
        "rounds": rounds,
        "sizes": msgspec.to_builtins(sizes),
        "rows": msgspec.to_builtins(rows),
        "groups": figures,
    }
    print(format_rows(rows))
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
