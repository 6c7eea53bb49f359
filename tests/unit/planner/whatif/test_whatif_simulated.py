"""What-if on simulated jobs: one is recorded, its change predicted, and compared with the changed job."""

from collections.abc import Mapping
from dataclasses import replace as replace_job
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.full_memories import full_memory
from tests.support.simulations import with_pace
from tests.support.tables import changed
from tests.support.whatif_pairs import Pair, analysed, named, predicted, true_step_ns, wall
from zprof.analysis.analysis import RunAnalysis
from zprof.model.plan import Calibration, Change
from zprof.model.time import LEDGER_TERMS
from zprof.model.training import TrainingFacts
from zprof.planner.whatif import predict_changes
from zprof.simulator.job import Job, Pace, Vendor
from zprof.simulator.regular import STAGES, make_job
from zprof.step.prediction import predict_gain_ns

NETWORKS = {
    "fast": {},
    "slow": {"bus": 12.0},
    "slower": {"bus": 5.0},
    "latency": {"bus": 25.0, "alpha_ns": 450_000},
}
#: How far a prediction may be off: on CPU ranks the main thread's own launches tell where passes begin.
WITHIN = {"gloo": 0.04, "nvidia": 0.10}


@cache
def recorded(vendor: Vendor, network: str) -> RunAnalysis:
    return analysed(job_of(vendor, network))


def job_of(vendor: Vendor, network: str, **settings: Any) -> Job:
    whole = {"ranks": 3, "steps": 3, "units": 5, "optimizer_gather": "hidden", "last_unit_kept": False}
    return make_job(vendor=vendor, names_collectives=True, **whole | NETWORKS[network] | settings)


def scale_bandwidth(job: Job, times: float) -> Job:
    return replace_job(job, cluster=replace_job(job.cluster, bandwidth_factor=times))


def changed_jobs(job: Job) -> Mapping[str, Pair]:
    return {
        "stage 2": Pair(change=Change(stage=2), job=replace_job(job, engine=STAGES[2])),
        "stage 0": Pair(change=Change(stage=0), job=replace_job(job, engine=STAGES[0])),
        "no prefetch": Pair(change=Change(prefetch=0), job=replace_job(job, prefetch="off")),
        "faster link": Pair(change=Change(bandwidth_ratio=2.0), job=scale_bandwidth(job, 2)),
        "slower link": Pair(change=Change(bandwidth_ratio=0.5), job=scale_bandwidth(job, 0.5)),
        "keep last": Pair(
            change=Change(keep_after_forward="last"), job=replace_job(job, last_unit_kept=True)
        ),
        "keep all": Pair(
            change=Change(keep_after_forward="all"), job=replace_job(job, reshard_after_forward=False)
        ),
    }


@pytest.mark.parametrize(
    ("vendor", "network"),
    [
        ("gloo", "slow"),
        ("nvidia", "slow"),
        pytest.param("gloo", "latency", marks=pytest.mark.slow),
        pytest.param("gloo", "fast", marks=pytest.mark.slow),
        pytest.param("gloo", "slower", marks=pytest.mark.slow),
        pytest.param("nvidia", "fast", marks=pytest.mark.slow),
        pytest.param("nvidia", "slower", marks=pytest.mark.slow),
        pytest.param("nvidia", "latency", marks=pytest.mark.slow),
    ],
)
def test_the_changed_step_is_predicted(vendor: Vendor, network: str) -> None:
    run, pairs = recorded(vendor, network), changed_jobs(job_of(vendor, network))
    made = predict_changes(run, [pair.change for pair in pairs.values()])
    missed = {
        name: predicted(wall(prediction)) / true_step_ns(pair.job) - 1
        for (name, pair), prediction in zip(pairs.items(), made.predictions, strict=True)
    }
    assert all(abs(error) <= WITHIN[vendor] for error in missed.values()), missed


def in_batches(vendor: Vendor, count: int, **settings: Any) -> Job:
    """A job that divides one batch into so many micro-batches."""
    forward_ns, backward_ns = 8_000_000 // count, 16_000_000 // count
    return job_of(
        vendor, "slow", micro_batches=count, sync_every_micro_batch=True, regather_every_micro_batch=True,
        forward_ns=forward_ns, backward_ns=backward_ns, **settings,
    )  # fmt: skip


