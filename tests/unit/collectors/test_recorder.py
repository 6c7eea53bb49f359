"""The recorder on its own: windows at the right steps, faults that stay inside, what a rank leaves behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from zprof.collectors.base import Columns
from zprof.collectors.recorder import Recorder
from zprof.collectors.schedule import Schedule, Window
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.live import LiveRun
from zprof.run.manifest import PlannedSteps
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


def test_a_forked_child_leaves_the_recording_alone(tmp_path: Path) -> None:
    log: list[str] = []
    with recorder(tmp_path, log) as recording:
        recording.step()
        child = os.fork()
        if child == 0:
            recording.step()
            recording.__exit__(None, None, None)
            os._exit(0 if log == ["memory start"] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for _ in range(5):
            recording.step()
    (rank,) = Run(tmp_path).rank_manifests.values()
    assert (rank.status, rank.memory_steps, rank.time_steps) == ("complete", (1, 2), (3, 4, 5))


def test_a_program_that_leaves_within_a_window_ends_well_and_is_written(tmp_path: Path) -> None:
    program = f"""
import torch, zprof
model = torch.nn.Linear(4, 4)
recording = zprof.record({str(tmp_path)!r}, model=model, steps=zprof.steps(skip=1, memory=1, time=9))
recording.__enter__()
for _ in range(4):
    model(torch.ones(2, 4)).sum().backward()
    recording.step()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path)
    assert run.rank_manifests[0].status == "failed"
    assert run.rank_manifests[0].time_steps == (2, 3)
    assert run.has_table(0, "events")


def test_unknown_facts_of_training_do_not_stop_the_recording(tmp_path: Path) -> None:
    def facts() -> TrainingFacts:
        raise RuntimeError("a model that cannot be counted")

    with Recorder(tmp_path, Schedule(skip=1, memory=0, time=0), facts, {}) as recording:
        recording.step()
    run = Run(tmp_path)
    assert run.manifest.training == TrainingFacts()
    assert [gap.what for gap in run.gaps()] == ["training facts"]


def test_a_recorder_that_was_not_entered_does_nothing(tmp_path: Path) -> None:
    log: list[str] = []
    recorder(tmp_path / "run", log).step()
    assert not log
    assert not (tmp_path / "run").exists()


def test_no_signal_handler_is_installed(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with recorder(tmp_path, []):
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_what_is_not_a_run_is_never_deleted(tmp_path: Path) -> None:
    shard = tmp_path / "rank00000/model.pt"
    shard.parent.mkdir()
    shard.write_text("weights")
    log: list[str] = []
    train(tmp_path, log, steps=2)
    assert log == ["step 0", "step 1"]
    assert shard.read_text() == "weights"
    assert not (tmp_path / "manifest.json").exists()


def test_the_log_of_steps_tells_windows_and_counters_as_they_come(tmp_path: Path) -> None:
    with recorder(tmp_path, []) as recording:
        state = LiveRun(tmp_path).look()
        assert state.manifest is not None
        assert state.manifest.planned == PlannedSteps(skip=1, memory=2, time=3)
        for _ in range(4):
            recording.step()
        (rank,) = LiveRun(tmp_path).look().ranks
        assert [step.window for step in rank.steps] == ["", "memory", "memory", "time"]
        assert all(step.process_bytes for step in rank.steps)
        assert all(step.device or step.allocated_bytes is None for step in rank.steps)  # unknown, not 0
        assert rank.manifest.status == "partial"


def test_a_later_first_step_moves_the_plan(tmp_path: Path) -> None:
    recording = recorder(tmp_path, [])
    recording.open()
    recording.begin(4)
    state = LiveRun(tmp_path).look()
    assert state.manifest is not None
    assert state.manifest.planned == PlannedSteps(skip=4, memory=2, time=3)
    recording.close("complete")


def test_counters_that_fail_never_reach_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, step: int) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("zprof.collectors.logs.SampleLog.add", fail)
    train(tmp_path, [], steps=6)
    (rank,) = LiveRun(tmp_path).look().ranks
    assert [step.step for step in rank.steps] == list(range(6))
    assert rank.steps[0].process_bytes is None
    assert rank.manifest.time_steps == (3, 4, 5)
