"""Make the pass table: the pass and unit of each gather and reduction.

Columns: ``row`` (label in the collectives table), rank, step, kind, unit (None if unknown), bytes,
``micro_batch`` (of the step, from 0; null if unknown), ``phase`` (forward, recompute, backward, optimizer,
unknown), ``number`` (count of this kind for the unit in the step, from 1), ``in_micro_batch`` (the same
within the micro-batch), ``compute_between_ns`` (compute between the unit's previous gather and this one; null
for the first), ``updates`` (the rank's completed optimizer steps at launch), and ``method`` (ranges,
autograd, order, unknown).

All pieces of a gather share one number. Gathers of a forward without a backward pass (an evaluation) have
neither micro-batch nor number.

By order alone (phases and micro-batches of named units, or units by phase): a forward pass gathers units in
the order of their first gather in the step, a backward pass in reverse; some units are not gathered (still
unsharded) or gathered twice (for recomputation). So a gather belongs to a forward pass if the next gather is
of a later unit, or if a forward pass has just reached it in ascending order.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns, Groups, Mask, OptionalInts, Texts
from zprof.analysis.intervals import Int64s, Intervals, covered
from zprof.analysis.time.steps import UNKNOWN_PHASE, PhaseEvidence, StepWindows, locate_instants
from zprof.analysis.time.timeline import RankTimeline
from zprof.model.collectives import CollectiveKind
from zprof.model.training import Phase

GATHER = CollectiveKind.ALL_GATHER.value
REDUCTIONS = (CollectiveKind.REDUCE_SCATTER.value, CollectiveKind.ALL_REDUCE.value)
_SMALL_RATIO = 0.01
#: Maximum share of reductions in forward passes, for gradients. Tensor parallelism reduces as often in a
#: forward as in a backward pass. Gradients are never reduced in a forward pass, but a backward pass's last
#: reduction, launched after its end, appears to be in the next forward pass: at most one of three.
_FORWARD_RATIO = 0.4
_PASS_COLUMNS = (
    "row", "rank", "step", "kind", "unit", "bytes", "micro_batch", "phase", "number", "in_micro_batch",
    "compute_between_ns", "updates", "method",
)  # fmt: skip
_TEXTS = ("kind", "unit", "phase", "method")
#: The pass table of a recording without passes.
NO_PASSES = Columns(
    {name: Texts.of(()) if name in _TEXTS else np.zeros(0, dtype=np.int64) for name in _PASS_COLUMNS}
)
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
_MIN_UNITS = 2
#: With more backward gathers per forward gather than this, units are gathered twice.
_REPEATED_RATIO = 1.5
#: Recomputation gathers a unit again before the backward pass has moved on by more units than this.
_RECENT_UNITS = 2
_NO_RUN = range(0)


def find_candidates(collectives: Columns) -> Mask:
    """Mark rows that may be a pass's gather or reduction, by kind and size."""
    kind = collectives.texts("kind")
    is_pass_kind = kind.equals(GATHER, *REDUCTIONS) & (collectives.ints("group_size") != 1)
    sizes = np.where(is_pass_kind, collectives.ints("bytes"), 0)
    gathers = Groups(kind.equals(GATHER))
    return is_pass_kind & (sizes >= _SMALL_RATIO * gathers.max(sizes)[gathers.codes])


def read_launch_times(collectives: Columns) -> Int64s:
    """Return when the host launched each collective; its start if the launch is unknown."""
    launched, start = collectives.ints("launch_start_ns"), collectives.ints("start_ns")
    return np.where(collectives.known("launch_start_ns"), launched, start)


def is_move_name(name: str) -> bool:
    """Return True for kernels and operators that allocate, view, fill or copy."""
    return _MOVE_NAMES.fullmatch(name[:_MAX_NAME]) is not None


class PassRank(Struct, frozen=True, kw_only=True):
    """Data to identify one rank's passes: its steps by host marks, evidence, and compute.

    ``launches``: sorted launch times of its compute kernels.
    """

    rank: int
    host_steps: StepWindows
    evidence: PhaseEvidence
    compute: Intervals
    launches: Int64s


def make_pass_rank(timeline: RankTimeline) -> PassRank:
    """Return the data to identify a rank's passes; the rank is on the common clock.

    The steps are the program's own, even if the window spans several of them.
    """
    steps = timeline.program_steps if timeline.has_several_steps else None
    work = timeline.activity.named
    moves = np.array([is_move_name(name) for name in work.names], dtype=np.bool_)
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


