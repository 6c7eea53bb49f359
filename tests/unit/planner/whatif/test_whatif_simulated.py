"""What-if on simulated jobs: one is recorded, its change predicted, and held against the changed job."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest

from tests.support.full_memories import full_memory
from tests.support.whatif_pairs import Pair, analysed, named, predicted, true_step_ns, wall
from zprof.analysis.analysis import RunAnalysis
from zprof.model.time import LEDGER_TERMS
from zprof.model.training import TrainingFacts
from zprof.model.whatif import Change
from zprof.planner.whatif.outlook import predict_changes, predict_saving_ns
from zprof.simulator.plan import Gathering, Network, Plan, Vendor

NETWORKS = {
    "fast": Network(),
    "slow": Network(beta_bytes_per_s=12e9),
    "slower": Network(beta_bytes_per_s=5e9),
    "latency": Network(alpha_ns=500_000, beta_bytes_per_s=25e9),
}
BASE = Plan(ranks=3, steps=3, units=5, hide_optimizer_gather=True, bucket_bytes=32 * 1024 * 1024)
FACTS = TrainingFacts(
    engine="reference", stage=3, parameters=4_000_000, shard_ranks=3, parameter_bytes=4, gradient_bytes=4,
    optimizer_state_bytes=8, communication_bytes=4, padding_elements=16, step_counters=6,
)  # fmt: skip
#: How far a prediction may be off: on CPU ranks the main thread's own launches tell where passes begin.
WITHIN = {Vendor.GLOO: 0.04, Vendor.NVIDIA: 0.10}


@cache
def recorded(vendor: Vendor, network: str) -> RunAnalysis:
    return analysed(_plan(vendor, network))


def _plan(vendor: Vendor, network: str) -> Plan:
    return replace(BASE, vendor=vendor, network=NETWORKS[network])


def _pairs(plan: Plan) -> Mapping[str, Pair]:
    faster, slower = (
        replace(plan.network, beta_bytes_per_s=plan.network.beta_bytes_per_s * times) for times in (2, 0.5)
    )
    kept, whole = Gathering(keep_last_unit=True), Gathering(reshard_after_forward=False)
    return {
        "stage 2": Pair(change=Change(stage=2), plan=replace(plan, stage=2)),
        "stage 0": Pair(change=Change(stage=0), plan=replace(plan, stage=0)),
        "no prefetch": Pair(change=Change(prefetch=0), plan=replace(plan, prefetch=0)),
        "prefetch 2": Pair(change=Change(prefetch=2), plan=replace(plan, prefetch=2)),
        "faster link": Pair(change=Change(bandwidth_ratio=2.0), plan=replace(plan, network=faster)),
        "slower link": Pair(change=Change(bandwidth_ratio=0.5), plan=replace(plan, network=slower)),
        "keep last": Pair(change=Change(keep_after_forward="last"), plan=replace(plan, gathering=kept)),
        "keep all": Pair(change=Change(keep_after_forward="all"), plan=replace(plan, gathering=whole)),
    }


CHANGES = tuple(_pairs(BASE))


@pytest.mark.parametrize(
    ("vendor", "network"),
    [
        (Vendor.GLOO, "slow"),
        (Vendor.GLOO, "latency"),
        (Vendor.NVIDIA, "slow"),
        pytest.param(Vendor.GLOO, "fast", marks=pytest.mark.slow),
        pytest.param(Vendor.GLOO, "slower", marks=pytest.mark.slow),
        pytest.param(Vendor.NVIDIA, "fast", marks=pytest.mark.slow),
        pytest.param(Vendor.NVIDIA, "slower", marks=pytest.mark.slow),
        pytest.param(Vendor.NVIDIA, "latency", marks=pytest.mark.slow),
    ],
)
def test_the_changed_step_is_predicted(vendor: Vendor, network: str) -> None:
    run, pairs = recorded(vendor, network), _pairs(_plan(vendor, network))
    made = predict_changes(run, [pair.change for pair in pairs.values()])
    missed = {
        name: predicted(wall(prediction)) / true_step_ns(pair.plan) - 1
        for (name, pair), prediction in zip(pairs.items(), made.predictions, strict=True)
    }
    assert all(abs(error) <= WITHIN[vendor] for error in missed.values()), missed


@pytest.mark.parametrize("vendor", [Vendor.GLOO, pytest.param(Vendor.NVIDIA, marks=pytest.mark.slow)])
def test_prefetch_is_predicted_from_a_run_without(vendor: Vendor) -> None:
    plan = replace(_plan(vendor, "slow"), prefetch=0)
    made = predict_changes(analysed(plan), [Change(prefetch=1)])
    assert made.calibration is not None
    assert made.calibration.prefetch == 0
    true = true_step_ns(replace(plan, prefetch=1))
    assert predicted(wall(made.predictions[0])) == pytest.approx(true, rel=WITHIN[vendor])
    saving = made.predictions[0].saving_ns
    assert saving is not None
    assert saving[0] <= true_step_ns(plan) - true <= saving[1]


def test_the_model_sees_that_nothing_is_gathered_ahead_where_the_last_unit_stays() -> None:
    kept = Gathering(keep_last_unit=True)
    plan = replace(_plan(Vendor.GLOO, "slow"), prefetch=0, gathering=kept)
    made = predict_changes(analysed(plan), [Change(prefetch=1)])
    assert made.calibration is not None
    assert made.calibration.prefetch == 0
    assert abs(wall(made.predictions[0]).error_ratio or 1.0) < 0.02
    true = true_step_ns(replace(plan, prefetch=1))
    assert predicted(wall(made.predictions[0])) == pytest.approx(true, rel=0.04)


def test_gathers_of_new_parameters_are_hidden_by_a_change() -> None:
    plan = replace(_plan(Vendor.GLOO, "slow"), stage=2, hide_optimizer_gather=False)
    made = predict_changes(analysed(plan), [Change(overlap_gather=True)])
    assert abs(wall(made.predictions[0]).error_ratio or 1.0) < 0.05
    true = true_step_ns(replace(plan, hide_optimizer_gather=True))
    assert predicted(wall(made.predictions[0])) == pytest.approx(true, rel=0.05)


def test_a_norm_and_a_loss_are_no_units() -> None:
    plan = replace(_plan(Vendor.GLOO, "slow"), stage=0)
    made = predict_changes(analysed(plan), [Change(bandwidth_ratio=2.0)])
    assert made.calibration is not None
    assert made.calibration.units == plan.units
    faster = replace(plan.network, beta_bytes_per_s=2 * plan.network.beta_bytes_per_s)
    true = true_step_ns(replace(plan, network=faster))
    assert predicted(wall(made.predictions[0])) == pytest.approx(true, rel=0.04)


def test_a_slow_rank_made_even_is_predicted() -> None:
    plan = replace(_plan(Vendor.GLOO, "fast"), speed={2: 0.7})
    made = predict_changes(analysed(plan), [Change(even=True)])
    assert made.calibration is not None
    assert made.calibration.slowest_rank == 2
    true = true_step_ns(replace(plan, speed={}))
    assert predicted(wall(made.predictions[0])) == pytest.approx(true, rel=0.03)


def test_more_micro_batches_are_predicted() -> None:
    plan = replace(_plan(Vendor.GLOO, "slow"), reduce_each=True)
    half = replace(plan.compute, forward_ns=1_000_000, backward_ns=2_000_000)
    made = predict_changes(analysed(plan), [Change(micro_batches=2)])
    true = true_step_ns(replace(plan, micro_batches=2, compute=half))
    assert predicted(wall(made.predictions[0])) == pytest.approx(true, rel=0.05)


def test_merged_units_are_predicted() -> None:
    plan = replace(_plan(Vendor.GLOO, "latency"), units=4)
    made = predict_changes(analysed(plan), [Change(units_merged=2)])
    twice = replace(plan.compute, forward_ns=4_000_000, backward_ns=8_000_000)
    true = true_step_ns(replace(plan, units=2, unit_elements=2 * plan.unit_elements, compute=twice))
    assert predicted(wall(made.predictions[0])) == pytest.approx(true, rel=0.04)


def test_the_terms_of_every_prediction_sum_to_its_wall() -> None:
    made = predict_changes(recorded(Vendor.GLOO, "slow"))
    assert len(made.predictions) >= 7
    for prediction in made.predictions:
        terms = [predicted(named(prediction.step, name)) for name in LEDGER_TERMS]
        assert sum(terms) == pytest.approx(predicted(wall(prediction)), abs=len(terms))
        assert all(row.low is not None and row.low <= predicted(row) for row in prediction.step)
        assert {row.assumption for row in prediction.step} <= set(made.assumptions)


def test_no_change_predicts_what_was_measured() -> None:
    made = predict_changes(recorded(Vendor.NVIDIA, "slow"), [Change()])
    for row in made.predictions[0].step:
        assert row.predicted == row.measured
    assert made.predictions[0].words == "nothing changed"


def test_the_saving_of_a_change_is_that_of_the_outlook() -> None:
    run = recorded(Vendor.GLOO, "slow")
    shown = predict_changes(run, [Change(bandwidth_ratio=2.0)]).predictions[0].saving_ns
    assert shown is not None
    assert shown[1] > 0
    assert predict_saving_ns(run, Change(bandwidth_ratio=2.0)) == (max(0, shown[0]), shown[1])


def test_a_model_that_misses_the_step_says_so_and_gives_no_saving() -> None:
    run = recorded(Vendor.GLOO, "slow")
    longer = run.steps.assign(wall_ns=run.steps["wall_ns"] * 3)
    odd = replace(run, steps=longer)
    said = [gap.reason for gap in predict_changes(odd).gaps]
    assert any("misses its measured step" in reason for reason in said)
    assert predict_saving_ns(odd, Change(stage=2)) is None


def test_the_tenants_of_a_prediction_sum_to_its_peak() -> None:
    run = replace(recorded(Vendor.GLOO, "slow"), training=FACTS, memory=full_memory())
    largest = max(run.memory.per_rank, key=lambda rank: rank.peak_bytes)
    for prediction in predict_changes(run, [Change(stage=stage) for stage in range(3)]).predictions:
        peak, *tenants = prediction.memory
        assert (peak.name, peak.measured) == ("peak_bytes", largest.peak_bytes)
        assert peak.predicted == sum(row.predicted or 0 for row in tenants) + largest.untagged_bytes
        assert (peak.low or 0) <= predicted(peak) <= (peak.high or 0)
        assert {row.name for row in tenants} == {str(tenant) for tenant in largest.tenants}
