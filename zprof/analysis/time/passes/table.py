"""Make the table of passes: the pass and unit of each gather and reduction.

Columns: ``row`` (label in the collectives table), rank, step, kind, unit (None if unknown), bytes,
``micro_batch`` (of the step, from 0; null if unknown), ``phase`` (forward, recompute, backward, optimizer,
unknown), ``number`` (count of this kind for that unit in the step, from 1), ``in_micro_batch`` (the same
within the micro-batch), ``compute_between_ns`` (compute from the end of the previous gather of that unit to
the start of this one; null for the first), ``updates`` (optimizer steps that the rank had done when it was
launched), and ``method`` (ranges, autograd, order, unknown).

The pieces of one gather share one number. Gathers of a forward without a backward (an evaluation) have
neither micro-batch nor number.

By order alone (phases and micro-batches of named units, or units by phase): a forward gathers units in the
order of their first gather of the step, a backward in reverse; some units are not gathered (still
unsharded) or gathered twice (for recomputation). So a gather belongs to a forward if the next gather is of
a later unit, or if a forward has just reached it in ascending order.
"""

import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from zprof.analysis.intervals import Int64s, Intervals, covered
from zprof.analysis.time.collective_rows import factorize_texts
from zprof.analysis.time.passes.phases import UNKNOWN_PHASE, PhaseEvidence, locate_instants
from zprof.analysis.time.steps import StepWindows
from zprof.analysis.time.timeline import RankTimeline
from zprof.model.collectives import CollectiveKind
from zprof.model.training import Phase

Mask = npt.NDArray[np.bool_]
GATHER = CollectiveKind.ALL_GATHER.value
REDUCTIONS = (CollectiveKind.REDUCE_SCATTER.value, CollectiveKind.ALL_REDUCE.value)
_SMALL_RATIO = 0.01
#: Tensor parallelism reduces in a forward as often as in a backward. Gradients are never reduced in a
#: forward, but the last reduction of a backward, launched after its end, appears to be in the next forward:
#: at most one of three.
_FORWARD_RATIO = 0.4
_MICRO_BATCH = ["rank", "step", "micro_batch"]
PASS_COLUMNS = (
    "row", "rank", "step", "kind", "unit", "bytes", "micro_batch", "phase", "number", "in_micro_batch",
    "compute_between_ns", "updates", "method",
)  # fmt: skip
BY_ORDER = "order"
#: Names of passes, not of units, in FSDP1 and DDP.
_NO_UNIT = re.compile(r"(FSDP|DDP)\.\w+")
#: Kernels and operators that allocate, view, fill or copy, which may occur between two pieces of a gather.
_MOVE_NAMES = re.compile(
    r".*(?:copy|fill|CatArray|chunk_cat).*|aten::(?:empty|zeros|as_strided|view|_unsafe_view|reshape|narrow|slice|"
    r"select|split|chunk|detach|alias|to|_to_copy|cat|set_|resize_|flatten|t|transpose|expand|zero_)\w*",
    re.ASCII | re.IGNORECASE,
)
_MAX_NAME = 2_000
_UNIT_OF_STEP = ["rank", "step", "kind", "unit"]
_MIN_UNITS = 2
#: With more backward gathers per forward gather than this, units are gathered twice.
_REPEATED_RATIO = 1.5
#: Recomputation gathers a unit again before the backward has moved on by more units than this.
_RECENT_UNITS = 2
_NO_RUN = range(0)


def find_candidates(frame: pd.DataFrame) -> Mask:
    """Mark rows that may be a gather or a reduction of a pass, by kind and size."""
    kind = frame["kind"].astype(str)
    is_pass_kind = kind.isin([GATHER, *REDUCTIONS]) & (frame["group_size"] != 1)
    sizes = frame["bytes"].where(is_pass_kind, 0)
    largest = sizes.groupby(kind == GATHER).transform("max")
    mask: Mask = (is_pass_kind & (sizes >= _SMALL_RATIO * largest)).to_numpy(bool)
    return mask


