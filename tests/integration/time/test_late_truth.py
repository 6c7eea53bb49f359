"""Who was late, why, and where it began: simulated jobs against the truth beside their traces."""

from pathlib import Path

import pytest

from tests.support.simulations import beside_truth, simulated
from zprof.simulator.plan import AllocatorRetries, HostDelay, SimulationPlan, Vendor

MS = 1_000_000
#: Of the blamed exposed wait.
RIGHT_RANK, RIGHT_REASON = 0.999, 0.98
OTHER_CLOCKS = {"offsets_ns": {0: 4 * MS, 1: -5 * MS, 3: MS}, "ranks_per_host": 1}
RETRIES = AllocatorRetries(retries_per_step=4, ranks=(2,), free_ns=2 * MS, malloc_ns=4 * MS)
PLANS = {
    "slow, other clocks": (SimulationPlan(speed={1: 0.75}, **OTHER_CLOCKS), 1, "compute"),
    "slow, accumulating": (
        SimulationPlan(stage=2, micro_batches=2, speed={0: 0.8}, vendor=Vendor.AMD),
        0,
        "compute",
    ),
    "slow on a cpu": (SimulationPlan(vendor=Vendor.GLOO, speed={3: 0.7}), 3, "compute"),
    "host": (SimulationPlan(delays=(HostDelay(rank=1, ns=12 * MS, unit=3),)), 1, "host"),
    "host of a cpu": (
        SimulationPlan(vendor=Vendor.GLOO, delays=(HostDelay(rank=1, ns=20 * MS, unit=3),)),
        1,
        "host",
    ),
    "data": (SimulationPlan(delays=(HostDelay(rank=3, ns=30 * MS, data=True),)), 3, "data"),
    "allocator": (SimulationPlan(allocator=RETRIES), 2, "allocator"),
}
#: test_late_reasons has each reason on smaller programs.
FAST = {"slow, other clocks", "host of a cpu", "allocator"}


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in PLANS]
)
def test_the_late_rank_and_its_reason(tmp_path: Path, name: str) -> None:
    plan, late, reason = PLANS[name]
    job = simulated(plan, tmp_path)
    rows = beside_truth(job)
    rows = rows[(rows["blamed_rank"] >= 0) & (rows["exposed_wait_ns"] > 0)]
    waited = rows["exposed_wait_ns"]
    assert waited[rows["blamed_rank"] == rows["true_late_rank"]].sum() >= RIGHT_RANK * waited.sum()
    assert waited[rows["late_reason"] == rows["true_reason"]].sum() >= RIGHT_REASON * waited.sum()
    first = job.analysis.time.blame.per_rank[0]
    assert first.rank == late
    assert first.reasons[reason] >= RIGHT_REASON * first.exposed_wait_ns
    assert first.origins[late] >= RIGHT_REASON * first.exposed_wait_ns
    assert first.exposed_wait_ns >= 0.95 * waited.sum() / plan.steps


@pytest.mark.parametrize(
    "plan",
    [
        SimulationPlan(ranks=8, tensor=2, delays=(HostDelay(rank=5, ns=20 * MS, unit=3),)),
        pytest.param(SimulationPlan(ranks=8, shard=4, speed={5: 0.7}), marks=pytest.mark.slow),
    ],
    ids=["tensor parallel", "replicas of shards"],
)
def test_a_delay_that_other_ranks_pass_on_is_followed_to_its_rank(
    tmp_path: Path, plan: SimulationPlan
) -> None:
    blame = simulated(plan, tmp_path).analysis.time.blame
    assert sum("previous_collective" in entry.reasons for entry in blame.per_rank) >= 2
    total = sum(entry.exposed_wait_ns for entry in blame.per_rank)
    assert sum(entry.origins.get(5, 0) for entry in blame.per_rank) >= 0.98 * total
    assert blame.per_rank[0].rank == 5
    assert blame.per_rank[0].exposed_wait_ns < 0.75 * total


def test_a_healthy_job_is_blamed_for_little(tmp_path: Path) -> None:
    time = simulated(SimulationPlan(), tmp_path).analysis.time
    blamed = sum(entry.exposed_wait_ns for entry in time.blame.per_rank)
    assert blamed < 0.01 * 4 * time.per_rank[0].wall_ns
