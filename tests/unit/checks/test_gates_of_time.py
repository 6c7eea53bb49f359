"""Times and ratios fail only where the interval of enough steps is beyond the limit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.analyses import Scenario, analysis_of
from tests.support.check_runs import ENVIRONMENT, MS, Made, at_least, limit
from zprof.analysis.comparison import bootstrap_interval
from zprof.checks.check import check
from zprof.checks.gates.reading import ratio_samples
from zprof.checks.gates.time import late_rank
from zprof.model.check import GateResult, Limit
from zprof.model.findings import Confidence
from zprof.rules.diagnose import diagnose

BASE = Made()
SURE = {"confidence": 0.95}


def result(held: Limit, run: Made, base: Made | None = BASE) -> GateResult:
    baseline = None if base is None else base.baseline
    (only,) = check(run.report, [held], baseline, environment=ENVIRONMENT).results
    return only


def walls(mean_ms: float, spread_ms: float, steps: int = 8) -> tuple[int, ...]:
    """Steps around a mean, by as much above as below."""
    signs = [1 if step % 2 else -1 for step in range(steps)]
    return tuple(round((mean_ms + sign * spread_ms) * MS) for sign in signs)


STEADY = replace(BASE, walls=walls(100, 1))


@pytest.mark.parametrize(
    ("mean", "spread", "outcome"),
    [
        (100, 1, "passed"),
        (103, 0, "passed"),  # equal to the limit
        (106, 1, "failed"),
        (106, 30, "within_noise"),  # as much, and no more than the steps vary by
        (90, 1, "passed"),
    ],
)
def test_a_step_time_fails_where_its_interval_is_beyond(mean: int, spread: int, outcome: str) -> None:
    run = replace(BASE, walls=walls(mean, spread))
    found = result(limit("step_time", change_ratio=0.03, **SURE), run, STEADY if spread else BASE)
    assert found.outcome == outcome
    assert found.value == mean * MS
    assert found.leaf == "time.steps"
    assert found.interval is not None
    low, high = found.interval
    assert low <= (mean - 100) * MS <= high


def test_without_a_confidence_the_mean_is_compared() -> None:
    noisy = replace(BASE, walls=walls(106, 30))
    assert result(limit("step_time", change_ratio=0.03), noisy).outcome == "failed"
    assert result(limit("step_time", value=106e6), noisy).outcome == "passed"
    assert result(limit("step_time", value=106e6 - 1), noisy).outcome == "failed"


def test_the_interval_is_that_of_compare() -> None:
    run = replace(BASE, walls=walls(106, 9))
    found = result(limit("step_time", change_ratio=0.03, **SURE), run, STEADY)
    expected = bootstrap_interval(*(np.asarray(made.walls, dtype=float) for made in (STEADY, run)))
    assert found.interval == pytest.approx(expected, abs=1)


def test_a_value_with_a_confidence_needs_no_baseline() -> None:
    run = replace(BASE, walls=walls(106, 1))
    assert result(limit("step_time", value=100e6, **SURE), run, None).outcome == "failed"
    assert result(limit("step_time", value=105.9e6, **SURE), run, None).outcome == "within_noise"
    assert result(
        limit("step_time", value=100e6, **SURE), replace(BASE, walls=walls(106, 60)), None
    ).outcome == ("within_noise")


@pytest.mark.parametrize("origin", ["default", "zprof.toml"])
@pytest.mark.parametrize(("steps", "base_steps"), [(4, 8), (8, 4), (4, 4)])
def test_four_steps_say_too_little(steps: int, base_steps: int, origin: str) -> None:
    run, base = made(200, steps), made(100, base_steps)
    found = result(limit("step_time", change_ratio=0.03, origin=origin, **SURE), run, base)
    quiet = "skipped" if steps < 5 else "warned"  # the baseline alone must not silence it
    assert found.outcome == (quiet if origin == "default" else "unknown")
    assert f"{'the run' if steps < 5 else 'the baseline'} has 4 timed steps" in found.sentence
    assert found.remedy
    assert (
        result(limit("step_time", change_ratio=0.03, **SURE), made(200, 5), made(100, 5)).outcome == "failed"
    )
    assert result(limit("step_time", value=150e6, **SURE), run, base).outcome == (
        "unknown" if steps < 5 else "failed"
    )


def made(mean_ms: int, steps: int) -> Made:
    return replace(
        BASE,
        walls=walls(mean_ms, 1, steps),
        exposed=BASE.exposed[:1] * steps,
        collective=BASE.collective[:1] * steps,
    )


EXPOSED = [
    # exposed of 100 ms, allowed 20 + 3 points, with and without an interval
    (23, "passed"), (24, "failed"), (10, "passed"),
]  # fmt: skip


@pytest.mark.parametrize("sure", [{}, SURE])
@pytest.mark.parametrize(("exposed", "outcome"), EXPOSED)
def test_an_exposed_share_in_points(exposed: int, outcome: str, sure: dict[str, float]) -> None:
    run = replace(BASE, exposed=(exposed * MS,) * 8)
    found = result(limit("exposed_ratio", change_points=0.03, **sure), run)
    assert (found.outcome, found.value, found.baseline) == (outcome, exposed / 100, 0.2)


@pytest.mark.parametrize("sure", [{}, SURE])
@pytest.mark.parametrize(
    ("exposed", "outcome"), [(20, "passed"), (22, "passed"), (23, "failed"), (0, "passed")]
)
def test_an_overlap_must_not_fall(exposed: int, outcome: str, sure: dict[str, float]) -> None:
    run = replace(BASE, exposed=(exposed * MS,) * 8)
    found = result(at_least("overlap_ratio", change_points=-0.05, **sure), run)
    assert (found.outcome, found.baseline) == (outcome, 0.5)
    assert found.value == pytest.approx(1 - exposed / 40)


def test_an_interval_of_no_points_has_no_side() -> None:
    found = result(limit("exposed_ratio", change_points=0.03, **SURE), BASE)
    assert found.sentence.endswith("interval of the change ±0.0 points to ±0.0 points")


def test_a_gate_whose_steps_vary_by_more_than_its_limit_says_that_it_cannot_fail() -> None:
    """Whether its value is within the limit or beyond it; a limit wider than the noise says nothing."""
    steady, noisy = (limit("step_time", change_ratio=ratio, **SURE) for ratio in (0.5, 0.03))
    for mean, outcome in ((100, "passed"), (106, "within_noise")):
        found = result(noisy, replace(BASE, walls=walls(mean, 30)), STEADY)
        assert found.outcome == outcome
        assert found.noise is not None
        assert found.interval is not None
        assert found.noise == (found.interval[1] - found.interval[0]) / 2 > 0.03 * 100 * MS
        assert found.remedy
        assert result(steady, replace(BASE, walls=walls(mean, 30)), STEADY).noise is None
    assert result(noisy, replace(BASE, walls=walls(160, 30)), STEADY).noise is None


def test_a_run_within_noise_ends_as_one_that_passed_does() -> None:
    held = [limit("step_time", change_ratio=0.03, **SURE)]
    run = replace(BASE, walls=walls(106, 30))
    found = check(run.report, held, STEADY.baseline, environment=ENVIRONMENT)
    assert (found.outcome, found.exit_code) == ("within_noise", 0)


def test_a_noisy_share_is_within_noise_and_a_steady_one_fails() -> None:
    noisy = replace(BASE, exposed=tuple(ms * MS for ms in (5, 60, 10, 50, 5, 60, 10, 50)))
    held = limit("exposed_ratio", change_points=0.03, **SURE)
    found = result(held, noisy)
    assert (found.outcome, found.value) == ("within_noise", 0.3125)
    assert result(limit("exposed_ratio", change_points=0.03), noisy).outcome == "failed"


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**9)), min_size=1, max_size=20),
)
@settings(max_examples=50)
def test_samples_of_a_ratio_have_the_ratio_of_the_sums_as_their_mean(rows: list[tuple[int, int]]) -> None:
    parts, wholes = (np.asarray(column, dtype=float) for column in zip(*rows, strict=True))
    assert ratio_samples(parts, wholes).mean() == pytest.approx(
        parts.sum() / wholes.sum(), rel=1e-6, abs=1e-9
    )


def test_nothing_to_hide_is_no_overlap() -> None:
    alone = replace(BASE, exposed=(0,) * 8, collective=(0,) * 8, wait=0)
    held = at_least("overlap_ratio", change_points=-0.05)
    assert result(held, alone).outcome == "unknown"
    assert result(replace(held, origin="default"), alone, alone).outcome == "skipped"


@pytest.mark.parametrize(
    ("held", "base", "outcome"),
    [
        (at_least("overlap_ratio", change_points=-0.5), BASE, "skipped"),
        (at_least("overlap_ratio", change_points=-0.49), BASE, "passed"),
        (at_least("overlap_ratio", value=0.0, **SURE), None, "skipped"),
        (limit("exposed_ratio", value=1.0), None, "skipped"),
        (limit("exposed_ratio", change_points=0.8), BASE, "skipped"),
        (limit("exposed_ratio", change_points=0.79), BASE, "passed"),
        (limit("exposed_wait", value=4e6, unit="ns"), None, "passed"),
    ],
)
def test_a_limit_that_no_value_can_break_guards_nothing(held: Limit, base: Made | None, outcome: str) -> None:
    found = result(held, BASE, base)
    assert found.outcome == outcome
    assert ("guards nothing" in found.sentence) is (outcome == "skipped")
    assert bool(found.remedy) is (outcome == "skipped")


UNMET = replace(BASE, collectives=(), exposed=(0,) * 8, collective=(0,) * 8, wait=0, seen=0)


@pytest.mark.parametrize("gate", ["exposed_ratio", "exposed_wait", "collective_bytes_law"])
def test_ranks_that_never_met_pass_no_gate_of_communication(gate: str) -> None:
    found = result(limit(gate, value=0.9), UNMET, None)
    assert (found.outcome, found.value) == ("unknown", None)
    assert "no collective was seen" in found.sentence
    assert found.remedy
    alone = replace(UNMET, world=1, timed=(0,), peaks=(1000,))
    assert result(limit(gate, value=0.9), alone, None).outcome == "passed"


@pytest.mark.parametrize("gate", ["exposed_ratio", "exposed_wait"])
def test_a_baseline_of_ranks_that_never_met_says_nothing_of_communication(gate: str) -> None:
    assert result(limit(gate, change_ratio=0.0), BASE, UNMET).outcome == "unknown"
    assert result(limit(gate, change_ratio=0.0, origin="default"), UNMET, UNMET).outcome == "skipped"
    assert result(limit("step_time", change_ratio=0.0), UNMET, UNMET).outcome == "passed"


@pytest.mark.parametrize(
    ("run", "base", "exposed", "outcome"),
    [
        (True, False, 23, "passed"),
        (True, False, 24, "unknown"),
        (False, True, 23, "unknown"),
        (False, True, 24, "failed"),
        (True, True, 24, "unknown"),
    ],
)
@pytest.mark.parametrize("sure", [{}, SURE])
def test_exposed_time_that_is_an_upper_bound(
    run: bool, base: bool, exposed: int, outcome: str, sure: dict[str, float]
) -> None:
    sides = (replace(BASE, exposed=(exposed * MS,) * 8, upper_time=run), replace(BASE, upper_time=base))
    held = limit("exposed_ratio", change_points=0.03, **sure)
    assert result(held, *sides).outcome == outcome
    open_before = outcome == "unknown" and base
    left_open = "warned" if exposed > 23 else "skipped"
    assert result(replace(held, origin="default"), *sides).outcome == (left_open if open_before else outcome)


def test_an_overlap_beside_such_a_bound_is_at_least_so_much() -> None:
    bound = replace(BASE, upper_time=True)
    assert result(at_least("overlap_ratio", value=0.5), bound).outcome == "passed"
    assert result(at_least("overlap_ratio", value=0.6), bound).outcome == "unknown"


@pytest.mark.parametrize("gate", ["step_time", "exposed_ratio", "exposed_wait"])
def test_time_that_the_run_lacks_is_unknown(gate: str) -> None:
    for empty in (replace(BASE, walls=()), replace(BASE, timed=(0,))):
        found = result(limit(gate, change_ratio=1.0, origin="default"), empty)
        assert (found.outcome, found.value) == ("unknown", None)
        assert result(limit(gate, change_ratio=1.0, origin="default"), empty, empty).outcome == (
            "passed" if empty.walls else "skipped"
        )
        assert result(limit(gate, change_ratio=1.0), BASE, empty).outcome == "unknown"
        assert result(limit(gate, value=1e12), empty, None).outcome == "unknown"
        assert result(limit(gate, value=1e12), empty, empty).outcome == "unknown"


@pytest.mark.parametrize(
    ("late", "confidence", "outcome"),
    [
        (None, Confidence.HIGH, "warned"),
        (0.79, Confidence.HIGH, "warned"),
        (0.8, Confidence.HIGH, "failed"),
        (1.0, Confidence.MEDIUM, "failed"),
        (1.0, Confidence.LOW, "warned"),
    ],
)
def test_wait_fails_only_where_the_same_rank_is_late(
    late: float | None, confidence: Confidence, outcome: str
) -> None:
    run = replace(BASE, wait=5 * MS, late=late, late_confidence=confidence)
    found = result(limit("exposed_wait", change_ratio=0.1), run)
    assert found.outcome == outcome
    assert found.subject == ("rank 1" if outcome == "failed" else "")
    assert result(limit("exposed_wait", change_ratio=0.25), run).outcome == "passed"
    assert result(limit("exposed_wait", change_ratio=0.1, warns=True), run).outcome == "warned"


def test_wait_that_is_the_least_it_can_be() -> None:
    run = replace(BASE, unsplit=1)
    assert result(limit("exposed_wait", value=4e6), run).outcome == "unknown"
    assert result(limit("exposed_wait", value=4e6 - 1), replace(run, late=1.0)).outcome == "failed"


def test_the_rules_name_the_late_rank() -> None:
    assert late_rank(diagnose(analysis_of(Scenario(ranks=4, delay_ms={2: 40})))) == 2
    assert late_rank(diagnose(analysis_of(Scenario(ranks=4)))) is None
