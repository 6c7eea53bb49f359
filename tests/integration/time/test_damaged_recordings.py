"""Recordings that lack events, ranks or parts of their windows: nobody is named who was not late."""

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.simulations import MS, Simulated, analysed_traces, with_clocks, with_pace
from zprof.diagnosis.diagnose import diagnose_time
from zprof.simulator.ground_truth import Truth, write_job
from zprof.simulator.job import Job, Pace
from zprof.simulator.ledger import CollectiveTruth
from zprof.simulator.regular import make_job

STAMP_NS, STEP_NS, SLOW = 5, 13 * MS, 2
#: What a report calls the gaps that say which collectives it could not match, split or place in time.
UNMATCHED = {"matching of collectives", "wait and transfer", "clock alignment", "exposed wait"}


def base(**settings: Any) -> Job:
    whole = {"ranks": 3, "steps": 4, "units": 2, "unit_params": 1 << 20, "bus": 25.0, "noise": 0.02}
    return with_clocks(make_job(**whole | settings), {1: 5 * MS, 2: -5 * MS})


def without(job: Job, **dialect: bool) -> Job:
    return replace(job, dialect=replace(job.dialect, **dialect))  # type: ignore[arg-type]


JOBS = {
    "nvidia, stage 3": base(),
    "nvidia, stage 2, no numbers": without(base(stage=2), sequence=False),
    "nvidia, stage 3, no metadata": without(base(), metadata=False, sequence=False),
    "amd, stage 1, no numbers, nothing short": without(
        base(vendor="amd", stage=1, clip=False), sequence=False
    ),
    "gloo, stage 0": base(vendor="gloo", stage=0, units=4),
    "amd, a mesh, no numbers": without(
        base(vendor="amd", ranks=4, tensor_size=2, shard_size=2), sequence=False
    ),
}
Events = list[dict[str, Any]]
#: What is left of the events of a rank; None: not even its file.
Damage = Callable[[int, Events], Events | None]


def is_execution(event: dict[str, Any]) -> bool:
    name = str(event.get("name"))
    return event.get("ph") == "X" and (
        (event.get("cat") == "kernel" and name.startswith("nccl")) or name.startswith("gloo:")
    )


def lose_one(rank: int, place: float) -> Damage:
    """Lose the collective at that share of a rank's."""

    def lose(index: int, events: Events) -> Events:
        runs = sorted((each for each in events if is_execution(each)), key=lambda each: each["ts"])
        lost = runs[round(place * (len(runs) - 1))] if index == rank else None
        return [each for each in events if each is not lost]

    return lose


def lose_many(index: int, events: Events) -> Events:
    chance = random.Random(index)
    return [each for each in events if each["ph"] != "X" or chance.random() >= 0.03]


def cut(index: int, events: Events, **windows: float) -> Events:
    """Keep what lies within a window that opens late or closes early on a rank, in ns."""
    spans = [each for each in events if each["ph"] == "X" and each.get("cat") != "Trace"]
    start_us = min(each["ts"] for each in spans) + windows.get(f"late_{index}", 0) / 1000
    end_us = max(each["ts"] + each["dur"] for each in spans) - windows.get(f"early_{index}", 0) / 1000
    return [e for e in events if e["ph"] == "M" or start_us <= e["ts"] <= e["ts"] + e.get("dur", 0) <= end_us]


