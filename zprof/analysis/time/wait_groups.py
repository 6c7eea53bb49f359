"""Group the host's waits for its device (:mod:`zprof.analysis.time.device_waits`) by operator and kind."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Groups
from zprof.analysis.signal import Fact, make_fact
from zprof.analysis.time.device_waits import WaitKind
from zprof.analysis.time.host_time import has_device
from zprof.analysis.time.program_lines import locate_device_waits, locate_reads
from zprof.model.findings import SourceLocation
from zprof.model.formatting import format_ns

#: Groups of waits that are named, and their minimum share of the cost of all.
_MAX_GROUPS = 4
_MIN_GROUP_RATIO = 0.05


class WaitGroup(Struct, frozen=True, kw_only=True):
    """Waits of one operator and kind; means per rank and step. ``stalled_ns``: what they cost the device."""

    operator: str
    kind: WaitKind
    count: float
    wait_ns: float
    stalled_ns: float


def list_wait_groups(analysis: RunAnalysis, ranks: Sequence[int] = ()) -> list[WaitGroup]:
    """Return the waits for the device by operator and kind, the costliest first, without negligible ones.

    Args:
        analysis: The run.
        ranks: Its ranks; default: all.
    """
    rows, steps = analysis.waits, analysis.steps
    if ranks:
        rows, steps = (table.at(np.isin(table.ints("rank"), ranks)) for table in (rows, steps))
    if not len(rows) or not len(steps):
        return []
    operator, kind = rows.texts("operator"), rows.texts("kind")
    groups = Groups(operator, kind)
    wait_ns, stalled_ns = groups.sum(rows.ints("wait_ns")), groups.sum(rows.ints("stalled_ns"))
    order = np.lexsort((-wait_ns, -stalled_ns))
    order = order[stalled_ns[order] >= _MIN_GROUP_RATIO * stalled_ns.sum()][:_MAX_GROUPS]
    return [
        WaitGroup(
            operator=operator[int(groups.first[group])],
            kind=WaitKind(kind[int(groups.first[group])]),
            count=float(groups.sizes[group] / len(steps)),
            wait_ns=float(wait_ns[group] / len(steps)),
            stalled_ns=float(stalled_ns[group] / len(steps)),
        )
        for group in order
    ]


def make_wait_facts(groups: Sequence[WaitGroup]) -> list[Fact]:
    """Return two facts per group: how long the host waited, and what that cost its device."""
    return [
        fact
        for number, group in enumerate(groups, 1)
        for fact in (
            make_fact(
                "wait_{number}_host_blocked_per_step",
                group.wait_ns,
                number=number,
                operator=group.operator,
                kind=group.kind,
                count=f"{group.count:.3g}",
            ),
            make_fact("wait_{number}_stalled_per_step", group.stalled_ns, number=number),
        )
    ]


def locate_host_waits(analysis: RunAnalysis, ranks: Sequence[int] = ()) -> SourceLocation | None:
    """Return the line that waits most for the device, or on CPU ranks the one that reads a scalar."""
    locate = locate_device_waits if has_device(analysis) else locate_reads
    return locate(analysis.source, ranks)


def describe_longest_wait(analysis: RunAnalysis) -> str:
    """Return which call of which operator the longest wait is; empty if it is not known."""
    if not len(analysis.waits):
        return ""
    waits = analysis.waits
    longest = int(waits.ints("wait_ns").argmax())
    operator, kind = waits.texts("operator")[longest], waits.texts("kind")[longest]
    return f": {operator}, {kind}, {format_ns(int(waits.ints('wait_ns')[longest]))}"
