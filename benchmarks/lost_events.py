"""Lose collectives of simulated recordings at random: are all others still matched, and the cause found?

    python -m benchmarks.lost_events [--first-seed 8000] [--jobs 12] [--losses 1 3 10] [--no-diagnosis]
        [--beds jobs nvidia amd gloo] [--causes NAME ...] [--forms recorded unnumbered unmarked]

A complete recording states the truth: its collectives have the same number in their group on all ranks.
Then rows of random ranks are removed, and what is only an order is numbered anew.  A collective that lost no
row must be matched across all ranks ("matched"); no two may be taken for one ("wrong").  Each recording is
matched as it is ("recorded"), as if torch had written no sequence numbers ("unnumbered"), and also without
marks of steps or hosts ("unmarked").

Jobs with a planted cause are also diagnosed, with all events and after events were removed from their files
("imported"), which keep no sequence numbers: a cause that leads the findings should still lead them.  Jobs of
:mod:`zprof.simulator` are drawn ("jobs", of NVIDIA's form) or regular, in the form of a vendor.

Each recording is printed and written to ``benchmarks/results/lost-events-DATE.json`` as soon as it is judged.
"""

import argparse
import gzip
import json
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from benchmarks.conditions import conditions, today
from benchmarks.diagnosis import RESULTS
from benchmarks.diagnosis_jobs import JobCase, judge_job
from benchmarks.diagnosis_own import healthy_job
from tests.support.diagnoses import base
from zprof.analysis.analysis import analyse_time_only
from zprof.analysis.columns import Columns, Groups, Texts
from zprof.analysis.time.synchronise import synchronise
from zprof.analysis.time.timeline import RankTimeline, load_collectives, load_timelines
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence
from zprof.run.reader import load
from zprof.simulator.ground_truth import draw_job, write_job
from zprof.simulator.job import VENDORS, Vendor
from zprof.simulator.regular import plant

#: Causes of which waiting is the sign, so that a diagnosis needs matched collectives, and others.
CAUSES = ("straggler_rank", "rotating_straggler", "low_bus_bandwidth", "no_prefetch", "data_loader")
#: Causes that only a comparison with a healthy run shows in regular jobs.
_COMPARED = frozenset({"low_bus_bandwidth"})
#: Drawn jobs; the vendors are forms of regular ones.
_JOBS = "jobs"
BEDS = (_JOBS, *VENDORS)
#: End of the name of a method that counts by order.
_ORDER = "_order"
_EXECUTIONS = ("nccl", "rccl", "gloo:")


_Recording = tuple[Columns, list[RankTimeline]]
FORMS = ("recorded", "unnumbered", "unmarked")
#: At most this share of the rows is lost.
_MAX_LOST_RATIO = 0.125


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCase:
    """One recording: who writes it, its seed, and the planted cause (None: healthy, not diagnosed)."""

    bed: str
    seed: int
    cause: str | None
    losses: tuple[int, ...]
    forms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What is left of a recording after ``lost`` events.

    ``rows``: rows of collectives that lost none; ``matched``: how many of them are matched across all ranks;
    ``wrong``: instances of several collectives.
    """

    form: str
    lost: int
    rows: int
    matched: int
    wrong: int

    @property
    def is_below_goal(self) -> bool:
        """True if fewer than 98 % of the other rows are matched."""
        return self.matched < 0.98 * self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The findings after ``lost`` events: True if the planted cause leads them, and what does instead."""

    lost: int
    is_first: bool
    leader: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutcome:
    """One recording with losses."""

    bed: str
    seed: int
    cause: str | None
    losses: tuple[Loss, ...]
    diagnoses: tuple[Diagnosis, ...]


def list_loss_cases(
    beds: Sequence[str],
    seeds: Sequence[int],
    losses: Sequence[int],
    *,
    causes: Sequence[str],
    forms: Sequence[str],
) -> Iterator[LossCase]:
    """Yield a recording of each seed and form of jobs, with one of the causes each."""
    for bed in beds:
        planted = [cause for cause in causes if bed == _JOBS or cause not in _COMPARED]
        for seed in seeds:
            yield LossCase(
                bed=bed,
                seed=seed,
                cause=planted[seed % len(planted)] if planted else None,
                losses=tuple(losses),
                forms=tuple(forms),
            )


