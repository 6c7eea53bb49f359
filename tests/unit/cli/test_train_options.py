"""``zprof train``: how many ranks run, where the run goes, what is handed to the ranks and comes back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zprof.cli import main, train
from zprof.integrations import reference_job
from zprof.integrations.reference_job import Outcome, ReferenceJob


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ReferenceJob]:
    """Jobs instead of ranks; every run ends well."""
    started: list[ReferenceJob] = []

    def run(job: ReferenceJob, **named: Any) -> tuple[float, ...]:
        started.append(job)
        return (3.0, 2.0)

    monkeypatch.setattr(reference_job, "train_reference", run)
    monkeypatch.setattr(train, "_check_recorded", lambda path, ranks: None)
    monkeypatch.chdir(tmp_path)
    return started


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("", 2),
        ("--dp 4", 4),
        ("--mp 2", 2),
        ("--mp 4", 4),
        ("--dp 2 --mp 2", 4),
        ("--ranks 4 --mp 2", 4),
        ("--ranks 1", 1),
    ],
)
def test_ranks_follow_from_the_mesh(jobs: list[ReferenceJob], line: str, ranks: int) -> None:
    assert main(["train", *line.split()]) == 0
    assert jobs[0].world_size == ranks


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--ranks 3 --dp 2", "dp 2 x mp 1 makes 2 ranks; there are 3"),
        ("--plant stragler", "near: straggler_rank"),
        ("--plant straggler_rank --ranks 1", "straggler_rank is 1"),
        ("--batch 6 --accumulate 2", "x 2 micro-batches"),
    ],
)
def test_what_cannot_run_is_refused_before_a_rank_starts(
    jobs: list[ReferenceJob], capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    assert main(["train", *line.split()]) == 2
    assert words in capsys.readouterr().err
    assert jobs == []


def test_only_what_was_asked_for_goes_to_the_ranks(jobs: list[ReferenceJob]) -> None:
    assert main(["train", "--plant", "no_prefetch", "--time-steps", "3", "--stage", "3"]) == 0
    (job,) = jobs
    assert job.options == {"plant": "no_prefetch", "stage": 3, "steps": 7}
    assert job.run == Path("no_prefetch.zprof")
    assert main(["train", "--steps", "5"]) == 0
    assert (jobs[1].options, jobs[1].run) == ({"steps": 5}, Path("train.zprof"))


def test_losses_are_data_and_the_rest_is_not(
    jobs: list[ReferenceJob], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "loss 3.000000 -> 2.000000 in 2 steps\n"
    assert "zprof diagnose train.zprof" in printed.err


def test_plants_are_listed_without_a_run(
    jobs: list[ReferenceJob], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--plant", "list"]) == 0
    assert "rotating_straggler " in capsys.readouterr().out
    assert jobs == []


def test_a_job_and_its_outcome_survive_the_way_between_processes(tmp_path: Path) -> None:
    job = ReferenceJob(world_size=2, options={"stage": 3}, run=Path("a"), outcome=Path("b"))
    assert ReferenceJob.from_json(job.to_json()) == job
    bare = replace(job, run=None, outcome=None)
    assert ReferenceJob.from_json(bare.to_json()) == bare
    said = Outcome(losses=(1.5, 0.1), refused="no")
    said.write(tmp_path / "outcome")
    assert Outcome.read(tmp_path / "outcome") == said
    assert Outcome.read(tmp_path / "absent") == Outcome()
