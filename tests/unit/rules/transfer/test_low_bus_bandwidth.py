"""low_bus_bandwidth fires below half of what is expected, and says where nothing is expected."""

from dataclasses import replace

import pytest

from tests.support.analyses import Scenario, analysis_of
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.transfer.low_bus_bandwidth import check_against, low_bus_bandwidth

FAST = Scenario(name="fast", bytes_per_s=500e6)
SLOW = Scenario(name="slow", bytes_per_s=60e6)


def test_names_a_slow_link_against_the_baseline() -> None:
    finding = low_bus_bandwidth(analysis_of(SLOW), analysis_of(FAST))
    assert isinstance(finding, Finding)
    assert finding.id == "ZP402"
    assert finding.confidence is Confidence.HIGH
    assert "60.0 MB/s" in finding.sentence
    assert "500.0 MB/s" in finding.sentence


def test_saving_holds_what_the_fast_link_wins() -> None:
    slow, fast = analysis_of(SLOW), analysis_of(FAST)
    won = slow.steps["wall_ns"].mean() - fast.steps["wall_ns"].mean()
    finding = low_bus_bandwidth(slow, fast)
    assert isinstance(finding, Finding)
    low, high = finding.saving_ns
    assert 0.8 * low <= won <= 1.2 * high


@pytest.mark.parametrize(("rate", "fires"), [(0.75, True), (0.85, False)])
def test_against_a_baseline_four_fifths_are_the_threshold(rate: float, *, fires: bool) -> None:
    """Exposed either way: no prefetch, so only the ratio decides."""
    plan = Scenario(prefetch=False, bytes_per_s=rate * 100e6)
    expected = analysis_of(Scenario(prefetch=False, bytes_per_s=100e6))
    assert isinstance(low_bus_bandwidth(analysis_of(plan), expected), Finding) == fires


def test_silent_where_the_slow_link_is_hidden() -> None:
    """A quarter of the bandwidth, all of it under compute: it costs nothing."""
    slow = replace(SLOW, bytes_per_s=1e9, compute_ms=40)
    assert low_bus_bandwidth(analysis_of(slow), analysis_of(replace(slow, bytes_per_s=4e9))) is None


def test_waiting_for_a_late_rank_is_not_bandwidth() -> None:
    late = analysis_of(replace(FAST, delay_ms={1: 80}))
    assert low_bus_bandwidth(late, analysis_of(FAST)) is None


def test_explicit_expectation() -> None:
    assert isinstance(check_against(500e6)(analysis_of(SLOW), None), Finding)
    assert check_against(100e6)(analysis_of(SLOW), None) is None


def test_not_tested_without_expectation() -> None:
    answer = low_bus_bandwidth(analysis_of(SLOW), None)
    assert isinstance(answer, Gap)
    assert answer.what == "rule low_bus_bandwidth not tested"
    assert "--expected-busbw" in answer.remedy


def test_a_baseline_of_another_stage_tells_what_its_link_moves() -> None:
    """Data parallel has all_reduces alone: they expect of all_gathers, not of gloo's reduce_scatters."""
    replicated = analysis_of(replace(FAST, stage=0))
    finding = low_bus_bandwidth(analysis_of(SLOW), replicated)
    assert isinstance(finding, Finding)
    assert "as of the baseline's all_reduces" in {fact.what for fact in finding.evidence}
    assert not any(fact.what.startswith("reduce_scatter") for fact in finding.evidence)


def test_another_size_is_no_expectation() -> None:
    tiny = analysis_of(replace(FAST, unit_bytes=64 << 10))
    assert isinstance(low_bus_bandwidth(analysis_of(SLOW), tiny), Gap)


def test_one_rank_alone_has_nothing_to_test() -> None:
    assert low_bus_bandwidth(analysis_of(Scenario(ranks=1)), None) is None
