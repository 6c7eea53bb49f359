"""The recording of a program from outside: opened, begun and ended by the program's own steps."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import zprof
from zprof.collectors.identity import RECORDING_VARIABLE
from zprof.collectors.program.discovery import Trained
from zprof.collectors.program.recording import ProgramRecording, RecordingPlan
from zprof.collectors.schedule import Schedule
from zprof.run.reader import load


class Program:
    """A model, an optimizer, and as many steps as it is told."""

    def __init__(self, optimizers: int = 1) -> None:
        self.models = [nn.Linear(8, 8) for _ in range(optimizers)]
        self.optimizers = [torch.optim.AdamW(model.parameters()) for model in self.models]

    def train(self, steps: int) -> None:
        for _ in range(steps):
            for model, optimizer in zip(self.models, self.optimizers, strict=True):
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()


class Outside:
    def __init__(self, path: Path) -> None:
        self.path, self.said, self.asked = path, list[str](), list[int]()
        self.recordings: list[ProgramRecording] = []

    def record(self, *, may: bool = True, skip: int = 2) -> ProgramRecording:
        def may_record(rank: int) -> bool:
            self.asked.append(rank)
            return may

        schedule = Schedule(skip=skip, memory=1, time=1)
        plan = RecordingPlan(
            path=self.path, schedule=schedule, init=False, may_record=may_record, say=self.said.append
        )
        self.recordings.append(ProgramRecording(plan))
        self.recordings[-1].arm()
        return self.recordings[-1]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    outside = Outside(tmp_path / "run.zprof")
    yield outside
    for recording in outside.recordings:
        recording.finish()


def test_it_ends_with_its_schedule_and_leaves_torch_alone(outside: Outside) -> None:
    wrap = torch.optim.Optimizer.profile_hook_step
    outside.record()
    Program().train(7)
    assert torch.optim.Optimizer.profile_hook_step is wrap
    assert RECORDING_VARIABLE not in os.environ
    rank = load(outside.path).rank_manifests[0]
    assert (rank.status, rank.memory_steps, rank.time_steps) == ("complete", (2,), (3,))
    assert load(outside.path).manifest.training.optimizer_state_bytes == 8


def test_a_step_is_two_optimizers_once_the_cycle_is_known(outside: Outside) -> None:
    outside.record()
    Program(optimizers=2).train(7)
    run = load(outside.path)
    assert (run.rank_manifests[0].memory_steps, run.last_step(0)) == ((2,), 3)


def test_it_waits_for_an_optimizer_that_has_not_stepped_but_not_for_ever(outside: Outside) -> None:
    idle = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    outside.record()
    Program().train(20)
    rank = load(outside.path).rank_manifests[0]
    assert rank.status == "complete"
    assert rank.memory_steps[0] > 2
    del idle


def test_a_longer_warm_up_is_kept(outside: Outside) -> None:
    outside.record(skip=5)
    Program().train(8)
    assert load(outside.path).rank_manifests[0].memory_steps == (5,)


def test_a_short_program_is_written_as_far_as_it_came(outside: Outside) -> None:
    recording = outside.record()
    Program().train(1)
    recording.finish()
    run = load(outside.path)
    assert run.rank_manifests[0].status == "failed"
    assert "after 1 of 4" in run.gaps()[0].reason


def test_a_program_that_never_steps_leaves_nothing(outside: Outside) -> None:
    recording = outside.record()
    Program().models[0](torch.ones(1, 8))
    recording.finish()
    assert not outside.path.exists()
    assert not outside.asked


def test_a_process_that_may_not_record_writes_nothing(outside: Outside) -> None:
    outside.record(may=False)
    Program().train(6)
    assert (outside.asked, outside.path.exists()) == ([0], False)


def test_where_the_run_cannot_be_written_training_goes_on_and_it_is_said(outside: Outside) -> None:
    outside.path.write_text("not a folder")
    outside.record()
    Program().train(6)
    (note,) = outside.said
    assert "nothing was recorded as rank 0" in note


def test_a_fault_of_ours_ends_the_recording_and_not_the_program(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = outside.record()

    def fail(optimizer: object) -> bool:
        raise RuntimeError("planted fault")

    monkeypatch.setattr(recording._cycle, "ended", fail)
    Program().train(3)
    assert not outside.path.exists()


def test_a_program_that_records_itself_is_left_to_it(outside: Outside, tmp_path: Path) -> None:
    outside.record()
    program = Program()
    with zprof.record(
        tmp_path / "own", model=program.models[0], steps=zprof.steps(skip=1, memory=0, time=0)
    ) as own:
        program.train(1)
        own.step()
    program.train(6)
    assert not outside.path.exists()
    assert load(tmp_path / "own").rank_manifests[0].status == "complete"
    assert "records itself" in outside.said[0]


def test_a_fork_does_not_record(outside: Outside) -> None:
    outside.record()
    program = Program()
    program.train(2)
    assert torch._C._len_torch_dispatch_stack() == 1, "the memory window is open"
    child = os.fork()
    if child == 0:
        watched = torch._C._len_torch_dispatch_stack()
        program.train(3)
        os._exit(watched)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    program.train(3)
    assert load(outside.path).rank_manifests[0].status == "complete"


@pytest.mark.parametrize("steps", [7, 3])  # the whole schedule, and an end that atexit does not see
def test_a_rank_that_a_launcher_forks_is_recorded(outside: Outside, steps: int) -> None:
    """As accelerate's notebook_launcher does: the parent imports torch, and never trains."""
    parent = outside.record()
    rank = multiprocessing.get_context("fork").Process(target=lambda: Program().train(steps))
    rank.start()
    rank.join()
    assert rank.exitcode == 0
    parent.finish()
    run = load(outside.path)
    assert run.rank_manifests[0].status == ("complete" if steps == 7 else "failed")
    assert run.has_table(0, "alloc")
    assert "memory before the first step" in {gap.what for gap in run.gaps()}


def test_what_takes_time_is_done_before_the_first_recorded_step(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    find = ProgramRecording._find

    def timed(recording: ProgramRecording) -> Trained:
        looked.append(time.time_ns())
        return find(recording)

    monkeypatch.setattr(ProgramRecording, "_find", timed)
    outside.record()
    Program().train(7)
    mark = load(outside.path).frame(0, "mark")
    first_ns = int(mark.loc[mark["kind"] == "step_begin", "time_ns"].min())
    assert looked
    assert max(looked) < first_ns
