"""What the view hears of its job: its end over a pipe, and the lines that it writes."""

import os
from pathlib import Path

import pytest

from zprof.tui.live.watcher import JobPipe, JobState, LogTail


def test_a_job_that_runs_ends_and_hangs_up() -> None:
    far, near = os.pipe()
    line = JobPipe(far)
    assert line.look() == JobState(ours=True)
    os.write(near, b'{"code"')
    assert line.look().runs
    os.write(near, b": 7}\n")
    assert line.look() == JobState(ours=True, code=7)
    assert not line.hung_up
    os.close(near)
    assert line.look().code == 7
    assert line.hung_up
    os.close(far)


@pytest.mark.parametrize("said", [b"nonsense\n", b"[]\n", b'{"code": null}\n', b"\xff\n"])
def test_what_is_not_understood_is_no_success(said: bytes) -> None:
    far, near = os.pipe()
    os.write(near, said)
    assert JobPipe(far).look().code == -1
    os.close(near)
    os.close(far)


def test_without_a_job_there_is_none() -> None:
    line = JobPipe(None)
    assert line.look() == JobState()
    assert not line.hung_up


def test_the_last_lines_are_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path)
    assert tail.look() == ()
    path.write_bytes(b"one\n\x1b]0;owned\x07two\n\n 10%\r 90%\n\xffhalf")
    assert tail.look() == ("one", "\\x1b]0;owned\\x07two", " 90%", "\ufffdhalf")


def test_a_huge_log_is_read_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (1 << 20) + b"\n" + b"line\n" * 5000)
    lines = LogTail(path).look()
    assert 0 < len(lines) <= 100
    assert set(lines) == {"line"}
    path.write_bytes(b"x" * (1 << 20))
    assert len(LogTail(path).look()[0]) == 400


def test_what_is_no_file_is_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert LogTail(tmp_path / "pipe").look() == ()