SLOW = job_of("gloo", "slow")
FAST = job_of("gloo", "fast")
#: What is recorded, what of it is changed, the changed job, and what the calibration must have seen.
OTHERS = {
    "prefetch": (replace_job(SLOW, prefetch="off"), Change(prefetch=1), SLOW, {"prefetch": 0}),
    "prefetch where the last unit stays": (
        replace_job(SLOW, prefetch="off", last_unit_kept=True),
        Change(prefetch=1),
        replace_job(SLOW, last_unit_kept=True),
        {"prefetch": 0},
    ),
    "gathers of new parameters": (
        replace_job(SLOW, engine="zero2", optimizer_gather="exposed"),
        Change(overlap_gather=True),
        replace_job(SLOW, engine="zero2"),
        {},
    ),
    # A norm and a loss are no units.
    "a faster link in stage 0": (
        replace_job(SLOW, engine="ddp"),
        Change(bandwidth_ratio=2.0),
        scale_bandwidth(replace_job(SLOW, engine="ddp"), 2),
        {"units": 5},
    ),
    "even ranks": (with_pace(FAST, Pace(gpu=1.43), 2), Change(even=True), FAST, {"slowest_rank": 2}),
    "micro-batches": (in_batches("gloo", 1), Change(micro_batches=2), in_batches("gloo", 2), {}),
    # Buckets have no names: that they repeat is known from the passes alone.
    "buckets of several micro-batches": (
        in_batches("nvidia", 4, stage=0),
        Change(micro_batches=2),
        in_batches("nvidia", 2, stage=0),
        {"micro_batches": 4},
    ),
    "merged units": (
        job_of("gloo", "latency", units=4),
        Change(units_merged=2),
        job_of("gloo", "latency", units=2, unit_params=32 << 20, forward_ns=4_000_000, backward_ns=8_000_000),
        {},
    ),
}


QUICK = ("prefetch", "even ranks", "micro-batches", "buckets of several micro-batches", "merged units")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in OTHERS]
)
def test_changes_of_other_jobs_are_predicted(name: str) -> None:
    job, change, changed_job, seen = OTHERS[name]
    made = predict_changes(analysed(job), [change])
    assert isinstance(made.calibration, Calibration)
    assert {field: getattr(made.calibration, field) for field in seen} == seen
    [prediction] = made.predictions
    assert abs(wall(prediction).error_ratio or 1.0) < 0.05
    true = true_step_ns(changed_job)
    assert predicted(wall(prediction)) == pytest.approx(true, rel=0.05)


def test_the_terms_of_every_prediction_sum_to_its_wall() -> None:
    made = predict_changes(recorded("gloo", "slow"))
    assert len(made.predictions) >= 7
    for prediction in made.predictions:
        terms = [predicted(named(prediction.step, name)) for name in LEDGER_TERMS]
        assert sum(terms) == pytest.approx(predicted(wall(prediction)), abs=len(terms))
        assert all(row.low is not None and row.low <= predicted(row) for row in prediction.step)
        assert {row.assumption for row in prediction.step} <= set(made.assumptions)


def test_a_model_that_misses_the_step_is_a_gap_and_gives_no_saving() -> None:
    run = recorded("gloo", "slow")
    odd = replace(run, steps=changed(run.steps, wall_ns=run.steps.ints("wall_ns") * 3))
    assert len(predict_changes(odd).gaps) > len(predict_changes(run).gaps)
    assert predict_gain_ns(odd, Change(stage=2)) is None


def test_the_tenants_of_a_prediction_sum_to_its_peak() -> None:
    facts = TrainingFacts(
        engine="reference", stage=3, parameters=4_000_000, shard_ranks=3, parameter_bytes=4, gradient_bytes=4,
        optimizer_state_bytes=8, communication_bytes=4, padding_elements=16, step_counters=6,
    )  # fmt: skip
    run = replace(recorded("gloo", "slow"), training=facts, memory=full_memory())
    largest = max(run.memory.per_rank, key=lambda rank: rank.peak_bytes)
    for prediction in predict_changes(run, [Change(stage=stage) for stage in range(3)]).predictions:
        peak, *tenants = prediction.memory
        assert peak.measured == largest.peak_bytes
        assert peak.predicted == sum(row.predicted or 0 for row in tenants) + largest.untagged_bytes
        assert (peak.low or 0) <= predicted(peak) <= (peak.high or 0)
        assert {row.name for row in tenants} == {str(tenant) for tenant in largest.tenants}
