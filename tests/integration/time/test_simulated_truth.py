"""Jobs whose truth is known, through the files that their ranks would have left: 200 of them, all different.

The simulator shares no code with what is tested here.
"""

from pathlib import Path

import pandas as pd
import pytest

from tests.support.simulations import (
    Simulated,
    beside_truth,
    offset_errors,
    simulated,
    true_steps,
    varied_plan,
)
from zprof.model.time import LEDGER_TERMS
from zprof.simulator.plan import Vendor

SEEDS = range(200)
_BATCH = 10
_SHARP_NS = 2_000
#: The first two have every stage of every vendor and 2 to 16 ranks, the third an AMD job with nothing short.
_FAST = (0, 10, 50)
BATCHES = [
    first if first in _FAST else pytest.param(first, marks=pytest.mark.slow) for first in SEEDS[::_BATCH]
]


@pytest.mark.parametrize("first", BATCHES)
def test_the_time_of_simulated_jobs_is_their_truth(first: int, tmp_path: Path) -> None:
    jobs = [simulated(varied_plan(seed), tmp_path / str(seed)) for seed in range(first, first + _BATCH)]
    checked = [check(job) for job in jobs]
    sharp = [rows for job, rows in zip(jobs, checked, strict=True) if job.plan.loss_all_reduce]
    together = pd.concat(sharp)
    for term in ("wait_ns", "transfer_ns"):
        assert together[term].sum() == pytest.approx(together[f"true_{term}"].sum(), rel=0.01)


def check(job: Simulated) -> pd.DataFrame:
    """Every line of one job; its collectives, each beside its truth."""
    rows = beside_truth(job)
    assert len(rows) == len(job.truth.collectives), job.plan
    assert not rows["true_key"].isna().any(), "a collective that never was"
    check_matches(rows)
    check_clocks(job)
    check_sums(job, rows)
    check_ledger(job)
    return rows


def check_matches(rows: pd.DataFrame) -> None:
    """One instance is one collective, on all of its ranks."""
    assert rows["matched"].all()
    assert (rows["kind"] == rows["true_kind"]).all()
    assert (rows["bytes"] == rows["true_bytes"]).all()
    pairs = rows[["instance", "true_key"]].drop_duplicates()
    assert len(pairs) == rows["instance"].nunique() == rows["true_key"].nunique()


def check_clocks(job: Simulated) -> None:
    alignment = job.analysis.time.alignment
    assert alignment is not None
    errors = offset_errors(job)
    assert sorted(errors) == list(range(job.plan.ranks))
    for rank, error in errors.items():
        allowed = _SHARP_NS if job.plan.loss_all_reduce else alignment.rank_uncertainty_ns[rank]
        assert abs(error) <= allowed, (job.plan.seed, rank, error, alignment)


def check_sums(job: Simulated, rows: pd.DataFrame) -> None:
    """Waits and transfers within 1 %, and what the clocks leave in doubt.

    Ends that differ by ``spread_ns`` cannot align clocks better than that; without a short collective the
    doubt is what the report states.
    """
    alignment = job.analysis.time.alignment
    assert alignment is not None
    sharp = job.plan.loss_all_reduce
    doubt_ns = len(rows) * (job.plan.network.spread_ns / 2 if sharp else alignment.uncertainty_ns)
    for term in ("wait_ns", "transfer_ns"):
        true = rows[f"true_{term}"].sum()
        assert abs(rows[term].sum() - true) <= 0.01 * true + doubt_ns, (job.plan.seed, term)
    durations = rows["end_ns"] - rows["start_ns"]
    assert (rows["wait_ns"] + rows["transfer_ns"] == durations).all()


def check_ledger(job: Simulated) -> None:
    """The terms sum, each is the truth within 0.1 % of the step, and exposed parts are those of unions."""
    steps = job.analysis.steps
    assert (steps["wall_ns"] == steps[list(LEDGER_TERMS)].sum(axis=1)).all()
    exposed = steps["exposed_wait_ns"] + steps["exposed_transfer_ns"]
    assert (exposed + steps["overlapped_ns"] == steps["collective_ns"]).all()
    both = steps.merge(true_steps(job), on=["rank", "step"], suffixes=("", "_true"))
    assert len(both) == len(steps) == job.plan.ranks * job.plan.steps
    true_exposed = both["exposed_wait_ns_true"] + both["exposed_transfer_ns_true"]
    within = 0.001 * both["wall_ns_true"]
    more = exposed.to_numpy() - true_exposed
    bound = both["rank"].map({rank.rank: rank.upper_bound for rank in job.analysis.time.per_rank})
    assert (more >= -within).all(), job.plan.seed
    assert ((more <= within) | bound).all(), job.plan.seed
    assert job.plan.vendor is Vendor.GLOO or not bound.any()
    for term in ("wall_ns", "compute_ns", "collective_ns", "exposed_memcpy_ns"):
        assert ((both[term] - both[f"{term}_true"]).abs() <= within).all(), (job.plan.seed, term)