def make_pass_table(collectives: Columns, ranks: Sequence[PassRank]) -> Columns:
    """Return the pass table; all inputs must be on the common clock."""
    table, bounds = _sort_by_launch(collectives.at(find_candidates(collectives)), ranks)
    parts = [(rank, slice(*span)) for rank, span in zip(ranks, bounds, strict=True) if span[0] < span[1]]
    if not parts:
        return NO_PASSES
    table = _infer_units(_add_phases(table, parts), parts)
    table = _drop_evaluations(_mark_pieces(_fill_by_order(table), parts))
    # Leave out groups that transfer activations.
    # The remaining reductions belong to a backward pass, even if an engine launches them after its end.
    table = _number_passes(table, parts)
    reduces = table.texts("kind").equals(*REDUCTIONS)
    phase, launched = table.texts("phase"), table.ints("launched_ns")
    forward = reduces & phase.equals(Phase.FORWARD)
    # Rows launched before the first reduction in their micro-batch's backward pass, if any.
    micro_batches = Groups(table.ints("rank"), table.ints("step"), table.ints("micro_batch", -1))
    never = np.iinfo(np.int64).max
    in_backward = np.where(reduces & phase.equals(Phase.BACKWARD), launched, never)
    first_reduction = micro_batches.min(in_backward)[micro_batches.codes]
    is_before = (launched < first_reduction) & (first_reduction != never)
    groups = Groups(table.texts("group"))
    reductions = np.maximum(1, groups.sum(reduces.astype(np.int64)))
    share = groups.sum((forward & is_before).astype(np.int64)) / reductions
    table = table.with_columns(phase=phase.with_text(forward, Phase.BACKWARD.value))
    return table.at(share[groups.codes] <= _FORWARD_RATIO).pick(_PASS_COLUMNS).renumber()


def _sort_by_launch(rows: Columns, ranks: Sequence[PassRank]) -> tuple[Columns, list[tuple[int, int]]]:
    """Return the rows sorted by rank and launch, and each rank's start and end row."""
    launched = read_launch_times(rows)
    place_by_rank = {each.rank: place for place, each in enumerate(ranks)}
    numbers, codes = np.unique(rows.ints("rank"), return_inverse=True)
    place = np.array([place_by_rank.get(rank, -1) for rank in numbers.tolist()], dtype=np.int64)[codes]
    order = np.lexsort((launched, place))
    order = order[place[order] >= 0]
    unit = rows.texts("unit")
    table = rows.pick(("rank", "step", "kind", "group", "bytes", "start_ns", "end_ns")).with_columns(
        row=rows.row,
        unit=unit.with_text(unit.equals("") | unit.match(_NO_UNIT.fullmatch), None),
        launched_ns=launched,
        known=rows.known("launch_start_ns"),
    )
    edges = np.searchsorted(place[order], np.arange(len(ranks) + 1)).tolist()
    return table.at(order).renumber(), list(itertools.pairwise(edges))


def _add_phases(table: Columns, parts: Sequence[RankPart]) -> Columns:
    """Add phase, micro-batch and method from the evidence of each rank."""
    launched, step, known = table.ints("launched_ns"), table.ints("step"), table.bools("known")
    phases: list[str] = []
    methods: list[str] = []
    micro_batches, updates = [], []
    for rank, rank_rows in parts:
        steps, times = rank.host_steps, launched[rank_rows]
        order = np.argsort(steps.number, kind="stable")
        place = order[np.searchsorted(steps.number[order], step[rank_rows])]
        found = locate_instants(rank.evidence, times, steps.spans[place])
        phases += found[0]
        methods += found[1]
        micro_batches.append(found[2])
        updates.append(np.searchsorted(rank.evidence.optimizer[:, 1], times))
    micro_batch = np.concatenate(micro_batches)
    return table.with_columns(
        phase=Texts.of(phases).with_text(~known, UNKNOWN_PHASE),
        method=Texts.of(methods).with_text(~known, UNKNOWN_PHASE),
        micro_batch=OptionalInts(micro_batch, known & (micro_batch >= 0)),
        updates=np.concatenate(updates).astype(np.int64),
    )


