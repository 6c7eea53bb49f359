"""The verdict follows the interval, not the mean alone."""

from dataclasses import replace

import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.model.findings import Cause, Confidence, Severity
from zprof.model.gaps import DISK_FULL, RANK_CUT_SHORT, RANK_MISSING, Gap
from zprof.model.report import Comparison, StepTimeChange, Volume
from zprof.model.report import VerdictStatus as Status
from zprof.model.time import Time, Window, WindowPolicy
from zprof.rules.claims import ExposedGroup, Unexplained
from zprof.rules.rule import Rule, make_finding
from zprof.rules.verdict import judge

RUN = analysis_of(Scenario(steps=1))


@pytest.mark.parametrize(
    ("change_ms", "interval_ms", "status"),
    [
        (30, (10, 50), Status.SLOWER),
        (30, (-2, 60), Status.INCONCLUSIVE),
        (1.9, (1, 4), Status.OK),
        (2, (1, 4), Status.SLOWER),
        (0, (-4, 4), Status.OK),
        (0, (-4.9, 4.9), Status.OK),
        (0, (-5, 5), Status.INCONCLUSIVE),
        (-30, (-50, -10), Status.OK),
    ],
)
def test_status(change_ms: float, interval_ms: tuple[float, float], status: Status) -> None:
    """Baseline 100 ms a step."""
    low, high = interval_ms
    comparison = Comparison(
        baseline="a",
        ledger_delta={"compute_ns": int(change_ms * MS), "idle_ns": 0},
        memory_delta={},
        step_time=StepTimeChange(
            a_ns=100 * MS, b_ns=int((100 + change_ms) * MS), ci95=(int(low * MS), int(high * MS))
        ),
    )
    verdict = judge(RUN.run, RUN.time, comparison, findings=(), gaps=())
    assert verdict.status is status
    assert verdict.sentence.startswith(f"{status.value.upper()} ")
    assert f"[{low:+.1f}, {high:+.1f}]" in verdict.sentence


@pytest.mark.parametrize(
    ("what", "ranks"), [(RANK_MISSING, (1,)), (RANK_CUT_SHORT, (0, 1)), (DISK_FULL, (3,))]
)
def test_what_ranks_lost_is_never_ok_and_they_are_named(what: str, ranks: tuple[int, ...]) -> None:
    gaps = [Gap(what=what, reason="it was killed", remedy="", rank=rank) for rank in ranks]
    comparison = Comparison(
        baseline="a",
        ledger_delta={"compute_ns": 0, "idle_ns": 0},
        memory_delta={},
        step_time=StepTimeChange(a_ns=100 * MS, b_ns=100 * MS, ci95=(-4 * MS, 4 * MS)),
    )
    assert judge(RUN.run, RUN.time, comparison, findings=(), gaps=()).status is Status.OK
    verdict = judge(RUN.run, RUN.time, comparison, findings=(), gaps=gaps)
    assert verdict.status is Status.INCONCLUSIVE
    assert ", ".join(map(str, ranks)) in verdict.sentence.partition(";")[0]


HOST = (Cause.CPU_BOUND_LAUNCH, Cause.BLOCKING_SYNC, Cause.DATA_LOADER, Cause.ALLOCATOR_RETRIES)
ASKED = tuple(Rule(cause=cause, check=lambda analysis, baseline: None) for cause in HOST)


def idling(idle_ns: int) -> Time:
    return replace(RUN.time, per_rank=(replace(RUN.time.per_rank[0], idle_ns=idle_ns, unexplained_ns=0),))


def test_a_run_that_mostly_idles_is_not_ok() -> None:
    half = RUN.time.per_rank[0].wall_ns // 2
    for idle_ns, status in ((half - 1, Status.OK), (half + 2, Status.INCONCLUSIVE)):
        verdict = judge(RUN.run, idling(idle_ns), None, findings=(), gaps=(), asked=ASKED)
        assert verdict.status is status
    assert "of it nothing runs, and none of its known causes was found" in verdict.sentence


