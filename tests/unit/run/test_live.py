"""A run followed while it is written: steps as they come, bounded, and nothing in it is trusted."""

import os
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.growing_run import CREATED_NS, PLAN, GrowingRun, line
from zprof.run import live
from zprof.run.live import MAX_LINE_BYTES, MAX_STEPS, LiveRun, is_still_recording
from zprof.run.manifest import MANIFEST_NAME, RANK_NAME, STEPS_NAME, rank_folder

SECOND = 10**9


def steps_of(run: LiveRun, rank: int = 0) -> list[int]:
    return [step.step for step in run.look().ranks[rank].steps]


def test_a_run_comes_to_be(tmp_path: Path) -> None:
    live_run = LiveRun(tmp_path / "run")
    assert live_run.look() == live.LiveState()
    run = GrowingRun(tmp_path / "run")
    state = live_run.look()
    assert state.manifest == run.manifest
    assert state.manifest is not None
    assert state.manifest.planned == PLAN
    assert [rank.steps_done for rank in state.ranks] == [0, 0]
    run.step(0, 3, 4, process_bytes=77)
    run.step(1, 5)
    first, second = live_run.look().ranks
    assert [step.wall_ns for step in first.steps] == [3_000_000, 5_000_000]
    assert second.last is not None
    assert (second.last.step, second.last.process_bytes, second.last.allocated_bytes) == (0, 77, None)


def test_what_is_old_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, live_run = GrowingRun(tmp_path), LiveRun(tmp_path)
    run.step(0, 1, 1)
    first = live_run.look()
    monkeypatch.setattr("zprof.run.live.open_plain", None)
    monkeypatch.setattr("zprof.run.live.read_rank_manifest", None)
    assert live_run.look().ranks[0] is first.ranks[0]


def test_tables_are_told_of(tmp_path: Path) -> None:
    run, live_run = GrowingRun(tmp_path), LiveRun(tmp_path)
    before = live_run.look().tables
    run.finish("partial", memory=1)
    state = live_run.look()
    assert state.tables > before
    assert not state.finished
    run.finish("complete", memory=1)
    assert live_run.look().finished


def test_a_missing_rank_is_not_finished(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, world_size=3)
    run.finish()
    shutil.rmtree(rank_folder(tmp_path, 2))
    assert not LiveRun(tmp_path).look().finished


def test_another_run_in_its_place_begins_anew(tmp_path: Path) -> None:
    run, live_run = GrowingRun(tmp_path), LiveRun(tmp_path)
    run.step(0, 1, 1)
    run.step(1, 1, 1)
    assert steps_of(live_run) == [0, 1]
    GrowingRun(tmp_path, run_id="two").step(0, 9, 9)
    assert steps_of(live_run) == [0]


def test_a_rank_of_an_earlier_run_is_none_of_this(tmp_path: Path) -> None:
    old = GrowingRun(tmp_path, world_size=2, run_id="old")
    old.step(0, 1, 1)
    new = GrowingRun(tmp_path, world_size=1, run_id="new")
    (tmp_path / MANIFEST_NAME).write_text(
        (tmp_path / MANIFEST_NAME).read_text().replace('size": 1', 'size": 2')
    )
    old_again = GrowingRun(tmp_path / "other", run_id="old")
    shutil.copytree(rank_folder(old_again.path, 1), rank_folder(tmp_path, 1))
    new.step(0, 1)
    assert [rank.rank for rank in LiveRun(tmp_path).look().ranks] == [0]


def test_few_steps_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    run, live_run = GrowingRun(tmp_path), LiveRun(tmp_path)
    run.raw(0, b"".join(line(step) for step in range(3 * MAX_STEPS)))
    rank = live_run.look().ranks[0]
    assert (len(rank.steps), rank.steps_done) == (MAX_STEPS, 3 * MAX_STEPS)
    assert rank.last is not None
    assert rank.last.step == 3 * MAX_STEPS - 1


