"""Limits on the command line: a flag a gate, ``--tenant NAME=LIMIT`` for the parts of the peak."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from zprof.model.errors import BadInput

if TYPE_CHECKING:
    from zprof.checks.config import Stated

_FLAGS = (
    ("peak_memory", "+2%%, exact, or 24 MiB: the highest peak of any rank"),
    ("untagged_ratio", "0.1%%: share of the peak that no tenant claims"),
    ("exposed_ratio", "10%%, or +3pt more than the baseline: share of a step"),
    ("overlap_ratio", "'>=0.7', or -5pt (write --overlap-ratio=-5pt)"),
    ("collective_bytes", "+0%%, or 500 MB: of a step and rank"),
    ("collective_count", "+0%%, or 48: of a step and rank"),
    ("collective_bytes_law", "'3 psi': bytes in units of the parameters"),
    ("step_time", "'+3%%@0.95': with an interval of that confidence"),
    ("exposed_wait", "+10%%: fails only where one rank is late in nearly all steps"),
)


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    """A flag a gate; ``off`` turns one off."""
    group = parser.add_argument_group(
        "limits", "stronger than those of zprof.toml, pyproject.toml and zprof itself; off turns one off"
    )
    for gate, help_text in _FLAGS:
        group.add_argument(_flag(gate), metavar="LIMIT", help=help_text)
    group.add_argument(
        "--tenant",
        metavar="NAME=LIMIT",
        action="append",
        default=[],
        help="activations=+0%%: a part of the peak; may be repeated",
    )


def stated_limits(arguments: argparse.Namespace) -> "list[Stated]":
    """What was said, in the order of the flags; of a part said twice the last counts.

    Raises:
        BadInput: a ``--tenant`` without a name or a limit.
    """
    return [*_of_gates(arguments), *map(_of_tenant, arguments.tenant)]


def _of_gates(arguments: argparse.Namespace) -> "Iterator[Stated]":
    from zprof.checks.config import Stated

    for gate, _ in _FLAGS:
        said: str | None = getattr(arguments, gate)
        if said is not None:
            yield Stated(gate=gate, said=said, origin=_flag(gate), place=_flag(gate))


def _of_tenant(said: str) -> "Stated":
    from zprof.checks.config import Stated
    from zprof.checks.limits_gates import MEMORY_PARTS, PEAK_MEMORY, nearest
    from zprof.checks.limits_text import quoted

    name, _, limit = (part.strip() for part in said.partition("="))
    name = name.replace("-", "_")
    if not name or not limit:
        raise BadInput(f"--tenant: {quoted(said)} is no tenant with a limit", hint="--tenant activations=+0%")
    if name not in MEMORY_PARTS:
        raise BadInput(f"--tenant: there is no tenant {quoted(name)}", hint=nearest(name, MEMORY_PARTS))
    origin = f"--tenant {name}"
    return Stated(gate=f"{PEAK_MEMORY}.{name}", said=limit, origin=origin, place=origin)


def _flag(gate: str) -> str:
    return f"--{gate.replace('_', '-')}"