@pytest.mark.parametrize(
    ("asked", "gaps"),
    [
        (ASKED[1:], ()),
        (ASKED, (Gap(what="rules cpu_bound_launch, straggler not tested", reason="", remedy=""),)),
    ],
)
def test_idle_time_names_the_causes_that_were_not_tested(
    asked: tuple[Rule, ...], gaps: tuple[Gap, ...]
) -> None:
    """No rule asks for it, or its rule lacks an input."""
    time = idling(RUN.time.per_rank[0].wall_ns)
    verdict = judge(RUN.run, time, None, findings=(), gaps=gaps, asked=asked)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.endswith("is not known: not tested: cpu_bound_launch")


def test_few_ranks_without_a_finding_do_not_make_a_run_ok() -> None:
    few = replace(RUN.run, world_size=8)
    verdict = judge(few, RUN.time, None, findings=(), gaps=())
    assert verdict.status is Status.INCONCLUSIVE
    assert "on 2 of 8 ranks" in verdict.sentence


def test_all_of_a_recording_is_no_step() -> None:
    window = Window(policy=WindowPolicy.TRACE, source="whole trace")
    verdict = judge(RUN.run, replace(RUN.time, window=window), None, findings=(), gaps=())
    assert " in all" in verdict.sentence
    assert "a step" not in verdict.sentence


def test_what_is_not_told_apart_has_its_reason() -> None:
    """Ranks are missing, or they are all there and could not be matched."""
    rank = RUN.time.per_rank[0]
    unsplit = replace(rank, unsplit_ns=rank.exposed_wait_ns + rank.exposed_transfer_ns)
    time = replace(RUN.time, per_rank=(unsplit,))
    gap = Gap(what="rule straggler_rank not tested", reason="", remedy="")
    for world_size, words in ((2, "are not matched"), (8, "without the other ranks")):
        run = replace(RUN.run, world_size=world_size)
        assert words in judge(run, time, None, findings=(), gaps=(gap,)).sentence


LATE = make_finding(
    Cause.NO_PREFETCH, sentence="nothing is prefetched", evidence=(), saving_ns=(1, 20 * MS),
    severity=Severity.HIGH, confidence=Confidence.HIGH, fix="", disprove="",
)  # fmt: skip


@pytest.mark.parametrize(
    ("rest_ms", "wall_ms", "said"), [(20, 100, False), (21, 100, True), (21, 210, True), (21, 211, False)]
)
def test_what_is_lost_beside_the_findings_is_said(rest_ms: int, wall_ms: int, said: bool) -> None:
    """Where it is more than they save, and a tenth of the step."""
    time = replace(RUN.time, per_rank=(replace(RUN.time.per_rank[0], wall_ns=wall_ms * MS),))
    rest = Unexplained(rank=0, terms={"idle_ns": (rest_ms - 1) * MS, "exposed_wait_ns": MS})
    verdict = judge(RUN.run, time, None, findings=(LATE,), gaps=(), unexplained=rest)
    assert verdict.status is Status.RISK
    assert (f"{rest_ms}.0 ms more" in verdict.sentence) is said
    assert "nothing is prefetched" in verdict.sentence


@pytest.mark.parametrize(("exposed_ms", "status"), [(9, Status.OK), (10, Status.INCONCLUSIVE)])
def test_a_tenth_of_the_step_exposed_without_a_cause_is_not_ok(exposed_ms: int, status: Status) -> None:
    rank = replace(
        RUN.time.per_rank[0], wall_ns=100 * MS, idle_ns=0, exposed_wait_ns=0,
        exposed_memcpy_ns=MS, exposed_transfer_ns=(exposed_ms - 1) * MS,
    )  # fmt: skip
    replicas = ExposedGroup(kind="all_reduce", group="replica 0", ns=8 * MS)
    rest = Unexplained(rank=0, terms={"exposed_transfer_ns": exposed_ms * MS}, groups=(replicas,))
    time = replace(RUN.time, per_rank=(rank,))
    verdict = judge(RUN.run, time, None, findings=(), gaps=(), unexplained=rest)
    assert verdict.status is status
    assert ("8.0 ms in all_reduce of group replica 0" in verdict.sentence) is (status is not Status.OK)