def judge_losses(case: LossCase) -> LossOutcome:
    """Record a job, lose events, match what is left, and diagnose it."""
    counts = (0, *case.losses)
    losses: list[Loss] = []
    diagnoses: list[Diagnosis] = []
    with TemporaryDirectory() as name:
        if case.forms:
            recording = _record(case, Path(name) / "recorded")
            losses += [
                _judge_loss(case, form, lost, *_change_form(form, recording))
                for form in case.forms
                for lost in counts
            ]
        if case.cause is not None and case.bed == _JOBS:
            diagnoses = [found for lost in counts if (found := _diagnose_job(case, lost)) is not None]
        elif case.cause is not None:
            judged = [_diagnose_form(case, lost, Path(name) / str(lost)) for lost in counts]
            diagnoses = [diagnosis for diagnosis, _ in judged]
            losses += [
                _judge_import(lost, judged[0][1], rows)
                for lost, (_, rows) in zip(counts, judged, strict=True)
            ]
    return LossOutcome(
        bed=case.bed, seed=case.seed, cause=case.cause, losses=tuple(losses), diagnoses=tuple(diagnoses)
    )


def _diagnose_job(case: LossCase, lost: int) -> Diagnosis | None:
    """Diagnose a drawn job; None if its cause costs too little to be found."""
    outcome = judge_job(
        JobCase(seed=case.seed, fault=case.cause), partial(lose_events, count=lost, seed=case.seed)
    )
    if not outcome.is_there:
        return None
    leader = outcome.claims[0].cause if outcome.claims else outcome.failure or "nothing"
    return Diagnosis(lost=lost, is_first=outcome.is_first, leader=leader)


def _diagnose_form(case: LossCase, lost: int, folder: Path) -> tuple[Diagnosis, Columns]:
    """Diagnose a job of a vendor's form; also return its collectives."""
    job = plant(base(case.seed, as_vendor(case.bed)), case.cause or "none")
    write_job(job, folder / "traces", with_baseline=False)
    lose_events(folder / "traces", lost, case.seed)
    import_paths(sorted((folder / "traces").glob("rank*")), folder / "run.zprof")
    analysis = analyse_time_only(load(folder / "run.zprof"))
    findings = [f for f in diagnose(analysis).findings if f.confidence is not Confidence.LOW]
    leader = str(findings[0].cause) if findings else "nothing"
    return Diagnosis(lost=lost, is_first=leader == case.cause, leader=leader), analysis.collectives


def as_vendor(bed: str) -> Vendor:
    """Return the vendor in whose form regular jobs are written."""
    return next(vendor for vendor in VENDORS if vendor == bed)


def _judge_import(lost: int, before: Columns, after: Columns) -> Loss:
    """Compare the matched rows with those that are left if each event costs another collective."""
    rows = int(before.bools("matched").sum() - lost * before.ints("group_size").max())
    matched = min(rows, int(after.bools("matched").sum()))
    return Loss(form="imported", lost=lost, rows=rows, matched=matched, wrong=0)


def _record(case: LossCase, folder: Path) -> _Recording:
    folder.mkdir()
    traces = folder / "traces"
    if case.bed == _JOBS:
        write_job(draw_job(case.seed, case.cause), traces)
    else:
        write_job(healthy_job(case.seed, as_vendor(case.bed)), traces)
    import_paths(sorted(traces.glob("rank*")), folder / "run.zprof")
    run = load(folder / "run.zprof")
    timelines, _ = load_timelines(run)
    rows = load_collectives(timelines)
    return rows.with_columns(true=Groups(rows.texts("group"), rows.ints("sequence")).codes), timelines


def _change_form(form: str, recording: _Recording) -> _Recording:
    rows, timelines = recording
    if form != "recorded":
        methods = (f"{method.removesuffix(_ORDER)}{_ORDER}" for method in rows.texts("method"))
        rows = rows.with_columns(method=Texts.of(methods))
    if form == "unmarked":
        timelines = [replace(timeline, source="whole trace", host="") for timeline in timelines]
    return rows, timelines


def _judge_loss(case: LossCase, form: str, lost: int, rows: Columns, timelines: list[RankTimeline]) -> Loss:
    count = min(lost, int(_MAX_LOST_RATIO * len(rows)))
    gone = random.Random(f"{case.seed} {lost}").sample(range(len(rows)), count)
    left = _number_again(rows.at(np.delete(np.arange(len(rows)), gone)).renumber())
    seen = synchronise(left, timelines, len(timelines)).collectives
    true, instance = seen.ints("true"), seen.ints("instance")
    is_whole = (np.bincount(true)[true]) == np.bincount(rows.ints("true"))[true]
    instances = Groups(instance)
    is_mixed = (instances.count_distinct(true) > 1) & (instance[instances.first] >= 0)
    return Loss(
        form=form,
        lost=lost,
        rows=int(is_whole.sum()),
        matched=int((seen.bools("matched") & is_whole & ~is_mixed[instances.codes]).sum()),
        wrong=int(is_mixed.sum()),
    )


