"""What-if on simulated jobs: one is recorded, its change predicted, and compared with the changed job."""

from collections.abc import Mapping
from functools import cache

import pytest
from msgspec.structs import replace

from tests.support.full_memories import full_memory
from tests.support.tables import changed
from tests.support.whatif_pairs import Pair, analysed, named, predicted, true_step_ns, wall
from zprof.analysis.analysis import RunAnalysis
from zprof.model.plan import Calibration, Change
from zprof.model.time import LEDGER_TERMS
from zprof.model.training import TrainingFacts
from zprof.planner.whatif import predict_changes
from zprof.simulator.plan import Gathering, Network, SimulationPlan, Vendor
from zprof.step.prediction import predict_gain_ns

NETWORKS = {
    "fast": Network(),
    "slow": Network(beta_bytes_per_s=12e9),
    "slower": Network(beta_bytes_per_s=5e9),
    "latency": Network(alpha_ns=500_000, beta_bytes_per_s=25e9),
}
BASE = SimulationPlan(ranks=3, steps=3, units=5, hide_optimizer_gather=True, bucket_bytes=32 * 1024 * 1024)
KEEP_LAST = Gathering(keep_last_unit=True)
#: How far a prediction may be off: on CPU ranks the main thread's own launches tell where passes begin.
WITHIN = {Vendor.GLOO: 0.04, Vendor.NVIDIA: 0.10}


@cache
def recorded(vendor: Vendor, network: str) -> RunAnalysis:
    return analysed(plan_of(vendor, network))


def plan_of(vendor: Vendor, network: str) -> SimulationPlan:
    return replace(BASE, vendor=vendor, network=NETWORKS[network])


def scale_bandwidth(plan: SimulationPlan, times: float) -> SimulationPlan:
    return replace(
        plan, network=replace(plan.network, beta_bytes_per_s=plan.network.beta_bytes_per_s * times)
    )


def changed_plans(plan: SimulationPlan) -> Mapping[str, Pair]:
    whole = Gathering(reshard_after_forward=False)
    return {
        "stage 2": Pair(change=Change(stage=2), plan=replace(plan, stage=2)),
        "stage 0": Pair(change=Change(stage=0), plan=replace(plan, stage=0)),
        "no prefetch": Pair(change=Change(prefetch=0), plan=replace(plan, prefetch=0)),
        "prefetch 2": Pair(change=Change(prefetch=2), plan=replace(plan, prefetch=2)),
        "faster link": Pair(change=Change(bandwidth_ratio=2.0), plan=scale_bandwidth(plan, 2)),
        "slower link": Pair(change=Change(bandwidth_ratio=0.5), plan=scale_bandwidth(plan, 0.5)),
        "keep last": Pair(change=Change(keep_after_forward="last"), plan=replace(plan, gathering=KEEP_LAST)),
        "keep all": Pair(change=Change(keep_after_forward="all"), plan=replace(plan, gathering=whole)),
    }


@pytest.mark.parametrize(
    ("vendor", "network"),
    [
        (Vendor.GLOO, "slow"),
        (Vendor.NVIDIA, "slow"),
        pytest.param(Vendor.GLOO, "latency", marks=pytest.mark.slow),
        pytest.param(Vendor.GLOO, "fast", marks=pytest.mark.slow),
        pytest.param(Vendor.GLOO, "slower", marks=pytest.mark.slow),
        pytest.param(Vendor.NVIDIA, "fast", marks=pytest.mark.slow),
        pytest.param(Vendor.NVIDIA, "slower", marks=pytest.mark.slow),
        pytest.param(Vendor.NVIDIA, "latency", marks=pytest.mark.slow),
    ],
)
def test_the_changed_step_is_predicted(vendor: Vendor, network: str) -> None:
    run, pairs = recorded(vendor, network), changed_plans(plan_of(vendor, network))
    made = predict_changes(run, [pair.change for pair in pairs.values()])
    missed = {
        name: predicted(wall(prediction)) / true_step_ns(pair.plan) - 1
        for (name, pair), prediction in zip(pairs.items(), made.predictions, strict=True)
    }
    assert all(abs(error) <= WITHIN[vendor] for error in missed.values()), missed


