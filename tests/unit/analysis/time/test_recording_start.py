"""The start of a recording is waited out in the first collective, and is nobody's fault."""

from pathlib import Path

import pytest

from tests.support.kineto_traces import MAIN, span
from tests.support.nccl_traces import analysed, gemm, nccl, step
from zprof.analysis.time.analyse import TimeAnalysis

ELEMENTS, MOVING_US, LATE_US = 1_000_000, 100.0, 3_000.0


def one_step(folder: Path, begin_of_rank_1: float = 0, first_call: float = 4) -> TimeAnalysis:
    """Rank 1 is 3 ms late at two collectives; its recording began, or its first call ended, 7 ms late."""
    ranks = {}
    for rank in (0, 1):
        begin, late = rank * begin_of_rank_1, rank * LATE_US
        call = first_call if rank else 4
        ranks[rank] = [
            span("aten::mm", 10_000 + begin, 10_020 + begin, MAIN, "cpu_op"),
            *gemm(1, 10_001 + begin, 13_200 + begin, 13_400 + begin, call),
            *nccl(2, "all_to_all", 14_000 + late, 14_500 + late, 17_500 + MOVING_US),
            *nccl(3, "allreduce", 20_000 + late, 20_500 + late, 23_500 + MOVING_US, group="1"),
            step(3, 9_990 + begin, 40_000),
        ]
    found = analysed(folder, ranks, groups="01")
    assert found.collectives.bools("matched").all()
    return found


def test_all_collectives_of_a_single_step_are_judged(tmp_path: Path) -> None:
    found = one_step(tmp_path)
    assert not found.collectives.bools("first_of_window").any()
    waiting = {entry.rank: entry for entry in found.time.per_rank}[0]
    assert waiting.exposed_wait_ns == pytest.approx(6_000_000, rel=0.01)
    assert waiting.first_wait_ns == 0
    assert found.time.blame is not None
    assert found.time.blame.unjudged_ns == 0
    (entry,) = [entry for entry in found.time.collectives if entry.kind == "all_to_all"]
    assert entry.busbw_bytes_per_s == pytest.approx(4 * ELEMENTS / (MOVING_US * 1e-6) / 2, rel=0.01)


@pytest.mark.parametrize("late", [{"begin_of_rank_1": 7_000.0}, {"first_call": 7_000.0}], ids=str)
def test_waiting_for_a_profiler_that_starts_late_is_separate(tmp_path: Path, late: dict[str, float]) -> None:
    """What made rank 1 late at the first collective is not in the trace."""
    found = one_step(tmp_path, **late)
    rows = found.collectives.at(found.collectives.bools("first_of_window"))
    assert set(rows.texts("kind")) == {"all_to_all"}
    waiting = {entry.rank: entry for entry in found.time.per_rank}[0]
    assert waiting.first_wait_ns == pytest.approx(3_000_000, rel=0.01)
    assert waiting.exposed_wait_ns == pytest.approx(6_000_000, rel=0.01)


@pytest.mark.parametrize("before", [False, True])
def test_only_the_first_collective_waits_for_the_start(tmp_path: Path, *, before: bool) -> None:
    """Two steps with an all-reduce each; with ``before`` there is one more ahead of the first step."""
    launches = [*([5_000.0] if before else []), 20_000.0, 40_000.0]
    ranks = {}
    for rank in (0, 1):
        ranks[rank] = [step(n + 3, 10_000 + n * 20_000, 30_000 + n * 20_000) for n in (0, 1)]
        for number, launch in enumerate(launches):
            late = LATE_US * rank if number == 0 else 0
            ranks[rank] += nccl(
                number + 1, "allreduce", launch, launch + 100 + late, launch + 4_000 + MOVING_US
            )
    found = analysed(tmp_path, ranks, groups="0")
    waited = {entry.rank: entry.first_wait_ns for entry in found.time.per_rank}
    left_out = {tracks.rank: tracks.wait_before_ns for tracks in found.tracks}
    assert found.collectives.bools("first_of_window").tolist() == [not before, False] * 2
    assert (waited[0], left_out[0]) == pytest.approx((0, 3_000_000) if before else (1_500_000, 0), rel=0.01)
    assert (waited[1], left_out[1]) == (0, 0)
