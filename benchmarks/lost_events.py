"""Lose collectives of simulated recordings at random: are all others still matched, and the cause found?

    python -m benchmarks.lost_events [--first-seed 8000] [--jobs 12] [--losses 1 3 10] [--no-diagnosis]

Each job is recorded completely, which states the truth: the collectives of a group have the same number on
all of its ranks.  Then events are removed from the files of random ranks.  A collective of which no event was
lost must be matched across all ranks as before ("matched"); no two collectives may be taken for one
("wrong").  Jobs of :mod:`zprof.simulator.jobs` are also diagnosed: the planted cause should lead the findings
as it does in the complete recording.

Writes ``benchmarks/results/lost-events-DATE.json``.
"""

import argparse
import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pandas as pd

from benchmarks.conditions import conditions, today
from benchmarks.diagnosis import RESULTS, spread
from benchmarks.diagnosis_jobs import JobCase, judge_job
from benchmarks.diagnosis_own import healthy_plan
from zprof.analysis.time.synchronise import synchronise
from zprof.analysis.time.timeline import load_collectives, load_timelines
from zprof.integrations.imports.import_paths import import_paths
from zprof.run.reader import load
from zprof.simulator.jobs import draw_job, write_job
from zprof.simulator.plan import Vendor
from zprof.simulator.simulate import simulate

