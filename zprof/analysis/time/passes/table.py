"""The table of passes: for each gather of parameters and each reduction of gradients, what it serves.

Columns: ``row`` (the label of its row in the table of collectives), rank, step, kind, unit (None where
nobody says it), bytes, ``micro_batch`` (of the step, from 0; null where unknown), ``phase`` (forward,
recompute, backward, optimizer, unknown), ``number`` (how manieth collective of its kind for that unit in
the step, from 1; null without a unit), ``in_micro_batch`` (the same within the micro-batch),
``compute_between_ns`` (compute of the rank from the end of the previous gather of that unit in the step to
the start of this one, the pass that the previous one served included; null for the first), and ``method``
(ranges, autograd, order, unknown).
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Intervals, covered, intervals
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
_NULLABLE = ("micro_batch", "number", "in_micro_batch", "compute_between_ns")
#: What FSDP1 and DDP call a pass, not a unit.
_NO_UNIT = re.compile(r"(FSDP|DDP)\.\w+")


def find_passes(
    collectives: pd.DataFrame,
    timelines: Sequence[RankTimeline],
    evidence_of: Callable[[int], Evidence],
) -> pd.DataFrame:
    """The table; ``collectives`` and ``timelines`` are on the common clock, and so must be the evidence."""
    rows = collectives[candidates(collectives)]
    ranks = {int(str(rank)): mine for rank, mine in rows.groupby("rank")}
    tables = [_of_rank(ranks[t.rank], t, evidence_of(t.rank)) for t in timelines if t.rank in ranks]
    if not tables:
        return pd.DataFrame(columns=list(PASS_COLUMNS))
    table = pd.concat(tables, ignore_index=True)
    return of_parameters(table).reset_index(drop=True)[list(PASS_COLUMNS)]


def _of_rank(rows: pd.DataFrame, timeline: RankTimeline, evidence: Evidence) -> pd.DataFrame:
    launched = rows["launch_start_ns"].fillna(rows["start_ns"]).to_numpy(np.int64)
    table = rows[["rank", "step", "kind", "group", "bytes", "start_ns", "end_ns"]].assign(
        row=rows.index,
        kind=rows["kind"].astype(str),
        unit=rows["unit"].map(_unit).astype(object),
        launched_ns=launched,
    )
    seen = where(evidence, launched, _steps(timeline, table["step"]))
    known = rows["launch_start_ns"].notna().to_numpy(bool)
    table = table.assign(
        phase=np.where(known, seen.phase, UNKNOWN),
        method=np.where(known, seen.method, UNKNOWN),
        micro_batch=pd.array(seen.micro_batch, dtype="Int64"),
    )
    table.loc[~known | (table["micro_batch"] < 0).to_numpy(bool), "micro_batch"] = pd.NA
    table = table.sort_values("launched_ns", kind="stable")
    return _numbered(_by_order(table), timeline.activity.compute)


def _unit(unit: object) -> str | None:
    return unit if isinstance(unit, str) and unit and not _NO_UNIT.fullmatch(unit) else None


def _steps(timeline: RankTimeline, steps: "pd.Series[int]") -> Intervals:
    """The span of each step by the host's marks."""
    spans = {
        int(n): span for n, span in zip(timeline.host_steps.number, timeline.host_steps.spans, strict=True)
    }
    found = [spans[int(step)] for step in steps]
    return intervals([span[0] for span in found], [span[1] for span in found])


def _by_order(table: pd.DataFrame) -> pd.DataFrame:
    """Fill in by the order of the units what nothing else says, step by step."""
    gathers = table[(table["kind"] == GATHER) & table["unit"].notna()]
    for _, rows in gathers.groupby("step"):
        if (rows["phase"] != UNKNOWN).any() and rows["micro_batch"].notna().any():
            continue
        found = passes_by_order([str(unit) for unit in rows["unit"]])
        if found is not None:
            table.loc[rows.index, "phase"] = [phase for phase, _ in found]
            table.loc[rows.index, "micro_batch"] = [number for _, number in found]
            table.loc[rows.index, "method"] = BY_ORDER
    return table


def _numbered(table: pd.DataFrame, compute: Intervals) -> pd.DataFrame:
    """Number the collectives of each kind and unit; how much was computed between two gathers of a unit."""
    named = table["unit"].notna()
    step = table.groupby(["step", "kind", "unit"])
    part = table.groupby(["step", "kind", "unit", "micro_batch"])
    last_end = step["end_ns"].shift()
    again = last_end.notna() & (table["kind"] == GATHER)
    between = covered(
        compute,
        last_end.where(again, table["start_ns"]).to_numpy(np.int64),
        table["start_ns"].to_numpy(np.int64),
    )
    table = table.assign(
        number=(step.cumcount() + 1).where(named),
        in_micro_batch=(part.cumcount() + 1).where(named & table["micro_batch"].notna()),
        compute_between_ns=pd.Series(between, index=table.index).where(again),
    )
    return table.astype(dict.fromkeys(_NULLABLE, "Int64"))
