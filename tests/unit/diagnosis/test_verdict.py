"""The verdict: risk, ok, slower, or what keeps it inconclusive."""

import pytest
from msgspec.structs import replace

from tests.support.analyses import MS, Scenario
from tests.support.rule_runs import claim, run_of, with_terms
from zprof.causes import load_causes
from zprof.diagnosis.claims import ExposedGroup, Unexplained
from zprof.diagnosis.verdict import Case, judge, judge_change
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap, GapKind
from zprof.model.hang import Hang, HangStatus
from zprof.model.memory import Memory
from zprof.model.report import Comparison, Difference, EqualWork, StepTimeChange, Verdict, Volume, WorkUnit
from zprof.model.report import VerdictStatus as Status
from zprof.model.time import Time

RUN = run_of(Scenario(steps=1))
SURE = claim("no_prefetch", 1, 20 * MS, sentence="<no prefetch>")
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


def case(time: Time = RUN.time, **more: object) -> Case:
    return Case(**({"run": RUN.run, "memory": Memory(), "causes": load_causes(), "time": time} | more))  # type: ignore[arg-type]


def verdict(time: Time = RUN.time, comparison: Comparison | None = None, **more: object) -> Verdict:
    made = judge(case(time, comparison=comparison, **more))
    assert made.sentence.startswith(f"{made.status.value.upper()} ")
    return made


def untested(cause: str) -> Gap:
    return Gap(kind=GapKind.UNTESTED_RULE, what="", reason="", remedy="", causes=(cause,))


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [(GapKind.RANK_MISSING, (1,)), (GapKind.RANK_CUT_SHORT, (0, 1)), (GapKind.DISK_FULL, (3,))],
)
def test_a_run_that_lost_ranks_is_never_ok_and_names_them(kind: GapKind, ranks: tuple[int, ...]) -> None:
    gaps = [Gap(kind=kind, what="", reason="it was killed", remedy="", rank=rank) for rank in ranks]
    assert verdict(comparison=SAME).status is Status.OK
    made = verdict(comparison=SAME, gaps=gaps)
    assert made.status is Status.INCONCLUSIVE
    assert ", ".join(map(str, ranks)) in made.sentence


@pytest.mark.parametrize("status", [HangStatus.RESUMED, HangStatus.FINISHED])
def test_a_stall_that_ended_does_not_make_a_run_that_was_cut_short_ok(status: HangStatus) -> None:
    gap = Gap(kind=GapKind.RANK_CUT_SHORT, what="", reason="it was killed", remedy="", rank=1)
    untimed, hang = replace(RUN.time, per_rank=()), Hang(status=status)
    assert verdict(untimed, hang=hang).status is Status.OK
    made = verdict(untimed, hang=hang, gaps=[gap])
    assert made.status is Status.INCONCLUSIVE
    assert "rank 1" in made.sentence


def test_a_run_of_few_of_its_ranks_is_not_ok() -> None:
    assert verdict(steps()).status is Status.OK
    assert verdict(steps(), run=replace(RUN.run, world_size=8)).status is Status.INCONCLUSIVE


@pytest.mark.parametrize(("idle_ms", "status"), [(50, Status.OK), (50.001, Status.INCONCLUSIVE)])
def test_a_run_that_idles_for_more_than_half_of_the_step_is_not_ok(idle_ms: float, status: Status) -> None:
    for time in (steps(idle=idle_ms), steps(idle=idle_ms - 10, unexplained=10)):
        assert verdict(time).status is status


@pytest.mark.parametrize("is_tested", [True, False])
def test_idle_time_names_the_causes_that_were_not_tested(*, is_tested: bool) -> None:
    """Or those that were, if none is missing."""
    made = verdict(steps(idle=100), gaps=() if is_tested else (untested("cpu_bound_launch"),))
    assert made.status is Status.INCONCLUSIVE
    assert "cpu_bound_launch" in made.sentence
    assert ("data_loader" in made.sentence) is is_tested


@pytest.mark.parametrize("cause", ["no_prefetch", "straggler_rank", "measurement_artifact"])
def test_a_run_is_not_ok_when_a_main_cause_was_not_tested(cause: str) -> None:
    """Unless less than a tenth of the step can be lost to whatever it is."""
    for idle_ms, status in ((10, Status.INCONCLUSIVE), (9, Status.OK)):
        is_about_times = cause == "measurement_artifact"  # which the bound rests on
        made = verdict(steps(idle=idle_ms), gaps=(untested(cause),))
        assert made.status is (Status.INCONCLUSIVE if is_about_times else status)
        assert cause in made.sentence


@pytest.mark.parametrize(("unexplained_ms", "status"), [(10, Status.OK), (11, Status.INCONCLUSIVE)])
def test_time_that_the_recording_does_not_cover_counts_against_ok(
    unexplained_ms: int, status: Status
) -> None:
    assert verdict(steps(unexplained=unexplained_ms)).status is status


