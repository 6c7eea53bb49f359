"""Recordings that lack events, ranks or parts of their windows: nobody is named who was not late.

Damages times plans, each through the files that its ranks would have left, with a straggler and without.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.simulations import MS, Simulated, simulated
from zprof.model.findings import Cause
from zprof.model.report import Report
from zprof.rules.diagnose import diagnose_time
from zprof.simulator.plan import Compute, Network, Plan, Recording, Vendor, Window
from zprof.simulator.truth.model import CollectiveTruth

_STAMP_NS = 5
_STEP_NS = 25 * MS
_SLOW = 2
#: What a report calls the gaps that say which collectives it could not match, split or place in time.
_SAID = {"matching of collectives", "wait and transfer", "clock alignment", "exposed wait"}

_BASE = Plan(
    ranks=3, steps=4, units=2, unit_elements=1 << 20, ranks_per_host=1, offsets_ns={1: 5 * MS, 2: -5 * MS},
    network=Network(beta_bytes_per_s=25e9), compute=Compute(noise_ratio=0.02),
)  # fmt: skip
_UNNUMBERED, _BARE = Recording(sequence=False), Recording(metadata=False)
PLANS = {
    "nvidia, stage 3": _BASE,
    "nvidia, stage 2, no numbers": replace(_BASE, stage=2, recording=_UNNUMBERED),
    "nvidia, stage 3, no metadata": replace(_BASE, recording=_BARE),
    "amd, stage 1, no numbers, nothing short": replace(
        _BASE, vendor=Vendor.AMD, stage=1, recording=_UNNUMBERED, loss_all_reduce=False, norm_all_reduce=False
    ),
    "gloo, stage 0": replace(_BASE, vendor=Vendor.GLOO, stage=0, units=4, bucket_bytes=2 << 20),
    "amd, a mesh, no numbers": replace(
        _BASE, vendor=Vendor.AMD, ranks=4, tensor=2, offsets_ns={1: -3 * MS, 3: 4 * MS}, recording=_UNNUMBERED
    ),
}


def _dropped(rank: int, share: float) -> Callable[[Plan, int], Plan]:
    """Without one of the rank's collectives: 0 is the first, 1 the last."""
    return lambda plan, count: replace(plan, drops=((rank, round(share * (count - 1))),))


def _windows(windows: dict[int, Window]) -> Callable[[Plan, int], Plan]:
    return lambda plan, _: replace(plan, windows=windows)


