"""Time of real gloo ranks, from the program to the analysis; no test asserts an absolute time."""

from pathlib import Path

import pytest

from tests.support.forked_ranks import run_forked
from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.model.gaps import GapKind
from zprof.model.time import LEDGER_TERMS
from zprof.run.reader import load

pytestmark = [pytest.mark.ranks, pytest.mark.timed]
WORKER = Path(__file__).with_name("time_worker.py")
STEPS = 4
SLEEP_NS = 20_000_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for rank in run_forked([str(WORKER), str(folder)], 2, folder):
        assert rank.code == 0, rank.lines
    return folder


@pytest.fixture(scope="module")
def plain(runs: Path) -> TimeAnalysis:
    return analyse_time(load(runs / "plain.zprof"))


def test_the_ledger_of_real_ranks_sums(plain: TimeAnalysis) -> None:
    steps = plain.steps.to_frame()
    assert len(steps) == 2 * STEPS
    assert (steps["wall_ns"] == steps[list(LEDGER_TERMS)].sum(axis=1)).all()
    assert (steps[list(LEDGER_TERMS)] >= 0).all(axis=None)
    for entry in plain.time.per_rank:
        assert entry.wall_ns == sum(getattr(entry, term) for term in LEDGER_TERMS)
        assert entry.method == "wait spans"
        assert entry.compute_ns > 0


def test_native_collectives_are_found_and_matched(plain: TimeAnalysis) -> None:
    frame = plain.collectives.to_frame()
    assert frame["matched"].all()
    assert len(frame) == 2 * 2 * STEPS
    per_kind = frame.groupby("kind")["bytes"].unique()
    assert per_kind["all_gather"].tolist() == [2 * (1 << 16) * 4]
    assert per_kind["all_reduce"].tolist() == [(1 << 14) * 4]
    assert set(frame["group"]) == {"0,1"}
    assert plain.time.alignment is not None
    assert plain.time.alignment.matched == 2 * STEPS


def test_a_synchronous_call_has_its_own_wait(plain: TimeAnalysis) -> None:
    known = (
        plain.collectives.to_frame()
        .groupby("kind")["wait_start_ns"]
        .apply(lambda waits: waits.notna().mean())
    )
    assert known["all_gather"] == 0, "an asynchronous one: nobody said which wait is its"
    assert known["all_reduce"] > 0.5


def test_a_wait_in_python_is_seen(plain: TimeAnalysis) -> None:
    """Rank 1 comes 20 ms late to the all-gather: rank 0 is blocked for about that, and rank 1 is not."""
    waited = {entry.rank: entry.exposed_wait_ns for entry in plain.time.per_rank}
    assert waited[0] > 0.5 * SLEEP_NS
    assert waited[0] > 2 * waited[1]
    collectives = plain.collectives.to_frame()
    gathers = collectives[collectives["kind"] == "all_gather"]
    late = gathers[gathers["lateness_ns"] > SLEEP_NS // 2]
    assert set(late["rank"]) == {1}
    assert set(gathers.loc[gathers["wait_ns"] > SLEEP_NS // 2, "last_rank"]) == {1}


def test_waits_in_c_plus_plus_give_an_upper_bound(runs: Path) -> None:
    analysis = analyse_time(load(runs / "ddp.zprof"))
    steps = analysis.steps.to_frame()
    assert (steps["wall_ns"] == steps[list(LEDGER_TERMS)].sum(axis=1)).all()
    matched = analysis.collectives.bools("matched")
    # A preempted rank can stamp a start after the other has left: such calls are refused, and that is said.
    assert matched.mean() > 0.5
    assert matched.all() or GapKind.MATCHING in {gap.kind for gap in analysis.gaps}
    assert all(entry.upper_bound for entry in analysis.time.per_rank)
    assert [gap.rank for gap in analysis.gaps if gap.what == "exposed time"] == [0, 1]
    waited = {entry.rank: entry.exposed_wait_ns for entry in analysis.time.per_rank}
    assert waited[0] > 0.5 * SLEEP_NS