def test_a_look_is_bounded_and_every_rank_gets_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_NEW_BYTES", 100)
    monkeypatch.setattr(live, "_MAX_RANK_BYTES", 100)
    run, live_run = GrowingRun(tmp_path, world_size=3), LiveRun(tmp_path)
    for rank in range(3):
        run.raw(rank, b"".join(line(step) for step in range(20)))
    reads = [sum(rank.steps_done for rank in live_run.look().ranks) for _ in range(100)]
    most = 2 + 100 // len(line(0))  # a half line of each of two ranks may end beside the whole ones
    assert max(after - before for before, after in pairwise([0, *reads])) <= most
    assert reads[-1] == 60


@pytest.mark.parametrize(
    "content",
    [
        b"\x1b[2J\x1b]0;owned\x07\n",
        b'{"step": -3, "begin_ns": 1, "end_ns": 2}\n',
        b'{"step": 1e400, "begin_ns": 1, "end_ns": 2}\n',
        b"[" * MAX_LINE_BYTES + b"\n",
        b"\0" * 50_000 + b"\n",
        line(5) + line(2),
    ],
)
def test_hostile_lines_are_counted_and_left_out(tmp_path: Path, content: bytes) -> None:
    run, live_run = GrowingRun(tmp_path), LiveRun(tmp_path)
    run.raw(0, content + line(6))
    rank = live_run.look().ranks[0]
    assert rank.damaged == 1
    assert [step.step for step in rank.steps][-1] == 6


@pytest.mark.parametrize("name", [RANK_NAME, STEPS_NAME, MANIFEST_NAME])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "damaged", "loop"])
def test_hostile_files_never_hold_it_up(tmp_path: Path, name: str, kind: str) -> None:
    run, live_run = GrowingRun(tmp_path), LiveRun(tmp_path)
    run.step(0, 1, 1)
    path = tmp_path / name if name == MANIFEST_NAME else rank_folder(tmp_path, 0) / name
    path.unlink()
    make = {
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "device": lambda: path.symlink_to("/dev/zero"),
        "damaged": lambda: path.write_bytes(b'{"rank": {"rank"'),
        "loop": lambda: path.symlink_to(path),
    }[kind]
    make()
    state = live_run.look()
    assert (state.manifest is None) == (name == MANIFEST_NAME)
    assert bool(state.problem) == (name == MANIFEST_NAME)


@settings(max_examples=12)
@given(cuts=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 400)), max_size=30))
def test_steps_come_in_order_however_the_logs_are_cut(cuts: list[tuple[int, int]]) -> None:
    whole = b"".join(line(step) for step in range(40))
    with tempfile.TemporaryDirectory() as folder:
        run, live_run, done = GrowingRun(Path(folder)), LiveRun(Path(folder)), [0, 0]
        for rank, size in [*cuts, (0, len(whole)), (1, len(whole))]:
            run.raw(rank, whole[done[rank] : done[rank] + size])
            done[rank] += size
            for found in live_run.look().ranks:
                complete = whole[: done[found.rank]].count(b"\n")
                assert [step.step for step in found.steps] == list(range(complete))
                assert found.damaged == 0


def test_more_ranks_than_are_shown_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_RANKS", 2)
    run = GrowingRun(tmp_path, world_size=5)
    run.finish()
    state = LiveRun(tmp_path).look()
    assert [rank.rank for rank in state.ranks] == [0, 1]
    assert state.left_out == 3
    assert state.finished


def test_who_is_silent_for_long_is_not_recording(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    assert is_still_recording(tmp_path, CREATED_NS + 5 * SECOND)
    assert not is_still_recording(tmp_path, CREATED_NS + 500 * SECOND)
    run.step(0, 90_000, 90_000)  # steps of 90 s: 500 s of silence are nothing
    assert is_still_recording(tmp_path, CREATED_NS + 590 * SECOND)
    run.finish()
    assert not is_still_recording(tmp_path, CREATED_NS + 91 * SECOND)
    assert not is_still_recording(tmp_path / "nothing", CREATED_NS)
