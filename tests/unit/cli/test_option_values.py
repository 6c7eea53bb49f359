"""Quantities with units and facts that the user states: read exactly, or refused with an example."""

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.command_calls import Call
from zprof.base.errors import BadInput
from zprof.base.parsing import parse_duration, parse_factor, parse_parameter_count, parse_rate, parse_size
from zprof.cli.parser import Parser, build_parser
from zprof.cli.registry import COMMANDS
from zprof.cli.shared_options import add_stated_facts, add_stated_work, add_training_options, add_work_options
from zprof.model.layout import ComputePrecision, OptimizerKind
from zprof.model.training import TrainingFacts
from zprof.planner.request import choose_element_bytes

Read = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (parse_size, "32GB", 32 * 10**9),
        (parse_size, "40GiB", 40 * 2**30),
        (parse_size, "0.5 TB", 5 * 10**11),
        (parse_size, "1e3MB", 10**9),
        (parse_rate, "100GB/s", 100e9),
        (parse_rate, "800Gbit/s", 100e9),
        (parse_rate, "1GiB/s", 2.0**30),
        (parse_duration, "10us", 10_000),
        (parse_duration, "10µs", 10_000),
        (parse_duration, "0.5ms", 500_000),
        (parse_parameter_count, "7.5e9", 7_500_000_000),
        (parse_parameter_count, "7.642B", 7_642_000_000),
        (parse_parameter_count, "1T", 10**12),
        (parse_parameter_count, "12", 12),
        (parse_parameter_count, 7.5e9, 7_500_000_000),
        (parse_size, 32e9, 32 * 10**9),
        (parse_duration, 10_000, 10_000),
        (parse_factor, "x0.5", 0.5),
    ],
)
def test_a_quantity_is_read_exactly(read: Read, text: float | str, value: float) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (parse_size, "32|32gb|GB|-1GB|0GB|1e99GB|32GB/s|nan|infGB||" + "9" * 10_000),
        (parse_rate, "100|100GB|100Gb/s|0GB/s|1GB/s/s|x2"),
        (parse_duration, "10|10u|0us|10 seconds|1e20s"),
        (parse_parameter_count, "seven|7.5b|0|-1|1e18|1e9x|٣"),
        (parse_factor, "2|x0|x|x-1|2x|x1e9|xnan|50%"),
    ],
)
def test_what_is_no_quantity_is_refused_with_an_example(read: Read, texts: str) -> None:
    for text in texts.split("|"):
        with pytest.raises(BadInput, match="such as") as refused:
            read(text)
        assert len(str(refused.value)) < 120


@pytest.mark.parametrize("number", [0, -1, 1e18, float("nan"), float("inf"), True, 1j, None])
@pytest.mark.parametrize("read", [parse_size, parse_rate, parse_duration, parse_parameter_count])
def test_a_number_that_is_no_quantity_is_refused_with_an_example(read: Read, number: object) -> None:
    with pytest.raises(BadInput, match="such as"):
        read(number)


@pytest.mark.parametrize(
    ("precision", "optimizer", "states", "copy"),
    [("bf16", "adam", 16, 4), ("fp32", "adam", 16, 0), ("fp16", "momentum", 12, 4), ("fp32", "sgd", 8, 0)],
)
def test_bytes_of_a_parameter(
    precision: ComputePrecision, optimizer: OptimizerKind, states: int, copy: int
) -> None:
    """arXiv 1910.02054, section 3.1: 2 + 2 + 12 for Adam; fp32 master weights where there are 16 bits."""
    made = choose_element_bytes(precision, optimizer)
    assert made.parameter + made.gradient + made.optimizer_state == states
    assert made.gradient_copy == copy
    assert made.gathered == made.reduced == made.parameter


def facts(words: str, known: TrainingFacts | None = None) -> TrainingFacts:
    parser = Parser()
    add_training_options(parser)
    return add_stated_facts(parser.parse_args(words.split()), known or TrainingFacts(), 8)


def test_stated_facts_replace_what_the_file_says() -> None:
    found = facts("--stage 3 --parameters 1.5e9 --wire-bytes 2 --reduce-bytes 4 --micro-batches 2")
    assert (found.stage, found.parameters, found.shard_ranks) == (3, 1_500_000_000, 8)
    assert (found.communication_bytes, found.reduction_bytes, found.micro_batches) == (2, 4, 2)
    known = TrainingFacts(stage=2, parameters=10, shard_ranks=4, engine="ddp")
    assert facts("", known) == known
    assert facts("--stage 3", known) == TrainingFacts(stage=3, parameters=10, shard_ranks=4, engine="ddp")
    assert facts("--shard-ranks 2").shard_ranks == 2
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
def test_what_is_no_such_number_is_refused(words: str) -> None:
    with pytest.raises(BadInput, match=words.split()[0]):
        facts(words)


def list_arguments() -> list[tuple[str, argparse.Action]]:
    """Return each argument of each command that takes a text or a path, with the words before it."""
    found = []
    for entry in COMMANDS:
        parser, _ = build_parser([entry.name])
        children = next(action for action in parser._actions if action.dest == "command").choices
        pending = [(entry.name, children[entry.name])]  # type: ignore[index]
        while pending:
            words, child = pending.pop()
            for action in child._actions:
                if isinstance(action, argparse._SubParsersAction):
                    pending += [(f"{words} {name}", each) for name, each in action.choices.items()]
                elif action.nargs not in (0, argparse.REMAINDER):
                    found.append((words, action))
    return found


ARGUMENTS = list_arguments()


@pytest.mark.parametrize(("words", "action"), ARGUMENTS, ids=[f"{words} {a.dest}" for words, a in ARGUMENTS])
def test_an_empty_value_is_refused(words: str, action: argparse.Action, call: Call) -> None:
    """An unset variable in a script: ``Path("")`` is the current folder."""
    name = [action.option_strings[-1]] if action.option_strings else []
    code, out, err = call(*words.split(), *name, "")
    assert (code, out, err.count("\n")) == (2, "", 1), err
