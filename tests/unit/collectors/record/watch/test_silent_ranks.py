"""Ranks that could not save themselves are saved by others, from what they wrote before."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.rule_runs import explain_hang
from zprof.collectors.record.watch.shared_files import (
    GroupProgress,
    RankFiles,
    RankState,
    agree_on_run_id,
    find_watch_folder,
    list_stalls,
    make_bare_manifest,
)
from zprof.collectors.record.watch.silent_ranks import save_silent_ranks
from zprof.model.hang import Hang, HangClass, HangStatus, ProcessState, RankAtHang, RankProcess
from zprof.run.reader import load
from zprof.run.writer import RankWriter

SECOND = 10**9
TEXT = """Timeout!
Thread 0x00007f3c91c2b740 (most recent call first):
  File "/job/train.py", line 40 in hold
"""


def make_state(rank: int, age_s: float = 0) -> RankState:
    return RankState(
        rank=rank,
        world_size=2,
        backend="gloo",
        host="elsewhere",
        process=1,
        time_ns=time.time_ns() - int(age_s * SECOND),
        limit_ns=2 * SECOND,
        run_id="job",
        groups=(GroupProgress(name="0", description="default_pg", ranks=(0, 1), enqueued=5, completed=4),),
    )


def write_text(run: Path, rank: int, text: str) -> None:
    with (find_watch_folder(run) / f"rank{rank}.state").open("a") as file:
        file.write(text)


def test_a_rank_that_held_the_gil_has_its_progress_and_its_stack(tmp_path: Path) -> None:
    run = tmp_path / "a.zprof"
    waiting, held = RankFiles(run, 0), RankFiles(run, 1)
    waiting.write_state(make_state(0))
    held.write_state(make_state(1, age_s=9))
    assert save_silent_ranks(run) == [], "nobody is stuck"
    waiting.set_stuck(True)
    write_text(run, 1, TEXT)
    assert save_silent_ranks(run) == [1]
    assert save_silent_ranks(run) == [], "once"
    saved = load(run)
    assert saved.ranks == (1,)
    assert saved.frame(1, "flight_stack")[["file", "line"]].to_numpy().tolist() == [["/job/train.py", 40]]
    group = saved.frame(1, "flight_group").iloc[0]
    assert (group["ranks"], group["last_enqueued"], group["last_completed"]) == ("0,1", 5, 4)
    mark = saved.frame(1, "mark").iloc[-1]
    assert mark["kind"] == "stuck"
    assert mark["number"] >= 9 * SECOND
    assert "GIL held" in {gap.detail for gap in saved.gaps()}


def start_rank(run: Path, rank: int) -> RankWriter:
    """Return the writer of a rank that has recorded a window, and whose watch is silent."""
    writer = RankWriter(run, rank, make_bare_manifest(2, "gloo", "job"))
    writer.write_table("mark", {"time_ns": [5], "kind": ["step_end"], "number": [3], "name": [""]})
    writer.finish(memory_steps=[3], time_steps=[], gaps=[], status="partial")
    waiting = RankFiles(run, 1 - rank)
    waiting.write_state(make_state(1 - rank))
    waiting.set_stuck(True)
    RankFiles(run, rank).write_state(make_state(rank, age_s=9))
    return writer


def test_a_rank_that_goes_on_after_it_was_saved_leaves_nothing_damaged(tmp_path: Path) -> None:
    run = tmp_path / "a.zprof"
    writer = start_rank(run, 1)
    assert save_silent_ranks(run) == [1]
    writer.publish([])
    assert load(run).frame(1, "mark")["kind"].to_list() == ["step_end", "stuck"], "the stall stays"
    writer.write_table("mark", {"time_ns": [5], "kind": ["resumed"], "number": [3], "name": [""]})
    writer.publish([])
    assert load(run).frame(1, "mark")["kind"].to_list() == ["resumed"]
    assert len(load(run).frame(1, "flight_group")) == 1


def test_two_writers_of_one_rank_never_mix(tmp_path: Path) -> None:
    run = tmp_path / "a.zprof"
    writer = start_rank(run, 1)
    ended = threading.Event()

    def save() -> None:
        while not ended.is_set():
            save_silent_ranks(run)

    thread = threading.Thread(target=save)
    thread.start()
    try:
        for number in range(40):
            marks = {"time_ns": [5], "kind": ["resumed"], "number": [number], "name": [""]}
            writer.write_table("mark", marks)
            writer.publish([])
            load(run).table(1, "mark")
    finally:
        ended.set()
        thread.join()
    assert len(load(run).frame(1, "mark"))
    assert len(load(run).frame(1, "flight_group")) == 1


def test_a_stopped_rank_is_saved_without_a_stack(tmp_path: Path) -> None:
    run = tmp_path / "a.zprof"
    waiting, stopped = RankFiles(run, 0), RankFiles(run, 1)
    waiting.write_state(make_state(0))
    waiting.set_stuck(True)
    stopped.write_state(make_state(1, age_s=9))
    assert save_silent_ranks(run) == [1]
    saved = load(run)
    assert len(saved.frame(1, "flight_thread")) == 0
    assert len(saved.frame(1, "flight_group")) == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[1", b"\xff\xfe", b'{"rank": -1}\n', json.dumps({"rank": 1}).encode(), b"0" * 99],
)
def test_a_damaged_state_is_left_out(tmp_path: Path, content: bytes) -> None:
    run = tmp_path / "a.zprof"
    RankFiles(run, 0).set_stuck(True)
    (find_watch_folder(run) / "rank1.state").write_bytes(content)
    assert save_silent_ranks(run, has_job_ended=True) == []


def test_the_ranks_of_a_job_take_one_id(tmp_path: Path) -> None:
    run = tmp_path / "a.zprof"
    assert agree_on_run_id(run, "first", 0) == "first"
    assert agree_on_run_id(run, "second", 0) == "first"
    assert agree_on_run_id(run, "third", time.time_ns() + SECOND) == "third", "it was of an earlier job"


def test_the_last_rank_removes_everything(tmp_path: Path) -> None:
    run = tmp_path / "a.zprof"
    ranks = [RankFiles(run, rank) for rank in range(2)]
    ranks[0].set_stuck(True)
    assert {stall.rank for stall in list_stalls(run)} == {0}
    for rank in ranks:
        rank.remove()
    assert not run.exists()


def test_a_stopped_process_is_named_in_the_headline_and_continued_by_the_fix(tmp_path: Path) -> None:
    run = tmp_path / "a.zprof"
    here = {"host": socket.gethostname()}
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            waiting, stopped = RankFiles(run, 0), RankFiles(run, 1)
            waiting.write_state(replace(make_state(0, age_s=9), **here))
            stopped.write_state(replace(make_state(1, age_s=9), **here, process=process.pid))
            waiting.set_stuck(True)
            assert 1 in save_silent_ranks(run)
        finally:
            process.kill()
    saved = load(run).rank_manifests[1].process
    assert saved == RankProcess(number=process.pid, host=here["host"], state=ProcessState.STOPPED)
    culprit = RankAtHang(rank=1, operation=0, process=saved)
    hang = Hang(status=HangStatus.STUCK, kind=HangClass.HOST_STUCK, culprits=(culprit,), stall_ns=9 * SECOND)
    unknown = replace(hang, culprits=(replace(culprit, process=None),))
    assert explain_hang(hang).sentence != explain_hang(unknown).sentence
    assert f"kill -CONT {process.pid} on {here['host']}" in explain_hang(hang).fix