@pytest.mark.parametrize(("wall_ms", "status"), [(4, Status.RISK), (1, Status.OK)])
def test_a_saving_that_nobody_waits_for_is_no_risk(wall_ms: int, status: Status) -> None:
    """A twentieth of a step of 4 ms is 0.2 ms, of 1 ms 0.05 ms."""
    finding = replace(LATE, saving_ns=(wall_ms * MS // 20, wall_ms * MS // 20))
    assert verdict(steps(wall_ms), findings=(finding,)).status is status


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


@pytest.mark.parametrize(("saving_ms", "status"), [(2.9, Status.OK), (3, Status.RISK)])
def test_a_cost_below_3_percent_of_the_step_is_no_risk(saving_ms: float, status: Status) -> None:
    minor = replace(SURE, saving_ns=(0, round(saving_ms * MS)))
    made = verdict(steps(), findings=(minor,))
    assert made.status is status
    assert SURE.sentence in made.sentence


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


@pytest.mark.parametrize(("start_up_ms", "leads"), [(0, True), (60, False)])
def test_a_small_sure_cause_does_not_head_a_large_loss(start_up_ms: int, *, leads: bool) -> None:
    """Unless only the first step lost that: then nothing is left to explain."""
    group = ExposedGroup(kind="all_gather", group="0,1", ns=66 * MS, bus_bytes_per_s=13e9)
    rest = Unexplained(
        rank=0,
        terms={"exposed_transfer_ns": 66 * MS},
        groups=(group,),
        start_up_ns={"exposed_transfer_ns": start_up_ms * MS},
    )
    minor = replace(SURE, saving_ns=(3 * MS, 5 * MS))
    run = replace(RUN.run, device="cuda (NVIDIA H100 80GB HBM3)")
    said = verdict(steps(100), run=run, findings=(minor,), unexplained=rest).sentence
    assert ("13.0 GB/s" in said) is leads
    if leads:
        told = ("66.0 ms", "13.0 GB/s", "360.0 GB/s", SURE.sentence)
        assert sorted(map(said.index, told)) == [said.index(text) for text in told]


def test_hidden_bytes_beyond_the_formula_are_told() -> None:
    usual = Volume(expected_bytes=12_000_000, seen_bytes=12_100_000, ratio=12.1 / 12)
    fourfold = replace(usual, seen_bytes=48_000_000, ratio=4.0)
    none, little, much = (verdict(steps(), volume=volume) for volume in (None, usual, fourfold))
    assert none == little
    assert "400" in much.sentence
    assert much.status is Status.OK


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
    assert judge_change(case(), comparison)[0] is status


@pytest.mark.parametrize(
    "key", ["world_size", "micro_batches", "parameters", "model_parallel_ranks", "device"]
)
def test_jobs_of_another_size_are_compared_only_at_known_work(key: str) -> None:
    other = replace(SLOWER, differences=(Difference(key=key, what="setting", a="2", b="4"),))
    assert judge_change(case(), other)[0] is (Status.SLOWER if key == "device" else Status.INCONCLUSIVE)
    assert judge_change(case(), at_equal_work(other, 130, (20, 40)))[0] is Status.SLOWER


def test_without_an_interval_it_is_inconclusive() -> None:
    gap = Gap(kind=GapKind.NO_INTERVAL, what="", reason="", remedy="")
    assert judge_change(case(gaps=(gap,)), SLOWER)[0] is Status.INCONCLUSIVE


LATE = claim("straggler_rank", 1, 2, sentence="<late rank>")
LAUNCHED_LATE = claim("no_prefetch", 1, 2, sentence="<no prefetch>")
RECORDS = {
    **with_terms("straggler_rank", "exposed_wait_ns", "idle_ns"),
    **with_terms("no_prefetch", "exposed_transfer_ns"),
}


def named(comparison: Comparison, findings: tuple[Finding, ...] = (LATE, LAUNCHED_LATE)) -> set[str]:
    """Return which findings the verdict names."""
    status, sentence = judge_change(case(findings=findings, causes=RECORDS), comparison)
    assert status is Status.SLOWER
    return {finding.cause for finding in findings if finding.sentence in sentence}


def test_the_cause_holds_a_tenth_of_the_change() -> None:
    at = compared(40, (35, 45), compute=-10, exposed_wait=4, exposed_transfer=46)
    below = compared(40, (35, 45), compute=-10, exposed_wait=3.9, exposed_transfer=46.1)
    assert named(at) == {"straggler_rank"}
    assert named(below) == {"no_prefetch"}
    assert named(below, (LATE,)) == set()


def test_terms_are_compared_at_equal_work() -> None:
    """Half the work takes 80 ms of 100: compute is as it was, and transfer grew from 40 to 100 ms."""
    before = replace(
        run_of(Scenario(steps=1)).time.per_rank[0],
        compute_ns=60 * MS, exposed_wait_ns=0, exposed_transfer_ns=40 * MS,
    )  # fmt: skip
    half = compared(-20, (-25, -15), compute=-30, exposed_wait=0, exposed_transfer=10)
    equal = at_equal_work(replace(half, baseline_time=(before,)), 160, (50, 70))
    assert named(equal) == {"no_prefetch"}
    assert "60.0 ms" in judge_change(case(), equal)[1]
