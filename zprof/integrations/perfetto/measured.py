"""What the analysis found of one rank, as rows: its steps, its exposed time, its collectives."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Intervals, intersect, intervals
from zprof.integrations.perfetto.choice import RankWindow
from zprof.integrations.perfetto.entries import arguments, text
from zprof.integrations.perfetto.rows import Row, spans_row

_CATEGORY = text("zprof")
_TIMES = ("wait_ns", "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns", "hidden_ns")


def measured_rows(window: RankWindow, collectives: pd.DataFrame, base_ns: int) -> Iterator[Row]:
    """All rows but that of the collectives, which :func:`collectives_row` gives."""
    steps = window.steps
    labels = [(text(f"step {number}"), arguments({"step": int(number)})) for number in steps.number]
    yield spans_row("steps", steps.spans - base_ns, labels, _CATEGORY)
    yield _exposed("exposed wait", window.tracks.waiting, window, collectives, base_ns)
    yield _exposed("exposed transfer", window.tracks.moving, window, collectives, base_ns)


def collectives_row(collectives: pd.DataFrame, base_ns: int) -> Row:
    """Every collective of the rank, with what was waiting and what was moving of it."""
    spans = intervals(collectives["start_ns"], collectives["end_ns"]) - base_ns
    labels = [(text(str(row["kind"])), _arguments(row)) for row in collectives.to_dict("records")]
    return spans_row("collectives", spans, labels, _CATEGORY)


def within(collectives: pd.DataFrame, window: RankWindow) -> pd.DataFrame:
    """The collectives of the window's rank that its chosen steps launched."""
    mine = collectives["rank"] == window.tracks.rank
    return collectives[mine & collectives["step"].isin(window.steps.number.tolist())]


def _exposed(
    title: str, spans: Intervals, window: RankWindow, collectives: pd.DataFrame, base_ns: int
) -> Row:
    """Cut to each step, so that a step's slices sum to its leaf of the report."""
    parts, labels = [np.empty((0, 2), dtype=np.int64)], []
    steps = window.steps
    for number, begin, end in zip(steps.number, steps.begin_ns, steps.end_ns, strict=True):
        inside = intersect(spans, intervals([begin], [end]))
        parts.append(inside)
        labels += [
            (text(name), arguments({"step": int(number), "collective": name}))
            for name in _running(inside, collectives)
        ]
    return spans_row(title, np.concatenate(parts) - base_ns, labels, _CATEGORY)


def _running(spans: Intervals, collectives: pd.DataFrame) -> list[str]:
    """The kind of the collective that runs when each span begins; of several the one that began first."""
    ordered = collectives.sort_values("start_ns")
    start, end = ordered["start_ns"].to_numpy(np.int64), ordered["end_ns"].to_numpy(np.int64)
    kinds = ordered["kind"].astype(str).tolist()
    reach = np.maximum.accumulate(end) if len(end) else end
    found = []
    for begin in spans[:, 0].tolist():
        index = int(np.searchsorted(reach, begin, side="right"))
        found.append(kinds[index] if index < len(kinds) and start[index] <= begin else "collective")
    return found


def _arguments(row: Mapping[Hashable, Any]) -> str:
    values: dict[str, str | int | float] = {
        "group": str(row["group"]),
        "sequence": int(row["sequence"]),
        "dtype": str(row["dtype"]),
        "bytes": int(row["bytes"]),
    }
    if not pd.isna(row["unit"]):
        values["unit"] = str(row["unit"])
    values |= {name.replace("_ns", "_us"): int(row[name]) / 1000 for name in _TIMES}
    if row["last_rank"] >= 0:
        values["last_rank"] = int(row["last_rank"])
    values["matched"] = "yes" if row["matched"] else "no"
    return arguments(values)
