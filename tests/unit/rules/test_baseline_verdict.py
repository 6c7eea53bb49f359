"""The verdict against a baseline: slower or not, at equal work, and which finding can be the cause."""

from dataclasses import replace

import pytest

from tests.support.analyses import MS, Scenario
from tests.support.rule_runs import claim, run_of
from zprof.analysis.comparison import NO_INTERVAL
from zprof.model.findings import Cause, Finding
from zprof.model.gaps import Gap
from zprof.model.report import Comparison, Difference, EqualWork, StepTimeChange, WorkUnit
from zprof.model.report import VerdictStatus as Status
from zprof.rules.baseline_verdict import judge_against_baseline
from zprof.rules.rule import Rule


def compared(change_ms: float, interval_ms: tuple[float, float], **delta_ms: float) -> Comparison:
    """Against a baseline of 100 ms a step."""
    low, high = interval_ms
    b_ns = round((100 + change_ms) * MS)
    times = StepTimeChange(a_ns=100 * MS, b_ns=b_ns, ci95=(round(low * MS), round(high * MS)))
    delta = {f"{term}_ns": round(ms * MS) for term, ms in (delta_ms or {"compute": change_ms}).items()}
    return Comparison(baseline="a", ledger_delta=delta, memory_delta={}, step_time=times)


def at_equal_work(comparison: Comparison, b_ms: float, interval_ms: tuple[float, float]) -> Comparison:
    low, high = interval_ms
    work = EqualWork(
        unit=WorkUnit.TOKENS, a_per_step=512, b_per_step=1024, b_ns=round(b_ms * MS),
        ci95=(round(low * MS), round(high * MS)),
    )  # fmt: skip
    return replace(comparison, equal_work=work)


SLOWER = compared(40, (35, 45))


@pytest.mark.parametrize(
    ("comparison", "status"),
    [
        (compared(30, (10, 50)), Status.SLOWER),
        (compared(30, (-2, 60)), Status.INCONCLUSIVE),
        (compared(1.9, (1, 4)), Status.OK),
        (compared(2, (1, 4)), Status.SLOWER),
        (compared(3, (0, 4)), Status.OK),  # an interval that touches zero
        (compared(3, (0.000001, 4)), Status.SLOWER),
        (compared(0, (-4.9, 4.9)), Status.OK),
        (compared(0, (-5, 5)), Status.INCONCLUSIVE),
        (compared(-30, (-50, -10)), Status.OK),
        (at_equal_work(SLOWER, 70, (-35, -25)), Status.OK),
        (at_equal_work(SLOWER, 130, (20, 40)), Status.SLOWER),
        (at_equal_work(SLOWER, 101.9, (1, 3)), Status.OK),
        (at_equal_work(SLOWER, 102, (-1, 6)), Status.INCONCLUSIVE),
    ],
)
def test_the_interval_and_the_change_decide(comparison: Comparison, status: Status) -> None:
    assert judge_against_baseline(comparison, (), ())[0] is status


@pytest.mark.parametrize("what", ["ranks", "micro-batches", "parameters", "model-parallel ranks", "device"])
def test_jobs_of_another_size_are_compared_only_at_known_work(what: str) -> None:
    other = replace(SLOWER, differences=(Difference(what=what, a="2", b="4"),))
    assert judge_against_baseline(other, (), ())[0] is (
        Status.SLOWER if what == "device" else Status.INCONCLUSIVE
    )
    assert judge_against_baseline(at_equal_work(other, 130, (20, 40)), (), ())[0] is Status.SLOWER


def test_without_an_interval_it_is_inconclusive() -> None:
    gap = Gap(what=NO_INTERVAL, reason="", remedy="")
    assert judge_against_baseline(SLOWER, (), (gap,))[0] is Status.INCONCLUSIVE


LATE = claim(Cause.STRAGGLER_RANK, 1, 2, sentence="<late rank>")
LAUNCHED_LATE = claim(Cause.NO_PREFETCH, 1, 2, sentence="<no prefetch>")
RULES = tuple(
    Rule(cause=cause, check=lambda analysis, baseline: None, claims=terms)
    for cause, terms in (
        (Cause.STRAGGLER_RANK, ("exposed_wait_ns", "idle_ns")),
        (Cause.NO_PREFETCH, ("exposed_transfer_ns",)),
    )
)


def named(comparison: Comparison, findings: tuple[Finding, ...] = (LATE, LAUNCHED_LATE)) -> set[str]:
    """Return which findings the verdict names."""
    status, sentence = judge_against_baseline(comparison, findings, (), RULES)
    assert status is Status.SLOWER
    return {finding.cause for finding in findings if finding.sentence in sentence}


def test_the_cause_holds_a_tenth_of_the_change() -> None:
    at = compared(40, (35, 45), compute=-10, exposed_wait=4, exposed_transfer=46)
    below = compared(40, (35, 45), compute=-10, exposed_wait=3.9, exposed_transfer=46.1)
    assert named(at) == {Cause.STRAGGLER_RANK}
    assert named(below) == {Cause.NO_PREFETCH}
    assert named(below, (LATE,)) == set()


def test_terms_are_compared_at_equal_work() -> None:
    """Half the work takes 80 ms of 100: compute is as it was, and transfer grew from 40 to 100 ms."""
    before = replace(
        run_of(Scenario(steps=1)).time.per_rank[0],
        compute_ns=60 * MS, exposed_wait_ns=0, exposed_transfer_ns=40 * MS,
    )  # fmt: skip
    half = compared(-20, (-25, -15), compute=-30, exposed_wait=0, exposed_transfer=10)
    equal = at_equal_work(replace(half, baseline_time=(before,)), 160, (50, 70))
    assert named(equal) == {Cause.NO_PREFETCH}
    assert "60.0 ms" in judge_against_baseline(equal, (), ())[1]


def test_a_change_without_a_growing_term_names_nothing() -> None:
    assert named(compared(40, (35, 45), compute=0, exposed_wait=0), ()) == set()
