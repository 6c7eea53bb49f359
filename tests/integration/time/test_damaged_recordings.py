"""Recordings that lack events, ranks or parts of their windows: nobody is named who was not late."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from msgspec.structs import replace

from tests.support.simulations import MS, Simulated, simulated
from zprof.diagnosis.diagnose import diagnose_time
from zprof.simulator.plan import ComputeCost, Network, PartialRecording, Recording, SimulationPlan, Vendor
from zprof.simulator.truth.model import CollectiveTruth

STAMP_NS, STEP_NS, SLOW = 5, 25 * MS, 2
#: What a report calls the gaps that say which collectives it could not match, split or place in time.
UNMATCHED = {"matching of collectives", "wait and transfer", "clock alignment", "exposed wait"}
BASE = SimulationPlan(
    ranks=3, steps=4, units=2, unit_elements=1 << 20, ranks_per_host=1, offsets_ns={1: 5 * MS, 2: -5 * MS},
    network=Network(beta_bytes_per_s=25e9), compute=ComputeCost(noise_ratio=0.02),
)  # fmt: skip
UNNUMBERED, BARE = Recording(sequence=False), Recording(metadata=False)
PLANS = {
    "nvidia, stage 3": BASE,
    "nvidia, stage 2, no numbers": replace(BASE, stage=2, recording=UNNUMBERED),
    "nvidia, stage 3, no metadata": replace(BASE, recording=BARE),
    "amd, stage 1, no numbers, nothing short": replace(
        BASE, vendor=Vendor.AMD, stage=1, recording=UNNUMBERED, loss_all_reduce=False, norm_all_reduce=False
    ),
    "gloo, stage 0": replace(BASE, vendor=Vendor.GLOO, stage=0, units=4, bucket_bytes=2 << 20),
    "amd, a mesh, no numbers": replace(
        BASE, vendor=Vendor.AMD, ranks=4, tensor=2, offsets_ns={1: -3 * MS, 3: 4 * MS}, recording=UNNUMBERED
    ),
}
Damage = Callable[[SimulationPlan, int], dict[str, Any]]
#: Changes of a plan with so many collectives per rank.
DAMAGES: dict[str, Damage] = {
    "first event of rank 0": lambda plan, count: {"drops": ((0, 0),)},
    "event of rank 1": lambda plan, count: {"drops": ((1, round(0.4 * (count - 1))),)},
    "last event of rank 2": lambda plan, count: {"drops": ((2, count - 1),)},
    "three percent of all events": lambda plan, count: {"drop_probability": 0.03},
    "rank 0 missing": lambda plan, count: {"missing": (0,)},
    "only rank 1 left": lambda plan, count: {"missing": (0, *range(2, plan.ranks))},
    "part of a step late": lambda plan, count: {"windows": {1: PartialRecording(opens_late_ns=STEP_NS // 3)}},
    "steps late, steps early": lambda plan, count: {
        "windows": {
            1: PartialRecording(opens_late_ns=STEP_NS),
            0: PartialRecording(closes_early_ns=STEP_NS // 2),
        }
    },
}


def cases() -> list[Any]:
    """All damages of all plans, without and with a straggler; by default every other damage, with one."""
    return [
        pytest.param(
            plan,
            damage,
            slow,
            marks=[]
            if slow is not None and place % 2 == 0 and place % len(PLANS) == number
            else pytest.mark.slow,
            id=f"{plan}-{damage}-{slow}",
        )
        for slow in (None, SLOW)
        for number, plan in enumerate(PLANS)
        for place, damage in enumerate(DAMAGES)
    ]


@pytest.mark.parametrize(("name", "damage", "slow"), cases())
def test_damage_names_nobody_who_was_not_late(
    name: str, damage: str, slow: int | None, tmp_path: Path
) -> None:
    plan = PLANS[name] if slow is None else replace(PLANS[name], speed={slow: 0.6})
    count = {0: 4, 1: 6, 2: 6, 3: 8}[plan.stage] * plan.steps
    job = simulated(replace(plan, **DAMAGES[damage](plan, count)), tmp_path)
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
    clocks = {rank.rank: rank.offset_ns for rank in job.truth.per_rank}
    known: dict[tuple[int, str], list[CollectiveTruth]] = {}
    for entry in job.truth.collectives:
        if entry.recorded:
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
    keys = known["true"].map(lambda true: f"{true.ranks} {true.kind} {true.sequence}")
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
    if job.plan.missing and job.plan.tensor == 1:
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
