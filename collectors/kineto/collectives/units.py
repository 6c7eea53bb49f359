"""Which wrapped module, or which phase, launched a collective: the innermost annotation that says it.

One table, ``UNITS``; another engine is one more row.  Engines that write zprof's own ranges name the unit
there.
"""

import re
from dataclasses import dataclass

import numpy as np

from zprof.collectors.kineto.collectives.finding import Enclosing, rows_of
from zprof.collectors.kineto.columns import Int64s, Trace
from zprof.run.ranges import parse_range

_LONGEST = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitName:
    """How one engine names its units: ``unit`` is a template over the groups of ``pattern``."""

    pattern: str
    unit: str


#: FSDP2 writes ``FSDP::all_gather (blocks.0) [pg=8]``; the model itself has no name, and so no brackets.
UNITS = (
    UnitName(pattern=r"FSDP::\w+ \((.+)\)( \[pg=\d+\])?", unit=r"\1\2"),
    UnitName(pattern=r"FSDP::\w+_prefetch for (.+)", unit=r"\1"),
    UnitName(
        pattern=r"FSDP::(?:(?:all_gather|pre|post)\w*|\w+_prefetch for )(?: \(\))?( \[pg=\d+\])?",
        unit=r"root\1",
    ),
    UnitName(pattern=r"FSDP::(\w+)", unit=r"FSDP.\1"),
    UnitName(pattern=r"FullyShardedDataParallel\._?(\w+)", unit=r"FSDP.\1"),
    UnitName(pattern=r"DistributedDataParallel\._?(\w+)", unit=r"DDP.\1"),
)
_COMPILED = tuple((re.compile(row.pattern, re.ASCII), row.unit) for row in UNITS)


def unit_of(annotation: str) -> str | None:
    """The unit that an annotation names, or None where it names none."""
    if len(annotation) > _LONGEST:
        return None
    for pattern, unit in _COMPILED:
        found = pattern.fullmatch(annotation)
        if found is not None:
            return found.expand(unit)
    stated = parse_range(annotation)
    return stated.unit if stated is not None else None


def units_at(trace: Trace, threads: Int64s, times_ns: Int64s) -> list[str | None]:
    """The unit in which each of some threads was at an instant."""
    found = rows_of(trace, ("user_annotation", "cpu_op"), lambda name: unit_of(name) is not None)
    rows = Enclosing(trace, found).at(threads, times_ns) if len(found) else np.full(len(threads), -1)
    return [unit_of(trace.name[row]) if row >= 0 else None for row in rows.tolist()]
