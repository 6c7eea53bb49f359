"""The command line of the training program, and how it becomes a config.

What is not given is not in the parsed options: so a config knows what was asked for, a plant what it may not
replace, and the defaults stand in one place, the config.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from zprof.reference_engine.program import plants
from zprof.reference_engine.program.option_table import GROUPS
from zprof.reference_engine.program.plant import Plant
from zprof.reference_engine.program.train_config import TrainConfig, with_fields


class _ListPlants(argparse.Action):
    """``--plant list`` prints the plants and ends, like --help; another value is kept."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if values == "list":
            sys.stdout.write(plants.listing())
            parser.exit()
        setattr(namespace, self.dest, values)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All options of a training run."""
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for option in options:
            if not option.excludes:
                option.add(group)
        if any(option.excludes for option in options):
            one_of = group.add_mutually_exclusive_group()
            for option in options:
                if option.excludes:
                    option.add(one_of)
    group = parser.add_argument_group("planted causes")
    group.add_argument(
        "--plant",
        metavar="CAUSE",
        action=_ListPlants,
        default=argparse.SUPPRESS,
        help="a run with a known cause of slowness or memory; options beside it stay, what contradicts it is "
        "refused; 'list' shows all",
    )
    group.add_argument(
        "--cured",
        action="store_true",
        default=argparse.SUPPRESS,
        help="with --plant: the same run without its cause, to compare with",
    )


def config_from(options: argparse.Namespace) -> TrainConfig:
    """The run that was asked for.

    Raises:
        ValueError: a setting is out of range or lacks the one that it belongs to, or contradicts the plant;
            the message names it.
    """
    given = vars(options)
    asked: dict[str, Any] = {}
    for option in (option for group in GROUPS.values() for option in group if option.dest in given):
        asked.update(option.fields_of(given[option.dest]))
    plant = plants.plant_of(given["plant"]) if given.get("plant") else None
    base = {} if plant is None else plant.base
    _check_pairs({**base, **asked}, rotates=plant is not None and "compute.straggler_rotates" in plant.change)
    config = _planted(plant, asked, cured=bool(given.get("cured")))
    if config.zero.defragment and config.activations.checkpoint:
        return with_fields(config, {"activations.contiguous": True})
    return config


def _planted(plant: Plant | None, asked: dict[str, Any], *, cured: bool) -> TrainConfig:
    if plant is None and cured:
        raise ValueError("--cured needs --plant: it says of which cause")
    if plant is None:
        return with_fields(TrainConfig(), asked)
    return plant.cured(TrainConfig(), asked) if cured else plant.apply(TrainConfig(), asked)


def _check_pairs(fields: dict[str, Any], *, rotates: bool) -> None:
    if "link.latency_s" in fields and "link.bandwidth_bytes_per_s" not in fields:
        raise ValueError("--link-latency-us needs --link-gbps")
    rank, delay = ("compute.straggler_rank" in fields, "compute.straggler_s" in fields)
    if rank != delay and not rotates:
        raise ValueError("--straggler-rank and --straggler-ms belong together")
