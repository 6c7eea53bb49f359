"""What the user says of a trace's program stands in the place of what its file cannot say."""

import argparse

import pytest

from zprof.cli.shared_options import add_stated_facts, add_stated_work, add_training_options, add_work_options
from zprof.model.training import TrainingFacts


def facts(words: str, known: TrainingFacts | None = None, world_size: int = 8) -> TrainingFacts:
    parser = argparse.ArgumentParser()
    add_training_options(parser)
    return add_stated_facts(parser.parse_args(words.split()), known or TrainingFacts(), world_size)


def test_what_is_said_is_taken() -> None:
    found = facts("--stage 3 --parameters 1.5e9 --wire-bytes 2 --reduce-bytes 4 --micro-batches 2")
    assert (found.stage, found.parameters, found.shard_ranks) == (3, 1_500_000_000, 8)
    assert (found.communication_bytes, found.reduction_bytes, found.micro_batches) == (2, 4, 2)


def test_what_is_not_said_stays_as_it_was_known() -> None:
    known = TrainingFacts(stage=2, parameters=10, shard_ranks=4, engine="ddp")
    assert facts("", known) == known
    assert facts("--stage 3", known) == TrainingFacts(stage=3, parameters=10, shard_ranks=4, engine="ddp")
    assert facts("--shard-ranks 2").shard_ranks == 2


def test_nothing_said_and_nothing_known_is_no_fact() -> None:
    assert facts("") == TrainingFacts()


def test_the_work_of_both_runs_is_taken() -> None:
    parser = argparse.ArgumentParser()
    add_work_options(parser)
    known = TrainingFacts(stage=2, tokens_per_step=7)
    said = parser.parse_args(["--tokens-per-step", "4e6", "--baseline-tokens-per-step", "512"])
    assert add_stated_work(said.tokens_per_step, known) == TrainingFacts(stage=2, tokens_per_step=4_000_000)
    assert add_stated_work(said.baseline_tokens_per_step, known).tokens_per_step == 512
    assert add_stated_work(None, known) == known


@pytest.mark.parametrize(
    "words", ["--stage 4", "--parameters many", "--parameters 0", "--parameters inf", "--wire-bytes 0"]
)
def test_what_is_no_such_number_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        facts(words)
    assert "error" in capsys.readouterr().err
