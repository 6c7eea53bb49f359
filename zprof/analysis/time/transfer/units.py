"""Sums collectives by the wrapped module that they belong to."""

import pandas as pd

from zprof.analysis.time.transfer.members import Steps
from zprof.analysis.time.transfer.texts import grouped
from zprof.model.time import UnitTime

_COLUMNS = ("rank", "bytes", "exposed_wait_ns", "exposed_transfer_ns")


def unit_times(frame: pd.DataFrame, steps: Steps) -> tuple[UnitTime, ...]:
    """One entry a unit, kind and group, the one with most exposed time first; rows without a unit are out."""
    named = frame[frame["unit"].notna()]
    entries = [
        _entry(unit, kind, group, rows, steps.over(group, rows))
        for (unit, kind, group), rows in grouped(named, ("unit", "kind", "group"), _COLUMNS)
        if unit
    ]
    return tuple(
        sorted(
            entries,
            key=lambda e: (-(e.exposed_wait_ns + e.exposed_transfer_ns), e.unit, e.kind, e.group),
        )
    )


def _entry(unit: str, kind: str, group: str, rows: pd.DataFrame, rank_steps: int) -> UnitTime:
    return UnitTime(
        unit=unit,
        kind=kind,
        group=group,
        count=len(rows) / rank_steps,
        bytes=int(rows["bytes"].sum()) // rank_steps,
        exposed_wait_ns=int(rows["exposed_wait_ns"].sum()) // rank_steps,
        exposed_transfer_ns=int(rows["exposed_transfer_ns"].sum()) // rank_steps,
    )
