"""What is said of a recording at each point of its way."""

from pathlib import Path

import pytest

from tests.support.growing_run import PLAN, GrowingRun
from zprof.run.live import LiveRun
from zprof.tui.live.presenter import Activity, Stage, describe_stage, find_stage
from zprof.tui.live.watcher import JobState, LiveReport, LiveSnapshot

RUNS = JobState(ours=True)
OVER = JobState(ours=True, code=0)


def seen_after(
    path: Path, steps: int, job: JobState = RUNS, *, memory: int = 0, status: str = "partial"
) -> LiveSnapshot:
    """Rank 0 has made so many steps, rank 1 one more."""
    run = GrowingRun(path)
    for step in range(steps):
        run.step(step, 10, 10)
    run.raw(1, b"")
    if memory:
        run.finish(status, memory=memory)
    return LiveSnapshot(state=LiveRun(path).look(), job=job)


@pytest.mark.parametrize(
    ("steps", "memory", "expected"),
    [
        (0, 0, Stage(doing=Activity.WARMING, step=0, of=2)),
        (1, 0, Stage(doing=Activity.WARMING, step=1, of=2)),
        (2, 0, Stage(doing=Activity.MEMORY, step=0, of=1)),
        (3, 0, Stage(doing=Activity.WRITING_MEMORY)),
        (3, 1, Stage(doing=Activity.TIME, step=0, of=3)),
        (5, 1, Stage(doing=Activity.TIME, step=2, of=3)),
        (6, 1, Stage(doing=Activity.WRITING_TIME)),
    ],
)
def test_the_way_of_a_recording(tmp_path: Path, steps: int, memory: int, expected: Stage) -> None:
    assert (PLAN.skip, PLAN.memory, PLAN.time) == (2, 1, 3)
    assert find_stage(seen_after(tmp_path, steps, memory=memory)) == expected


def test_before_and_after(tmp_path: Path) -> None:
    nothing = LiveRun(tmp_path / "none").look()
    assert find_stage(LiveSnapshot(state=nothing, job=RUNS)).doing is Activity.WAITING
    assert find_stage(LiveSnapshot(state=nothing, job=OVER)).doing is Activity.NOTHING
    assert find_stage(seen_after(tmp_path, 4, OVER, memory=1)).doing is Activity.CUT_SHORT
    done = seen_after(tmp_path, 6, memory=1, status="complete")
    assert find_stage(done).doing is Activity.RECORDED
    assert "the job goes on" in describe_stage(done)


def test_the_slowest_rank_decides(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    for step in range(2):
        run.step(step, 10, 10)
    run.step(2, 10)  # rank 1 is still in its first step of the memory window
    assert find_stage(LiveSnapshot(state=LiveRun(tmp_path).look())) == Stage(
        doing=Activity.MEMORY, step=0, of=1
    )


def test_words_say_what_went_wrong(tmp_path: Path) -> None:
    seen = seen_after(tmp_path, 1, JobState(ours=True, code=3))
    assert "the job ended with exit code 3" in describe_stage(seen)
    state = seen.state
    assert "not measured: damaged" in describe_stage(
        LiveSnapshot(state=state, measured=LiveReport(problem="damaged"))
    )
    assert "measuring" in describe_stage(LiveSnapshot(state=state, measured=LiveReport(busy=True)))