def _number_again(rows: Columns) -> Columns:
    """Return the rows with orders counted as the import counts them; stated numbers stay."""
    rank, sequence, method = rows.ints("rank"), rows.ints("sequence"), rows.texts("method")
    lanes = Groups(rank, rows.texts("group"), method)
    order = np.empty(len(rows), dtype=np.int64)
    by_sequence = Groups(lanes.codes, sequence).order
    order[by_sequence] = np.arange(len(rows)) - np.repeat(lanes.starts, lanes.sizes)
    is_ordered = method.match(lambda word: word.endswith(_ORDER))
    return rows.with_columns(sequence=np.where(is_ordered, order, sequence))


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
    return msgspec.json.decode(gzip.decompress(data) if path.suffix == ".gz" else data)


def tabulate_losses(outcomes: Sequence[LossOutcome]) -> list[dict[str, Any]]:
    """Return one row per kind of jobs, form and number of lost events."""
    groups: dict[tuple[str, str, int], list[Loss]] = {}
    for outcome in outcomes:
        for loss in outcome.losses:
            groups.setdefault((outcome.bed, loss.form, loss.lost), []).append(loss)
    return [
        {
            "bed": bed,
            "form": form,
            "lost": lost,
            "recordings": len(group),
            "rows": sum(loss.rows for loss in group),
            "matched": sum(loss.matched for loss in group),
            "below_98_percent": sum(loss.is_below_goal for loss in group),
            "wrong": sum(loss.wrong for loss in group),
        }
        for (bed, form, lost), group in sorted(groups.items())
    ]


def count_still_first(outcomes: Sequence[LossOutcome]) -> list[dict[str, Any]]:
    """Return in how many jobs the cause stays first, of those with the cause first with all events."""
    counts: dict[tuple[str, int], list[bool]] = {}
    for outcome in outcomes:
        if outcome.diagnoses and outcome.diagnoses[0].is_first:
            for diagnosis in outcome.diagnoses[1:]:
                counts.setdefault((outcome.bed, diagnosis.lost), []).append(diagnosis.is_first)
    return [
        {"bed": bed, "lost": lost, "jobs": len(are_first), "first": sum(are_first)}
        for (bed, lost), are_first in sorted(counts.items())
    ]


def format_loss_tables(rows: Sequence[dict[str, Any]], still_first: Sequence[dict[str, Any]]) -> str:
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
        lines += ["", "| recordings | lost | planted cause first, of those first with all events |"]
        lines += ["|---|---|---|"]
        lines += [
            f"| {row['bed']} | {row['lost']} | {row['first']} of {row['jobs']} |" for row in still_first
        ]
    return "\n".join(lines) + "\n"


def _format_outcome(outcome: LossOutcome) -> str:
    """Return one line on a recording: what is below the goal, and what leads the findings."""
    matched, rows = (sum(getattr(loss, name) for loss in outcome.losses) for name in ("matched", "rows"))
    below = [f"{loss.form} {loss.lost} lost" for loss in outcome.losses if loss.is_below_goal or loss.wrong]
    leaders = [f"{each.lost} lost: {'first' if each.is_first else each.leader}" for each in outcome.diagnoses]
    return (
        f"{outcome.bed} {outcome.seed} {outcome.cause}: {matched} of {rows} matched; "
        f"{', '.join(leaders) or 'not diagnosed'}"
        + (f"; below the goal: {', '.join(below)}" if below else "")
    )


def _write_results(first_seed: int, outcomes: Sequence[LossOutcome]) -> None:
    document = {
        "conditions": conditions(),
        "benchmark": "lost events",
        "first_seed": first_seed,
        "rows": tabulate_losses(outcomes),
        "still_first": count_still_first(outcomes),
        "recordings": [asdict(outcome) for outcome in outcomes],
    }
    (RESULTS / f"lost-events-{today()}.json").write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Lose events, and print and write each recording when it is judged, and the tables at the end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first-seed", type=int, default=8000)
    parser.add_argument("--jobs", type=int, default=12, help="recordings of each form")
    parser.add_argument("--beds", nargs="+", choices=BEDS, default=BEDS, help="who writes the recordings")
    parser.add_argument("--losses", type=int, nargs="+", default=[1, 3, 10], help="numbers of lost events")
    parser.add_argument("--causes", nargs="+", choices=CAUSES, default=CAUSES, help="planted causes")
    parser.add_argument("--forms", nargs="*", choices=FORMS, default=FORMS, help="none: only diagnose")
    parser.add_argument("--no-diagnosis", action="store_true", help="only match")
    parser.add_argument("--no-results", action="store_true", help="write no file of results")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    cases = list_loss_cases(
        options.beds,
        range(options.first_seed, options.first_seed + options.jobs),
        options.losses,
        causes=() if options.no_diagnosis else options.causes,
        forms=options.forms,
    )
    outcomes: list[LossOutcome] = []
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(judge_losses, case) for case in cases]):
            outcomes.append(future.result())
            print(_format_outcome(outcomes[-1]), flush=True)
            if not options.no_results:
                _write_results(options.first_seed, outcomes)
    print(format_loss_tables(tabulate_losses(outcomes), count_still_first(outcomes)))


if __name__ == "__main__":
    main()