def _infer_units(table: Columns, parts: Sequence[RankPart]) -> Columns:
    """Infer the gathers' units from their position in the forward pass, if no gather has a recorded unit."""
    is_gather = table.texts("kind").equals(GATHER)
    gathers = np.flatnonzero(is_gather & table.known("micro_batch"))
    if not len(gathers) or (is_gather & table.known("unit")).any():
        return table
    units = table.texts("unit").tolist()
    phases, sizes = table.texts("phase").tolist(), table.ints("bytes").tolist()
    is_forward, launched = table.texts("phase").equals(Phase.FORWARD), table.ints("launched_ns")
    computed = np.ones(len(table), dtype=np.bool_)  # the rank launched compute since the previous row
    for rank, rank_rows in parts:
        launched_kernels = np.searchsorted(rank.launches, launched[rank_rows])
        computed[rank_rows] = np.diff(launched_kernels, prepend=-1) > 0
    steps = Groups(table.ints("rank")[gathers], table.ints("step")[gathers])
    infer_units = cache(infer_units_by_order)  # ranks and micro-batches that run the same program
    for step_rows in (gathers[places] for places in steps.split()):
        forward = gathers[:0]
        for places in Groups(table.ints("micro_batch")[step_rows]).split():
            rows = step_rows[places]
            gathered = rows[is_forward[rows]]
            # units kept since an earlier micro-batch
            reused = gathered[:0] if len(gathered) else forward
            both = [*reused.tolist(), *rows.tolist()]
            unit_names = infer_units(
                tuple(str(phases[row]) for row in both),
                tuple(sizes[row] for row in both),
                tuple(bool(computed[row]) for row in both),
            )
            names = dict(zip(unit_names, (units[row] for row in reused.tolist()), strict=False))
            for row, name in zip(rows.tolist(), unit_names[len(reused) :], strict=True):
                units[row] = names.get(name, name)
            forward = gathered if len(gathered) else forward
    unit = Texts.of(units)
    inferred = unit.known & ~table.known("unit")
    return table.with_columns(unit=unit, method=table.texts("method").with_text(inferred, BY_ORDER))


def _fill_by_order(table: Columns) -> Columns:
    """Infer unknown phases from the order of the units, step by step."""
    phase, unit = table.texts("phase"), table.texts("unit")
    gathers = np.flatnonzero(table.texts("kind").equals(GATHER) & unit.known)
    steps = Groups(table.ints("rank")[gathers], table.ints("step")[gathers])
    has_evidence = steps.max(~phase.equals(UNKNOWN_PHASE)[gathers])
    has_evidence &= steps.max(table.known("micro_batch")[gathers])
    micro_batch, known = table.ints("micro_batch").copy(), table.known("micro_batch").copy()
    is_forward, is_filled = np.zeros(len(table), dtype=np.bool_), np.zeros(len(table), dtype=np.bool_)
    for places, is_known in zip(steps.split(), has_evidence.tolist(), strict=True):
        rows = gathers[places]
        passes = None if is_known else infer_passes_by_order(list(unit.at(rows)))
        if passes is not None:
            is_filled[rows] = True
            is_forward[rows] = [phase == Phase.FORWARD.value for phase, _ in passes]
            micro_batch[rows] = [number for _, number in passes]
    phase = phase.with_text(is_filled, Phase.BACKWARD.value).with_text(is_forward, Phase.FORWARD.value)
    return table.with_columns(
        phase=phase,
        micro_batch=OptionalInts(micro_batch, known | is_filled),
        method=table.texts("method").with_text(is_filled, BY_ORDER),
    )


def _group_units(table: Columns, *more: Int64s) -> Groups:
    """Group rows by unit, step and further keys."""
    keys = (table.ints("rank"), table.ints("step"), table.texts("kind"), table.texts("unit"))
    return Groups(*keys, *more)


def _mark_pieces(table: Columns, parts: Sequence[RankPart]) -> Columns:
    """Add ``piece``: True if a gather continues the previous gather of its unit and micro-batch."""
    launched = table.ints("launched_ns")
    previous = np.full(len(table), -1, dtype=np.int64)
    named = np.flatnonzero(table.known("unit") & table.known("micro_batch"))
    rows = table.at(named)
    before = _group_units(rows, rows.ints("micro_batch")).find_previous()
    previous[named] = np.where(before >= 0, named[before], -1)
    likely = (previous >= 0) & table.texts("kind").equals(GATHER) & table.bools("known")
    previous_launch = launched[previous]
    piece = np.zeros(len(table), dtype=np.bool_)
    for rank, rank_rows in parts:
        if len(rank.launches):
            computed = np.searchsorted(rank.launches, launched[rank_rows]) - np.searchsorted(
                rank.launches, previous_launch[rank_rows]
            )
            piece[rank_rows] = likely[rank_rows] & (computed == 0)
    return table.with_columns(piece=piece)


