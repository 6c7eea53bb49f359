"""Times and ratios: the mean or the interval of enough steps, bounds, noise, and the late rank."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.analyses import Scenario, analysis_of
from tests.support.check_runs import BASE, MS, Made, at_least, check_run, judged, limit
from zprof.analysis.compare.differences import ratio_samples
from zprof.checks.limits import find_late_rank
from zprof.diagnosis.diagnose import diagnose
from zprof.model.comparison import Limit
from zprof.model.findings import Confidence

SURE = {"confidence": 0.95}
each_sure = pytest.mark.parametrize("sure", [{}, SURE])


def walls(mean_ms: float, spread_ms: float, steps: int = 8) -> tuple[int, ...]:
    """Steps around a mean, by as much above as below."""
    return tuple(round((mean_ms + (spread_ms if step % 2 else -spread_ms)) * MS) for step in range(steps))


def timed(mean_ms: float, spread_ms: float, steps: int = 8) -> Made:
    rest = {"exposed": BASE.exposed[:1] * steps, "collective": BASE.collective[:1] * steps}
    return replace(BASE, walls=walls(mean_ms, spread_ms, steps), **rest)


@pytest.mark.parametrize(
    ("mean", "spread", "outcome"),
    [
        (103, 0, "passed"),  # equal to the limit
        (106, 1, "failed"),
        (106, 30, "within_noise"),
        (90, 1, "passed"),
    ],
)
def test_a_step_time_fails_where_its_interval_is_beyond(mean: int, spread: int, outcome: str) -> None:
    found = judged(
        limit("step_time", change_ratio=0.03, **SURE), timed(mean, spread), timed(100, min(spread, 1))
    )
    assert (found.outcome, found.value, found.leaf) == (outcome, mean * MS, "time.steps")
    assert found.interval is not None
    assert found.interval[0] <= (mean - 100) * MS <= found.interval[1]


def test_without_a_confidence_the_mean_is_compared() -> None:
    noisy = timed(106, 30)
    assert judged(limit("step_time", change_ratio=0.03), noisy).outcome == "failed"
    assert judged(limit("step_time", value=106e6), noisy).outcome == "passed"
    assert judged(limit("step_time", value=106e6 - 1), noisy).outcome == "failed"


def test_a_value_with_a_confidence_needs_no_baseline() -> None:
    for value, spread, outcome in (
        (100e6, 1, "failed"),
        (105.9e6, 1, "within_noise"),
        (100e6, 60, "within_noise"),
    ):
        assert judged(limit("step_time", value=value, **SURE), timed(106, spread), None).outcome == outcome


@pytest.mark.parametrize("origin", ["default", "zprof.toml"])
@pytest.mark.parametrize(("steps", "base_steps"), [(1, 8), (8, 1), (4, 4)])
def test_a_few_noisy_steps_say_too_little(steps: int, base_steps: int, origin: str) -> None:
    run, base = timed(200, 60, steps), timed(100, 30, base_steps)
    held = limit("step_time", change_ratio=0.03, origin=origin, **SURE)
    found = judged(held, run, base)
    assert found.outcome == ("warned" if origin == "default" else "unknown")
    assert found.remedy
    (required,) = check_run([held], run, base, requires_baseline=True).results
    assert required.outcome == "unknown"


@pytest.mark.parametrize(("steps", "base_steps"), [(4, 4), (2, 8), (3, 2)])
def test_a_few_steps_decide_what_lies_beyond_their_spread(steps: int, base_steps: int) -> None:
    held = limit("step_time", change_ratio=0.5, origin="default", **SURE)
    assert judged(held, timed(200, 4, steps), timed(100, 4, base_steps)).outcome == "failed"
    assert judged(held, timed(101, 4, steps), timed(100, 4, base_steps)).outcome == "passed"
    assert judged(held, timed(150, 4, steps), timed(100, 4, base_steps)).outcome == "warned"
    by_value = limit("step_time", value=150e6, **SURE)
    assert judged(by_value, timed(200, 4, steps), None).outcome == "failed"
    assert judged(by_value, timed(100, 4, steps), None).outcome == "passed"
    assert judged(by_value, timed(150, 4, steps), None).outcome == "unknown"


def test_five_steps_are_enough() -> None:
    held = limit("step_time", change_ratio=0.03, **SURE)
    assert judged(held, timed(200, 1, 5), timed(100, 1, 5)).outcome == "failed"


@each_sure
@pytest.mark.parametrize(
    ("exposed", "of_exposed", "of_overlap"),
    [(0, "passed", "passed"), (22, "passed", "passed"), (23, "passed", "failed"), (24, "failed", "failed")],
)
def test_shares_move_in_points(
    exposed: int, of_exposed: str, of_overlap: str, sure: dict[str, float]
) -> None:
    """20 of 100 ms exposed, 40 ms of communication; 3 points more and 5 points less are allowed."""
    run = replace(BASE, exposed=(exposed * MS,) * 8)
    share = judged(limit("exposed_ratio", change_points=0.03, **sure), run)
    assert (share.outcome, share.value, share.baseline) == (of_exposed, exposed / 100, 0.2)
    overlap = judged(at_least("overlap_ratio", change_points=-0.05, **sure), run)
    assert (overlap.outcome, overlap.baseline) == (of_overlap, 0.5)
    assert overlap.value == pytest.approx(1 - exposed / 40)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**9)), min_size=1, max_size=20))
@settings(max_examples=25)
def test_samples_of_a_ratio_have_the_ratio_of_the_sums_as_their_mean(rows: list[tuple[int, int]]) -> None:
    parts, wholes = (np.asarray(column, dtype=float) for column in zip(*rows, strict=True))
    ratio = parts.sum() / wholes.sum()
    assert ratio_samples(parts, wholes).mean() == pytest.approx(ratio, rel=1e-6, abs=1e-9)


def test_a_gate_whose_steps_vary_by_more_than_its_limit_says_so() -> None:
    loose, tight = (limit("step_time", change_ratio=ratio, **SURE) for ratio in (0.5, 0.03))
    for mean in (100, 106):
        found = judged(tight, timed(mean, 30), timed(100, 1))
        assert found.noise is not None
        assert found.interval is not None
        assert found.noise == (found.interval[1] - found.interval[0]) / 2 > 0.03 * 100 * MS
        assert found.remedy
        assert judged(loose, timed(mean, 30), timed(100, 1)).noise is None
    assert judged(tight, timed(160, 30), timed(100, 1)).noise is None, "it failed all the same"
    whole = check_run([tight], timed(106, 30), timed(100, 1))
    assert (whole.outcome, whole.exit_code) == ("within_noise", 0)


def test_without_communication_there_is_no_overlap() -> None:
    silent = replace(BASE, exposed=(0,) * 8, collective=(0,) * 8, wait=0)
    held = at_least("overlap_ratio", change_points=-0.05)
    assert judged(held, silent).outcome == "unknown"
    assert judged(replace(held, origin="default"), silent, silent).outcome == "skipped"


@pytest.mark.parametrize(
    ("held", "outcome"),
    [
        (at_least("overlap_ratio", change_points=-0.5), "warned"),
        (at_least("overlap_ratio", change_points=-0.49), "passed"),
        (at_least("overlap_ratio", value=0.0, **SURE), "warned"),
        (limit("exposed_ratio", value=1.0), "warned"),
        (limit("exposed_ratio", change_points=0.8), "warned"),
        (limit("exposed_ratio", change_points=0.79), "passed"),
        (limit("exposed_wait", value=4e6, unit="ns"), "passed"),
    ],
)
def test_a_limit_that_no_value_can_break_guards_nothing(held: Limit, outcome: str) -> None:
    found = judged(held)
    assert (found.outcome, bool(found.remedy)) == (outcome, outcome == "warned")


#: Whether the run's and the baseline's exposed times are upper bounds; 23 and 24 % against 20 and 3 points.
@each_sure
@pytest.mark.parametrize(
    ("run", "base", "outcomes"),
    [
        (True, False, ("passed", "unknown")),
        (False, True, ("unknown", "failed")),
        (True, True, ("unknown", "unknown")),
    ],
)
def test_an_exposed_time_that_is_an_upper_bound_decides_one_side(
    run: bool, base: bool, outcomes: tuple[str, str], sure: dict[str, float]
) -> None:
    for exposed, outcome in zip((23, 24), outcomes, strict=True):
        sides = (replace(BASE, exposed=(exposed * MS,) * 8, upper_time=run), replace(BASE, upper_time=base))
        held = limit("exposed_ratio", change_points=0.03, **sure)
        assert judged(held, *sides).outcome == outcome
        default = judged(replace(held, origin="default"), *sides).outcome
        assert default == ("warned" if outcome == "unknown" and base else outcome)
    bound = replace(BASE, upper_time=True)
    assert judged(at_least("overlap_ratio", value=0.5), bound).outcome == "passed"
    assert judged(at_least("overlap_ratio", value=0.6), bound).outcome == "unknown"


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
    found = judged(limit("exposed_wait", change_ratio=0.1), run)
    assert (found.outcome, found.subject) == (outcome, "rank 1" if outcome == "failed" else "")
    assert judged(limit("exposed_wait", change_ratio=0.25), run).outcome == "passed"
    assert judged(limit("exposed_wait", change_ratio=0.1, warns=True), run).outcome == "warned"


def test_a_wait_that_is_a_lower_bound_can_only_fail() -> None:
    run = replace(BASE, unsplit=1)
    assert judged(limit("exposed_wait", value=4e6), run).outcome == "unknown"
    assert judged(limit("exposed_wait", value=4e6 - 1), replace(run, late=1.0)).outcome == "failed"


def test_the_rules_name_the_late_rank() -> None:
    assert find_late_rank(diagnose(analysis_of(Scenario(ranks=4, delay_ms={2: 40})))) == 2
    assert find_late_rank(diagnose(analysis_of(Scenario(ranks=4)))) is None
