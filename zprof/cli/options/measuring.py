"""``--window`` and ``--expected-busbw``: what of a run is measured, and what its link is held against."""

import argparse
from typing import TYPE_CHECKING, TypedDict

from zprof.cli.options.numbers import positive

if TYPE_CHECKING:
    from zprof.model.time import WindowPolicy

_BYTES_PER_GB = 1e9


class Measuring(TypedDict):
    """Arguments of ``diagnose`` and its neighbours."""

    expected_bus_bytes_per_s: float | None
    policy: "WindowPolicy"


def add_measuring_options(parser: argparse.ArgumentParser, of: str = "the recording") -> None:
    """The two options; ``of`` names what is measured whole where steps are not asked for."""
    parser.add_argument(
        "--window",
        choices=("step", "trace"),
        default="step",
        help=f"measure the steps, or all of {of} as one stretch (default: step)",
    )
    parser.add_argument(
        "--expected-busbw",
        metavar="GB_PER_S",
        type=positive,
        help="bus bandwidth that large messages should reach, in 1e9 bytes a second",
    )


def measuring(arguments: argparse.Namespace) -> Measuring:
    """What was said."""
    from zprof.model.time import WindowPolicy

    expected: float | None = arguments.expected_busbw
    return {
        "expected_bus_bytes_per_s": None if expected is None else expected * _BYTES_PER_GB,
        "policy": WindowPolicy(arguments.window),
    }
