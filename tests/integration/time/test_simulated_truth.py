"""Simulated jobs, all different, through the files that their ranks would have left: the time is the truth.

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
    varied_job,
)
from zprof.model.time import LEDGER_TERMS

TERMS = list(LEDGER_TERMS)
SHARP_NS = 2_000
#: Every stage of every vendor, 3 to 8 ranks, with and without short collectives, stragglers, micro-batches.
FIRST = (156, 3, 18, 21, 13, 52, 7, 166, 158, 173, 8, 23)
BATCHES = [FIRST, *(pytest.param(range(n, n + 10), marks=pytest.mark.slow) for n in range(0, 200, 10))]


@pytest.mark.parametrize("seeds", BATCHES, ids=lambda seeds: f"from {seeds[0]}")
def test_the_time_of_simulated_jobs_is_their_truth(seeds: range, tmp_path: Path) -> None:
    jobs = [simulated(varied_job(seed), tmp_path / str(seed)) for seed in seeds]
    checked = [check(job) for job in jobs]
    together = pd.concat(rows for job, rows in zip(jobs, checked, strict=True) if job.job.clip)
    for term in ("wait_ns", "transfer_ns"):
        assert together[term].sum() == pytest.approx(together[f"true_{term}"].sum(), rel=0.01)


def check(job: Simulated) -> pd.DataFrame:
    """Check one job; return its collectives, each beside its truth."""
    rows = beside_truth(job)
    assert len(rows) == len(job.truth.collectives), job.job
    assert not rows["true_key"].isna().any(), "a collective that never was"
    assert rows["matched"].all()
    assert (rows["kind"] == rows["true_kind"]).all()
    assert (rows["bytes"] == rows["true_bytes"]).all()
    pairs = rows[["instance", "true_key"]].drop_duplicates()
    assert len(pairs) == rows["instance"].nunique() == rows["true_key"].nunique()
    check_waits(job, rows)
    check_ledger(job)
    return rows


def check_waits(job: Simulated, rows: pd.DataFrame) -> None:
    """Check waits and transfers within 1 % and the uncertainty of the clocks.

    Ends that differ by ``end_spread_ns`` cannot align clocks better than that; without a short collective the
    uncertainty is what the report states.
    """
    alignment, sharp = job.analysis.time.alignment, job.job.clip
    assert alignment is not None
    errors = offset_errors(job)
    assert sorted(errors) == list(range(job.job.world))
    for rank, error in errors.items():
        allowed = SHARP_NS if sharp else alignment.rank_uncertainty_ns[rank]
        assert abs(error) <= allowed, (job.job.seed, rank, error, alignment)
    uncertain_ns = len(rows) * (2 * job.job.cluster.end_spread_ns if sharp else alignment.uncertainty_ns)
    for term in ("wait_ns", "transfer_ns"):
        true = rows[f"true_{term}"].sum()
        assert abs(rows[term].sum() - true) <= 0.01 * true + uncertain_ns, (job.job.seed, term)
    assert (rows["wait_ns"] + rows["transfer_ns"] == rows["end_ns"] - rows["start_ns"]).all()


def check_ledger(job: Simulated) -> None:
    """The terms sum, and each is the truth within 0.1 % of the step, or an upper bound on a CPU."""
    steps = job.analysis.steps.to_frame()
    assert (steps["wall_ns"] == steps[TERMS].sum(axis=1)).all()
    exposed = steps["exposed_wait_ns"] + steps["exposed_transfer_ns"]
    assert (exposed + steps["overlapped_ns"] == steps["collective_ns"]).all()
    both = steps.merge(true_steps(job), on=["rank", "step"], suffixes=("", "_true"))
    assert len(both) == len(steps) == job.job.world * job.job.steps
    within = 0.001 * both["wall_ns_true"]
    more = exposed.to_numpy() - (both["exposed_wait_ns_true"] + both["exposed_transfer_ns_true"])
    bound = both["rank"].map({rank.rank: rank.upper_bound for rank in job.analysis.time.per_rank})
    assert (more >= -within).all(), job.job.seed
    assert ((more <= within) | bound).all(), job.job.seed
    assert job.job.on_cpu or not bound.any()
    for term in ("wall_ns", "compute_ns", "collective_ns", "exposed_memcpy_ns"):
        assert ((both[term] - both[f"{term}_true"]).abs() <= within).all(), (job.job.seed, term)
