"""Lose collectives of simulated recordings at random: are all others still matched, and the cause found?

    python -m benchmarks.lost_events [--first-seed 8000] [--jobs 12] [--losses 1 3 10] [--no-diagnosis]

A complete recording states the truth: its collectives have the same number in their group on all ranks.
Then rows of random ranks are removed, and what is only an order is numbered anew.  A collective that lost no
row must be matched across all ranks ("matched"); no two may be taken for one ("wrong").  Each recording is
matched as it is ("recorded"), as if torch had written no sequence numbers ("unnumbered"), and also without
marks of steps or hosts ("unmarked").

Jobs of :mod:`zprof.simulator.jobs` are also diagnosed after the events were removed from their files, which
keep no sequence numbers: the planted cause should lead the findings as it does with all events.

Writes ``benchmarks/results/lost-events-DATE.json``.
"""

import argparse
import gzip
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from zprof.analysis.time.timeline import RankTimeline, load_collectives, load_timelines
from zprof.integrations.imports.import_paths import import_paths
from zprof.run.reader import load
from zprof.simulator.jobs import draw_job, write_job
from zprof.simulator.plan import Vendor
from zprof.simulator.simulate import simulate

#: Causes of which waiting is the sign, so that a diagnosis needs matched collectives, and others.
CAUSES = ("straggler_rank", "rotating_straggler", "low_bus_bandwidth", "no_prefetch", "data_loader")
#: Jobs of the independent simulator; the vendors are forms of the other one.
_JOBS = "jobs"
BEDS = (_JOBS, *(str(vendor) for vendor in Vendor))
_EXECUTIONS = ("nccl", "rccl", "gloo:")


_Recording = tuple[pd.DataFrame, list[RankTimeline]]
FORMS = ("recorded", "unnumbered", "unmarked")
#: At most this share of the rows is lost.
_MAX_LOST_RATIO = 0.125


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
    """What is left of a recording after ``lost`` events.

    ``rows``: rows of collectives that lost none; ``matched``: how many of them are matched across all ranks;
    ``wrong``: instances of several collectives.
    """

    bed: str
    seed: int
    form: str
    lost: int
    rows: int
    matched: int
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutcome:
    """One recording with losses; ``is_first``, by lost events: the planted cause leads the findings."""

    losses: tuple[Loss, ...]
    is_first: Mapping[int, bool]


def list_loss_cases(
    beds: Sequence[str], first_seed: int, jobs: int, losses: Sequence[int], *, is_diagnosed: bool
) -> Iterator[LossCase]:
    """Yield ``jobs`` recordings of each simulator."""
    for bed in beds:
        for seed in range(first_seed, first_seed + jobs):
            cause = CAUSES[seed % len(CAUSES)] if bed == _JOBS else None
            yield LossCase(
                bed=bed,
                seed=seed,
                cause=cause,
                losses=tuple(losses),
                is_diagnosed=is_diagnosed and cause is not None,
            )


def judge_losses(case: LossCase) -> LossOutcome:
    """Record a job, lose events, match what is left, and diagnose it."""
    with TemporaryDirectory() as name:
        recording = _record(case, Path(name))
    losses = [
        _judge_loss(case, form, lost, *_change_form(form, recording))
        for form in FORMS
        for lost in (0, *case.losses)
    ]
    outcomes = {
        lost: judge_job(
            JobCase(seed=case.seed, fault=case.cause), partial(lose_events, count=lost, seed=case.seed)
        )
        for lost in ((0, *case.losses) if case.is_diagnosed else ())
    }
    is_first = {lost: outcome.is_first for lost, outcome in outcomes.items() if outcome.is_there}
    return LossOutcome(losses=tuple(losses), is_first=is_first)


def _record(case: LossCase, folder: Path) -> _Recording:
    traces = folder / "traces"
    if case.bed == _JOBS:
        write_job(draw_job(case.seed, case.cause), traces)
    else:
        simulate(healthy_plan(case.seed, Vendor(case.bed)), traces)
    import_paths(sorted(traces.glob("rank*")), folder / "run.zprof")
    run = load(folder / "run.zprof")
    timelines, _ = load_timelines(run)
    rows = load_collectives(run, timelines)
    rows["true"] = rows.groupby(["group", "sequence"]).ngroup()
    return rows, timelines


def _change_form(form: str, recording: _Recording) -> _Recording:
    rows, timelines = recording
    if form != "recorded":
        is_ordered = rows["method"].str.endswith("_order")
        rows = rows.assign(method=rows["method"].where(is_ordered, rows["method"] + "_order"))
    if form == "unmarked":
        timelines = [replace(timeline, source="whole trace", host="") for timeline in timelines]
    return rows, timelines