DAMAGES: dict[str, Damage] = {
    "first event of rank 0": lose_one(0, 0.0),
    "event of rank 1": lose_one(1, 0.4),
    "last event of rank 2": lose_one(2, 1.0),
    "three percent of all events": lose_many,
    "rank 0 missing": lambda rank, events: None if rank == 0 else events,
    "only rank 1 left": lambda rank, events: events if rank == 1 else None,
    "part of a step late": lambda rank, events: cut(rank, events, late_1=STEP_NS // 3),
    "steps late, steps early": lambda rank, events: cut(rank, events, late_1=STEP_NS, early_0=STEP_NS // 2),
}


def damaged(job: Job, damage: Damage, folder: Path) -> Simulated:
    truth: Truth = write_job(job, folder / "traces")
    for rank in range(job.world):
        path = folder / f"traces/rank{rank}.json.gz"
        trace = json.loads(gzip.decompress(path.read_bytes()))
        left = damage(rank, trace["traceEvents"])
        if left is None:
            path.unlink()
        else:
            path.write_bytes(gzip.compress(json.dumps(trace | {"traceEvents": left}).encode(), 1))
    return analysed_traces(job, truth, folder)


def cases() -> list[Any]:
    """All damages of all jobs, without and with a straggler; by default every other damage, with one."""
    return [
        pytest.param(
            job,
            damage,
            slow,
            marks=[]
            if slow is not None and place % 2 == 0 and place % len(JOBS) == number
            else pytest.mark.slow,
            id=f"{job}-{damage}-{slow}",
        )
        for slow in (None, SLOW)
        for number, job in enumerate(JOBS)
        for place, damage in enumerate(DAMAGES)
    ]


@pytest.mark.parametrize(("name", "damage", "slow"), cases())
def test_damage_names_nobody_who_was_not_late(
    name: str, damage: str, slow: int | None, tmp_path: Path
) -> None:
    healthy = JOBS[name]
    planted = healthy if slow is None else with_pace(healthy, Pace(gpu=1.67), slow)
    job = damaged(planted, DAMAGES[damage], tmp_path)
    rows = beside_truth(job)
    check_matches(rows)
    check_blame(job, rows)
    check_bounds(job, rows)
    report = diagnose_time(job.run)
    gaps = {gap.what for gap in report.gaps}
    assert rows["matched"].all() or gaps & UNMATCHED, gaps
    found = [finding for finding in report.findings if finding.cause == "straggler_rank"]
    named = {fact.rank for finding in found for fact in finding.evidence if fact.rank is not None}
    assert named <= {slow}
    if slow is not None and damage in ("first event of rank 0", "last event of rank 2"):
        assert named == {slow}


def beside_truth(job: Simulated) -> pd.DataFrame:
    """The collectives with what is true of them: of equal kind, start and end on the rank's own clock.

    Starts alone do not do: two groups of a rank may begin within the same nanoseconds.
    """
    alignment = job.analysis.time.alignment
    assert alignment is not None
    clocks = job.truth.clock_offsets_ns
    known: dict[tuple[int, str], list[CollectiveTruth]] = {}
    for entry in job.truth.collectives:
        known.setdefault((entry.rank, str(entry.kind)), []).append(entry)
    rows = job.analysis.collectives.to_frame()
    rows = rows[rows["rank"].isin(list(alignment.offsets_ns))]
    found = []
    for row in rows.itertuples():
        moved = alignment.offsets_ns[row.rank] - clocks[row.rank]
        start, end = row.start_ns + moved, row.end_ns + moved
        theirs = known.get((row.rank, str(row.kind)), [])
        best = min(theirs, key=lambda c: abs(c.start_ns - start) + abs(c.end_ns - end), default=None)
        same = best is not None and max(abs(best.start_ns - start), abs(best.end_ns - end)) <= STAMP_NS
        found.append(best if same else None)
    return rows.assign(true=found)


def check_matches(rows: pd.DataFrame) -> None:
    """One instance is one collective; rows without a truth have lost the event that named their kind."""
    known = rows[rows["true"].notna()]
    assert len(known) >= 0.9 * len(rows)
    keys = known["true"].map(lambda true: f"{true.ranks} {true.kind} {true.number}")
    placed = known["instance"] >= 0
    assert (keys[placed].groupby(known["instance"][placed]).nunique() == 1).all()


def check_blame(job: Simulated, rows: pd.DataFrame) -> None:
    """Only collectives that all ranks recorded are judged, and the last rank is blamed but for a tie."""
    alignment, blame = job.analysis.time.alignment, job.analysis.time.blame
    assert alignment is not None
    assert blame is not None
    blamed = rows[(rows["blamed_rank"] >= 0) & rows["true"].notna()]
    assert blamed["matched"].all()
    for row in blamed.itertuples():
        tied = row.true.lead_ns <= 2 * alignment.uncertainty_ns
        assert row.blamed_rank == row.true.late_rank or tied, row
    if len(job.run.ranks) < job.job.world and job.job.tensor_size == 1:
        assert not any(entry.exposed_wait_ns for entry in blame.per_rank)


def check_bounds(job: Simulated, rows: pd.DataFrame) -> None:
    """Without all ranks a wait is the least, a transfer the most that it can have been."""
    alignment = job.analysis.time.alignment
    assert alignment is not None
    uncertain_ns = 2 * alignment.uncertainty_ns + 1_000
    lone = rows[~rows["matched"] & (rows["group_size"] != 1)]
    assert lone["bound"].all()
    for row in lone[lone["true"].notna()].itertuples():
        assert row.wait_ns <= row.true.wait_ns + uncertain_ns, row
        assert row.transfer_ns >= row.true.transfer_ns - uncertain_ns, row
