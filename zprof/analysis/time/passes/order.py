"""What the order of gathers alone tells: phases and micro-batches of named units, units of known phases.

A forward gathers units in the order of their first gather of the step, a backward in the reverse one, some
of them not at all (they were kept) or twice (a recomputation gathers, too).  So a gather belongs to a
forward where the next one is of a later unit, or where a forward has just climbed to it.
"""

from collections.abc import Iterable, Sequence

from zprof.model.training import Phase

_MIN_UNITS = 2
#: More gathers of a backward for each of the forward than that gather units twice.
_REPEATED_RATIO = 1.5
#: A recomputation gathers a unit before the backward has come much further.
_RECENT_UNITS = 2
_NO_RUN = range(0)


def infer_passes_by_order(units: Sequence[str]) -> list[tuple[str, int]] | None:
    """Phase and micro-batch of each gather of a step; None where the order says nothing (one unit)."""
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
    """Name the unit of each gather of a micro-batch, where nothing but its phase and size is known.

    A backward goes through the units of the forward in reverse: each of its gathers is of the last unit of
    that size which it has not come to yet.  Two things break that order.  Pieces of a unit follow each other
    as in the forward, launched without compute between them.  And recomputation gathers a unit a second
    time soon after the first: that one fits no unit further down, or there are too many gathers for one
    each.  A gather that fits no unit stays without a name.

    Args:
        phases: The phase of each gather, in the order of their launches.
        sizes_bytes: Its bytes.
        computed: If compute was launched since the gather before.
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
    """Return the places in the forward of the gathers of a backward, unit by unit; none if one fits nothing.

    Both are bytes, and if compute was launched before.
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
    """Return from which of the places on most gathers agree, before ``limit`` and before any compute."""
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
