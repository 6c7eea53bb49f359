"""What a rule says its fix saves, where the model of the run knows it too."""

from dataclasses import replace
from functools import cache

import pytest

from tests.support.analyses import Scenario, analysis_of
from tests.support.whatif_pairs import analysed, true_step_ns
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding
from zprof.model.whatif import Change
from zprof.planner.whatif.outlook import predict_saving_ns
from zprof.rules.saving_range import BoundedSaving, bound_by_prediction, bound_range_by_prediction
from zprof.rules.transfer.no_prefetch import no_prefetch
from zprof.simulator.plan import Gathering, Network, Plan, Vendor

PLAN = Plan(
    ranks=3,
    steps=4,
    units=5,
    prefetch=0,
    vendor=Vendor.GLOO,
    network=Network(beta_bytes_per_s=12e9),
    gathering=Gathering(keep_last_unit=True),
)
AHEAD = Change(prefetch=1)


@cache
def run() -> RunAnalysis:
    return analysed(PLAN)


def known() -> tuple[int, int]:
    found = predict_saving_ns(run(), AHEAD)
    assert found is not None
    return found


def test_both_ranges_hold() -> None:
    low, high = known()
    assert 0 < low < high
    assert bound_range_by_prediction(run(), AHEAD, (0.0, 10.0 * high)) == (low, high)
    middle = (low + high) / 2
    assert bound_range_by_prediction(run(), AHEAD, (middle, 10.0 * high)) == (middle, high)
    assert bound_range_by_prediction(run(), AHEAD, (0.0, middle)) == (low, middle)


@pytest.mark.parametrize(
    ("sure", "left"),
    [
        (Confidence.HIGH, Confidence.MEDIUM),
        (Confidence.MEDIUM, Confidence.LOW),
        (Confidence.LOW, Confidence.LOW),
    ],
)
def test_where_rule_and_model_disagree_the_range_holds_both_and_confidence_falls(
    sure: Confidence, left: Confidence
) -> None:
    low, high = known()
    above, below = (high + 1.0, high + 2.0), (low - 2.0, low - 1.0)
    assert bound_by_prediction(run(), AHEAD, above, sure) == BoundedSaving(
        saving_ns=(low, high + 2.0), confidence=left
    )
    assert bound_by_prediction(run(), AHEAD, below, sure) == BoundedSaving(
        saving_ns=(low - 2.0, high), confidence=left
    )
    assert bound_by_prediction(run(), AHEAD, (0.0, 10.0 * high), sure).confidence is sure


def test_without_a_model_a_rule_keeps_its_own() -> None:
    assert bound_range_by_prediction(analysis_of(Scenario(steps=3, units=3)), AHEAD, (1.0, 2.0)) == (1.0, 2.0)


def test_the_finding_says_a_narrower_range_that_holds_the_truth() -> None:
    found = no_prefetch(run(), None)
    assert isinstance(found, Finding)
    low, high = found.saving_ns
    true = true_step_ns(PLAN) - true_step_ns(replace(PLAN, prefetch=1))
    assert low <= true <= high
    assert high < 1.5 * low
