"""Exposed time of single collectives, summed: each weighted with its rank, whatever its group."""

from pathlib import Path
from statistics import fmean

import pandas as pd

from tests.support.simulations import simulated
from zprof.analysis.time.collective_rows import RankSteps
from zprof.analysis.time.transfer.collective_times import sum_exposed_in_collectives
from zprof.model.time import ExposedInCollectives
from zprof.simulator.plan import Plan

#: Per mille: what runs across the ends of the window.
ACROSS = 1e-3


def rows(*ranks: int) -> pd.DataFrame:
    return pd.DataFrame({"rank": ranks, "exposed_wait_ns": 100, "exposed_transfer_ns": 7})


def test_each_rank_counts_alike_whatever_its_steps() -> None:
    found = sum_exposed_in_collectives(rows(0, 0, 0, 3), RankSteps(of_rank={0: 3, 3: 1}))
    assert found == ExposedInCollectives(wait_ns=100, transfer_ns=7)


def test_a_rank_without_collectives_dilutes() -> None:
    found = sum_exposed_in_collectives(rows(0), RankSteps(of_rank={0: 1, 1: 1}))
    assert found == ExposedInCollectives(wait_ns=50, transfer_ns=4)


def test_nothing_seen_is_unknown() -> None:
    assert sum_exposed_in_collectives(rows(), RankSteps(of_rank={0: 1})) is None
    assert sum_exposed_in_collectives(rows(0), RankSteps(of_rank={})) is None


def test_the_sum_is_the_ledger_where_groups_differ(tmp_path: Path) -> None:
    plan = Plan(ranks=4, shard=2, steps=2, units=3, unit_elements=1 << 20, speed={1: 0.8})
    time = simulated(plan, tmp_path).analysis.time
    found = time.exposed_in_collectives
    assert found is not None
    assert len({entry.group for entry in time.collectives}) > 2
    for mine, term in ((found.wait_ns, "exposed_wait_ns"), (found.transfer_ns, "exposed_transfer_ns")):
        ledger = fmean(getattr(rank, term) for rank in time.per_rank)
        assert abs(mine - ledger) <= ACROSS * ledger + 2
    naive = sum(entry.exposed_ns for entry in time.collectives)
    assert naive > 1.5 * (found.wait_ns + found.transfer_ns)
    for entry in time.collectives:
        assert entry.exposed_wait_ns is not None
        assert entry.exposed_transfer_ns is not None
        assert abs(entry.exposed_wait_ns + entry.exposed_transfer_ns - entry.exposed_ns) <= 1