@pytest.mark.parametrize(("exposed_ms", "said"), [(9.9, False), (10, True), (49, True)])
def test_no_slower_than_its_baseline_says_what_is_exposed_all_the_same(exposed_ms: float, said: bool) -> None:
    rank = replace(
        RUN.time.per_rank[0], wall_ns=100 * MS, idle_ns=0, exposed_wait_ns=0, exposed_memcpy_ns=0,
        exposed_transfer_ns=int(exposed_ms * MS),
    )  # fmt: skip
    times = StepTimeChange(a_ns=100 * MS, b_ns=100 * MS, ci95=(-MS, MS))
    comparison = Comparison(baseline="a", ledger_delta={}, memory_delta={}, step_time=times)
    verdict = judge(RUN.run, replace(RUN.time, per_rank=(rank,)), comparison, findings=(), gaps=())
    assert verdict.status is Status.OK
    words = f"; {exposed_ms:.1f} % of the step is exposed communication and copies"
    assert verdict.sentence.endswith(words) is said
    assert ("exposed communication" in verdict.sentence) is said


@pytest.mark.parametrize(("transfer_ms", "said"), [(9, False), (10, True)])
def test_what_is_not_tested_is_told_with_what_is_lost(transfer_ms: int, said: bool) -> None:
    rank = replace(
        RUN.time.per_rank[0], wall_ns=100 * MS, idle_ns=0, exposed_wait_ns=0,
        exposed_transfer_ns=transfer_ms * MS,
    )  # fmt: skip
    gap = Gap(what="rule no_prefetch not tested", reason="", remedy="")
    verdict = judge(RUN.run, replace(RUN.time, per_rank=(rank,)), None, findings=(), gaps=(gap,))
    assert (
        f"{transfer_ms}.0 ms of it is exposed transfer; not tested: no_prefetch" in verdict.sentence
    ) is said


@pytest.mark.parametrize(("saving_ms", "status"), [(9, Status.OK), (10, Status.INCONCLUSIVE)])
def test_a_guess_about_a_tenth_of_the_step_is_not_ok(saving_ms: int, status: Status) -> None:
    rank = replace(RUN.time.per_rank[0], wall_ns=100 * MS, idle_ns=0, exposed_wait_ns=0)
    guess = replace(LATE, confidence=Confidence.LOW, saving_ns=(0, saving_ms * MS))
    verdict = judge(RUN.run, replace(RUN.time, per_rank=(rank,)), None, findings=(guess,), gaps=())
    assert verdict.status is status
    assert ("perhaps nothing is prefetched" in verdict.sentence) is (status is Status.INCONCLUSIVE)


def test_more_bytes_than_the_formula_are_said_though_they_are_hidden() -> None:
    usual = Volume(expected_bytes=12_000_000, seen_bytes=12_100_000, ratio=12.1 / 12)
    fourfold = Volume(expected_bytes=12_000_000, seen_bytes=48_000_000, ratio=4.0)
    calm = replace(RUN.time.per_rank[0], exposed_wait_ns=0, exposed_transfer_ns=0, idle_ns=0)
    said = [
        judge(RUN.run, replace(RUN.time, per_rank=(calm,)), None, findings=(), gaps=(), volume=volume)
        for volume in (None, usual, fourfold)
    ]
    assert {verdict.status for verdict in said} == {Status.OK}
    assert said[0] == said[1]
    assert "400" in said[2].sentence
