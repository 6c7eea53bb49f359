"""The table of passes: for each gather of parameters and each reduction of gradients, what it serves.

Columns: ``row`` (the label of its row in the table of collectives), rank, step, kind, unit (None where
nobody says it), bytes, ``micro_batch`` (of the step, from 0; null where unknown), ``phase`` (forward,
recompute, backward, optimizer, unknown), ``number`` (how manieth collective of its kind for that unit in
the step, from 1; null without a unit), ``in_micro_batch`` (the same within the micro-batch),
``compute_between_ns`` (compute of the rank from the end of the previous gather of that unit in the step to
the start of this one, the pass that the previous one served included; null for the first), and ``method``
(ranges, autograd, order, unknown).

A unit may be gathered in pieces, a message each: between their launches nothing is computed.  The pieces of
one gather have one number.  Gathers of a forward without a backward (an evaluation) are no part of a training
step: they have neither micro-batch nor number.
"""

import itertools
import re
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s, Intervals, covered
from zprof.analysis.time.activity.timeline import RankTimeline
from zprof.analysis.time.passes.evidence import Evidence
from zprof.analysis.time.passes.moves import GATHER, Mask, candidates, of_parameters
from zprof.analysis.time.passes.order import passes_by_order, units_by_order
from zprof.analysis.time.passes.where import UNKNOWN, where
from zprof.model.phases import Phase

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
#: Kernels and operators that allocate, view, fill or copy: what stands between two pieces of a gather.
_MOVES = re.compile(
    r".*(?:copy|fill|CatArray|chunk_cat).*|aten::(?:empty|zeros|as_strided|view|_unsafe_view|reshape|narrow|slice|"
    r"select|split|chunk|detach|alias|to|_to_copy|cat|set_|resize_|flatten|t|transpose|expand|zero_)\w*",
    re.ASCII | re.IGNORECASE,
)
_LONGEST = 2_000
_UNIT_OF_STEP = ["rank", "step", "kind", "unit"]


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
    table = _with_units(_placed(table, parts, evidence_of), parts)
    table = _without_evaluations(_with_pieces(_by_order(table), parts))
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


def _with_units(table: pd.DataFrame, parts: Sequence[Part]) -> pd.DataFrame:
    """Name the units of gathers by their place in the forward, if no gather of the job names its own."""
    gathers = table[(table["kind"] == GATHER) & table["micro_batch"].notna()]
    if gathers.empty or table.loc[table["kind"] == GATHER, "unit"].notna().any():
        return table
    units = table["unit"].copy()
    computed = pd.Series(_computed_before(table, parts), index=table.index)
    for _, of_step in gathers.groupby(["rank", "step"], sort=False):
        forward = gathers.iloc[:0]
        for _, rows in of_step.groupby("micro_batch"):
            own = rows[rows["phase"] == Phase.FORWARD.value]
            kept = forward if own.empty else own.iloc[:0]  # units kept since an earlier micro-batch
            both = pd.concat([kept, rows])
            found = units_by_order(
                both["phase"].tolist(), both["bytes"].tolist(), computed[both.index].tolist()
            )
            names = dict(zip(found, units[kept.index].tolist(), strict=False))
            units.loc[rows.index] = [names.get(name, name) for name in found[len(kept) :]]
            forward = forward if own.empty else own
    inferred = units.notna() & table["unit"].isna()
    return table.assign(unit=units, method=table["method"].mask(inferred, BY_ORDER))


def _computed_before(table: pd.DataFrame, parts: Sequence[Part]) -> Mask:
    """Return if the rank launched compute between each row and the one before it."""
    launched = table["launched_ns"].to_numpy(np.int64)
    computed = np.ones(len(table), dtype=np.bool_)
    for timeline, mine in parts:
        done = np.searchsorted(_compute_launches(timeline), launched[mine])
        computed[mine] = np.diff(done, prepend=-1) > 0
    return computed


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


def _with_pieces(table: pd.DataFrame, parts: Sequence[Part]) -> pd.DataFrame:
    """Add ``piece``: the gather goes on with the one before it of the same unit and micro-batch."""
    launched_ns = table["launched_ns"].astype("Int64")  # a float of these counts in steps of 256 ns
    before = launched_ns.groupby([table[name] for name in (*_UNIT_OF_STEP, "micro_batch")]).shift()
    likely = (before.notna() & (table["kind"] == GATHER) & table["known"]).to_numpy(bool)
    since, until = before.fillna(0).to_numpy(np.int64), table["launched_ns"].to_numpy(np.int64)
    piece = np.zeros(len(table), dtype=np.bool_)
    for timeline, mine in parts:
        launched = _compute_launches(timeline)
        if len(launched):
            computed = np.searchsorted(launched, until[mine]) - np.searchsorted(launched, since[mine])
            piece[mine] = likely[mine] & (computed == 0)
    return table.assign(piece=piece)


