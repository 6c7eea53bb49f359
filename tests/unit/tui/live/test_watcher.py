"""What the live view reads: the job's end over a pipe, its log, and a report once a window is over."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from tests.support.growing_run import GrowingRun
from zprof.process.child import Child
from zprof.run.live import LiveRun
from zprof.tui.live.watcher import JobPipe, JobState, LiveReport, LogTail, ReportPoller

GOOD = "print('{\"a\": 1}')"


class Programs:
    """Start programs of the test instead of measurements, and wait for each."""

    def __init__(self, *code: str) -> None:
        self.codes, self.commands = list(code), list[Sequence[str]]()

    def __call__(self, command: Sequence[str], output: IO[bytes], errors: IO[bytes]) -> Child:
        self.commands.append(command)
        program = [sys.executable, "-S", "-c", self.codes.pop(0)]
        process = Child(program, stdout=output, stderr=errors)
        process.wait()
        return process


def poll(poller: ReportPoller, run: LiveRun, times: int = 3) -> LiveReport:
    return [poller.look(run.look()) for _ in range(times)][-1]


def test_a_job_runs_ends_with_a_code_and_hangs_up() -> None:
    reader, writer = os.pipe()
    pipe = JobPipe(reader)
    assert pipe.look() == JobState(is_own=True)
    os.write(writer, b'{"code"')
    assert pipe.look().runs
    os.write(writer, b": 7}\n")
    assert pipe.look() == JobState(is_own=True, code=7)
    assert not pipe.hung_up
    os.close(writer)
    assert pipe.look().code == 7
    assert pipe.hung_up
    os.close(reader)
    assert JobPipe(None).look() == JobState()


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b'{"code": null}\n', b"\xff\n"])
def test_a_line_that_cannot_be_read_is_no_success(line: bytes) -> None:
    reader, writer = os.pipe()
    os.write(writer, line)
    assert JobPipe(reader).look().code == -1
    os.close(writer)
    os.close(reader)


def test_the_last_lines_of_a_log_are_printable_and_few(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path)
    assert tail.look() == ()
    path.write_bytes(b"one\n\x1b]0;owned\x07two\n\n 10%\r 90%\n\xffhalf")
    assert tail.look() == ("one", "\\x1b]0;owned\\x07two", " 90%", "\ufffdhalf")
    path.write_bytes(b"x" * (1 << 20) + b"\n" + b"line\n" * 5000)
    lines = LogTail(path).look()
    assert (0 < len(lines) <= 100, set(lines)) == (True, {"line"})
    path.write_bytes(b"x" * (1 << 20))
    assert len(LogTail(path).look()[0]) == 400
    os.mkfifo(tmp_path / "pipe")
    assert LogTail(tmp_path / "pipe").look() == ()


def test_each_window_is_measured_once_after_all_ranks_have_written_it(tmp_path: Path) -> None:
    run, live = GrowingRun(tmp_path), LiveRun(tmp_path)
    programs = Programs(GOOD, "print('{\"a\": 2}')")
    poller = ReportPoller(tmp_path, programs)
    run.step(0, 1, 1)
    assert poll(poller, live) == LiveReport()
    run.finish("partial", memory=1)
    poll(poller, live, 1)
    assert programs.commands == [], "the manifests have only just changed"
    assert poll(poller, live, 9) == LiveReport(tree={"a": 1})
    (command,) = programs.commands
    assert command[-4:] == ("report", str(tmp_path), "-f", "json")
    run.finish("complete", memory=1)
    assert poll(poller, live, 9) == LiveReport(tree={"a": 2})
    assert len(programs.commands) == 2


def test_a_measurement_that_fails_is_a_problem_and_what_was_known_stays(tmp_path: Path) -> None:
    run, live = GrowingRun(tmp_path), LiveRun(tmp_path)
    bad = "import sys; sys.stderr.write('x\\nzprof: \\x1b damaged\\n'); sys.exit(2)"
    poller = ReportPoller(tmp_path, Programs(GOOD, bad))
    run.finish("partial", memory=1)
    poll(poller, live)
    run.finish("complete", memory=1)
    assert poll(poller, live) == LiveReport(tree={"a": 1}, problem="zprof: \\x1b damaged")
    no_json = poll(ReportPoller(tmp_path, Programs("print('{')")), live)
    assert no_json.problem
    assert not no_json.tree


def test_leaving_ends_a_measurement(tmp_path: Path) -> None:
    started: list[Child] = []

    def start(command: Sequence[str], output: IO[bytes], errors: IO[bytes]) -> Child:
        started.append(Child([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE))
        return started[0]

    GrowingRun(tmp_path).finish("partial", memory=1)
    poller = ReportPoller(tmp_path, start)
    assert poll(poller, LiveRun(tmp_path)).busy
    poller.close()
