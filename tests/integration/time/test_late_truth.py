"""Who was late, why, and where it began: simulated jobs against the truth beside their traces."""

from pathlib import Path

import pandas as pd
import pytest

from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.integrations.imports.import_paths import import_paths
from zprof.integrations.imports.options import ImportOptions
from zprof.run.reader import load
from zprof.simulator.plan import Allocator, HostDelay, Plan, Vendor
from zprof.simulator.simulate import simulate
from zprof.simulator.truth.model import Truth

MS = 1_000_000
#: Of the blamed exposed wait.
_RIGHT_RANK, _RIGHT_REASON = 0.999, 0.98

PLANS = {
    "slow": (Plan(speed={2: 0.7}), 2, "compute"),
    "slow, other clocks": (
        Plan(speed={1: 0.75}, offsets_ns={0: 4 * MS, 1: -5 * MS, 3: MS}, ranks_per_host=1),
        1,
        "compute",
    ),
    "slow, accumulating": (Plan(stage=2, micro_batches=2, speed={0: 0.8}, vendor=Vendor.AMD), 0, "compute"),
    "slow on a cpu": (Plan(vendor=Vendor.GLOO, speed={3: 0.7}), 3, "compute"),
    "host": (Plan(delays=(HostDelay(rank=1, ns=12 * MS, unit=3),)), 1, "host"),
    "host of a cpu": (Plan(vendor=Vendor.GLOO, delays=(HostDelay(rank=1, ns=20 * MS, unit=3),)), 1, "host"),
    "data": (Plan(delays=(HostDelay(rank=3, ns=30 * MS, data=True),)), 3, "data"),
    "allocator": (
        Plan(allocator=Allocator(retries_per_step=4, ranks=(2,), free_ns=2 * MS, malloc_ns=4 * MS)),
        2,
        "allocator",
    ),
}


def analysed(folder: Path, plan: Plan) -> tuple[TimeAnalysis, Truth]:
    truth = simulate(plan, folder / "traces")
    import_paths([folder / "traces"], folder / "x.zprof", options=ImportOptions(workers=1))
    return analyse_time(load(folder / "x.zprof")), truth


def beside_truth(analysis: TimeAnalysis, truth: Truth) -> pd.DataFrame:
    """The blamed rows with what is true of them, by rank, group and place in it."""
    rows = analysis.collectives.sort_values("start_ns", kind="stable")
    rows = rows.assign(members=rows["group"].str.split("#").str[0])
    rows["place"] = rows.groupby(["rank", "members"]).cumcount()
    known = pd.DataFrame(
        {
            "rank": c.rank,
            "members": ",".join(map(str, c.ranks)),
            "true_start": c.start_ns,
            "true_kind": str(c.kind),
            "true_rank": c.late_rank,
            "true_reason": str(c.reason),
        }
        for c in truth.collectives
    ).sort_values("true_start")
    known["place"] = known.groupby(["rank", "members"]).cumcount()
    joined = rows.merge(known, on=["rank", "members", "place"])
    assert len(joined) == len(rows) == len(known)
    assert (joined["kind"] == joined["true_kind"]).all()
    return joined[(joined["blamed_rank"] >= 0) & (joined["exposed_wait_ns"] > 0)]


#: "slow, other clocks" and "slow on a cpu" hold the first.
MORE = {"slow"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in MORE else []) for name in PLANS]
)
def test_the_late_rank_and_its_reason(tmp_path, name):
    plan, late, reason = PLANS[name]
    analysis, truth = analysed(tmp_path, plan)
    rows = beside_truth(analysis, truth)
    waited = rows["exposed_wait_ns"]
    assert waited[rows["blamed_rank"] == rows["true_rank"]].sum() >= _RIGHT_RANK * waited.sum()
    assert waited[rows["late_reason"] == rows["true_reason"]].sum() >= _RIGHT_REASON * waited.sum()
    first = analysis.time.blame.per_rank[0]
    assert first.rank == late
    assert first.reasons[reason] >= _RIGHT_REASON * first.exposed_wait_ns
    assert first.origins[late] >= _RIGHT_REASON * first.exposed_wait_ns
    assert first.exposed_wait_ns >= 0.95 * waited.sum() / plan.steps


@pytest.mark.parametrize(
    "plan",
    [
        Plan(ranks=8, tensor=2, delays=(HostDelay(rank=5, ns=20 * MS, unit=3),)),
        Plan(ranks=8, shard=4, speed={5: 0.7}),
    ],
    ids=["tensor parallel", "replicas of shards"],
)
def test_a_delay_that_other_ranks_pass_on_is_followed_to_its_rank(tmp_path, plan):
    blame = analysed(tmp_path, plan)[0].time.blame
    passed_on = {entry.rank: entry for entry in blame.per_rank if "previous_collective" in entry.reasons}
    assert len(passed_on) >= 2
    total = sum(entry.exposed_wait_ns for entry in blame.per_rank)
    began = sum(entry.origins.get(5, 0) for entry in blame.per_rank)
    assert began >= 0.98 * total
    assert blame.per_rank[0].rank == 5
    assert blame.per_rank[0].exposed_wait_ns < 0.75 * total


def test_a_healthy_job_accuses_with_little(tmp_path):
    analysis, _ = analysed(tmp_path, Plan())
    wall = analysis.time.per_rank[0].wall_ns
    assert sum(entry.exposed_wait_ns for entry in analysis.time.blame.per_rank) < 0.01 * 4 * wall


def test_a_missing_rank_leaves_nobody_blamed(tmp_path):
    analysis, _ = analysed(tmp_path, Plan(speed={2: 0.7}, missing=(2,)))
    blame = analysis.time.blame
    assert blame.judged == 0
    assert all(entry.exposed_wait_ns == 0 for entry in blame.per_rank)
    assert all(entry.bound for entry in analysis.time.collectives)