def _compute_launches(timeline: RankTimeline) -> Int64s:
    """When a rank launched what computes, in order."""
    work = timeline.activity.named
    moves = np.array([_MOVES.fullmatch(name[:_LONGEST]) is not None for name in work.names], dtype=np.bool_)
    chosen = ~work.copies & ~moves[work.code] if len(work) else np.zeros(0, dtype=np.bool_)
    return np.sort(work.times[chosen, 0])


def _without_evaluations(table: pd.DataFrame) -> pd.DataFrame:
    """Take the micro-batch from gathers of forwards that no backward follows.

    Such a forward ends the step, or stands before the forward of a micro-batch and gathers the same units.
    """
    step = [table["rank"], table["step"]]
    forward = (
        (table["kind"] == GATHER) & (table["phase"] == Phase.FORWARD.value) & table["micro_batch"].notna()
    )
    backward = table["phase"].isin([Phase.BACKWARD.value, Phase.RECOMPUTE.value])
    backward |= (table["phase"] == UNKNOWN) & (table["kind"] != GATHER)
    last = table["launched_ns"].astype("Int64").where(backward).groupby(step).transform("max")
    behind = forward & (table["launched_ns"] > last).fillna(False).astype(bool)
    rows = table[forward & ~behind & ~table["piece"] & table["unit"].notna()]
    keys = [rows["rank"], rows["step"], rows["micro_batch"]]
    place = pd.Series(np.arange(len(rows)), index=rows.index)
    last_of_unit = place.groupby([*keys, rows["unit"]]).transform("max")
    begin = last_of_unit.groupby(keys).transform("min")
    units = rows["unit"].groupby(keys).transform("nunique")
    repeated = rows["unit"].where(place < begin).groupby(keys).transform("nunique") == units
    gone = behind.copy()
    gone.loc[rows.index] |= repeated & (place < begin)
    # pieces go with their gather
    number = (~table["piece"]).groupby([table[name] for name in _UNIT_OF_STEP]).cumsum()
    gather = [*(table[name] for name in _UNIT_OF_STEP), number]
    gone |= (gone & ~table["piece"]).groupby(gather, dropna=False).transform("max")
    return table.assign(micro_batch=table["micro_batch"].mask(gone), trains=~gone)


def _numbered(table: pd.DataFrame, parts: Sequence[Part]) -> pd.DataFrame:
    """Number the gathers and reductions of each unit; how much was computed between two gathers of a unit."""
    rows = table[table["unit"].notna() & table["trains"]]
    begins = (~rows["piece"]).astype("int64")
    numbers = pd.DataFrame(
        {
            "number": begins.groupby([rows[name] for name in _UNIT_OF_STEP]).cumsum(),
            "in_micro_batch": begins.groupby(
                [rows[name] for name in (*_UNIT_OF_STEP, "micro_batch")]
            ).cumsum(),
            "last_end": rows["end_ns"].astype("Int64").groupby([rows[n] for n in _UNIT_OF_STEP]).shift(),
        }
    ).reindex(table.index)
    again = (numbers["last_end"].notna() & ~table["piece"] & (table["kind"] == GATHER)).to_numpy(bool)
    until = table["start_ns"].to_numpy(np.int64)
    since = np.where(again, numbers["last_end"].fillna(0).to_numpy(np.int64), until)
    between = np.concatenate([covered(t.activity.compute, since[mine], until[mine]) for t, mine in parts])
    table = table.assign(
        number=numbers["number"],
        in_micro_batch=numbers["in_micro_batch"].where(table["micro_batch"].notna()),
        compute_between_ns=pd.Series(between, index=table.index).where(again),
    ).astype(dict.fromkeys(_NULLABLE, "Int64"))
    pieces = table.groupby([*_UNIT_OF_STEP, "number"])["compute_between_ns"]
    return table.assign(compute_between_ns=table["compute_between_ns"].fillna(pieces.transform("first")))
