"""Hand-made runs of given messages: so many a step, of such a size and time, so much of which shows."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tests.support.analyses import Scenario, analysis_of
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, OptionalInts
from zprof.model.collectives import CollectiveKind

US = 1_000
MS = 1_000_000
STEPS = 4


class Sent(Struct, frozen=True, kw_only=True):
    """Messages of one kind in every step.  ``shows``: share of each transfer that is exposed."""

    kind: CollectiveKind
    count: int
    bytes: int
    each_ns: int
    shows: float = 1.0
    shows_first: float | None = None
    units: Sequence[str] = ()
    group: str = "0,1"
    begins_ns: int = 0
    dtype: str = ""


def gathers(count: int, size: int, each_ns: int, **more: object) -> Sent:
    return Sent(kind=CollectiveKind.ALL_GATHER, count=count, bytes=size, each_ns=each_ns, **more)  # type: ignore[arg-type]


def reduces(count: int, size: int, each_ns: int, **more: object) -> Sent:
    kind, later = CollectiveKind.REDUCE_SCATTER, {"begins_ns": 400 * MS, **more}
    return Sent(kind=kind, count=count, bytes=size, each_ns=each_ns, **later)  # type: ignore[arg-type]


def norm(each_ns: int, group: str = "0,1") -> Sent:
    """One element, over the group: what tells its latency."""
    kind = CollectiveKind.ALL_REDUCE
    return Sent(kind=kind, count=1, bytes=4, each_ns=each_ns, shows=0.0, begins_ns=800 * MS, group=group)


def link_run(
    *sent: Sent, wall_ns: int = 100 * MS, compute_ns: int = 60 * MS, device: str = "cuda", idle_ns: int = 0
) -> RunAnalysis:
    """The analysis of a run that sends these messages; ranks are those of the groups."""
    base = _base()
    rows = [row for number, one in enumerate(sent) for row in _rows(one, number)]
    unknown = OptionalInts.of([None] * len(rows))
    table = Columns.from_rows(rows, rows[0]).with_columns(wait_start_ns=unknown, wait_end_ns=unknown)
    ranks = np.unique(table.ints("rank")).tolist()
    steps = [
        {"rank": rank, "step": step, "wall_ns": wall_ns, "compute_ns": compute_ns, "idle_ns": idle_ns}
        for rank in ranks
        for step in range(STEPS)
    ]
    return replace(
        base,
        run=replace(
            base.run, device=device, world_size=len(ranks), backend="gloo" if device == "cpu" else "nccl"
        ),
        collectives=table.sort_by("rank", "step", "start_ns").renumber(),
        steps=Columns.from_rows(steps, steps[0]),
    )


@cache
def _base() -> RunAnalysis:
    return analysis_of(Scenario(steps=2, units=2))


def on_hosts(analysis: RunAnalysis, *hosts: str) -> RunAnalysis:
    """Its ranks on these hosts."""
    return replace(analysis, hosts=dict(enumerate(hosts)))


def _rows(sent: Sent, number: int) -> list[dict[str, object]]:
    ranks = [int(rank) for rank in sent.group.split(",")]
    found: list[dict[str, object]] = []
    for step in range(STEPS):
        for index in range(sent.count):
            start = step * 1_000 * MS + sent.begins_ns + index * (sent.each_ns + 1)
            shows = sent.shows if index or sent.shows_first is None else sent.shows_first
            found += [
                {
                    "rank": rank, "step": step, "kind": sent.kind.value, "group": sent.group,
                    "dtype": sent.dtype, "group_size": len(ranks),
                    "instance": (number * STEPS + step) * 1_000 + index,
                    "bytes": sent.bytes, "unit": sent.units[index % len(sent.units)] if sent.units else None,
                    "start_ns": start, "end_ns": start + sent.each_ns, "transfer_ns": sent.each_ns,
                    "exposed_transfer_ns": round(shows * sent.each_ns), "exposed_wait_ns": 0,
                    "launch_start_ns": start, "launch_end_ns": start + 20 * US, "matched": True,
                    "first_of_window": False,
                }
                for rank in ranks
            ]  # fmt: skip
    return found