#: Causes of which waiting is the sign, so that a diagnosis needs matched collectives, and two of which it is not.
CAUSES = ("straggler_rank", "rotating_straggler", "low_bus_bandwidth", "no_prefetch", "data_loader")
#: Jobs of the independent simulator; the vendors are forms of the other one.
_JOBS = "jobs"
_BEDS = (_JOBS, *(str(vendor) for vendor in Vendor))
_EXECUTIONS = ("nccl", "rccl", "gloo:")
_ROW = ["rank", "start_ns", "end_ns", "kind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCase:
    """One recording: who writes it, its seed, and the planted cause of a job (None: healthy)."""

    bed: str
    seed: int
    cause: str | None
    losses: tuple[int, ...]
    is_diagnosed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What was left after ``lost`` events: rows of complete collectives, how many are matched, wrong instances.

    ``is_first``: the planted cause leads the findings; None if nothing was planted or asked.
    """

    lost: int
    rows: int
    matched: int
    wrong: int
    is_first: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutcome:
    """One recording, complete (``lost`` = 0) and with losses."""

    case: LossCase
    results: tuple[Loss, ...] = field(default=())


def list_loss_cases(
    first_seed: int, jobs: int, losses: Sequence[int], *, is_diagnosed: bool
) -> Iterator[LossCase]:
    """Yield ``jobs`` recordings of each form."""
    for bed in _BEDS:
        for seed in range(first_seed, first_seed + jobs):
            cause = CAUSES[seed % len(CAUSES)] if bed == _JOBS else None
            yield LossCase(bed=bed, seed=seed, cause=cause, losses=tuple(losses), is_diagnosed=is_diagnosed)


def judge_losses(case: LossCase) -> LossOutcome:
    """Record a job, lose events, match what is left, and compare with the complete recording."""
    with TemporaryDirectory() as name:
        truth = _match(_record(case, Path(name)), Path(name) / "whole.zprof")
    truth["true"] = truth.groupby([*_list_lane_columns(truth), "sequence"], dropna=False).ngroup()
    expected = truth.set_index(_ROW)["true"]
    return LossOutcome(
        case=case, results=tuple(_judge_loss(case, lost, expected) for lost in (0, *case.losses))
    )


def _list_lane_columns(truth: pd.DataFrame) -> list[str]:
    """Return the columns that tell which rows are numbered together; collectives of a group all are."""
    message = truth["kind"].isin(["send", "recv"])
    send = truth["kind"] == "send"
    truth["sender"] = truth["rank"].where(send, truth["peer_rank"]).where(message)
    truth["receiver"] = truth["peer_rank"].where(send, truth["rank"]).where(message)
    return ["group", "sender", "receiver"]


def _judge_loss(case: LossCase, lost: int, expected: "pd.Series[int]") -> Loss:
    with TemporaryDirectory() as name:
        traces = _record(case, Path(name))
        lose_events(traces, lost, case.seed)
        rows = _match(traces, Path(name) / "run.zprof")
    rows["true"] = expected.reindex(pd.MultiIndex.from_frame(rows[_ROW])).to_numpy()
    whole_count, left_count = expected.value_counts(), rows["true"].value_counts()
    is_whole = rows["true"].map(left_count) == rows["true"].map(whole_count)
    placed = rows[rows["instance"] >= 0]
    is_wrong = placed.groupby("instance")["true"].nunique() > 1
    matched = rows["matched"] & ~rows["instance"].isin(is_wrong[is_wrong].index)
    is_first = None
    if case.is_diagnosed and case.cause is not None:
        damage = partial(lose_events, count=lost, seed=case.seed)
        outcome = judge_job(JobCase(seed=case.seed, fault=case.cause), damage)
        is_first = outcome.is_first if outcome.is_there and not outcome.failure else None
    return Loss(
        lost=lost,
        rows=int(is_whole.sum()),
        matched=int((matched & is_whole).sum()),
        wrong=int(is_wrong.sum()),
        is_first=is_first,
    )


def _record(case: LossCase, folder: Path) -> Path:
    traces = folder / "traces"
    if case.bed == _JOBS:
        write_job(draw_job(case.seed, case.cause), traces)
    else:
        simulate(healthy_plan(case.seed, Vendor(case.bed)), traces)
    return traces


def _match(traces: Path, run_path: Path) -> pd.DataFrame:
    """Return the collectives of all ranks on their own clocks, with the result of matching."""
    import_paths(sorted(traces.glob("rank*")), run_path)
    run = load(run_path)
    timelines, _ = load_timelines(run)
    rows = load_collectives(run, timelines)
    seen = synchronise(rows, timelines, run.manifest.world_size).collectives
    return rows.assign(instance=seen["instance"], matched=seen["matched"])


def lose_events(folder: Path, count: int, seed: int) -> None:
    """Remove ``count`` random executions of collectives from the traces of a folder."""
    traces = {path: _read(path) for path in sorted(folder.glob("rank*"))}
    events = [
        (path, index)
        for path, trace in traces.items()
        for index, event in enumerate(trace["traceEvents"])
        if event.get("ph") == "X" and _is_execution(event)
    ]
    lost: dict[Path, set[int]] = {}
    for path, index in random.Random(f"{seed} {count}").sample(events, min(count, len(events))):
        lost.setdefault(path, set()).add(index)
    for path, indexes in lost.items():
        trace = traces[path]
        kept = [event for index, event in enumerate(trace["traceEvents"]) if index not in indexes]
        data = msgspec.json.encode(trace | {"traceEvents": kept})
        path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


def _is_execution(event: dict[str, Any]) -> bool:
    name = str(event.get("name", "")).lower()
    return name.startswith(_EXECUTIONS) and (event.get("cat") == "kernel" or name.startswith("gloo:"))


def _read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    trace: dict[str, Any] = msgspec.json.decode(gzip.decompress(data) if path.suffix == ".gz" else data)
    return trace


def tabulate_losses(outcomes: Sequence[LossOutcome]) -> list[dict[str, Any]]:
    """Return one row per form and number of lost events.

    ``still_first`` counts only jobs whose complete recording is diagnosed right.
    """
    groups: dict[tuple[str, int], list[tuple[Loss, Loss]]] = {}
    for outcome in outcomes:
        for result in outcome.results:
            groups.setdefault((outcome.case.bed, result.lost), []).append((outcome.results[0], result))
    rows = []
    for (bed, lost), pairs in groups.items():
        results = [result for _, result in pairs]
        right_before = [result for whole, result in pairs if whole.is_first]
        rows.append(
            {
                "bed": bed,
                "lost": lost,
                "recordings": len(results),
                "rows": sum(result.rows for result in results),
                "matched": sum(result.matched for result in results),
                "worst": min(result.matched / max(1, result.rows) for result in results),
                "below_98_percent": sum(result.matched < 0.98 * result.rows for result in results),
                "wrong": sum(result.wrong for result in results),
                "diagnosed": len(right_before),
                "still_first": sum(bool(result.is_first) for result in right_before),
            }
        )
    return rows


def format_loss_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table as Markdown."""
    lines = [
        "| recordings | lost | others matched | worst | below 98 % | wrong | cause still first |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = f"{row['matched'] / max(1, row['rows']):.2%} of {row['rows']}"
        first = f"{row['still_first']} of {row['diagnosed']}" if row["diagnosed"] else ""
        lines.append(
            f"| {row['bed']} {row['recordings']} | {row['lost']} | {share} | {row['worst']:.1%} | "
            f"{row['below_98_percent']} | {row['wrong']} | {first} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Lose events, print the table and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first-seed", type=int, default=8000)
    parser.add_argument("--jobs", type=int, default=12, help="recordings of each form")
    parser.add_argument("--losses", type=int, nargs="+", default=[1, 3, 10], help="numbers of lost events")
    parser.add_argument("--no-diagnosis", action="store_true", help="only match")
    parser.add_argument("--no-results", action="store_true", help="write no file of results")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    cases = list(
        list_loss_cases(
            options.first_seed, options.jobs, options.losses, is_diagnosed=not options.no_diagnosis
        )
    )
    outcomes = spread(judge_losses, cases, options.processes)
    rows = tabulate_losses(outcomes)
    print(format_loss_table(rows))
    for outcome in outcomes:
        for result in outcome.results:
            if result.wrong or result.matched < 0.98 * result.rows:
                print(f"{outcome.case.bed} {outcome.case.seed} {outcome.case.cause}: {result}")
    if not options.no_results:
        document = {
            "conditions": conditions(),
            "benchmark": "lost events",
            "first_seed": options.first_seed,
            "rows": rows,
        }
        (RESULTS / f"lost-events-{today()}.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
