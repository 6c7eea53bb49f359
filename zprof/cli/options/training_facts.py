"""Options that say what a trace cannot: how its program was sharded, and how large the model is."""

import argparse
from dataclasses import replace
from typing import Any

from zprof.cli.options.numbers import count, elements
from zprof.model.training import TrainingFacts


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """The facts that the law of volume needs."""
    group = parser.add_argument_group(
        "what a trace cannot say", "with it the bytes of a step are held against the law of the stage"
    )
    group.add_argument("--stage", type=int, choices=range(4), help="ZeRO stage: 0 is DDP, 3 is FSDP2")
    group.add_argument("--parameters", metavar="N", type=elements, help="elements of the model, as 7e9")
    group.add_argument("--shard-ranks", metavar="N", type=count, help="ranks that share the states (all)")
    group.add_argument("--wire-bytes", metavar="N", type=count, help="bytes of an element that is gathered")
    group.add_argument(
        "--reduce-bytes", metavar="N", type=count, help="bytes of a gradient that is reduced (the same)"
    )
    group.add_argument("--micro-batches", metavar="N", type=count, help="forward passes of a step (1)")


def add_work_options(
    parser: argparse.ArgumentParser, names: tuple[str, str] = ("RUN", "its baseline")
) -> None:
    """How much a step works off: where two runs differ in it, they are compared at equal work."""
    group = parser.add_argument_group(
        "the work of a step", "of all ranks and micro-batches together; runs that differ are held to the same"
    )
    for prefix, run in zip(("", "baseline-"), names, strict=True):
        group.add_argument(
            f"--{prefix}tokens-per-step", metavar="N", type=elements, help=f"tokens of a step of {run}"
        )


def stated(arguments: argparse.Namespace, known: TrainingFacts, world_size: int) -> TrainingFacts:
    """``known`` with what was said on the command line."""
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


def stated_work(tokens_per_step: int | None, known: TrainingFacts) -> TrainingFacts:
    """``known`` with the tokens of a step as they were said on the command line, if they were."""
    return known if tokens_per_step is None else replace(known, tokens_per_step=tokens_per_step)
