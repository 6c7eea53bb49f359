"""A stuck job is ended if all ranks were saved and none has moved since, and never otherwise."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from zprof.collectors.record.launch.record import StuckJob, WritingObserver, finish_watch
from zprof.collectors.record.launch.session import Session
from zprof.collectors.record.watch.shared_files import BareRank, RankFiles, RankState, make_bare_manifest
from zprof.process.command import CommandObserver, run_command
from zprof.run.reader import load
from zprof.run.schema import TABLES

SECOND = 10**9
EMPTY = {
    name: {column: [] for column in TABLES[name].names}
    for name in ("flight", "flight_group", "flight_stack", "flight_thread")
}


class Rank:
    """One of two ranks, as its watch writes it."""

    def __init__(self, run: Path, rank: int, has_begun: bool = True) -> None:
        self.files = RankFiles(run, rank)
        self.writer = BareRank(run, rank, make_bare_manifest(2, "gloo", "job"))
        self.state = RankState(
            rank=rank,
            world_size=2,
            backend="gloo",
            host="here",
            process=1,
            time_ns=time.time_ns(),
            limit_ns=SECOND,
            progress_ns=time.time_ns() - SECOND,
            run_id="job",
            has_begun=has_begun,
        )
        self.files.write_state(self.state)

    def save(self, kind: str = "stuck") -> None:
        self.files.set_stuck(kind == "stuck")
        self.writer.save_stall(kind, SECOND, EMPTY, ())

    def move(self) -> None:
        self.state = replace(self.state, progress_ns=time.time_ns())
        self.files.write_state(self.state)


@pytest.mark.parametrize(
    ("happens", "is_over"),
    [
        (lambda first, second: None, True),
        (lambda first, second: second.move(), False),
        (lambda first, second: second.save("resumed"), False),
        (lambda first, second: second.files.remove(), False),
    ],
    ids=["nothing", "a rank moves", "a rank went on", "a rank has ended"],
)
def test_a_job_is_ended_only_if_no_rank_moves(
    happens: Callable[[Rank, Rank], None], is_over: bool, tmp_path: Path
) -> None:
    run = tmp_path / "a.zprof"
    ranks = Rank(run, 0), Rank(run, 1)
    job = StuckJob(run, 0.01)
    ranks[0].save()
    assert not any(job.is_over() or time.sleep(0.02) for _ in range(3)), "the other rank was not saved"
    ranks[1].save()
    assert not job.is_over()
    happens(*ranks)
    time.sleep(0.02)
    assert job.is_over() is is_over


def test_a_job_before_its_first_collective_is_not_ended(tmp_path: Path) -> None:
    run = tmp_path / "a.zprof"
    job = StuckJob(run, 0.01)
    for rank in (Rank(run, 0, has_begun=False), Rank(run, 1, has_begun=False)):
        rank.save()
    assert not any(job.is_over() or time.sleep(0.02) for _ in range(3))


def test_the_time_starts_again_when_a_rank_has_moved(tmp_path: Path) -> None:
    run = tmp_path / "a.zprof"
    ranks = Rank(run, 0), Rank(run, 1)
    job = StuckJob(run, 0.01)
    for rank in ranks:
        rank.save()
    assert not job.is_over()
    ranks[1].move()
    ranks[1].save()
    time.sleep(0.02)
    assert [job.is_over(), time.sleep(0.02) or job.is_over()] == [False, True]


def test_an_ended_command_says_so_and_returns_1(tmp_path: Path) -> None:
    notes: list[str] = []
    observer: CommandObserver = WritingObserver(Session(tmp_path), tmp_path / "a.zprof", notes.append)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    code = run_command(command, os.environ, observer=observer, print_note=notes.append, is_stuck=lambda: True)
    assert code == 1
    assert len(notes) == 1
    assert "SIGTERM" in notes[0]


@pytest.mark.parametrize(("code", "last"), [(0, "resumed"), (1, "stuck")])
def test_a_rank_that_ends_where_it_was_saved_was_stuck_if_the_job_failed(
    code: int, last: str, tmp_path: Path
) -> None:
    run = tmp_path / "a.zprof"
    ranks = Rank(run, 0), Rank(run, 1)
    for rank in ranks:
        rank.save()
        rank.files.remove(is_saved=True)
    assert list(finish_watch(run, code)) == []
    for number in range(2):
        assert load(run).frame(number, "mark")["kind"].iloc[-1] == last