DAMAGES: dict[str, Callable[[Plan, int], Plan]] = {
    "first event of rank 0": _dropped(0, 0.0),
    "event of rank 1": _dropped(1, 0.4),
    "last event of rank 2": _dropped(2, 1.0),
    "three percent of all events": lambda plan, _: replace(plan, drop_probability=0.03),
    "rank 0 missing": lambda plan, _: replace(plan, missing=(0,)),
    "only rank 1 left": lambda plan, _: replace(plan, missing=(0, *range(2, plan.ranks))),
    "part of a step late": _windows({1: Window(opens_late_ns=_STEP_NS // 3)}),
    "steps late, steps early": _windows(
        {1: Window(opens_late_ns=_STEP_NS), 0: Window(closes_early_ns=_STEP_NS // 2)}
    ),
}
#: Damages of one test.
_PARTS = 3


def _cases() -> list[Any]:
    """All damages of all plans, healthy and with a straggler: 96 jobs.

    Fast are each plan with some damages and each damage with two plans, beside a straggler: there the right
    rank must be named and no other.
    """
    return [
        pytest.param(
            name,
            tuple(DAMAGES)[part::_PARTS],
            planted,
            marks=[] if planted is not None and part == number % _PARTS else pytest.mark.slow,
            id=f"{name}-{part}-{planted}",
        )
        for planted in (None, _SLOW)
        for number, name in enumerate(PLANS)
        for part in range(_PARTS)
    ]


def damaged(plan: Plan, damage: str) -> Plan:
    """The plan with a damage to its recording."""
    per_step = {0: 4, 1: 6, 2: 6, 3: 8}[plan.stage]
    return DAMAGES[damage](plan, per_step * plan.steps)


@pytest.mark.parametrize(("name", "damages", "planted"), _cases())
def test_damage_names_nobody_who_was_not_late(
    name: str, damages: tuple[str, ...], planted: int | None, tmp_path: Path
) -> None:
    plan = PLANS[name] if planted is None else replace(PLANS[name], speed={planted: 0.6})
    named = set()
    for number, damage in enumerate(damages):
        job = simulated(damaged(plan, damage), tmp_path / str(number))
        report = diagnose_time(job.run)
        rows = beside(job)
        try:
            check_matches(rows)
            check_blame(job, rows)
            check_bounds(job, rows)
            check_gaps(job, report)
            named |= {(damage, rank) for rank in accused(report)}
        except AssertionError as error:
            raise AssertionError(f"{damage}: {error}") from error
    assert {rank for _, rank in named} <= {planted}, named
    if planted is not None:
        light = {"first event of rank 0", "last event of rank 2"} & set(damages)
        assert {damage for damage, _ in named} >= light


def accused(report: Report) -> set[int]:
    """Ranks that the report calls stragglers."""
    found = [finding for finding in report.findings if finding.cause is Cause.STRAGGLER_RANK]
    return {fact.rank for finding in found for fact in finding.evidence if fact.rank is not None}


def beside(job: Simulated) -> pd.DataFrame:
    """The collectives with what is true of them: of equal kind, start and end on the rank's own clock.

    Starts alone do not do: two groups of a rank may begin within the same nanoseconds.
    """
    alignment = job.analysis.time.alignment
    assert alignment is not None
    clocks = {rank.rank: rank.offset_ns for rank in job.truth.per_rank}
    known: dict[tuple[int, str], list[CollectiveTruth]] = {}
    for entry in job.truth.collectives:
        if entry.recorded:
            known.setdefault((entry.rank, str(entry.kind)), []).append(entry)
    rows = job.analysis.collectives
    rows = rows[rows["rank"].isin(list(alignment.offsets_ns))]
    found = []
    for row in rows.itertuples():
        moved = alignment.offsets_ns[row.rank] - clocks[row.rank]
        start, end = row.start_ns + moved, row.end_ns + moved
        theirs = known.get((row.rank, str(row.kind)), [])
        best = min(theirs, key=lambda c: abs(c.start_ns - start) + abs(c.end_ns - end), default=None)
        same = best is not None and max(abs(best.start_ns - start), abs(best.end_ns - end)) <= _STAMP_NS
        found.append(best if same else None)
    return rows.assign(true=found)


def check_matches(rows: pd.DataFrame) -> None:
    """One instance is one collective; what joins no truth has lost the event that named its kind."""
    known = rows[rows["true"].notna()]
    assert len(known) >= 0.9 * len(rows)
    keys = known["true"].map(lambda true: f"{true.ranks} {true.kind} {true.sequence}")
    placed = known["instance"] >= 0
    assert (keys[placed].groupby(known["instance"][placed]).nunique() == 1).all()


def check_blame(job: Simulated, rows: pd.DataFrame) -> None:
    """Blame is of what all ranks were seen in, and falls on the rank that came last but for a tie."""
    alignment, blame = job.analysis.time.alignment, job.analysis.time.blame
    assert alignment is not None
    assert blame is not None
    blamed = rows[(rows["blamed_rank"] >= 0) & rows["true"].notna()]
    assert blamed["matched"].all()
    for row in blamed.itertuples():
        tied = row.true.lead_ns <= 2 * alignment.uncertainty_ns
        assert row.blamed_rank == row.true.late_rank or tied, row
    if job.plan.missing and job.plan.tensor == 1:
        assert not any(entry.exposed_wait_ns for entry in blame.per_rank)


def check_bounds(job: Simulated, rows: pd.DataFrame) -> None:
    """Without all ranks a wait is the least, a transfer the most that it can have been."""
    alignment = job.analysis.time.alignment
    assert alignment is not None
    doubt_ns = 2 * alignment.uncertainty_ns + 1_000
    lone = rows[~rows["matched"] & (rows["group_size"] != 1)]
    assert lone["bound"].all()
    for row in lone[lone["true"].notna()].itertuples():
        assert row.wait_ns <= row.true.wait_ns + doubt_ns, row
        assert row.transfer_ns >= row.true.transfer_ns - doubt_ns, row


def check_gaps(job: Simulated, report: Report) -> None:
    """Where anything was not matched, a gap says so; a missing rank is one, and nobody's fault."""
    rows = job.analysis.collectives
    said = {gap.what for gap in report.gaps}
    if not rows["matched"].all():
        assert said & _SAID, said
    if job.plan.missing and job.plan.tensor == 1:
        assert Cause.STRAGGLER_RANK.value in " ".join(f"{gap.what} {gap.reason}" for gap in report.gaps)
