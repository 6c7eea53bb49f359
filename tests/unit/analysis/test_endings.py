"""Which end of a rank came first, from what was seen of all of them."""

from pathlib import Path

import pytest

from zprof.base.errors import BadInput
from zprof.model.endings import EndMoment, RankEnd
from zprof.model.training import TrainingFacts
from zprof.run.endings import find_endings
from zprof.run.manifest import MAX_LINES, RunManifest, StepLine, read_endings, write_endings
from zprof.run.reader import Run
from zprof.run.writer import RankWriter

LOST_PEER = "RuntimeError: [/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:1"
WORLD_SIZE = 3
MS = 10**6


def end(rank: int, time_ms: int | None, **more: object) -> RankEnd:
    time_ns = None if time_ms is None else 1 + time_ms * MS
    return RankEnd(rank=rank, process=100 + rank, time_ns=time_ns, **more)  # type: ignore[arg-type]


def make_run(path: Path, *ends: RankEnd, status: str = "complete", run_id: str = "a") -> Run:
    manifest = RunManifest(
        zprof_version="0", created_ns=1, world_size=WORLD_SIZE, backend="gloo", device="cpu",
        training=TrainingFacts(), run_id="a",
    )  # fmt: skip
    for rank in range(WORLD_SIZE):
        writer = RankWriter(path, rank, manifest)
        writer.step_done(StepLine(step=7, begin_ns=1, end_ns=2))
        writer.finish(memory_steps=[], time_steps=[7], gaps=[], status=status)
    write_endings(path, run_id, ends)
    return Run(path)


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        pytest.param([end(0, 5, exit_code=1), end(1, 3, exit_code=3)], 1, id="the earlier"),
        pytest.param(
            [end(0, 5, exit_code=1, error=LOST_PEER), end(1, 9, signal="SIGKILL")],
            1,
            id="seen after its victim",
        ),
        pytest.param(
            [end(0, 5, exit_code=1, error=LOST_PEER), end(1, 9, signal="SIGTERM"), end(2, 3, exit_code=0)],
            2,
            id="left as if all were done",
        ),
        pytest.param(
            [end(0, 3, exit_code=0), end(1, 5, exit_code=1, error="ValueError: x")],
            1,
            id="done is no failure",
        ),
        pytest.param([end(0, 5, signal="SIGTERM"), end(1, 7, signal="SIGTERM")], 0, id="ended from outside"),
        pytest.param(
            [end(0, 5, exit_code=1, error=LOST_PEER), end(1, 60_000, signal="SIGSEGV")],
            0,
            id="too late to be the cause",
        ),
        pytest.param([end(0, None, exit_code=1), end(1, None, exit_code=1)], None, id="no times"),
    ],
)
def test_the_first_end_is_the_one_that_others_follow_from(
    tmp_path: Path, ends: list[RankEnd], first: int | None
) -> None:
    found = find_endings(make_run(tmp_path, *ends))
    assert [each.rank for each in found if each.is_first] == ([] if first is None else [first])
    assert first is None or found[0].rank == first


def test_nothing_is_told_of_a_job_that_succeeded_or_of_an_earlier_run(tmp_path: Path) -> None:
    assert not find_endings(make_run(tmp_path / "a", end(0, 5, exit_code=0), end(1, None)))
    assert not find_endings(make_run(tmp_path / "b", end(0, 5, exit_code=3), run_id="earlier"))


@pytest.mark.parametrize(
    ("status", "moment", "step"),
    [("complete", EndMoment.AFTER_STEPS, None), ("partial", EndMoment.IN_STEP, 8)],
)
def test_the_moment_is_relative_to_the_recorded_steps(
    tmp_path: Path, status: str, moment: EndMoment, step: int | None
) -> None:
    [found] = find_endings(make_run(tmp_path, end(1, 5, signal="SIGKILL"), status=status))
    assert (found.moment, found.step, found.after_ns) == (moment, step, 5 * MS)


def test_texts_of_a_rank_are_bounded_and_printable(tmp_path: Path) -> None:
    lines = tuple(f"{number}\x1b[31m" + "x" * 10_000 for number in range(1000))
    run = make_run(tmp_path, end(1, 5, exit_code=1, error="a\nb\0", last_words=lines))
    [found] = read_endings(run.path, run.manifest)
    assert len(found.last_words) <= MAX_LINES
    assert found.last_words[-1].startswith("999")
    assert all(text.isprintable() and len(text) < 1000 for text in (found.error, *found.last_words))


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b'{"end": {"rank": 2, "process": 1}}'])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    run = make_run(tmp_path, end(1, 5, exit_code=1))
    (tmp_path / "endings" / "rank00001.json").write_bytes(content)
    with pytest.raises(BadInput):
        read_endings(run.path, run.manifest)
