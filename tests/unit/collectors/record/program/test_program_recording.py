"""The recording of a program from outside: opened, begun and ended by the program's own steps."""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import zprof
from zprof.collectors.record.identity import RECORDING_VARIABLE
from zprof.collectors.record.program.recording import ProgramRecording, RecordingPlan
from zprof.collectors.record.schedule import RecordingSchedule
from zprof.run.reader import load


class Program:
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
        self.path, self.notes, self.ranks = path, list[str](), list[int]()
        self.recordings: list[ProgramRecording] = []

    def record(self, *, may: bool = True, skip: int = 2) -> ProgramRecording:
        def may_record(rank: int) -> bool:
            self.ranks.append(rank)
            return may

        schedule = RecordingSchedule(skip=skip, memory=1, time=1)
        plan = RecordingPlan(
            path=self.path, schedule=schedule, init=False, may_record=may_record, say=self.notes.append
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


@pytest.mark.parametrize(
    ("optimizers", "skip", "trained", "memory_step"), [(1, 2, 7, 2), (2, 2, 7, 2), (1, 5, 8, 5)]
)
def test_it_ends_with_its_schedule_and_leaves_torch_alone(
    outside: Outside, optimizers: int, skip: int, trained: int, memory_step: int
) -> None:
    wrap = torch.optim.Optimizer.profile_hook_step
    outside.record(skip=skip)
    Program(optimizers).train(trained)
    assert torch.optim.Optimizer.profile_hook_step is wrap
    assert RECORDING_VARIABLE not in os.environ
    run = load(outside.path)
    rank = run.rank_manifests[0]
    assert (rank.status, rank.memory_steps, rank.time_steps) == (
        "complete",
        (memory_step,),
        (memory_step + 1,),
    )
    assert run.last_step(0) == memory_step + 1
    assert run.manifest.training.optimizer_state_bytes == 8


def test_it_waits_for_an_optimizer_that_has_not_stepped_but_not_for_ever(outside: Outside) -> None:
    idle = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    outside.record()
    Program().train(20)
    rank = load(outside.path).rank_manifests[0]
    assert rank.status == "complete"
    assert 2 < rank.memory_steps[0] < 18
    del idle


def test_training_goes_on_where_the_run_cannot_be_written(outside: Outside) -> None:
    outside.path.write_text("not a folder")
    outside.record()
    Program().train(6)
    assert len(outside.notes) == 1


def test_a_fault_of_zprof_ends_the_recording_and_not_the_program(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise RuntimeError("planted fault")

    monkeypatch.setattr("zprof.collectors.record.program.recording.StepCycle.record_step", fail)
    outside.record()
    Program().train(3)
    assert not outside.path.exists()


def test_a_program_that_records_itself_is_left_to_it(outside: Outside, tmp_path: Path) -> None:
    outside.record()
    program = Program()
    only_first = zprof.steps(skip=1, memory=0, time=0)
    with zprof.record(tmp_path / "own", model=program.models[0], steps=only_first) as own:
        program.train(1)
        own.step()
    program.train(6)
    assert not outside.path.exists()
    assert load(tmp_path / "own").rank_manifests[0].status == "complete"
    assert len(outside.notes) == 1


def test_a_fork_does_not_record(outside: Outside) -> None:
    outside.record()
    program = Program()
    program.train(2)
    assert torch._C._len_torch_dispatch_stack() == 1  # the memory window is open
    child = os.fork()
    if child == 0:
        watched = torch._C._len_torch_dispatch_stack()
        program.train(3)
        os._exit(watched)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    program.train(3)
    assert load(outside.path).rank_manifests[0].status == "complete"


@pytest.mark.parametrize(
    ("steps", "status"), [(7, "complete"), (3, "failed")], ids=["whole", "an end that atexit does not see"]
)
def test_a_rank_that_a_launcher_forks_is_recorded(outside: Outside, steps: int, status: str) -> None:
    """As accelerate's notebook_launcher does: the parent imports torch, and never trains."""
    parent = outside.record()
    rank = multiprocessing.get_context("fork").Process(target=lambda: Program().train(steps))
    rank.start()
    rank.join()
    assert rank.exitcode == 0
    parent.finish()
    run = load(outside.path)
    assert run.rank_manifests[0].status == status
    assert run.has_table(0, "alloc")
    assert "memory before the first step" in {gap.what for gap in run.gaps()}
