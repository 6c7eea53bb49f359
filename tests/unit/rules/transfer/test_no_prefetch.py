"""no_prefetch fires on all_gathers launched too late, and on nothing else."""

from dataclasses import replace

import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.transfer.no_prefetch import no_prefetch

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


def test_saving_stays_below_exposed_transfer_and_queue() -> None:
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK))
    finding = found(analysis)
    limit = evidence(finding, "of it exposed") + evidence(finding, "blocked while queued")
    assert 0 < finding.saving_ns[1] <= 1.05 * limit


def test_saving_stays_below_free_compute() -> None:
    """A link so slow that compute could hide a fraction of it only: 6 units, 3 x 12 ms each."""
    finding = found(analysis_of(Scenario(prefetch=False, bytes_per_s=60e6)))
    assert 0 < finding.saving_ns[1] <= 6 * 3 * 12 * 1.1 * MS


def test_saving_stays_below_the_time_in_which_it_could_have_been_launched() -> None:
    """Compute elsewhere in the step hides nothing: only what lies before the launch does."""
    analysis = analysis_of(Scenario(prefetch=False, bytes_per_s=SLOW_LINK, compute_ms=3))
    rich = analysis.steps.assign(compute_ns=analysis.steps["compute_ns"] * 10)
    assert found(replace(analysis, steps=rich)).saving_ns[1] <= (6 * 3 * 3 + 6) * 1.25 * MS


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
