"""A run followed while it is written: steps as they come, bounded, and nothing in it is trusted."""

import os
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.growing_run import CREATED_NS, PLAN, GrowingRun, line
from zprof.run import live
from zprof.run.live import (
    MAX_LINE_BYTES,
    MAX_STEPS,
    FollowedFile,
    LiveRun,
    LiveState,
    is_still_recording,
)
from zprof.run.manifest import MANIFEST_NAME, RANK_NAME, STEPS_NAME, rank_folder

SECOND = 10**9


def steps_of(run: LiveRun, rank: int = 0) -> list[int]:
    return [step.step for step in run.look().ranks[rank].steps]


def test_a_run_grows_and_finishes(tmp_path: Path) -> None:
    live_run = LiveRun(tmp_path / "run")
    assert live_run.look() == LiveState()
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
    run.finish("partial", memory=1)
    partial = live_run.look()
    assert (partial.tables > state.tables, partial.finished) == (True, False)
    run.finish("complete", memory=1)
    assert live_run.look().finished


def test_another_run_in_its_place_starts_from_the_beginning(tmp_path: Path) -> None:
    run, live_run = GrowingRun(tmp_path), LiveRun(tmp_path)
    run.step(0, 1, 1)
    run.step(1, 1, 1)
    assert steps_of(live_run) == [0, 1]
    GrowingRun(tmp_path, run_id="two").step(0, 9, 9)
    assert steps_of(live_run) == [0]


def test_few_steps_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    run, live_run = GrowingRun(tmp_path), LiveRun(tmp_path)
    run.raw(0, b"".join(line(step) for step in range(3 * MAX_STEPS)))
    rank = live_run.look().ranks[0]
    assert (len(rank.steps), rank.steps_done) == (MAX_STEPS, 3 * MAX_STEPS)
    assert rank.steps[-1].step == 3 * MAX_STEPS - 1


def test_a_look_is_bounded_and_every_rank_gets_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_NEW_BYTES", 100)
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
        b'{"step": 1e400, "begin_ns": 1, "end_ns": 2}\n',
        b"[" * MAX_LINE_BYTES + b"\n",
        b"\0" * 50_000 + b"\n",
        line(5) + line(2),
        line(5) + line(5),
    ],
)
def test_hostile_lines_are_counted_and_left_out(tmp_path: Path, content: bytes) -> None:
    run, live_run = GrowingRun(tmp_path), LiveRun(tmp_path)
    run.raw(0, content + line(6))
    rank = live_run.look().ranks[0]
    assert rank.damaged == 1
    assert rank.steps[-1].step == 6


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
    assert (state.manifest is None) == bool(state.problem) == (name == MANIFEST_NAME)


def test_ranks_beyond_the_maximum_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_RANKS", 2)
    GrowingRun(tmp_path, world_size=5).finish()
    state = LiveRun(tmp_path).look()
    assert ([rank.rank for rank in state.ranks], state.left_out, state.finished) == ([0, 1], 3, True)


def test_a_rank_that_is_silent_for_long_is_not_recording(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path)
    assert is_still_recording(tmp_path, CREATED_NS + 5 * SECOND)
    assert not is_still_recording(tmp_path, CREATED_NS + 500 * SECOND)
    run.step(0, 90_000, 90_000)  # for steps of 90 s, 500 s are not long
    assert is_still_recording(tmp_path, CREATED_NS + 590 * SECOND)
    run.finish()
    assert not is_still_recording(tmp_path, CREATED_NS + 91 * SECOND)
    assert not is_still_recording(tmp_path / "nothing", CREATED_NS)


LONGEST = 8


@settings(max_examples=40)
@given(
    content=st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"x")), max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    most=st.integers(1, 30),
)
def test_each_line_comes_once_wherever_it_is_cut(content: list[bytes], cuts: list[int], most: int) -> None:
    whole = b"".join(line + b"\n" for line in content)
    ends = [*sorted({min(cut, len(whole)) for cut in cuts}), len(whole)]
    seen: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        path, done = Path(folder) / "log", 0
        file = FollowedFile(path, LONGEST, lambda: None)
        assert file.lines(most) == []
        for end in ends:
            with path.open("ab") as log:
                log.write(whole[done:end])
            done = end
            seen += file.lines(most)
        while file.read_bytes < len(whole):
            seen += file.lines(most)
    assert seen == [line for line in content if len(line) <= LONGEST]
    assert file.long_lines == sum(len(line) > LONGEST for line in content)


def test_a_file_that_is_replaced_or_cut_starts_from_the_beginning(tmp_path: Path) -> None:
    path, restarts = tmp_path / "log", list[int]()
    path.write_bytes(b"a\nb\n")
    file = FollowedFile(path, LONGEST, lambda: restarts.append(1))
    assert file.lines(99) == [b"a", b"b"]
    (tmp_path / "new").write_bytes(b"c\nd\ne\n")
    (tmp_path / "new").rename(path)
    assert (file.lines(99), len(restarts)) == ([b"c", b"d", b"e"], 1)
    path.write_bytes(b"f\n")
    assert (file.lines(99), len(restarts)) == ([b"f"], 2)
