"""How much of a step's communication shows: a model of passes that compute and of one link beside them.

A pass computes once its gather is done, and its reduction follows it.  The link carries one message after
another in the order of their launches; gathers are launched ``ahead`` passes early, and no earlier, for
what they fill must be free again.  With G, R, c the times of a gather, a reduction and the compute of a
pass, what shows is the first gather, the one at the turn from forward to backward (unless the last unit is
kept), the last reduction, and max(0, G - c) or max(0, G + R - c) of each pass between: that is why it is
worth to know the whole step, not only what is exposed now.
"""

from collections.abc import Sequence
from dataclasses import dataclass

#: How far ahead programs gather: none, the next unit, or some more.
_DEPTHS = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass of one unit.

    ``replicate_ns``: what follows its reduction on another link (HSDP).  ``turns``: the unit is that of the
    pass before, and was dropped after it: nothing can gather it earlier.
    """

    compute_ns: float
    gather_ns: float = 0.0
    reduce_ns: float = 0.0
    replicate_ns: float = 0.0
    turns: bool = False


def exposed_ns(passes: Sequence[Pass], ahead: int) -> float:
    """Time of the passes beyond their compute."""
    link = second = computed = 0.0
    gathered: list[float] = []
    ends: list[float] = []
    for number, one in enumerate(passes):
        for target in range(len(gathered), min(number + ahead + 1, len(passes))):
            if passes[target].turns and target > number:
                break
            early = 1 if passes[target].turns else ahead + 1
            free = ends[target - early] if target >= early else 0.0
            duration = passes[target].gather_ns
            link = max(link, free) + duration if duration else link
            gathered.append(link if duration else 0.0)
        computed = max(computed, gathered[number]) + one.compute_ns
        ends.append(computed)
        if one.reduce_ns:
            link = max(link, computed) + one.reduce_ns
            second = max(second, link) + one.replicate_ns if one.replicate_ns else second
    return max(link, second, computed) - sum(one.compute_ns for one in passes)


def depth_of(passes: Sequence[Pass], seen_ns: float) -> int:
    """How far ahead gathers run, as what was seen exposed tells."""
    return min(_DEPTHS, key=lambda depth: (abs(exposed_ns(passes, depth) - seen_ns), abs(depth - 1)))
