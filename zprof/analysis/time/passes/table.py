"""The table of passes: for each gather of parameters and each reduction of gradients, what it serves.

Columns: ``row`` (the label of its row in the table of collectives), rank, step, kind, unit (None where
nobody says it), bytes, ``micro_batch`` (of the step, from 0; null where unknown), ``phase`` (forward,
recompute, backward, optimizer, unknown), ``number`` (how manieth collective of its kind for that unit in
the step, from 1; null without a unit), ``in_micro_batch`` (the same within the micro-batch),
``compute_between_ns`` (compute of the rank from the end of the previous gather of that unit in the step to
the start of this one, the pass that the previous one served included; null for the first), and ``method``
(ranges, autograd, order, unknown).
"""

import itertools
import re
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s, Intervals, covered
from zprof.analysis.time.activity.timeline import RankTimeline
from zprof.analysis.time.passes.evidence import Evidence
from zprof.analysis.time.passes.moves import GATHER, candidates, of_parameters
from zprof.analysis.time.passes.order import passes_by_order
from zprof.analysis.time.passes.where import UNKNOWN, where

PASS_COLUMNS = (
    "row", "rank", "step", "kind", "unit", "bytes", "micro_batch", "phase", "number", "in_micro_batch",
    "compute_between_ns", "method",
)  # fmt: skip
BY_ORDER = "order"
#: A rank, and its rows of the table.
Part = tuple[RankTimeline, slice]
_NULLABLE = ("micro_batch", "number", "in_micro_batch", "compute_between_ns")
#: What FSDP1 and DDP call a pass, not a unit.
_NO_UNIT = re.compile(r"(FSDP|DDP)\.\w+")


def find_passes(
    collectives: pd.DataFrame,
    timelines: Sequence[RankTimeline],
    evidence_of: Callable[[int], Evidence],
) -> pd.DataFrame:
    """The table; ``collectives`` and ``timelines`` are on the common clock, and so must be the evidence."""
    table, bounds = _launched(collectives[candidates(collectives)], timelines)
    if not len(table):
        return pd.DataFrame(columns=list(PASS_COLUMNS))
    parts = [(t, slice(*span)) for t, span in zip(timelines, bounds, strict=True) if span[0] < span[1]]
    table = _by_order(_placed(table, parts, evidence_of))
    return of_parameters(_numbered(table, parts)).reset_index(drop=True)[list(PASS_COLUMNS)]


def _launched(
    rows: pd.DataFrame, timelines: Sequence[RankTimeline]
) -> tuple[pd.DataFrame, list[tuple[int, int]]]:
    """The rows rank by rank in the order of their launches, and where each rank's begin and end.

    All ranks stand in one table, for of a thousand small ones each costs as much as this.
    """
    launched = rows["launch_start_ns"].fillna(rows["start_ns"]).to_numpy(np.int64)
    place = rows["rank"].map({t.rank: place for place, t in enumerate(timelines)}).to_numpy(np.float64)
    order = np.lexsort((launched, place))
    order = order[~np.isnan(place[order])]
    table = rows[["rank", "step", "kind", "group", "bytes", "start_ns", "end_ns"]].assign(
        row=rows.index,
        kind=rows["kind"].astype(str),
        unit=rows["unit"].map(_unit).astype(object),
        launched_ns=launched,
        known=rows["launch_start_ns"].notna().to_numpy(bool),
    )
    edges = np.searchsorted(place[order], np.arange(len(timelines) + 1)).tolist()
    return table.iloc[order].reset_index(drop=True), list(itertools.pairwise(edges))


def _placed(
    table: pd.DataFrame, parts: Sequence[Part], evidence_of: Callable[[int], Evidence]
) -> pd.DataFrame:
    """Add phase, micro-batch and method, as the evidence has them."""
    launched, step = table["launched_ns"].to_numpy(np.int64), table["step"].to_numpy(np.int64)
    seen = [where(evidence_of(t.rank), launched[mine], _steps(t, step[mine])) for t, mine in parts]
    known = table["known"].to_numpy(bool)
    micro_batch = np.concatenate([one.micro_batch for one in seen])
    return table.assign(
        phase=np.where(known, np.concatenate([one.phase for one in seen]), UNKNOWN),
        method=np.where(known, np.concatenate([one.method for one in seen]), UNKNOWN),
        micro_batch=pd.arrays.IntegerArray(micro_batch, ~known | (micro_batch < 0)),
    )


def _unit(unit: object) -> str | None:
    return unit if isinstance(unit, str) and unit and not _NO_UNIT.fullmatch(unit) else None


def _steps(timeline: RankTimeline, steps: Int64s) -> Intervals:
    """The span of each step by the host's marks."""
    order = np.argsort(timeline.host_steps.number, kind="stable")
    return timeline.host_steps.spans[order[np.searchsorted(timeline.host_steps.number[order], steps)]]


def _by_order(table: pd.DataFrame) -> pd.DataFrame:
    """Fill in by the order of the units what nothing else says, step by step."""
    gathers = table[(table["kind"] == GATHER) & table["unit"].notna()]
    step = [gathers["rank"], gathers["step"]]
    said = (gathers["phase"] != UNKNOWN).groupby(step).transform("any")
    said &= gathers["micro_batch"].notna().groupby(step).transform("any")
    for _, rows in gathers[~said].groupby(["rank", "step"]):
        found = passes_by_order([str(unit) for unit in rows["unit"]])
        if found is not None:
            table.loc[rows.index, "phase"] = [phase for phase, _ in found]
            table.loc[rows.index, "micro_batch"] = [number for _, number in found]
            table.loc[rows.index, "method"] = BY_ORDER
    return table


def _numbered(table: pd.DataFrame, parts: Sequence[Part]) -> pd.DataFrame:
    """Number the collectives of each kind and unit; how much was computed between two gathers of a unit."""
    named = table["unit"].notna()
    step = table.groupby(["rank", "step", "kind", "unit"])
    part = table.groupby(["rank", "step", "kind", "unit", "micro_batch"])
    last_end = step["end_ns"].shift()
    again = last_end.notna() & (table["kind"] == GATHER)
    since, until = last_end.where(again, table["start_ns"]).to_numpy(np.int64), table["start_ns"].to_numpy()
    between = np.concatenate([covered(t.activity.compute, since[mine], until[mine]) for t, mine in parts])
    table = table.assign(
        number=(step.cumcount() + 1).where(named),
        in_micro_batch=(part.cumcount() + 1).where(named & table["micro_batch"].notna()),
        compute_between_ns=pd.Series(between, index=table.index).where(again),
    )
    return table.astype(dict.fromkeys(_NULLABLE, "Int64"))
