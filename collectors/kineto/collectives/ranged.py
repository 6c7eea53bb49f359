"""Collectives whose duration an engine states itself, in ``::comm`` ranges (method "range")."""

from collections.abc import Sequence

from zprof.collectors.kineto.collectives.groups import GroupNames
from zprof.collectors.kineto.collectives.rows import CollectiveRow
from zprof.collectors.kineto.collectives.spans import RangeSpan, by_identity, identity
from zprof.model.gaps import Gap
from zprof.run.ranges import RangeVerb

METHOD = "range"


def ranged_rows(spans: Sequence[RangeSpan], groups: GroupNames) -> tuple[list[CollectiveRow], list[Gap]]:
    """A row for each ``::comm`` range; size and type may stand in the launch instead."""
    launches = by_identity(spans, RangeVerb.LAUNCH)
    rows, unclear = [], 0
    for span in spans:
        if span.range.verb is not RangeVerb.COMM:
            continue
        key = identity(span.range)
        launch = launches.get(key) if key is not None else None
        size = span.range.bytes if span.range.bytes is not None or launch is None else launch.range.bytes
        if key is None or size is None:
            unclear += 1
            continue
        name, group_size = groups.resolve(key[0])
        rows.append(
            CollectiveRow(
                kind=key[2],
                group=name,
                group_size=group_size,
                sequence=key[1],
                dtype=span.range.dtype or (launch.range.dtype if launch else None) or "unknown",
                bytes=size,
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                unit=span.range.unit or (launch.range.unit if launch else None),
                method=METHOD,
            )
        )
    return rows, _gap(unclear)


def _gap(unclear: int) -> list[Gap]:
    if not unclear:
        return []
    return [
        Gap(
            what="ranges of collectives",
            reason=f"{unclear} ::comm ranges do not say kind, pg, seq and bytes",
            remedy="write them as docs/recording.md says",
        )
    ]