def _is_before_backward(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Mark rows launched before the first reduction in the backward of their micro-batch."""
    reduces = frame["kind"].isin(REDUCTIONS)
    first_reduction = frame["launched_ns"].where(reduces & (frame["phase"] == Phase.BACKWARD.value))
    first_reduction = first_reduction.groupby([frame[name] for name in _MICRO_BATCH], dropna=False).transform(
        "min"
    )
    return frame["launched_ns"] < first_reduction.fillna(frame["launched_ns"] + 1)


class PassRank(Struct, frozen=True, kw_only=True):
    """What tells the passes of one rank: its steps by the host's marks, evidence, and compute.

    ``launches``: launch times of its compute kernels, in order.
    """

    rank: int
    host_steps: StepWindows
    evidence: PhaseEvidence
    compute: Intervals
    launches: Int64s


def make_pass_rank(timeline: RankTimeline) -> PassRank:
    """Return what tells the passes of a rank, which is on the common clock.

    The steps are the program's own, even if the window spans several of them.
    """
    steps = timeline.program_steps if timeline.has_several_steps else None
    work = timeline.activity.named
    moves = np.array(
        [_MOVE_NAMES.fullmatch(name[:_MAX_NAME]) is not None for name in work.names], dtype=np.bool_
    )
    computes = ~work.copies & ~moves[work.code] if len(work) else np.zeros(0, dtype=np.bool_)
    return PassRank(
        rank=timeline.rank,
        host_steps=steps or timeline.host_steps,
        evidence=timeline.evidence,
        compute=timeline.activity.compute,
        launches=np.sort(work.times[computes, 0]),
    )


#: A rank, and its rows of the table.
RankPart = tuple[PassRank, slice]


_NULLABLE = ("micro_batch", "number", "in_micro_batch", "compute_between_ns")


def make_pass_table(collectives: pd.DataFrame, ranks: Sequence[PassRank]) -> pd.DataFrame:
    """Return the table of passes; all inputs must be on the common clock."""
    table, bounds = _sort_by_launch(collectives[find_candidates(collectives)], ranks)
    if not len(table):
        return pd.DataFrame(columns=list(PASS_COLUMNS))
    parts = [(rank, slice(*span)) for rank, span in zip(ranks, bounds, strict=True) if span[0] < span[1]]
    table = _infer_units(_add_phases(table, parts), parts)
    table = _drop_evaluations(_mark_pieces(_fill_by_order(table), parts))
    # Leave out groups that transfer activations.
    # The remaining reductions belong to a backward, even if an engine launches them after its end.
    frame = _number_passes(table, parts)
    reduces = frame["kind"].astype(str).isin(REDUCTIONS)
    forward = ((frame["phase"] == Phase.FORWARD.value) & _is_before_backward(frame)).where(reduces)
    share = forward.astype(float).groupby(factorize_texts(frame["group"])[0]).transform("mean").fillna(0.0)
    remaining = frame[share <= _FORWARD_RATIO]
    is_late = remaining["kind"].isin(REDUCTIONS) & (remaining["phase"] == Phase.FORWARD.value)
    remaining = remaining.assign(phase=remaining["phase"].mask(is_late, Phase.BACKWARD.value))
    return remaining.reset_index(drop=True)[list(PASS_COLUMNS)]


def _sort_by_launch(
    rows: pd.DataFrame, ranks: Sequence[PassRank]
) -> tuple[pd.DataFrame, list[tuple[int, int]]]:
    """Return the rows by rank and launch, and the start and end row of each rank.

    All ranks share one table, because each of a thousand small tables would cost as much as this one.
    """
    launched = rows["launch_start_ns"].fillna(rows["start_ns"]).to_numpy(np.int64)
    rank_position = (
        rows["rank"]
        .map({each.rank: rank_position for rank_position, each in enumerate(ranks)})
        .to_numpy(np.float64)
    )
    order = np.lexsort((launched, rank_position))
    order = order[~np.isnan(rank_position[order])]
    table = rows[["rank", "step", "kind", "group", "bytes", "start_ns", "end_ns"]].assign(
        row=rows.index,
        kind=rows["kind"].astype(str),
        unit=rows["unit"].map(_clean_unit).astype(object),
        launched_ns=launched,
        known=rows["launch_start_ns"].notna().to_numpy(bool),
    )
    edges = np.searchsorted(rank_position[order], np.arange(len(ranks) + 1)).tolist()
    return table.iloc[order].reset_index(drop=True), list(itertools.pairwise(edges))


def _add_phases(table: pd.DataFrame, parts: Sequence[RankPart]) -> pd.DataFrame:
    """Add phase, micro-batch and method from the evidence of each rank."""
    launched, step = table["launched_ns"].to_numpy(np.int64), table["step"].to_numpy(np.int64)
    located = [
        locate_instants(rank.evidence, launched[rank_rows], _find_step_spans(rank, step[rank_rows]))
        for rank, rank_rows in parts
    ]
    updates = [
        np.searchsorted(rank.evidence.optimizer[:, 1], launched[rank_rows]) for rank, rank_rows in parts
    ]
    known = table["known"].to_numpy(bool)
    micro_batch = np.concatenate([instants.micro_batch for instants in located])
    return table.assign(
        phase=np.where(known, np.concatenate([instants.phase for instants in located]), UNKNOWN_PHASE),
        method=np.where(known, np.concatenate([instants.method for instants in located]), UNKNOWN_PHASE),
        micro_batch=pd.arrays.IntegerArray(micro_batch, ~known | (micro_batch < 0)),
        updates=np.concatenate(updates).astype(np.int64),
    )


def _infer_units(table: pd.DataFrame, parts: Sequence[RankPart]) -> pd.DataFrame:
    """Infer the units of gathers from their position in the forward, if no gather has a recorded unit."""
    gathers = table[(table["kind"] == GATHER) & table["micro_batch"].notna()]
    if gathers.empty or table.loc[table["kind"] == GATHER, "unit"].notna().any():
        return table
    units = table["unit"].copy()
    computed = pd.Series(_find_computed_before(table, parts), index=table.index)
    for _, step_rows in gathers.groupby(["rank", "step"], sort=False):
        forward = gathers.iloc[:0]
        for _, rows in step_rows.groupby("micro_batch"):
            gathered = rows[rows["phase"] == Phase.FORWARD.value]
            reused = (
                forward if gathered.empty else gathered.iloc[:0]
            )  # units kept since an earlier micro-batch
            both = pd.concat([reused, rows])
            unit_names = infer_units_by_order(
                both["phase"].tolist(), both["bytes"].tolist(), computed[both.index].tolist()
            )
            names = dict(zip(unit_names, units[reused.index].tolist(), strict=False))
            units.loc[rows.index] = [names.get(name, name) for name in unit_names[len(reused) :]]
            forward = forward if gathered.empty else gathered
    inferred = units.notna() & table["unit"].isna()
    return table.assign(unit=units, method=table["method"].mask(inferred, BY_ORDER))


def _find_computed_before(table: pd.DataFrame, parts: Sequence[RankPart]) -> Mask:
    """Mark the rows for which the rank launched compute since the previous row."""
    launched = table["launched_ns"].to_numpy(np.int64)
    computed = np.ones(len(table), dtype=np.bool_)
    for rank, rank_rows in parts:
        launched_kernels = np.searchsorted(rank.launches, launched[rank_rows])
        computed[rank_rows] = np.diff(launched_kernels, prepend=-1) > 0
    return computed


def _clean_unit(unit: object) -> str | None:
    return unit if isinstance(unit, str) and unit and not _NO_UNIT.fullmatch(unit) else None


def _find_step_spans(rank: PassRank, steps: Int64s) -> Intervals:
    """Return the span of each step by the host's marks."""
    order = np.argsort(rank.host_steps.number, kind="stable")
    return rank.host_steps.spans[order[np.searchsorted(rank.host_steps.number[order], steps)]]


def _fill_by_order(table: pd.DataFrame) -> pd.DataFrame:
    """Infer unknown phases from the order of the units, step by step."""
    gathers = table[(table["kind"] == GATHER) & table["unit"].notna()]
    step = [gathers["rank"], gathers["step"]]
    has_evidence = (gathers["phase"] != UNKNOWN_PHASE).groupby(step).transform("any")
    has_evidence &= gathers["micro_batch"].notna().groupby(step).transform("any")
    for _, rows in gathers[~has_evidence].groupby(["rank", "step"]):
        passes = infer_passes_by_order([str(unit) for unit in rows["unit"]])
        if passes is not None:
            table.loc[rows.index, "phase"] = [phase for phase, _ in passes]
            table.loc[rows.index, "micro_batch"] = [number for _, number in passes]
            table.loc[rows.index, "method"] = BY_ORDER
    return table


def _mark_pieces(table: pd.DataFrame, parts: Sequence[RankPart]) -> pd.DataFrame:
    """Add ``piece``: True if the gather continues the previous one of the same unit and micro-batch."""
    launched_ns = table["launched_ns"].astype("Int64")  # a float64 of these has a resolution of 256 ns
    before = launched_ns.groupby([table[name] for name in (*_UNIT_OF_STEP, "micro_batch")]).shift()
    likely = (before.notna() & (table["kind"] == GATHER) & table["known"]).to_numpy(bool)
    previous_launch, own_launch = before.fillna(0).to_numpy(np.int64), table["launched_ns"].to_numpy(np.int64)
    piece = np.zeros(len(table), dtype=np.bool_)
    for rank, rank_rows in parts:
        if len(rank.launches):
            computed = np.searchsorted(rank.launches, own_launch[rank_rows]) - np.searchsorted(
                rank.launches, previous_launch[rank_rows]
            )
            piece[rank_rows] = likely[rank_rows] & (computed == 0)
    return table.assign(piece=piece)


def _drop_evaluations(table: pd.DataFrame) -> pd.DataFrame:
    """Clear the micro-batch of gathers in forwards without a following backward.

    Such a forward ends the step, or precedes the forward of a micro-batch and gathers the same units.
    """
    step = [table["rank"], table["step"]]
    forward = (
        (table["kind"] == GATHER) & (table["phase"] == Phase.FORWARD.value) & table["micro_batch"].notna()
    )
    backward = table["phase"].isin([Phase.BACKWARD.value, Phase.RECOMPUTE.value])
    backward |= (table["phase"] == UNKNOWN_PHASE) & (table["kind"] != GATHER)
    last = table["launched_ns"].astype("Int64").where(backward).groupby(step).transform("max")
    after_last_backward = forward & (table["launched_ns"] > last).fillna(False).astype(bool)
    rows = table[forward & ~after_last_backward & ~table["piece"] & table["unit"].notna()]
    keys = [rows["rank"], rows["step"], rows["micro_batch"]]
    position = pd.Series(np.arange(len(rows)), index=rows.index)
    last_of_unit = position.groupby([*keys, rows["unit"]]).transform("max")
    begin = last_of_unit.groupby(keys).transform("min")
    units = rows["unit"].groupby(keys).transform("nunique")
    repeated = rows["unit"].where(position < begin).groupby(keys).transform("nunique") == units
    is_evaluation = after_last_backward.copy()
    is_evaluation.loc[rows.index] |= repeated & (position < begin)
    # pieces go with their gather
    number = (~table["piece"]).groupby([table[name] for name in _UNIT_OF_STEP]).cumsum()
    gather = [*(table[name] for name in _UNIT_OF_STEP), number]
    is_evaluation |= (is_evaluation & ~table["piece"]).groupby(gather, dropna=False).transform("max")
    return table.assign(micro_batch=table["micro_batch"].mask(is_evaluation), trains=~is_evaluation)


def _number_passes(table: pd.DataFrame, parts: Sequence[RankPart]) -> pd.DataFrame:
    """Number the gathers and reductions of each unit, and add the compute between two gathers of a unit."""
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
    is_repeated = (numbers["last_end"].notna() & ~table["piece"] & (table["kind"] == GATHER)).to_numpy(bool)
    start_ns = table["start_ns"].to_numpy(np.int64)
    previous_end = np.where(is_repeated, numbers["last_end"].fillna(0).to_numpy(np.int64), start_ns)
    between = np.concatenate(
        [covered(rank.compute, previous_end[rank_rows], start_ns[rank_rows]) for rank, rank_rows in parts]
    )
    table = table.assign(
        number=numbers["number"],
        in_micro_batch=numbers["in_micro_batch"].where(table["micro_batch"].notna()),
        compute_between_ns=pd.Series(between, index=table.index).where(is_repeated),
    ).astype(dict.fromkeys(_NULLABLE, "Int64"))
    pieces = table.groupby([*_UNIT_OF_STEP, "number"])["compute_between_ns"]
    return table.assign(compute_between_ns=table["compute_between_ns"].fillna(pieces.transform("first")))


def infer_passes_by_order(units: Sequence[str]) -> list[tuple[str, int]] | None:
    """Return phase and micro-batch of each gather of a step; None for a single unit, which has no order."""
    index_by_unit = {unit: index for index, unit in enumerate(dict.fromkeys(units))}
    if len(index_by_unit) < _MIN_UNITS:
        return None
    unit_indexes = [index_by_unit[unit] for unit in units]
    passes: list[tuple[str, int]] = []
    micro_batch, forward = 0, True
    for index, current in enumerate(unit_indexes):
        following = unit_indexes[index + 1] if index + 1 < len(unit_indexes) else -1
        is_ascending = forward and index > 0 and current > unit_indexes[index - 1]
        starts_forward = not (is_ascending or (forward and index == 0)) and following > current
        if starts_forward:
            micro_batch, forward = micro_batch + 1, True
        elif not is_ascending and index > 0:
            forward = False
        passes.append(((Phase.FORWARD if forward else Phase.BACKWARD).value, micro_batch))
    return passes


def infer_units_by_order(
    phases: Sequence[str], sizes_bytes: Sequence[int], computed: Sequence[bool]
) -> list[str | None]:
    """Infer the unit of each gather of a micro-batch from its phase and size alone.

    A backward visits the units of the forward in reverse: each of its gathers is of the last unit of that
    size not yet visited. There are two exceptions. Pieces of a unit keep their forward order and are launched
    without compute between them. And recomputation gathers a unit again soon after the first gather: either
    the gather matches no remaining unit, or there are too many gathers for one per unit. A gather that
    matches no unit stays unnamed.

    Args:
        phases: The phase of each gather, in launch order.
        sizes_bytes: Its bytes.
        computed: Whether compute was launched since the previous gather.
    """
    rows = [row for row, phase in enumerate(phases) if phase == Phase.FORWARD.value]
    forward = [(sizes_bytes[row], computed[row]) for row in rows]
    unit = list(range(len(forward)))
    forward_position: dict[int, int | None] = dict(zip(rows, unit, strict=True))
    for phase in (Phase.BACKWARD.value, Phase.RECOMPUTE.value):
        rows = [row for row, other_phase in enumerate(phases) if other_phase == phase]
        runs = _find_runs_in_reverse(forward, [(sizes_bytes[row], computed[row]) for row in rows])
        for run in runs:
            for position in run[1:]:
                unit[position] = unit[run[0]]
        positions = [position for run in runs for position in (run or (None,))]
        forward_position.update(zip(rows, positions, strict=True))
    position_by_row = [forward_position.get(row) for row in range(len(phases))]
    return [None if position is None else f"gather {unit[position]}" for position in position_by_row]


def _find_runs_in_reverse(
    forward: Sequence[tuple[int, bool]], backward: Sequence[tuple[int, bool]]
) -> list[Sequence[int]]:
    """Return the forward positions of a backward's gathers, unit by unit; an empty run if none matches.

    Both inputs are pairs: bytes, and True if compute was launched before.
    """
    runs: list[Sequence[int]] = []
    position, limit = 0, len(forward)
    recent: list[range] = []
    is_repeated = len(backward) > _REPEATED_RATIO * len(forward)
    while position < len(backward):
        fresh = _find_longest_run(forward, range(limit), backward[position:], limit)
        repeated = max(
            (
                _find_longest_run(forward, recent_run[:1], backward[position:], recent_run.stop)
                for recent_run in recent
            ),
            key=len,
            default=_NO_RUN,
        )
        if repeated and (is_repeated or not fresh):
            run = repeated
            recent = [recent_run for recent_run in recent if recent_run.start != run.start]
        else:
            run = fresh
            limit = run.start if run else limit
            recent = [*recent, run][-_RECENT_UNITS:] if run else recent
        runs.append(run)
        position += max(1, len(run))
    return runs


def _find_longest_run(
    forward: Sequence[tuple[int, bool]], firsts: Iterable[int], wanted: Sequence[tuple[int, bool]], limit: int
) -> range:
    """Return the longest matching run from one of ``firsts``, up to ``limit`` and without compute inside."""
    best = _NO_RUN
    for first in firsts:
        length = 0
        while length < min(len(wanted), limit - first):
            (size, computed), (wanted_size, wanted_computed) = forward[first + length], wanted[length]
            if size != wanted_size or (length and (computed or wanted_computed)):
                break
            length += 1
        if length and length >= len(best):
            best = range(first, first + length)
    return best
