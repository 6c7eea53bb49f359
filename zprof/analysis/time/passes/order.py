"""What the order of gathers alone tells: phases and micro-batches of named units, units of known phases.

A forward gathers units in the order of their first gather of the step, a backward in the reverse one, some
of them not at all (they were kept) or twice (a recomputation gathers, too).  So a gather belongs to a
forward where the next one is of a later unit, or where a forward has just climbed to it.
"""

from collections.abc import Sequence

from zprof.model.phases import Phase

_FEWEST = 2


def passes_by_order(units: Sequence[str]) -> list[tuple[str, int]] | None:
    """Phase and micro-batch of each gather of a step; None where the order says nothing (one unit)."""
    place = {unit: index for index, unit in enumerate(dict.fromkeys(units))}
    if len(place) < _FEWEST:
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


def units_by_order(phases: Sequence[str], sizes_bytes: Sequence[int]) -> list[str | None]:
    """Name the unit of each gather of a micro-batch, where nothing but its phase and size is known.

    A backward goes through the units of the forward in reverse, and so does the recomputation in it: each of
    their gathers is of the last unit of that size which it has not come to yet.  A gather that fits no unit
    stays without a name.
    """
    forward = [size for phase, size in zip(phases, sizes_bytes, strict=True) if phase == Phase.FORWARD.value]
    left = {phase: list(range(len(forward))) for phase in (Phase.BACKWARD.value, Phase.RECOMPUTE.value)}
    names: list[str | None] = []
    count = 0
    for phase, size in zip(phases, sizes_bytes, strict=True):
        if phase == Phase.FORWARD.value:
            names.append(f"gather {count}")
            count += 1
            continue
        mine = left.get(phase, [])
        place = next((place for place in reversed(mine) if forward[place] == size), None)
        if place is None:
            names.append(None)
            continue
        del mine[mine.index(place) :]
        names.append(f"gather {place}")
    return names
