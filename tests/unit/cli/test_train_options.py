"""``zprof train``: how many ranks run, what is handed to them, and what comes back; no rank is started."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.command_calls import Call
from tests.support.full_disk import MESSAGE, limit_files
from tests.support.schedules import Spec, play, write
from zprof.integrations import reference_job
from zprof.integrations.reference_job import ReferenceJob, ReferenceJobResult
from zprof.run.output_path import lock_output


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ReferenceJob]:
    """Jobs that leave a run of all their ranks, or of two in ``lost.zprof``."""
    started: list[ReferenceJob] = []

    def run(job: ReferenceJob, **named: Any) -> tuple[float, ...]:
        started.append(job)
        assert job.run is not None
        spec = Spec(ranks=2 if job.run.stem == "lost" else job.world_size, steps=1)
        write(job.run, spec, play(spec))
        return (3.0, 2.0)

    monkeypatch.setattr(reference_job, "train_reference", run)
    monkeypatch.chdir(tmp_path)
    return started


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("", 2),
        ("--mp 2", 2),
        ("--dp 2 --mp 2", 4),
        ("--ranks 4 --mp 2", 4),
        ("--ranks 1", 1),
    ],
)
def test_ranks_follow_from_the_mesh(call: Call, jobs: list[ReferenceJob], line: str, ranks: int) -> None:
    assert call("train", *line.split())[0] == 0
    assert jobs[0].world_size == ranks


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--ranks 3 --dp 2", "dp 2"),
        ("--plant stragler", "straggler_rank"),
        ("--plant straggler_rank --ranks 1", "straggler_rank"),
        ("--batch 6 --accumulate 2", "2 micro-batches"),
    ],
)
def test_what_cannot_run_is_refused_before_a_rank_starts(
    call: Call, jobs: list[ReferenceJob], line: str, named: str
) -> None:
    code, _, err = call("train", *line.split())
    assert (code, named in err, jobs) == (2, True, [])


def test_a_run_that_lacks_ranks_is_missing_data(call: Call, jobs: list[ReferenceJob]) -> None:
    assert call("train", "--ranks", "4", "-o", "lost.zprof")[0] == 3


def test_a_full_disk_is_named(call: Call, jobs: list[ReferenceJob], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_job, "train_reference", lambda job, **named: (3.0, 2.0))
    with limit_files():
        code, _, err = call("train", "-o", "full.zprof")
    assert (code, MESSAGE in err) == (3, True)


def test_the_output_is_checked_before_training(call: Call, jobs: list[ReferenceJob]) -> None:
    assert call("train", "-o", "/proc/self/x.zprof")[0] == 2
    with lock_output(Path("x.zprof")):
        assert call("train", "-o", "x.zprof")[0] == 2
    assert jobs == []


def test_stated_options_go_to_the_ranks(call: Call, jobs: list[ReferenceJob]) -> None:
    code, out, err = call("train", "--plant", "no_prefetch", "--time-steps", "3", "--stage", "3")
    assert (code, out) == (0, "loss 3.000000 -> 2.000000 in 2 steps\n")
    assert "zprof diagnose no_prefetch.zprof" in err
    assert jobs[0].options == {"plant": "no_prefetch", "stage": 3, "steps": 7}
    assert call("train", "--steps", "5")[0] == 0
    assert (jobs[1].options, jobs[1].run) == ({"steps": 5}, Path("train.zprof"))


def test_plants_are_listed_without_a_run(call: Call, jobs: list[ReferenceJob]) -> None:
    code, out, _ = call("train", "--plant", "list")
    assert (code, "rotating_straggler " in out, jobs) == (0, True, [])


def test_a_job_and_its_outcome_survive_the_way_between_processes(tmp_path: Path) -> None:
    job = ReferenceJob(world_size=2, options={"stage": 3}, run=Path("a"), outcome=Path("b"))
    for sent in (job, replace(job, run=None, outcome=None)):
        assert ReferenceJob.from_json(sent.to_json()) == sent
    said = ReferenceJobResult(losses=(1.5, 0.1), refused="no")
    said.write(tmp_path / "outcome")
    assert ReferenceJobResult.read(tmp_path / "outcome") == said
    assert ReferenceJobResult.read(tmp_path / "absent") == ReferenceJobResult()
