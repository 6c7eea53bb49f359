"""Infer passes from the order of gathers alone: phases and micro-batches of named units, or units by phase.

A forward gathers units in the order of their first gather of the step, a backward in reverse; some units are
not gathered (they were kept) or gathered twice (for recomputation). So a gather belongs to a forward if the
next one is of a later unit, or if a forward has just reached it in ascending order.
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
    """Return phase and micro-batch of each gather of a step; None if the order tells nothing (one unit)."""
    place = {unit: index for index, unit in enumerate(dict.fromkeys(units))}
    if len(place) < _MIN_UNITS:
        return None
    places = [place[unit] for unit in units]
    found: list[tuple[str, int]] = []
    micro_batch, forward = 0, True
    for index, current in enumerate(places):
        following = places[index + 1] if index + 1 < len(places) else -1
        climbed = forward and index > 0 and current > places[index - 1]
        begins = not (climbed or (forward and index == 0)) and following > current
        if begins:
            micro_batch, forward = micro_batch + 1, True
        elif not climbed and index > 0:
            forward = False
        found.append(((Phase.FORWARD if forward else Phase.BACKWARD).value, micro_batch))
    return found


def infer_units_by_order(
    phases: Sequence[str], sizes_bytes: Sequence[int], computed: Sequence[bool]
) -> list[str | None]:
    """Name the unit of each gather of a micro-batch, knowing only its phase and size.

    A backward goes through the units of the forward in reverse: each of its gathers is of the last unit of
    that size that it has not reached yet. Two things break that order. Pieces of a unit follow each other as
    in the forward, launched without compute between them. And recomputation gathers a unit a second time soon
    after the first: either the gather fits no unit further down, or there are too many gathers for one per
    unit. A gather that fits no unit stays unnamed.

    Args:
        phases: The phase of each gather, in launch order.
        sizes_bytes: Its bytes.
        computed: Whether compute was launched since the previous gather.
    """
    mine = [at for at, phase in enumerate(phases) if phase == Phase.FORWARD.value]
    forward = [(sizes_bytes[at], computed[at]) for at in mine]
    unit = list(range(len(forward)))
    places: dict[int, int | None] = dict(zip(mine, unit, strict=True))
    for phase in (Phase.BACKWARD.value, Phase.RECOMPUTE.value):
        mine = [at for at, each in enumerate(phases) if each == phase]
        runs = _find_runs_in_reverse(forward, [(sizes_bytes[at], computed[at]) for at in mine])
        for run in runs:
            for place in run[1:]:
                unit[place] = unit[run[0]]
        found = [place for run in runs for place in (run or (None,))]
        places.update(zip(mine, found, strict=True))
    named = [places.get(at) for at in range(len(phases))]
    return [None if place is None else f"gather {unit[place]}" for place in named]


def _find_runs_in_reverse(
    forward: Sequence[tuple[int, bool]], backward: Sequence[tuple[int, bool]]
) -> list[Sequence[int]]:
    """Return the forward positions of a backward's gathers, unit by unit; an empty run if one fits nothing.

    Both inputs are pairs of bytes and whether compute was launched before.
    """
    found: list[Sequence[int]] = []
    at, limit = 0, len(forward)
    recent: list[range] = []
    is_repeated = len(backward) > _REPEATED_RATIO * len(forward)
    while at < len(backward):
        fresh = _find_longest_run(forward, range(limit), backward[at:], limit)
        again = max(
            (_find_longest_run(forward, each[:1], backward[at:], each.stop) for each in recent),
            key=len,
            default=_NO_RUN,
        )
        if again and (is_repeated or not fresh):
            run = again
            recent = [each for each in recent if each.start != run.start]
        else:
            run = fresh
            limit = run.start if run else limit
            recent = [*recent, run][-_RECENT_UNITS:] if run else recent
        found.append(run)
        at += max(1, len(run))
    return found


def _find_longest_run(
    forward: Sequence[tuple[int, bool]], firsts: Iterable[int], wanted: Sequence[tuple[int, bool]], limit: int
) -> range:
    """Return the longest agreeing run from one of ``firsts``, up to ``limit`` and without compute inside."""
    best = _NO_RUN
    for first in firsts:
        length = 0
        while length < min(len(wanted), limit - first):
            (size, computed), (other, then) = forward[first + length], wanted[length]
            if size != other or (length and (computed or then)):
                break
            length += 1
        if length and length >= len(best):
            best = range(first, first + length)
    return best
