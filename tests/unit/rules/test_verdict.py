"""The verdict on a run without a baseline: risk, ok, or what keeps it inconclusive."""

from dataclasses import replace

import pytest

from tests.support.analyses import MS, Scenario
from tests.support.rule_runs import claim, run_of
from zprof.model.findings import Cause, Confidence
from zprof.model.gaps import DISK_FULL, RANK_CUT_SHORT, RANK_MISSING, Gap
from zprof.model.report import Comparison, StepTimeChange, Verdict, Volume
from zprof.model.report import VerdictStatus as Status
from zprof.model.time import Time
from zprof.rules.claims import ExposedGroup, Unexplained
from zprof.rules.rule import Rule, untested_gap
from zprof.rules.verdict import judge

RUN = run_of(Scenario(steps=1))
SURE = claim(Cause.NO_PREFETCH, 1, 20 * MS, sentence="<no prefetch>")
IDLE_CAUSES = (Cause.CPU_BOUND_LAUNCH, Cause.BLOCKING_SYNC, Cause.DATA_LOADER, Cause.ALLOCATOR_RETRIES)
ASKED = tuple(Rule(cause=cause, check=lambda analysis, baseline: None) for cause in IDLE_CAUSES)
SAME = Comparison(
    baseline="a",
    ledger_delta={},
    memory_delta={},
    step_time=StepTimeChange(a_ns=100 * MS, b_ns=100 * MS, ci95=(-4 * MS, 4 * MS)),
)


def steps(wall_ms: int = 100, **terms_ms: float) -> Time:
    """One rank, of which nothing is lost but these terms."""
    lost = ("exposed_wait", "exposed_transfer", "exposed_memcpy", "idle", "unexplained")
    terms = {f"{term}_ns": round(ms * MS) for term, ms in (dict.fromkeys(lost, 0) | terms_ms).items()}
    return replace(RUN.time, per_rank=(replace(RUN.time.per_rank[0], wall_ns=wall_ms * MS, **terms),))


def verdict(time: Time = RUN.time, comparison: Comparison | None = None, **more: object) -> Verdict:
    run = more.pop("run", RUN.run)
    made = judge(run, time, comparison, **({"findings": (), "gaps": ()} | more))  # type: ignore[arg-type]
    assert made.sentence.startswith(f"{made.status.value.upper()} ")
    return made


@pytest.mark.parametrize(
    ("what", "ranks"), [(RANK_MISSING, (1,)), (RANK_CUT_SHORT, (0, 1)), (DISK_FULL, (3,))]
)
def test_a_run_that_lost_ranks_is_never_ok_and_names_them(what: str, ranks: tuple[int, ...]) -> None:
    gaps = [Gap(what=what, reason="it was killed", remedy="", rank=rank) for rank in ranks]
    assert verdict(comparison=SAME).status is Status.OK
    made = verdict(comparison=SAME, gaps=gaps)
    assert made.status is Status.INCONCLUSIVE
    assert ", ".join(map(str, ranks)) in made.sentence


def test_a_run_of_few_of_its_ranks_is_not_ok() -> None:
    assert verdict(steps()).status is Status.OK
    assert verdict(steps(), run=replace(RUN.run, world_size=8)).status is Status.INCONCLUSIVE


@pytest.mark.parametrize(("idle_ms", "status"), [(50, Status.OK), (50.001, Status.INCONCLUSIVE)])
def test_a_run_that_idles_for_more_than_half_of_the_step_is_not_ok(idle_ms: float, status: Status) -> None:
    for time in (steps(idle=idle_ms), steps(idle=idle_ms - 10, unexplained=10)):
        assert verdict(time, asked=ASKED).status is status


@pytest.mark.parametrize(
    ("asked", "gaps", "untested"),
    [
        (ASKED, (), False),
        (ASKED[1:], (), True),
        (ASKED, (untested_gap(Cause.CPU_BOUND_LAUNCH, "", ""),), True),
    ],
)
def test_idle_time_names_the_causes_that_were_not_tested(
    asked: tuple[Rule, ...], gaps: tuple[Gap, ...], *, untested: bool
) -> None:
    """Against those that were tested, which are all named where none is missing."""
    made = verdict(steps(idle=100), asked=asked, gaps=gaps)
    assert made.status is Status.INCONCLUSIVE
    assert Cause.CPU_BOUND_LAUNCH in made.sentence
    assert (Cause.DATA_LOADER not in made.sentence) is untested


@pytest.mark.parametrize("cause", [Cause.NO_PREFETCH, Cause.STRAGGLER_RANK, Cause.MEASUREMENT_ARTIFACT])
def test_a_run_is_not_ok_when_a_main_cause_was_not_tested(cause: Cause) -> None:
    made = verdict(steps(), gaps=(untested_gap(cause, "", ""),))
    assert made.status is Status.INCONCLUSIVE
    assert cause in made.sentence


@pytest.mark.parametrize(("exposed_ms", "status"), [(9, Status.OK), (10, Status.INCONCLUSIVE)])
def test_a_tenth_of_the_step_exposed_without_a_cause_is_not_ok(exposed_ms: int, status: Status) -> None:
    groups = (ExposedGroup(kind="all_reduce", group="replica 0", ns=8 * MS),)
    rest = Unexplained(rank=0, terms={"exposed_transfer_ns": exposed_ms * MS}, groups=groups)
    made = verdict(steps(exposed_memcpy=1, exposed_transfer=exposed_ms - 1), unexplained=rest)
    assert made.status is status
    assert ("replica 0" in made.sentence) is (status is not Status.OK)


@pytest.mark.parametrize(("exposed_ms", "told"), [(9.9, False), (10, True), (49, True)])
def test_no_slower_than_the_baseline_still_tells_what_is_exposed(exposed_ms: float, *, told: bool) -> None:
    made = verdict(steps(exposed_transfer=exposed_ms), SAME)
    assert made.status is Status.OK
    assert (f"{exposed_ms:.1f} %" in made.sentence) is told


@pytest.mark.parametrize(("saving_ms", "status"), [(9, Status.OK), (10, Status.INCONCLUSIVE)])
def test_a_guess_about_a_tenth_of_the_step_is_not_ok(saving_ms: int, status: Status) -> None:
    guess = replace(SURE, confidence=Confidence.LOW, saving_ns=(0, saving_ms * MS))
    assert verdict(steps(), findings=(guess,)).status is status


@pytest.mark.parametrize(
    ("rest_ms", "wall_ms", "told"), [(20, 100, False), (21, 100, True), (21, 210, True), (21, 211, False)]
)
def test_a_rest_above_all_savings_and_a_tenth_of_the_step_is_told(
    rest_ms: int, wall_ms: int, *, told: bool
) -> None:
    rest = Unexplained(rank=0, terms={"idle_ns": (rest_ms - 1) * MS, "exposed_wait_ns": MS})
    made = verdict(steps(wall_ms), findings=(SURE,), unexplained=rest)
    assert made.status is Status.RISK
    assert SURE.sentence in made.sentence
    assert (f"{rest_ms}.0 ms" in made.sentence) is told


def test_hidden_bytes_beyond_the_formula_are_told() -> None:
    usual = Volume(expected_bytes=12_000_000, seen_bytes=12_100_000, ratio=12.1 / 12)
    fourfold = replace(usual, seen_bytes=48_000_000, ratio=4.0)
    none, little, much = (verdict(steps(), volume=volume) for volume in (None, usual, fourfold))
    assert none == little
    assert "400" in much.sentence
    assert much.status is Status.OK