def _judge_loss(
    case: LossCase, form: str, lost: int, rows: pd.DataFrame, timelines: list[RankTimeline]
) -> Loss:
    count = min(lost, int(_MAX_LOST_RATIO * len(rows)))
    gone = random.Random(f"{case.seed} {lost}").sample(range(len(rows)), count)
    left = _number_again(rows.drop(rows.index[gone]).reset_index(drop=True))
    seen = synchronise(left, timelines, len(timelines)).collectives
    is_whole = seen["true"].map(seen["true"].value_counts()) == seen["true"].map(rows["true"].value_counts())
    collectives = seen[seen["instance"] >= 0].groupby("instance")["true"].nunique()
    wrong = collectives[collectives > 1].index
    return Loss(
        bed=case.bed,
        seed=case.seed,
        form=form,
        lost=lost,
        rows=int(is_whole.sum()),
        matched=int((seen["matched"] & is_whole & ~seen["instance"].isin(wrong)).sum()),
        wrong=len(wrong),
    )


def _number_again(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with orders counted as the import counts them; stated numbers stay."""
    order = rows.groupby(["rank", "group", "method"])["sequence"].rank(method="first").astype("int64") - 1
    return rows.assign(sequence=rows["sequence"].where(~rows["method"].str.endswith("_order"), order))


def lose_events(folder: Path, count: int, seed: int) -> None:
    """Remove ``count`` random executions of collectives from the traces of a folder, and all numbers."""
    traces = {path: _read(path) for path in sorted(folder.glob("rank*"))}
    events = [
        (path, index)
        for path, trace in traces.items()
        for index, event in enumerate(trace["traceEvents"])
        if event.get("ph") == "X" and _is_execution(event)
    ]
    lost = set(random.Random(f"{seed} {count}").sample(events, min(count, len(events) // 8)))
    for path, trace in traces.items():
        kept = [event for index, event in enumerate(trace["traceEvents"]) if (path, index) not in lost]
        for event in kept:
            event.get("args", {}).pop("Seq", None)
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
    """Return one row per simulator, form and number of lost events."""
    groups: dict[tuple[str, str, int], list[Loss]] = {}
    for loss in (loss for outcome in outcomes for loss in outcome.losses):
        groups.setdefault((loss.bed, loss.form, loss.lost), []).append(loss)
    return [
        {
            "bed": bed,
            "form": form,
            "lost": lost,
            "recordings": len(group),
            "rows": sum(loss.rows for loss in group),
            "matched": sum(loss.matched for loss in group),
            "below_98_percent": sum(is_below_goal(loss) for loss in group),
            "wrong": sum(loss.wrong for loss in group),
        }
        for (bed, form, lost), group in groups.items()
    ]


def is_below_goal(loss: Loss) -> bool:
    """Return True if fewer than 98 % of the other rows are matched."""
    return loss.matched < 0.98 * loss.rows


def count_still_first(outcomes: Sequence[LossOutcome]) -> list[dict[str, int]]:
    """Return in how many jobs the cause stays first, of those with the cause first with all events."""
    right_before = [outcome.is_first for outcome in outcomes if outcome.is_first.get(0)]
    counts = sorted({lost for is_first in right_before for lost in is_first})
    return [
        {"lost": lost, "jobs": len(right_before), "first": sum(is_first[lost] for is_first in right_before)}
        for lost in counts
    ]


def format_loss_tables(rows: Sequence[dict[str, Any]], still_first: Sequence[dict[str, int]]) -> str:
    """Return both tables as Markdown."""
    lines = [
        "| recordings | form | lost | others matched | below 98 % | wrong |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['bed']} {row['recordings']} | {row['form']} | {row['lost']} | "
        f"{row['matched'] / max(1, row['rows']):.2%} of {row['rows']} | {row['below_98_percent']} | "
        f"{row['wrong']} |"
        for row in rows
    ]
    if still_first:
        lines += ["", "| lost | planted cause first, of those first with all events |", "|---|---|"]
        lines += [f"| {row['lost']} | {row['first']} of {row['jobs']} |" for row in still_first]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Lose events, print the table and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first-seed", type=int, default=8000)
    parser.add_argument("--jobs", type=int, default=12, help="recordings of each form")
    parser.add_argument("--beds", nargs="+", choices=BEDS, default=BEDS, help="who writes the recordings")
    parser.add_argument("--losses", type=int, nargs="+", default=[1, 3, 10], help="numbers of lost events")
    parser.add_argument("--no-diagnosis", action="store_true", help="only match")
    parser.add_argument("--no-results", action="store_true", help="write no file of results")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    cases = list(
        list_loss_cases(
            options.beds,
            options.first_seed,
            options.jobs,
            options.losses,
            is_diagnosed=not options.no_diagnosis,
        )
    )
    outcomes = spread(judge_losses, cases, options.processes)
    rows, still_first = tabulate_losses(outcomes), count_still_first(outcomes)
    print(format_loss_tables(rows, still_first))
    for loss in (loss for outcome in outcomes for loss in outcome.losses):
        if loss.wrong or is_below_goal(loss):
            print(loss)
    if not options.no_results:
        document = {
            "conditions": conditions(),
            "benchmark": "lost events",
            "first_seed": options.first_seed,
            "rows": rows,
            "still_first": still_first,
        }
        (RESULTS / f"lost-events-{today()}.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
