"""Infer passes from the order of gathers alone: phases and micro-batches of named units, or units by phase.

A forward gathers units in the order of their first gather of the step, a backward in reverse; some units are
not gathered (still unsharded) or gathered twice (for recomputation). So a gather belongs to a forward if the
next gather is of a later unit, or if a forward has just reached it in ascending order.
"""

from collections.abc import Iterable, Sequence

from zprof.model.training import Phase

_MIN_UNITS = 2
#: With more backward gathers per forward gather than this, units are gathered twice.
_REPEATED_RATIO = 1.5
#: Recomputation gathers a unit again before the backward has moved on by more units than this.
_RECENT_UNITS = 2
_NO_RUN = range(0)


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
