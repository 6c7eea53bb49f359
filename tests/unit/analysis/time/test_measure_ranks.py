"""Ranks measured in several processes: the same numbers as in one, also when a process fails."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.support.schedules import MS, Spec, play, write
from zprof.analysis.time.analyse import RankPart, TimeAnalysis, analyse_time
from zprof.base.errors import BadInput
from zprof.process.workers import LocalWorker, ProcessWorkers
from zprof.run.reader import Run, load

TABLES = ("steps", "collectives", "host", "kernels", "passes", "limiter")
SPEC = Spec(
    ranks=6,
    steps=3,
    slow_rank=4,
    slow_ns=9 * MS,
    offsets_ns=(0, 5 * MS, -5 * MS, 3_141_592, 0, 7 * MS),
    hosts=("alpha", "alpha", "beta", "beta", "gamma", "gamma"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load(write(tmp_path_factory.mktemp("ranks") / "six.zprof", SPEC, play(SPEC)))


@pytest.fixture(scope="module")
def serial(run: Run) -> TimeAnalysis:
    return analyse_time(run, processes=1)


def assert_equal(analysis: TimeAnalysis, other: TimeAnalysis) -> None:
    assert analysis.time == other.time
    assert analysis.time.critical_path.steps
    assert (analysis.gaps, analysis.volume) == (other.gaps, other.volume)
    for name in TABLES:
        own_table, other_table = getattr(analysis, name).to_frame(), getattr(other, name).to_frame()
        pd.testing.assert_frame_equal(own_table, other_table, check_exact=True)
    for own, others in zip(analysis.tracks, other.tracks, strict=True):
        assert (own.rank, own.clock, own.host) == (others.rank, others.clock, others.host)
        for name in ("waiting", "moving", "coverage"):
            assert getattr(own, name).tolist() == getattr(others, name).tolist()


@pytest.mark.ranks
@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_measure_the_same(
    run: Run, serial: TimeAnalysis, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalWorker, "call", None)  # only processes may do the work
    assert_equal(analyse_time(run, processes=processes), serial)


@pytest.mark.ranks
def test_a_process_that_is_killed_is_replaced_by_this_one(
    run: Run, serial: TimeAnalysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, killed = set(multiprocessing.active_children()), []

    def kill_one(workers, work, arguments):  # type: ignore[no-untyped-def]
        if work is RankPart.measure:
            child, *_ = set(multiprocessing.active_children()) - others
            killed.append(os.kill(child.pid or 0, signal.SIGKILL))
        return call(workers, work, arguments)

    call = ProcessWorkers.call
    monkeypatch.setattr(ProcessWorkers, "call", kill_one)
    assert_equal(analyse_time(run, processes=2), serial)
    assert len(killed) == 1


@pytest.mark.ranks
def test_a_damaged_table_is_the_same_error(tmp_path: Path) -> None:
    damaged = load(write(tmp_path / "x.zprof", Spec(ranks=2), play(Spec(ranks=2))))
    (damaged.path / "rank00001/events.parquet").write_bytes(b"PAR1")
    messages = []
    for processes in (1, 2):
        with pytest.raises(BadInput) as error:
            analyse_time(damaged, processes=processes)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.ranks
def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    """Interrupted while its processes are busy: none is left, and only the parent says where it was."""
    parent, children = start_busy_processes(tmp_path, signal.SIG_DFL)
    os.killpg(parent.pid, signal.SIGINT)
    _, error = parent.communicate(timeout=60)
    assert error.count("Traceback") == 1
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


@pytest.mark.ranks
def test_processes_of_a_background_job_ignore_an_interrupt(tmp_path: Path) -> None:
    parent, children = start_busy_processes(tmp_path, signal.SIG_IGN)
    try:
        for process in (parent.pid, *children):
            ignored = re.search(r"^SigIgn:\s*(\w+)", Path(f"/proc/{process}/status").read_text(), re.M)
            assert ignored is not None
            assert int(ignored[1], 16) & 1 << signal.SIGINT - 1
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


def start_busy_processes(
    folder: Path, disposition: signal.Handlers
) -> tuple["subprocess.Popen[str]", list[int]]:
    """Return a process that starts with this disposition of SIGINT, and its two busy workers."""
    script = folder / "script.py"
    script.write_text(
        "import multiprocessing, operator, signal\n"
        "from zprof.process.interrupts import keep_interrupts\n"
        "from zprof.process.workers import ProcessWorkers\n"
        "with keep_interrupts(), ProcessWorkers([{signal.SIGUSR1}] * 2) as workers:\n"
        "    workers.call(operator.contains, [1, 1])\n"
        "    print(*(child.pid for child in multiprocessing.active_children()), flush=True)\n"
        "    workers.call(signal.sigtimedwait, [600, 600])\n"
    )
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
        start_new_session=True,
        # A background job of a script ignores SIGINT, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, disposition),
    )
    assert parent.stdout is not None
    children = [int(number) for number in parent.stdout.readline().split()]
    assert len(children) == 2
    return parent, children