SLOW, FAST, LATENT = (plan_of(Vendor.GLOO, network) for network in ("slow", "fast", "latency"))
TWICE = replace(BASE.compute, forward_ns=4_000_000, backward_ns=8_000_000)
HALF = replace(BASE.compute, forward_ns=1_000_000, backward_ns=2_000_000)
#: What is recorded, what of it is changed, the changed job, and what the calibration must have seen.
OTHERS = {
    "prefetch": (replace(SLOW, prefetch=0), Change(prefetch=1), {"prefetch": 1}, {"prefetch": 0}),
    "prefetch where the last unit stays": (
        replace(SLOW, prefetch=0, gathering=KEEP_LAST),
        Change(prefetch=1),
        {"prefetch": 1},
        {"prefetch": 0},
    ),
    "gathers of new parameters": (
        replace(SLOW, stage=2, hide_optimizer_gather=False),
        Change(overlap_gather=True),
        {"hide_optimizer_gather": True},
        {},
    ),
    # A norm and a loss are no units.
    "a faster link in stage 0": (
        replace(SLOW, stage=0),
        Change(bandwidth_ratio=2.0),
        {"network": scale_bandwidth(SLOW, 2).network},
        {"units": 5},
    ),
    "even ranks": (replace(FAST, speed={2: 0.7}), Change(even=True), {"speed": {}}, {"slowest_rank": 2}),
    "micro-batches": (
        replace(SLOW, reduce_each=True),
        Change(micro_batches=2),
        {"micro_batches": 2, "compute": HALF},
        {},
    ),
    # Buckets have no names: that they repeat is known from the passes alone.
    "buckets of several micro-batches": (
        replace(plan_of(Vendor.NVIDIA, "slow"), stage=0, micro_batches=4, reduce_each=True),
        Change(micro_batches=2),
        {"micro_batches": 2, "compute": TWICE},
        {"micro_batches": 4},
    ),
    "merged units": (
        replace(LATENT, units=4),
        Change(units_merged=2),
        {"units": 2, "unit_elements": 2 * BASE.unit_elements, "compute": TWICE},
        {},
    ),
}


QUICK = ("prefetch", "even ranks", "micro-batches", "buckets of several micro-batches", "merged units")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in OTHERS]
)
def test_changes_of_other_jobs_are_predicted(name: str) -> None:
    plan, change, changes, seen = OTHERS[name]
    made = predict_changes(analysed(plan), [change])
    assert isinstance(made.calibration, Calibration)
    assert {field: getattr(made.calibration, field) for field in seen} == seen
    [prediction] = made.predictions
    assert abs(wall(prediction).error_ratio or 1.0) < 0.05
    true = true_step_ns(replace(plan, **changes))  # type: ignore[arg-type]
    assert predicted(wall(prediction)) == pytest.approx(true, rel=0.05)


def test_the_terms_of_every_prediction_sum_to_its_wall() -> None:
    made = predict_changes(recorded(Vendor.GLOO, "slow"))
    assert len(made.predictions) >= 7
    for prediction in made.predictions:
        terms = [predicted(named(prediction.step, name)) for name in LEDGER_TERMS]
        assert sum(terms) == pytest.approx(predicted(wall(prediction)), abs=len(terms))
        assert all(row.low is not None and row.low <= predicted(row) for row in prediction.step)
        assert {row.assumption for row in prediction.step} <= set(made.assumptions)


def test_a_model_that_misses_the_step_is_a_gap_and_gives_no_saving() -> None:
    run = recorded(Vendor.GLOO, "slow")
    odd = replace(run, steps=changed(run.steps, wall_ns=run.steps.ints("wall_ns") * 3))
    assert len(predict_changes(odd).gaps) > len(predict_changes(run).gaps)
    assert predict_gain_ns(odd, Change(stage=2)) is None


def test_the_tenants_of_a_prediction_sum_to_its_peak() -> None:
    facts = TrainingFacts(
        engine="reference", stage=3, parameters=4_000_000, shard_ranks=3, parameter_bytes=4, gradient_bytes=4,
        optimizer_state_bytes=8, communication_bytes=4, padding_elements=16, step_counters=6,
    )  # fmt: skip
    run = replace(recorded(Vendor.GLOO, "slow"), training=facts, memory=full_memory())
    largest = max(run.memory.per_rank, key=lambda rank: rank.peak_bytes)
    for prediction in predict_changes(run, [Change(stage=stage) for stage in range(3)]).predictions:
        peak, *tenants = prediction.memory
        assert peak.measured == largest.peak_bytes
        assert peak.predicted == sum(row.predicted or 0 for row in tenants) + largest.untagged_bytes
        assert (peak.low or 0) <= predicted(peak) <= (peak.high or 0)
        assert {row.name for row in tenants} == {str(tenant) for tenant in largest.tenants}
