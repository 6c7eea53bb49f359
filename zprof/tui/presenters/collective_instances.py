"""The worst single collectives of one kind, group and element type: one row per rank and collective."""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.collective_rows import Mask, encode_texts
from zprof.model.time import CollectiveTime, LateReason
from zprof.reports.presenters.time_figures import is_unknown_size
from zprof.tui.figures import AT_LEAST, AT_MOST, EXACT, Bound, Figure, Unit
from zprof.tui.presenters.communication import format_group_and_type
from zprof.tui.session import LoadedRun
from zprof.tui.tables import Cell, Column, Line, Table, TextCell

MAX_INSTANCES = 200


def build_instances_table(loaded: LoadedRun, at: int) -> Table:
    """Return the instances of the collective at an index of the report, most exposed first.

    Their numbers have no report leaves.
    """
    entry = loaded.report.time.collectives[at]
    rows = select_rows(loaded.analysis, entry)
    worst = pick_worst_rows(rows, MAX_INSTANCES)
    begins = _find_step_starts(loaded.analysis)
    return Table(
        name="instances",
        title=f"{entry.kind}, {format_group_and_type(entry)}",
        columns=_COLUMNS,
        lines=tuple(
            Line(key=str(place), cells=_cells(row, begins))
            for place, row in enumerate(worst.to_dict("records"))
        ),
        help=_HELP,
        note=f"{len(worst)} of {len(rows)}, most exposed first; {_format_matched(rows)}; ? why late",
    )


_HELP = (
    "One row a rank and collective: what runs once per step on 2 ranks has 2 rows per step. Wait: until the "
    "last rank of the group came; transfer: from then on; exposed: what of both the rank stood still "
    "for.\nlast: the rank that came last; tied: all came within the clock uncertainty; unknown: not all "
    "ranks were matched.\nwhy late: what that rank did longer than the others before: compute, host "
    "(Python, launches), collective before (it came late out of that one), copies, allocator, sync, data; "
    "profiler start: the first of the window, which says nothing; blank: nobody was late, or what it did is "
    "unknown.\nWhere not all ranks are matched a wait is at least, a transfer at most what is shown."
)
#: Reasons whose display text differs from their name.
_REASONS: Mapping[str, str] = {
    LateReason.PREVIOUS_COLLECTIVE: "collective before",
    LateReason.MEMCPY: "copies",
    LateReason.UNKNOWN: "",
}
_COLUMNS = (
    Column(title="rank", numeric=True),
    Column(title="step", numeric=True),
    Column(title="unit", says="the wrapped module"),
    Column(title="exposed", says="in ms", numeric=True),
    Column(title="wait", says="in ms, hidden or not", numeric=True),
    Column(title="transfer", says="in ms, hidden or not", numeric=True),
    Column(title="last", says="the rank that came last"),
    Column(title="why late", says="what the last rank did longer than the others before; blank: unknown"),
    Column(title="began on", says="the rank where the delay began", from_width=100),
    Column(title="at", says="its start, in ms after the begin of the step", numeric=True, from_width=100),
    Column(title="bytes", says="of the full tensor", numeric=True, from_width=110),
    Column(title="launch delay", says="from launch to start", numeric=True, from_width=125),
    Column(title="matched", says="whether the rows of all ranks were found", from_width=140),
)


def select_rows(analysis: RunAnalysis, entry: CollectiveTime) -> pd.DataFrame:
    """Return all rows of a kind, group and element type."""
    frame = analysis.collectives
    wanted: Mask = np.ones(len(frame), dtype=bool)
    for name, text in (("kind", entry.kind), ("group", entry.group), ("dtype", entry.dtype)):
        wanted &= equals_text(frame[name], text)
    return frame[wanted]


def equals_text(column: "pd.Series[str]", text: str) -> Mask:
    """Return a mask of the rows that equal a text, for a column with few distinct texts."""
    codes, texts = encode_texts(column)
    found: Mask = codes == (texts.index(text) if text in texts else -1)
    return found


def pick_worst_rows(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return the `most` rows with most exposed time, then longest, with a column ``exposed_ns``."""
    exposed = rows["exposed_wait_ns"].to_numpy(np.int64) + rows["exposed_transfer_ns"].to_numpy(np.int64)
    length = rows["end_ns"].to_numpy(np.int64) - rows["start_ns"].to_numpy(np.int64)
    order = np.lexsort((-length, -exposed))[:most]
    return rows.iloc[order].assign(exposed_ns=exposed[order])


def _find_step_starts(analysis: RunAnalysis) -> dict[tuple[int, int], int]:
    """Return the start of each step by (rank, step), on the common clock."""
    return {
        (track.rank, int(step)): int(begin)
        for track in analysis.tracks
        for step, begin in zip(track.steps.number, track.steps.begin_ns, strict=True)
    }


def _cells(row: Mapping[Hashable, Any], begins: Mapping[tuple[int, int], int]) -> tuple[Cell, ...]:
    rank, step = _to_int(row["rank"]), _to_int(row["step"])
    begin, start = begins.get((rank, step)), _to_int(row["start_ns"])
    bound = bool(row["bound"])
    size = _to_int(row["bytes"])
    return (
        _make_figure(rank, Unit.COUNT),
        _make_figure(step, Unit.COUNT),
        TextCell(_to_text(row["unit"])),
        _make_figure(row["exposed_ns"], Unit.MS),
        _make_figure(row["wait_ns"], Unit.MS, AT_LEAST if bound else EXACT),
        _make_figure(row["transfer_ns"], Unit.MS, AT_MOST if bound else EXACT),
        TextCell(_format_last_rank(row)),
        TextCell(_format_late_reason(row)),
        TextCell("" if _to_int(row["origin_rank"]) < 0 else str(row["origin_rank"])),
        _make_figure(None if begin is None else start - begin, Unit.MS),
        _make_figure(None if is_unknown_size(_to_text(row["kind"]), size) else size, Unit.BYTES),
        _make_figure(
            None if pd.isna(row["launch_start_ns"]) else start - _to_int(row["launch_start_ns"]), Unit.NS
        ),
        TextCell("yes" if row["matched"] else "no"),
    )


def _make_figure(value: Any, unit: Unit, sign: str = EXACT) -> Figure:
    number = None if value is None else float(_to_int(value))
    if sign:
        return Bound(value=number, unit=unit, leaves=(), sign=sign)
    return Figure(value=number, unit=unit, leaves=())


def _to_int(value: Any) -> int:
    return int(value)


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _format_last_rank(row: Mapping[Hashable, Any]) -> str:
    if _to_int(row["last_rank"]) >= 0:
        return str(row["last_rank"])
    return "tied" if row["matched"] else "unknown"


def _format_late_reason(row: Mapping[Hashable, Any]) -> str:
    if row["first_of_window"]:
        return "profiler start"
    reason = _to_text(row["late_reason"])
    return _REASONS.get(reason, reason)


def _format_matched(rows: pd.DataFrame) -> str:
    matched = int(rows["matched"].to_numpy(bool).sum())
    return "all matched" if matched == len(rows) else f"{matched} matched"
