"""The verdict against a baseline: the cause that it names, and what it says of steps of other work."""

from dataclasses import replace

import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.model.findings import Cause, Confidence, Finding, Severity
from zprof.model.gaps import Gap
from zprof.model.report import Comparison, Difference, EqualWork, StepTimeChange, WorkUnit
from zprof.model.report import VerdictStatus as Status
from zprof.rules.baseline_verdict import judge_against_baseline
from zprof.rules.rule import Rule, make_finding

SLOWER = Comparison(
    baseline="a",
    ledger_delta={"compute_ns": -10 * MS, "exposed_wait_ns": 4 * MS, "exposed_transfer_ns": 46 * MS},
    memory_delta={},
    step_time=StepTimeChange(a_ns=100 * MS, b_ns=140 * MS, ci95=(35 * MS, 45 * MS)),
)


def found(cause: Cause, sentence: str) -> Finding:
    return make_finding(
        cause, sentence=sentence, evidence=(), saving_ns=(1, 2), severity=Severity.HIGH,
        confidence=Confidence.HIGH, fix="", disprove="",
    )  # fmt: skip


def asked(cause: Cause, *claims: str) -> Rule:
    return Rule(cause=cause, check=lambda analysis, baseline: None, claims=claims)


LATE = found(Cause.STRAGGLER_RANK, "rank 1 is late")
SLOW = found(Cause.NO_PREFETCH, "nothing is prefetched")
ASKED = (
    asked(Cause.STRAGGLER_RANK, "exposed_wait_ns", "idle_ns"),
    asked(Cause.NO_PREFETCH, "exposed_transfer_ns"),
)


@pytest.mark.parametrize(
    ("sure", "wait_ms", "end"),
    [
        ((LATE, SLOW), 4.0, "because rank 1 is late"),
        # less than a tenth of the change: as bad before as it is now
        ((LATE, SLOW), 3.9, "because nothing is prefetched"),
        ((LATE,), 3.9, "; no finding explains it; most of it is exposed transfer (+46.1 ms)"),
        ((), 4.0, "; no cause found; most of it is exposed transfer (+46.0 ms)"),
    ],
)
def test_because(sure: tuple[Finding, ...], wait_ms: float, end: str) -> None:
    delta = dict(SLOWER.ledger_delta, exposed_wait_ns=int(wait_ms * MS))
    delta["exposed_transfer_ns"] = 50 * MS - delta["exposed_wait_ns"]
    comparison = replace(SLOWER, ledger_delta=delta)
    status, sentence = judge_against_baseline(comparison, sure, (), ASKED)
    assert status is Status.SLOWER
    assert sentence.startswith("140.0 ms vs 100.0 ms a step, +40 % [+35.0, +45.0]")
    assert sentence.endswith(end)


def held_to(b_ms: float, interval_ms: tuple[float, float]) -> Comparison:
    low, high = interval_ms
    work = EqualWork(
        unit=WorkUnit.TOKENS, a_per_step=512, b_per_step=1024, b_ns=int(b_ms * MS),
        ci95=(int(low * MS), int(high * MS)),
    )  # fmt: skip
    return replace(SLOWER, equal_work=work)


@pytest.mark.parametrize(
    ("comparison", "status"),
    [
        (held_to(70, (-35, -25)), Status.OK),
        (held_to(130, (20, 40)), Status.SLOWER),
        (held_to(101.9, (1, 3)), Status.OK),
        (held_to(102, (-1, 6)), Status.INCONCLUSIVE),
    ],
)
def test_other_work_is_judged_at_equal_work(comparison: Comparison, status: Status) -> None:
    seen, sentence = judge_against_baseline(comparison, (), ())
    assert seen is status
    assert "times the tokens on a rank" in sentence
    assert "at equal work" in sentence


def test_the_same_work_needs_no_words() -> None:
    _, sentence = judge_against_baseline(held_to(140, (35, 45)), (), ())
    assert "at equal work" not in sentence


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("ranks", Status.INCONCLUSIVE),
        ("micro-batches", Status.INCONCLUSIVE),
        ("parameters", Status.INCONCLUSIVE),
        ("device", Status.SLOWER),
    ],
)
def test_other_jobs_of_unknown_work_are_not_judged(what: str, status: Status) -> None:
    other = replace(SLOWER, differences=(Difference(what=what, a="2", b="4"),))
    seen, sentence = judge_against_baseline(other, (SLOW,), ())
    assert seen is status
    assert (f"other jobs (4 vs 2 {what})" in sentence) == (status is Status.INCONCLUSIVE)
    known = replace(held_to(130, (20, 40)), differences=other.differences)
    assert judge_against_baseline(known, (SLOW,), ())[0] is Status.SLOWER


def test_too_few_steps_say_nothing() -> None:
    gap = Gap(what="step time interval", reason="", remedy="")
    status, sentence = judge_against_baseline(SLOWER, (SLOW,), (gap,))
    assert status is Status.INCONCLUSIVE
    assert sentence == "140.0 ms vs 100.0 ms a step, +40 %: too few steps to tell it from noise"


def test_all_of_a_recording_is_no_step() -> None:
    assert judge_against_baseline(SLOWER, (), (), of="in all")[1].startswith("140.0 ms vs 100.0 ms in all, ")


def test_what_grew_is_asked_at_equal_work() -> None:
    """Half the work in 80 ms: compute is what it was, and transfer grew from 40 to 100 ms."""
    before = replace(analysis_of(Scenario(steps=1)).time.per_rank[0], compute_ns=60 * MS, exposed_wait_ns=0)
    work = EqualWork(
        unit=WorkUnit.TOKENS, a_per_step=512, b_per_step=256, b_ns=160 * MS, ci95=(50 * MS, 70 * MS)
    )
    comparison = Comparison(
        baseline="a",
        ledger_delta={"compute_ns": -30 * MS, "exposed_wait_ns": 0, "exposed_transfer_ns": 10 * MS},
        memory_delta={},
        step_time=StepTimeChange(a_ns=100 * MS, b_ns=80 * MS, ci95=(-25 * MS, -15 * MS)),
        equal_work=work,
        baseline_time=(replace(before, exposed_transfer_ns=40 * MS),),
    )
    status, sentence = judge_against_baseline(comparison, (LATE, SLOW), (), ASKED)
    assert status is Status.SLOWER
    assert sentence.endswith("because nothing is prefetched")
    assert judge_against_baseline(comparison, (), ())[1].endswith("most of it is exposed transfer (+60.0 ms)")


def test_an_interval_that_touches_zero_is_not_slower() -> None:
    times = StepTimeChange(a_ns=100 * MS, b_ns=103 * MS, ci95=(0, 4 * MS))
    assert judge_against_baseline(replace(SLOWER, step_time=times), (), ())[0] is Status.OK
    above = replace(times, ci95=(1, 4 * MS))
    assert judge_against_baseline(replace(SLOWER, step_time=above), (), ())[0] is Status.SLOWER


def test_where_no_term_grew_none_is_named() -> None:
    flat = replace(SLOWER, ledger_delta={"compute_ns": 0, "exposed_wait_ns": 0})
    assert judge_against_baseline(flat, (), ())[1].endswith("no cause found; no term of it grew")
