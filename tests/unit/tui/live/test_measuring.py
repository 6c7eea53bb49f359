"""Windows that are over are measured once each, beside the view, and what fails is said."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tests.support.growing_run import GrowingRun
from zprof.run.live import LiveRun
from zprof.tui.live.watcher import LiveReport, ReportPoller


class Starts:
    """Starts a program of the test instead, and waits until it is over."""

    def __init__(self, *code: str) -> None:
        self.codes, self.commands = list(code), list[Sequence[str]]()

    def __call__(
        self, command: Sequence[str], output: IO[bytes], said: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        self.commands.append(command)
        program = [sys.executable, "-S", "-c", self.codes.pop(0)]
        process = subprocess.Popen(program, stdout=output, stderr=said)
        process.wait()
        return process


GOOD = "print('{\"a\": 1}')"


def measured(measuring: ReportPoller, run: LiveRun, looks: int = 3) -> LiveReport:
    for _ in range(looks - 1):
        measuring.look(run.look())
    return measuring.look(run.look())


def test_nothing_is_measured_before_a_window_is_over(tmp_path: Path) -> None:
    GrowingRun(tmp_path).step(0, 1, 1)
    starts = Starts()
    assert measured(ReportPoller(tmp_path, starts), LiveRun(tmp_path)) == LiveReport()
    assert starts.commands == []


def test_each_window_is_measured_once(tmp_path: Path) -> None:
    run, live = GrowingRun(tmp_path), LiveRun(tmp_path)
    starts = Starts(GOOD, "print('{\"a\": 2}')")
    measuring = ReportPoller(tmp_path, starts)
    run.finish("partial", memory=1)
    assert measured(measuring, live, 9) == LiveReport(tree={"a": 1})
    assert len(starts.commands) == 1
    assert starts.commands[0][-4:] == ("report", str(tmp_path), "-f", "json")
    run.finish("complete", memory=1)
    assert measured(measuring, live, 9) == LiveReport(tree={"a": 2})
    assert len(starts.commands) == 2


def test_it_waits_until_the_ranks_have_settled(tmp_path: Path) -> None:
    run, live, starts = GrowingRun(tmp_path), LiveRun(tmp_path), Starts(GOOD)
    measuring = ReportPoller(tmp_path, starts)
    measuring.look(live.look())
    run.finish("partial", memory=1)
    measuring.look(live.look())
    assert starts.commands == []
    measuring.look(live.look())
    assert len(starts.commands) == 1


def test_what_fails_is_said_and_what_was_known_stays(tmp_path: Path) -> None:
    run, live = GrowingRun(tmp_path), LiveRun(tmp_path)
    bad = "import sys; sys.stderr.write('x\\nzprof: \\x1b damaged\\n'); sys.exit(2)"
    measuring = ReportPoller(tmp_path, Starts(GOOD, bad))
    run.finish("partial", memory=1)
    measured(measuring, live)
    run.finish("complete", memory=1)
    assert measured(measuring, live) == LiveReport(tree={"a": 1}, problem="zprof: \\x1b damaged")


def test_what_is_no_report_is_a_problem(tmp_path: Path) -> None:
    GrowingRun(tmp_path).finish("partial", memory=1)
    found = measured(ReportPoller(tmp_path, Starts("print('{')")), LiveRun(tmp_path))
    assert found == LiveReport(problem="it could not be measured")


def test_leaving_ends_it(tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(command: Sequence[str], output: IO[bytes], said: IO[bytes]) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE))
        return started[0]

    GrowingRun(tmp_path).finish("partial", memory=1)
    measuring = ReportPoller(tmp_path, start)
    assert measured(measuring, LiveRun(tmp_path)).busy
    measuring.close()
    assert started[0].returncode is not None
