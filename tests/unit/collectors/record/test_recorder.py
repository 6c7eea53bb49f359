"""The recorder on its own: windows at the right steps, faults that stay inside, and the run that is left."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from zprof.collectors.record.base import Columns
from zprof.collectors.record.recorder import Recorder
from zprof.collectors.record.schedule import RecordingSchedule, ScheduledWindow
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.live import LiveRun
from zprof.run.manifest import PlannedSteps
from zprof.run.reader import Run

SCHEDULE = RecordingSchedule(skip=1, memory=2, time=3)
PHASE = {"time_ns": [1], "kind": ["phase"], "number": [0], "name": ["forward"]}


class FakeCollector:
    def __init__(self, log: list[str], name: str, broken: str = "") -> None:
        self.log, self.name, self.broken = log, name, broken

    def note(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")
        if self.broken == what:
            raise RuntimeError(f"planted fault in {what}\nsecond line")

    def start(self) -> None:
        self.note("start")

    def stop(self) -> None:
        self.note("stop")

    def tables(self) -> Mapping[str, Columns]:
        self.note("tables")
        return {"mark": PHASE} if self.name == "memory" else {}

    def gaps(self) -> Sequence[Gap]:
        return []


def recorder(path: Path, log: list[str], broken: str = "") -> Recorder:
    collectors = {
        ScheduledWindow.MEMORY: lambda: FakeCollector(log, "memory", broken),
        ScheduledWindow.TIME: lambda: FakeCollector(log, "time"),
    }
    return Recorder(path, SCHEDULE, TrainingFacts, collectors)


def train(path: Path, log: list[str], steps: int, broken: str = "") -> None:
    with recorder(path, log, broken) as recording:
        for step in range(steps):
            log.append(f"step {step}")
            recording.step()


def test_windows_open_and_close_between_the_right_steps(tmp_path: Path) -> None:
    log: list[str] = []
    train(tmp_path, log, steps=8)
    memory = ["memory start", "step 1", "step 2", "memory stop", "memory tables"]
    time = ["time start", "step 3", "step 4", "step 5", "time stop", "time tables"]
    assert log == ["step 0", *memory, *time, "step 6", "step 7"]
    run = Run(tmp_path)
    (rank,) = run.rank_manifests.values()
    assert (rank.memory_steps, rank.time_steps, rank.status) == ((1, 2), (3, 4, 5), "complete")
    marks = run.frame(0, "mark").groupby("kind", observed=True)
    assert marks.get_group("step_begin")["number"].tolist() == [0, 1, 2, 3, 4, 5]
    assert marks.get_group("step_end")["number"].tolist() == [0, 1, 2, 3, 4, 5]
    assert marks.get_group("window_begin")["name"].tolist() == ["memory", "time"]
    assert marks.get_group("phase")["name"].tolist() == ["forward"]


@pytest.mark.parametrize("broken", ["start", "stop", "tables"])
def test_a_fault_of_a_collector_is_a_gap_and_training_goes_on(tmp_path: Path, broken: str) -> None:
    log: list[str] = []
    train(tmp_path, log, steps=6, broken=broken)
    assert [entry for entry in log if entry.startswith("step")] == [f"step {step}" for step in range(6)]
    assert "time tables" in log
    assert log.count("memory stop") == 1
    assert ("memory tables" in log) == (broken == "tables")
    (gap,) = Run(tmp_path).gaps()
    assert (gap.what, gap.reason) == (f"memory {broken}", f"planted fault in {broken}")


def test_an_error_of_the_program_passes_and_its_steps_are_written(tmp_path: Path) -> None:
    log: list[str] = []

    def fail_after_two_steps() -> None:
        with recorder(tmp_path, log) as recording:
            recording.step()
            recording.step()
            raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        fail_after_two_steps()
    run = Run(tmp_path)
    assert (run.rank_manifests[0].status, run.rank_manifests[0].memory_steps) == ("failed", (1,))
    assert log == ["memory start", "memory stop", "memory tables"]
    assert any("2 of 6" in gap.reason for gap in run.gaps())


def test_a_run_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    weights = tmp_path / "no-run/rank00000/model.pt"
    weights.parent.mkdir(parents=True)
    weights.write_text("weights")
    for path in (tmp_path / "a-file/run", tmp_path / "no-run"):
        log: list[str] = []
        train(path, log, steps=2)
        assert log == ["step 0", "step 1"]
    assert weights.read_text() == "weights"
    assert not (tmp_path / "no-run/manifest.json").exists()


def test_a_recorder_that_is_switched_off_or_was_not_entered_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    recorder(tmp_path / "run", log).step()
    monkeypatch.setenv("ZPROF", "0")
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


@pytest.mark.parametrize("fails", [False, True])
def test_steps_are_logged_with_window_and_counters_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def fail(self: object, step: int) -> None:
        raise RuntimeError("planted")

    if fails:
        monkeypatch.setattr("zprof.collectors.record.logs.SampleLog.add", fail)
    with recorder(tmp_path, []) as recording:
        state = LiveRun(tmp_path).look()
        assert state.manifest is not None
        assert state.manifest.planned == PlannedSteps(skip=1, memory=2, time=3)
        for _ in range(4):
            recording.step()
        (rank,) = LiveRun(tmp_path).look().ranks
        assert [step.window for step in rank.steps] == ["", "memory", "memory", "time"]
        assert [bool(step.process_bytes) for step in rank.steps] == [not fails] * 4
        assert all(step.device or step.allocated_bytes is None for step in rank.steps)
        assert rank.manifest.status == "partial"
