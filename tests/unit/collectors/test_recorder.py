"""The recorder on its own: windows at the right steps, faults that stay inside, what a rank leaves behind."""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from zprof.collectors.base import Columns
from zprof.collectors.recorder import Recorder
from zprof.collectors.schedule import Schedule, Window
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.reader import Run

SCHEDULE = Schedule(skip=1, memory=2, time=3)
PHASE = {"time_ns": [1], "kind": ["phase"], "number": [0], "name": ["forward"]}


class FakeCollector:
    def __init__(self, log: list[str], name: str, broken: str = "") -> None:
        self.log, self.name, self.broken = log, name, broken

    def _did(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")
        if self.broken == what:
            raise RuntimeError(f"planted fault in {what}\nsecond line")

    def start(self) -> None:
        self._did("start")

    def stop(self) -> None:
        self._did("stop")

    def tables(self) -> Mapping[str, Columns]:
        self._did("tables")
        return {"mark": PHASE} if self.name == "memory" else {}

    def gaps(self) -> Sequence[Gap]:
        return []


def recorder(path: Path, log: list[str], broken: str = "", schedule: Schedule = SCHEDULE) -> Recorder:
    collectors = {
        Window.MEMORY: lambda: FakeCollector(log, "memory", broken),
        Window.TIME: lambda: FakeCollector(log, "time"),
    }
    return Recorder(path, schedule, TrainingFacts, collectors)


def train(path: Path, log: list[str], steps: int, broken: str = "") -> None:
    with recorder(path, log, broken) as recording:
        for step in range(steps):
            log.append(f"step {step}")
            recording.step()


def test_windows_open_and_close_between_the_right_steps(tmp_path: Path) -> None:
    log: list[str] = []
    train(tmp_path, log, steps=8)
    assert log == [
        "step 0",
        "memory start",
        "step 1",
        "step 2",
        "memory stop",
        "memory tables",
        "time start",
        "step 3",
        "step 4",
        "step 5",
        "time stop",
        "time tables",
        "step 6",
        "step 7",
    ]
    (rank,) = Run(tmp_path).rank_manifests.values()
    assert (rank.memory_steps, rank.time_steps, rank.status) == ((1, 2), (3, 4, 5), "complete")


def test_marks_of_steps_windows_and_collectors_are_in_one_table(tmp_path: Path) -> None:
    train(tmp_path, [], steps=6)
    marks = Run(tmp_path).frame(0, "mark")
    begins = marks[marks["kind"] == "step_begin"]["number"].tolist()
    ends = marks[marks["kind"] == "step_end"]["number"].tolist()
    assert begins == ends == [0, 1, 2, 3, 4, 5]
    assert marks[marks["kind"] == "window_begin"]["name"].tolist() == ["memory", "time"]
    assert marks[marks["kind"] == "phase"]["name"].tolist() == ["forward"]


@pytest.mark.parametrize("broken", ["start", "stop", "tables"])
def test_a_fault_of_a_collector_is_a_gap_and_training_goes_on(tmp_path: Path, broken: str) -> None:
    log: list[str] = []
    train(tmp_path, log, steps=6, broken=broken)
    assert [entry for entry in log if entry.startswith("step")] == [f"step {step}" for step in range(6)]
    assert "time tables" in log, "the other window is recorded all the same"
    (gap,) = Run(tmp_path).gaps()
    assert gap.what == f"memory {broken}"
    assert gap.reason == f"planted fault in {broken}"


def test_a_collector_that_fails_to_start_is_stopped(tmp_path: Path) -> None:
    log: list[str] = []
    train(tmp_path, log, steps=6, broken="start")
    assert log.index("memory stop") == log.index("memory start") + 1
    assert "memory tables" not in log


def test_a_run_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    log: list[str] = []
    train(blocked / "run", log, steps=2)
    assert log == ["step 0", "step 1"]


def test_an_error_of_the_program_passes_and_what_was_seen_is_written(tmp_path: Path) -> None:
    log: list[str] = []

    def fail_after_two_steps() -> None:
        with recorder(tmp_path, log) as recording:
            recording.step()
            recording.step()
            raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        fail_after_two_steps()
    run = Run(tmp_path)
    assert run.rank_manifests[0].status == "failed"
    assert run.rank_manifests[0].memory_steps == (1,)
    assert log == ["memory start", "memory stop", "memory tables"]
    assert "after 2 of 6" in run.gaps()[0].reason


def test_the_off_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZPROF", "0")
    log: list[str] = []
    train(tmp_path / "run", log, steps=2)
    assert log == ["step 0", "step 1"]
    assert not (tmp_path / "run").exists()


def test_a_terminated_rank_writes_its_part_first(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with recorder(tmp_path, []) as recording:
            recording.step()
            recording.step()
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM
    run = Run(tmp_path)
    assert run.rank_manifests[0].status == "terminated"
    assert run.rank_manifests[0].memory_steps == (1,)


def test_the_signal_is_given_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    train(tmp_path, [], steps=2)
    assert signal.getsignal(signal.SIGTERM) is before