def _drop_evaluations(table: Columns) -> Columns:
    """Clear the micro-batch of gathers in forward passes without a following backward pass.

    Such a forward pass ends the step, or precedes a micro-batch's forward pass and gathers the same units.
    """
    launched, piece, phase = table.ints("launched_ns"), table.bools("piece"), table.texts("phase")
    is_gather, has_micro_batch = table.texts("kind").equals(GATHER), table.known("micro_batch")
    forward = is_gather & phase.equals(Phase.FORWARD) & has_micro_batch
    backward = phase.equals(Phase.BACKWARD, Phase.RECOMPUTE) | (phase.equals(UNKNOWN_PHASE) & ~is_gather)
    steps = Groups(table.ints("rank"), table.ints("step"))
    last = steps.max(np.where(backward, launched, np.iinfo(np.int64).min))[steps.codes]
    is_evaluation = forward & steps.max(backward)[steps.codes] & (launched > last)
    places = np.flatnonzero(forward & ~is_evaluation & ~piece & table.known("unit"))
    is_evaluation[places] |= _is_repeated_forward(table.at(places))
    # pieces follow their gather
    number = _group_units(table).cumsum((~piece).astype(np.int64))
    gathers = _group_units(table, np.where(table.known("unit"), number, 0))
    is_evaluation |= gathers.max(is_evaluation & ~piece)[gathers.codes]
    micro_batch = OptionalInts(table.ints("micro_batch"), has_micro_batch & ~is_evaluation)
    return table.with_columns(micro_batch=micro_batch, trains=~is_evaluation)


def _is_repeated_forward(rows: Columns) -> Mask:
    """Mark the gathers before a micro-batch's last forward pass, if they cover all of its units."""
    unit, position = rows.texts("unit"), np.arange(len(rows))
    micro_batches = Groups(rows.ints("rank"), rows.ints("step"), rows.ints("micro_batch"))
    units = Groups(micro_batches.codes, unit)
    last_of_unit = units.max(position)[units.codes]
    is_early = position < micro_batches.min(last_of_unit)[micro_batches.codes]
    early_codes = micro_batches.codes[is_early]
    early_units = early_codes[Groups(early_codes, unit.at(is_early)).first]
    is_complete = np.bincount(early_units, minlength=len(micro_batches)) == micro_batches.count_distinct(unit)
    return is_complete[micro_batches.codes] & is_early


def _number_passes(table: Columns, parts: Sequence[RankPart]) -> Columns:
    """Number each unit's gathers and reductions, and add the compute between consecutive gathers."""
    places = np.flatnonzero(table.known("unit") & table.bools("trains"))
    rows = table.at(places)
    begins = (~rows.bools("piece")).astype(np.int64)
    units, micro_batches = _group_units(rows), _group_units(rows, rows.ints("micro_batch", -1))
    number, in_micro_batch = units.cumsum(begins), micro_batches.cumsum(begins)
    previous = units.find_previous()
    is_repeated = (previous >= 0) & ~rows.bools("piece") & rows.texts("kind").equals(GATHER)
    start_ns = table.ints("start_ns")
    previous_end = start_ns.copy()
    previous_end[places[is_repeated]] = rows.ints("end_ns")[previous[is_repeated]]
    between = np.concatenate(
        [covered(rank.compute, previous_end[rank_rows], start_ns[rank_rows]) for rank, rank_rows in parts]
    )[places]
    # A gather's pieces have its number and its compute time.
    gathers = _group_units(rows, number)
    first = gathers.min(np.where(is_repeated, np.arange(len(rows)), len(rows)))[gathers.codes]
    between = np.append(between, 0)[np.where(is_repeated, np.arange(len(rows)), first)]
    return table.with_columns(
        number=_spread(number, places, len(table)),
        in_micro_batch=_spread(in_micro_batch, places, len(table), rows.known("micro_batch")),
        compute_between_ns=_spread(between, places, len(table), first < len(rows)),
    )


def _spread(values: Int64s, places: Int64s, length: int, known: Mask | bool = True) -> OptionalInts:
    """Return a column with the ``known`` values at their positions; the rest is unknown."""
    spread, is_known = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.bool_)
    spread[places], is_known[places] = values, known
    return OptionalInts(spread, is_known)


def infer_passes_by_order(units: Sequence[str]) -> list[tuple[str, int]] | None:
    """Return phase and micro-batch of each of a step's gathers; None for a single unit, which has no
    order.
    """
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

    A backward pass visits the forward's units in reverse: each gather belongs to the last unit of its size
    not yet visited. There are two exceptions. A unit's pieces keep their forward order and are launched
    without compute in between. And recomputation gathers a unit again soon after the first gather: either the
    gather matches no remaining unit, or there are too many gathers for one per unit. A gather that matches no
    unit stays unnamed.

    Args:
        phases: Each gather's phase, in launch order.
        sizes_bytes: Each gather's bytes.
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
    """Return the forward positions of a backward pass's gathers, unit by unit; an empty run if none matches.

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
    """Return the longest matching run that starts at one of ``firsts``, up to ``limit``, without compute
    inside.
    """
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
