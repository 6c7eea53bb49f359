"""no_prefetch fires on all_gathers launched too late, and on nothing else."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.transfer.no_prefetch import _confidence, _Gathers, _is_worth, no_prefetch

SLOW_LINK = 180e6


def found(analysis: RunAnalysis) -> Finding:
    answer = no_prefetch(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def evidence(finding: Finding, start: str) -> float:
    return next(fact.value for fact in finding.evidence if fact.what.startswith(start))


@pytest.mark.parametrize("ranks", [2, 4])
def test_names_late_launches(ranks: int) -> None:
    finding = found(analysis_of(Scenario(ranks=ranks, prefetch=False, bytes_per_s=SLOW_LINK)))
    assert (finding.id, finding.cause) == ("ZP401", Cause.NO_PREFETCH)
    assert finding.confidence is Confidence.HIGH
    # 12 all_gathers a step on each rank, 8 steps.  The first of each step has nothing to hide under, and
    # the first of the window is left out.
    assert evidence(finding, "all_gathers that begin") == 8 * 11 * ranks
    assert evidence(finding, "all_gathers looked at") == (8 * 12 - 1) * ranks
    assert finding.doc == "docs/findings/ZP401.md"


@pytest.mark.parametrize("bytes_per_s", [180e6, 250e6, 500e6])
def test_saving_holds_what_prefetch_wins(bytes_per_s: float) -> None:
    without = analysis_of(Scenario(prefetch=False, bytes_per_s=bytes_per_s))
    with_prefetch = analysis_of(Scenario(prefetch=True, bytes_per_s=bytes_per_s))
    won = without.steps["wall_ns"].mean() - with_prefetch.steps["wall_ns"].mean()
    low, high = found(without).saving_ns
    assert low <= won
    assert won <= high <= 3 * low


def test_compute_of_the_last_unit_hides_the_gathers_of_others() -> None:
    plan = Scenario(units=2, prefetch=False, bytes_per_s=100e6)
    won = analysis_of(plan).steps["wall_ns"].mean()
    won -= analysis_of(replace(plan, prefetch=True)).steps["wall_ns"].mean()
    low, high = found(analysis_of(plan)).saving_ns
    assert low <= won <= high


def test_saving_stays_below_exposed_transfer_and_queue() -> None:
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK))
    finding = found(analysis)
    limit = evidence(finding, "of it exposed") + evidence(finding, "blocked while queued")
    assert 0 < finding.saving_ns[1] <= 1.15 * limit


def test_saving_stays_below_free_compute() -> None:
    """A link so slow that compute could hide a fraction of it only: 6 units, 3 x 12 ms each."""
    finding = found(analysis_of(Scenario(prefetch=False, bytes_per_s=60e6)))
    assert 0 < finding.saving_ns[1] <= 6 * 3 * 12 * 1.1 * MS


def test_saving_stays_below_the_time_in_which_it_could_have_been_launched() -> None:
    """Compute elsewhere in the step hides nothing: only what lies before the launch does."""
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK, compute_ms=3))
    rich = analysis.steps.assign(compute_ns=analysis.steps["compute_ns"] * 10)
    assert found(replace(analysis, steps=rich)).saving_ns[1] <= (6 * 3 * 3 + 6) * 1.15 * 1.1 * MS


def test_idle_time_before_the_launch_hides_nothing() -> None:
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK))
    idle = analysis.steps.assign(compute_ns=30 * MS, overlapped_ns=0)
    assert found(replace(analysis, steps=idle)).saving_ns[1] <= 30 * MS


def test_silent_where_compute_runs_beside_the_transfer() -> None:
    """Launched late, but with work left to do until the result is needed."""
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK))
    rows = analysis.collectives
    beside = rows.assign(hidden_ns=rows["end_ns"] - rows["start_ns"])
    assert no_prefetch(replace(analysis, collectives=beside), None) is None


@pytest.mark.parametrize("bytes_per_s", [500e6, 180e6, 60e6])
def test_silent_with_prefetch_on_any_link(bytes_per_s: float) -> None:
    assert no_prefetch(analysis_of(Scenario(bytes_per_s=bytes_per_s)), None) is None


def test_silent_where_nothing_is_gathered() -> None:
    assert no_prefetch(analysis_of(Scenario(stage=0, bytes_per_s=SLOW_LINK)), None) is None
    assert no_prefetch(analysis_of(Scenario(ranks=1)), None) is None


def test_silent_where_there_is_no_compute_to_hide_under() -> None:
    assert no_prefetch(analysis_of(Scenario(prefetch=False, compute_ms=0.0, noise_ms=0.01)), None) is None


def test_silent_where_the_saving_is_not_worth_it() -> None:
    assert no_prefetch(analysis_of(Scenario(prefetch=False, bytes_per_s=9e9)), None) is None


def test_not_tested_without_collectives() -> None:
    analysis = analysis_of(Scenario(prefetch=False))
    assert isinstance(no_prefetch(replace(analysis, collectives=analysis.collectives.iloc[:0]), None), Gap)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("reference", ["ZeroConfig"]),
        ("fsdp2", ["set_modules_to_forward_prefetch"]),
        ("deepspeed", ["overlap_comm"]),
        ("unknown", ["ZeroConfig", "set_modules_to_backward_prefetch", "overlap_comm"]),
    ],
)
def test_fix_is_for_the_engine(engine: str, words: list[str]) -> None:
    fix = found(analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK, engine=engine))).fix
    assert all(word in fix for word in words)
    assert ("overlap_comm" in fix) == ("overlap_comm" in words)


@pytest.mark.parametrize(("engine", "device", "a_note"), [
    ("fsdp2", "cpu", True), ("fsdp2", "cuda", False), ("reference", "cpu", False),
])  # fmt: skip
def test_a_note_where_the_engine_waits_for_each_gather_at_once(
    engine: str, device: str, a_note: bool
) -> None:
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK, engine=engine))
    finding = found(replace(analysis, run=replace(analysis.run, device=device)))
    assert (finding.confidence is Confidence.LOW) == (finding.saving_ns[0] == 0) == a_note


def on_device(analysis: RunAnalysis, **columns: object) -> RunAnalysis:
    return replace(
        analysis,
        run=replace(analysis.run, device="cuda"),
        collectives=analysis.collectives.assign(**columns),
    )


@pytest.mark.parametrize("column", ["start_ns", "blocked_ns"])
@pytest.mark.parametrize(("share", "there"), [(0.09, True), (0.11, False)])
def test_silent_where_a_device_kept_what_was_launched_in_time(column: str, share: float, there: bool) -> None:
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK))
    rows = analysis.collectives
    kept = (share * (rows["end_ns"] - rows["start_ns"])).astype("int64")
    columns = (
        {"blocked_ns": kept}
        if column == "blocked_ns"
        else {"launch_start_ns": rows["start_ns"] - kept, "dependency_ns": 0}
    )
    answer = no_prefetch(on_device(analysis, **columns), None)
    assert isinstance(answer, Finding) == there
    # on a CPU rank the time from a launch to its start is the host's own
    assert isinstance(no_prefetch(replace(analysis, collectives=rows.assign(**columns)), None), Finding)


def test_kernels_alone_are_enough_but_less_sure() -> None:
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK))
    blind = pd.array([None] * len(analysis.collectives), "Int64")
    unknown = dict.fromkeys(("launch_start_ns", "dependency_ns", "blocked_ns", "wait_start_ns"), blind)
    finding = found(on_device(analysis, **unknown))
    assert finding.confidence is Confidence.MEDIUM
    assert finding.saving_ns == found(on_device(analysis)).saving_ns


def test_with_ranks_missing_what_is_exposed_may_be_waiting() -> None:
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK))
    finding = found(replace(analysis, collectives=analysis.collectives.assign(matched=False)))
    assert finding.confidence is Confidence.MEDIUM
    assert finding.saving_ns[0] == 0


@pytest.mark.parametrize(("share", "there"), [(0.29, False), (0.31, True)])
def test_below_a_third_of_the_transfer_exposed_it_is_prefetched_well_enough(
    share: float, there: bool
) -> None:
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK))
    rows = analysis.collectives
    shown = rows.assign(exposed_transfer_ns=(share * rows["transfer_ns"]).astype("int64"))
    assert isinstance(no_prefetch(replace(analysis, collectives=shown), None), Finding) == there


@pytest.mark.parametrize(
    ("column", "share", "late"),
    [
        ("hidden_ns", 0.09, 88),
        ("hidden_ns", 0.11, 72),
        ("free_compute_ns", 0.09, 72),
        ("free_compute_ns", 0.11, 88),
    ],
)
def test_late_is_what_hides_nothing_and_could(column: str, share: float, late: int) -> None:
    """The two gathers of one unit are such, 16 of each rank."""
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK))
    rows = analysis.collectives
    changed = (share * (rows["end_ns"] - rows["start_ns"])).astype("int64")
    one = rows["unit"].isin(["blocks.3", "blocks.9"])
    mixed = rows.assign(**{column: rows[column].where(~one, changed)})
    finding = found(replace(analysis, collectives=mixed))
    assert evidence(finding, "all_gathers that begin") == 2 * late


@pytest.mark.parametrize(
    ("units", "late", "confidence"),
    [
        ({0, 3}, 24, Confidence.LOW),  # of 95: the first gather of a step has no room before it
        ({1, 3}, 32, Confidence.MEDIUM),
        ({0, 1, 3}, 40, Confidence.MEDIUM),
        ({1, 3, 5}, 48, Confidence.HIGH),
    ],
)
def test_few_late_ones_are_a_weaker_sign(units: set[int], late: int, confidence: Confidence) -> None:
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK))
    rows = analysis.collectives
    chosen = rows["unit"].str.removeprefix("blocks.").astype(int).mod(6).isin(units)
    mixed = rows.assign(hidden_ns=rows["hidden_ns"].where(chosen, rows["end_ns"] - rows["start_ns"]))
    finding = found(replace(analysis, collectives=mixed))
    assert evidence(finding, "all_gathers that begin") == 2 * late
    assert finding.confidence is confidence


def test_one_unit_has_nothing_to_prefetch() -> None:
    """Two gathers of one unit a step, the second behind the whole forward."""
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK, units=1))
    assert no_prefetch(analysis, None) is None
    assert isinstance(
        no_prefetch(analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK, units=2)), None), Finding
    )


def gathers_of(**changed: float) -> _Gathers:
    usual = {
        "count": 100, "late": 60, "transfer_ns": 100 * MS, "exposed_ns": 60 * MS, "queued_ns": 0.0,
        "free_ns": 0.0, "hideable_ns": 30 * MS, "most_ns": 30 * MS, "launched": True, "bound": False,
    }  # fmt: skip
    return _Gathers(**(usual | changed))  # type: ignore[arg-type]


def test_on_the_thresholds_of_what_is_exposed_and_hideable() -> None:
    assert _is_worth(gathers_of(exposed_ns=30 * MS), 100 * MS)
    assert not _is_worth(gathers_of(exposed_ns=30 * MS - 1), 100 * MS)
    assert _is_worth(gathers_of(hideable_ns=3 * MS), 100 * MS)
    assert not _is_worth(gathers_of(hideable_ns=3 * MS - 1), 100 * MS)
    assert not _is_worth(gathers_of(hideable_ns=2.5 * MS), 100 * MS)


def exactly(**columns: object) -> RunAnalysis:
    """Gathers of 10 ms on a device, that hide nothing and could under as much before them."""
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK))
    rows = analysis.collectives
    usual = {
        "end_ns": rows["start_ns"] + 10 * MS, "transfer_ns": 10 * MS, "exposed_transfer_ns": 10 * MS,
        "hidden_ns": 0, "free_compute_ns": 10 * MS, "launch_start_ns": rows["start_ns"],
        "dependency_ns": 0, "blocked_ns": 0,
    }  # fmt: skip
    return on_device(analysis, **(usual | columns))


@pytest.mark.parametrize(
    ("columns", "there"),
    [
        ({"hidden_ns": MS}, True),
        ({"hidden_ns": MS + 1}, False),
        ({"free_compute_ns": MS}, False),
        ({"free_compute_ns": MS + 1}, True),
        ({"blocked_ns": MS - 1}, True),
        ({"blocked_ns": MS}, False),
    ],
)
def test_a_tenth_of_a_gather(columns: dict[str, int], *, there: bool) -> None:
    """Hidden it hides nothing; free it is not worth hiding under; kept by the device it is held."""
    analysis = exactly(**columns)
    short = replace(analysis, steps=analysis.steps.assign(wall_ns=100 * MS))
    assert isinstance(no_prefetch(short, None), Finding) is there


@pytest.mark.parametrize(("kept_ns", "there"), [(45_000, True), (49_999, True), (50_000, False)])
def test_what_a_device_keeps_for_50_us_is_held(kept_ns: int, *, there: bool) -> None:
    rows = exactly().collectives
    short = exactly(
        end_ns=rows["start_ns"] + MS // 10, transfer_ns=MS // 10, exposed_transfer_ns=MS // 10,
        blocked_ns=kept_ns,
    )  # fmt: skip
    short = replace(short, steps=short.steps.assign(wall_ns=5 * MS))
    assert isinstance(no_prefetch(short, None), Finding) is there


@pytest.mark.parametrize(("gathers", "there"), [(3, True), (2, False)])
def test_three_gathers_a_step_have_units_to_prefetch(gathers: int, *, there: bool) -> None:
    analysis = exactly()
    kept = analysis.collectives["unit"].isin([f"blocks.{unit}" for unit in range(1, 1 + gathers)])
    few = replace(analysis, collectives=analysis.collectives[kept])
    assert isinstance(no_prefetch(few, None), Finding) is there


@pytest.mark.parametrize(("steps", "confidence"), [(3, Confidence.HIGH), (2, Confidence.MEDIUM)])
def test_three_steps_make_it_sure(steps: int, confidence: Confidence) -> None:
    plan = Scenario(prefetch=False, bytes_per_s=SLOW_LINK, steps=steps)
    assert found(analysis_of(plan)).confidence is confidence


@pytest.mark.parametrize(
    ("late", "confidence"),
    [(30, Confidence.LOW), (33, Confidence.MEDIUM), (49, Confidence.MEDIUM), (50, Confidence.HIGH)],
)
def test_a_third_of_them_late_and_half_of_them(late: int, confidence: Confidence) -> None:
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK))
    assert _confidence(analysis, gathers_of(count=99 if late == 33 else 100, late=late)) is confidence


def test_half_of_the_launches_and_half_of_the_ranks_are_not_most() -> None:
    rows = exactly().collectives
    gathers = rows[(rows["kind"] == "all_gather") & ~rows["first_of_window"]].index
    half, none = gathers[: len(gathers) // 2], pd.array([None] * len(rows), "Int64")
    blind = exactly(launch_start_ns=rows["start_ns"].where(~rows.index.isin(half), none))
    assert found(blind).confidence is Confidence.MEDIUM
    unmatched = exactly(matched=~rows.index.isin(half))
    assert found(unmatched).saving_ns[0] == 0


def test_groups_of_one_rank_have_nothing_to_prefetch() -> None:
    assert no_prefetch(exactly(group_size=1), None) is None


def test_prefetch_wins_half_of_what_could_hide_to_a_little_more_than_all_of_it() -> None:
    analysis = exactly(queued_exposed_ns=0, exposed_wait_ns=0)
    finding = found(analysis)
    hideable = evidence(finding, "hideable")
    assert finding.saving_ns[0] == pytest.approx(0.5 * hideable, abs=1)
    assert finding.saving_ns[1] == pytest.approx(1.15 * hideable, rel=1e-3)
