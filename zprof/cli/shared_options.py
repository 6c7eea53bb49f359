"""Declare and read options that several commands share: measuring, and training facts that a trace lacks."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

from zprof.cli.quantities import parse_count, parse_elements, parse_positive
from zprof.model.training import TrainingFacts

if TYPE_CHECKING:
    from zprof.model.time import WindowPolicy


_BYTES_PER_GB = 1e9


class MeasuringOptions(TypedDict):
    """Arguments of ``diagnose`` and related functions."""

    expected_bus_bytes_per_s: float | None
    policy: "WindowPolicy"


def add_measuring_options(parser: argparse.ArgumentParser, of: str = "the recording") -> None:
    """Declare the two measuring options; ``of`` names what is measured as a whole with ``--window trace``."""
    parser.add_argument(
        "--window",
        choices=("step", "trace"),
        default="step",
        help=f"measure the steps, or all of {of} as one stretch (default: step)",
    )
    parser.add_argument(
        "--expected-busbw",
        metavar="GB_PER_S",
        type=parse_positive,
        help="bus bandwidth that large messages should reach, in 1e9 bytes a second",
    )


def read_measuring_options(arguments: argparse.Namespace) -> MeasuringOptions:
    """Return the measuring options as arguments of ``diagnose``."""
    from zprof.model.time import WindowPolicy

    expected: float | None = arguments.expected_busbw
    return {
        "expected_bus_bytes_per_s": None if expected is None else expected * _BYTES_PER_GB,
        "policy": WindowPolicy(arguments.window),
    }


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Declare the training facts that the ZeRO volume formula needs."""
    group = parser.add_argument_group(
        "what a trace cannot say",
        "with it the bytes of a step are checked against the ZeRO formula of the stage",
    )
    group.add_argument("--stage", type=int, choices=range(4), help="ZeRO stage: 0 is DDP, 3 is FSDP2")
    group.add_argument("--parameters", metavar="N", type=parse_elements, help="elements of the model, as 7e9")
    group.add_argument(
        "--shard-ranks", metavar="N", type=parse_count, help="ranks that share the states (all)"
    )
    group.add_argument(
        "--wire-bytes", metavar="N", type=parse_count, help="bytes of an element that is gathered"
    )
    group.add_argument(
        "--reduce-bytes", metavar="N", type=parse_count, help="bytes of a gradient that is reduced (the same)"
    )
    group.add_argument("--micro-batches", metavar="N", type=parse_count, help="forward passes of a step (1)")


def add_work_options(
    parser: argparse.ArgumentParser, names: tuple[str, str] = ("RUN", "its baseline")
) -> None:
    """Declare the tokens per step; two runs that differ in them are compared at equal work."""
    group = parser.add_argument_group(
        "the work of a step", "of all ranks and micro-batches together; runs that differ are held to the same"
    )
    for prefix, run in zip(("", "baseline-"), names, strict=True):
        group.add_argument(
            f"--{prefix}tokens-per-step", metavar="N", type=parse_elements, help=f"tokens of a step of {run}"
        )


def add_stated_facts(arguments: argparse.Namespace, known: TrainingFacts, world_size: int) -> TrainingFacts:
    """Return ``known`` with the facts of the command line."""
    said: dict[str, Any] = {
        "stage": arguments.stage,
        "parameters": arguments.parameters,
        "shard_ranks": arguments.shard_ranks,
        "communication_bytes": arguments.wire_bytes,
        "reduction_bytes": arguments.reduce_bytes,
        "micro_batches": arguments.micro_batches,
    }
    said = {name: value for name, value in said.items() if value is not None}
    if said and known.shard_ranks is None:
        said.setdefault("shard_ranks", world_size)
    return replace(known, **said)


def add_stated_work(tokens_per_step: int | None, known: TrainingFacts) -> TrainingFacts:
    """Return ``known`` with the tokens per step of the command line, if given."""
    return known if tokens_per_step is None else replace(known, tokens_per_step=tokens_per_step)
