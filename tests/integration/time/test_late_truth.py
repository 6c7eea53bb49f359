"""Who was late, why, and where it began: simulated jobs against the truth beside their traces."""

from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.support.simulations import beside_truth, simulated, with_clocks, with_pace
from zprof.simulator.job import Job, Pace
from zprof.simulator.regular import make_job

MS = 1_000_000
#: Of the blamed exposed wait.
RIGHT_RANK, RIGHT_REASON = 0.999, 0.98
#: Without prefetch: of a gather that is launched ahead zprof does not know what held it up.
DEVICE, CPU = make_job(prefetch="off"), make_job(vendor="gloo")
STALL = Pace(stall_ns=12 * MS, stall_block=3)
JOBS = {
    "slow, other clocks": (
        with_clocks(with_pace(DEVICE, Pace(gpu=1.33), 1), {0: 4 * MS, 1: -5 * MS, 3: MS}), 1, "compute",
    ),
    "slow, amd": (with_pace(make_job(vendor="amd", prefetch="off"), Pace(gpu=1.25), 0), 0, "compute"),
    "slow, accumulating": (
        with_pace(make_job(vendor="amd", stage=2, micro_batches=2), Pace(gpu=1.25), 0), 0, "compute",
    ),
    "slow, prefetching": (with_pace(make_job(), Pace(gpu=1.25), 1), 1, "compute"),
    "slow on a cpu": (with_pace(CPU, Pace(gpu=1.43), 3), 3, "compute"),
    "host": (with_pace(DEVICE, STALL, 1), 1, "host"),
    "host of a cpu": (with_pace(CPU, Pace(stall_ns=20 * MS, stall_block=3), 1), 1, "host"),
    "data": (with_pace(DEVICE, Pace(data_ns=30 * MS), 3), 3, "data"),
    "allocator": (with_pace(make_job(prefetch="off", retry_ns=3 * MS), Pace(retries=4), 2), 2, "allocator"),
}  # fmt: skip
#: test_late_reasons has each reason on smaller programs.
FAST = {"slow, other clocks", "host of a cpu", "allocator"}
#: The reason of these is unknown today, as nothing stops a rank that falls behind over several reductions.
MISSED = {
    "slow, accumulating": "compute is 18 % of the wait",
    "slow, prefetching": "compute is 14 % of the wait",
}


def mark(name: str) -> ParameterSet:
    known = (
        [pytest.mark.xfail(strict=True, raises=AssertionError, reason=MISSED[name])] if name in MISSED else []
    )
    return pytest.param(name, marks=known + ([] if name in FAST else [pytest.mark.slow]))


@pytest.mark.parametrize("name", [mark(name) for name in JOBS])
def test_the_late_rank_and_its_reason(tmp_path: Path, name: str) -> None:
    planted, late, reason = JOBS[name]
    job = simulated(planted, tmp_path)
    rows = beside_truth(job)
    rows = rows[(rows["blamed_rank"] >= 0) & (rows["exposed_wait_ns"] > 0)]
    waited = rows["exposed_wait_ns"]
    assert waited[rows["blamed_rank"] == rows["true_late_rank"]].sum() >= RIGHT_RANK * waited.sum()
    assert waited[rows["late_reason"] == reason].sum() >= RIGHT_REASON * waited.sum()
    first = job.analysis.time.blame.per_rank[0]
    assert first.rank == late
    assert first.reasons[reason] >= RIGHT_REASON * first.exposed_wait_ns
    assert first.origins[late] >= RIGHT_REASON * first.exposed_wait_ns
    assert first.exposed_wait_ns >= 0.95 * waited.sum() / planted.steps


@pytest.mark.parametrize(
    "planted",
    [
        with_pace(
            make_job(ranks=8, tensor_size=2, shard_size=4, prefetch="off"),
            Pace(stall_ns=20 * MS, stall_block=3),
            5,
        ),
        pytest.param(
            with_pace(make_job(ranks=8, shard_size=4), Pace(gpu=1.43), 5),
            marks=[
                pytest.mark.slow,
                pytest.mark.xfail(
                    strict=True, raises=AssertionError, reason="77 % of the wait has the origin"
                ),
            ],
        ),
    ],
    ids=["tensor parallel", "replicas of shards"],
)
def test_a_delay_that_other_ranks_pass_on_is_followed_to_its_rank(tmp_path: Path, planted: Job) -> None:
    blame = simulated(planted, tmp_path).analysis.time.blame
    assert sum("previous_collective" in entry.reasons for entry in blame.per_rank) >= 2
    total = sum(entry.exposed_wait_ns for entry in blame.per_rank)
    assert sum(entry.origins.get(5, 0) for entry in blame.per_rank) >= 0.98 * total
    assert blame.per_rank[0].rank == 5
    assert blame.per_rank[0].exposed_wait_ns < 0.75 * total


def test_a_healthy_job_is_blamed_for_little(tmp_path: Path) -> None:
    time = simulated(make_job(), tmp_path).analysis.time
    blamed = sum(entry.exposed_wait_ns for entry in time.blame.per_rank)
    assert blamed < 0.01 * 4 * time.per_rank[0].wall_ns
