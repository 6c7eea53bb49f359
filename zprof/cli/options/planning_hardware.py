"""Options that name the devices and links of a plan: a preset or a file, and what is changed of it."""

import argparse
from dataclasses import replace
from typing import Any

from zprof.cli.options.planning_units import duration, rate, size
from zprof.model.errors import BadInput
from zprof.model.planning.hardware import Hardware

#: Option, field of the hardware, its reader, what it takes, what it is.
_CHANGES = (
    ("device-memory", "memory_bytes", size, "SIZE", "of one device, as 32GB"),
    ("bandwidth", "node_bytes_per_s", rate, "RATE", "of all network cards of a node, one way, as 100GB/s"),
    ("latency", "inter_latency_ns", duration, "TIME", "of a hop between nodes, as 10us"),
    ("intra-bandwidth", "intra_bytes_per_s", rate, "RATE", "of collectives in a node, on the bus"),
    ("intra-latency", "intra_latency_ns", duration, "TIME", "of a hop in a node"),
)


def add_hardware_options(parser: argparse.ArgumentParser) -> None:
    """``--hardware``, and an option for each field that is changed often."""
    group = parser.add_argument_group(
        "the hardware", "without it there is no time, and nothing to fit into; docs/planner.md shows a file"
    )
    group.add_argument(
        "--hardware", metavar="NAME", help="v100, a100, a100-40gb, h100, h200, or the path of a .toml file"
    )
    for option, _, read, unit, what in _CHANGES:
        group.add_argument(f"--{option}", metavar=unit, type=read, help=what)


def stated_hardware(arguments: argparse.Namespace) -> Hardware | None:
    """The named hardware with what was said otherwise; None where none is named.

    Raises:
        BadInput: it cannot be found or read, or something of it is changed and none is named.
    """
    said: dict[str, Any] = {}
    for option, field, *_ in _CHANGES:
        value = getattr(arguments, option.replace("-", "_"))
        if value is not None:
            said[field] = value
    if arguments.hardware is None:
        if said:
            raise BadInput(
                "no hardware is named that could be changed", hint="add --hardware, as v100 or h100"
            )
        return None
    from zprof.planner.hardware.lookup import hardware_of

    found = hardware_of(arguments.hardware)
    return replace(found, name=f"{found.name}, changed", **said) if said else found
