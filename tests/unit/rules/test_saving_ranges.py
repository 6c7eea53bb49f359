"""Savings are bounded by what the model of the run predicts, and are as wide as the noise of its steps."""

from functools import cache

import pytest
from msgspec.structs import replace

from tests.support.analyses import MS
from tests.support.rule_runs import claim, found, run_of
from tests.support.whatif_pairs import analysed, true_step_ns
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence
from zprof.model.whatif import Change
from zprof.rules.make_findings import widen_by_noise
from zprof.rules.saving_range import BoundedSaving, bound_by_prediction
from zprof.rules.transfer.no_prefetch import no_prefetch
from zprof.simulator.plan import Gathering, Network, SimulationPlan, Vendor
from zprof.step.from_units.prediction import predict_saving_ns

PLAN = SimulationPlan(
    ranks=3, steps=4, units=5, prefetch=0, vendor=Vendor.GLOO, network=Network(beta_bytes_per_s=12e9),
    gathering=Gathering(keep_last_unit=True),
)  # fmt: skip
AHEAD = Change(prefetch=1)


@cache
def run() -> RunAnalysis:
    return analysed(PLAN)


@pytest.mark.parametrize(
    ("own", "bounded", "lower"),
    [
        ((0.0, 10.0), (1.0, 2.0), False),
        ((1.5, 10.0), (1.5, 2.0), False),
        ((0.0, 1.5), (1.0, 1.5), False),
        ((2.1, 2.2), (1.0, 2.2), True),
        ((0.8, 0.9), (0.8, 2.0), True),
    ],
    ids=["wider", "higher", "lower", "above", "below"],
)
def test_ranges_overlap_or_the_confidence_falls(
    own: tuple[float, float], bounded: tuple[float, float], *, lower: bool
) -> None:
    """Ranges are given relative to the prediction: it goes from 1 to 2."""
    predicted = predict_saving_ns(run(), AHEAD)
    assert predicted is not None
    low, high = predicted
    assert 0 < low < high

    def at(place: float) -> float:
        return low + (place - 1) * (high - low)

    for sure, left in (
        (Confidence.HIGH, Confidence.MEDIUM),
        (Confidence.MEDIUM, Confidence.LOW),
        (Confidence.LOW, Confidence.LOW),
    ):
        assert bound_by_prediction(run(), AHEAD, (at(own[0]), at(own[1])), sure) == BoundedSaving(
            saving_ns=pytest.approx((at(bounded[0]), at(bounded[1]))), confidence=left if lower else sure
        )


def test_without_a_model_a_rule_keeps_its_own_range() -> None:
    own = BoundedSaving(saving_ns=(1.0, 2.0), confidence=Confidence.HIGH)
    assert bound_by_prediction(run_of(steps=3, units=3), AHEAD, (1.0, 2.0), Confidence.HIGH) == own


def test_a_bounded_finding_has_a_narrow_range_that_holds_the_truth() -> None:
    low, high = found(no_prefetch, run()).saving_ns
    assert low <= true_step_ns(PLAN) - true_step_ns(replace(PLAN, prefetch=1)) <= high
    assert high < 1.5 * low


@pytest.mark.parametrize(
    ("saving_ms", "noise_ms", "widened_ms"),
    [
        ((40, 80), 6, (34, 86)),
        ((4, 8), 100, (3, 10)),  # a quarter at most
        ((0, 0), 100, (0, 0)),
        ((40, 80), None, (40, 80)),
    ],
)
def test_savings_are_widened_by_noise(
    saving_ms: tuple[int, int], noise_ms: int | None, widened_ms: tuple[int, int]
) -> None:
    low, high = saving_ms
    widened = widen_by_noise(
        claim(Cause.NO_PREFETCH, low * MS, high * MS), noise_ms and noise_ms * MS
    ).saving_ns
    assert widened == tuple(ms * MS for ms in widened_ms)


def test_a_value_that_rules_share_is_computed_once_for_each_analysis() -> None:
    computed: list[RunAnalysis] = []

    def count_ranks(analysis: RunAnalysis) -> int:
        computed.append(analysis)
        return analysis.run.world_size

    first = replace(run())
    assert [first.compute_once(count_ranks) for _ in range(2)] == [3, 3]
    changed = replace(first, run=replace(first.run, world_size=2))
    assert changed.compute_once(count_ranks) == 2
    assert [each is first for each in computed] == [True, False]
