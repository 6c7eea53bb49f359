"""The work of each pass, of all ranks and steps; passes that share a stretch are told apart.

A stretch that holds several passes goes to each by the median of that pass where it stands alone, else by
the median of passes of its kind and size; what is left goes to those of which nothing is known, by bytes (a
backward counts twice).
"""

import numpy as np

from zprof.planner.whatif.skeleton import Floats, Pass, Phase, UnitSize

#: Units whose bytes differ by less are taken to compute alike.
_ALIKE_RATIO = 0.1


def spread(
    alone: Floats,
    shared: "dict[tuple[int, int, int, int], float]",
    passes: tuple[Pass, ...],
    units: tuple[UnitSize, ...],
) -> tuple[Floats, int]:
    """Fill the passes that share a stretch.

    Args:
        alone: Work of [pass, step, rank], NaN where the pass shares a stretch.
        shared: By (step, rank, first pass, pass after the last) the work of the stretch.
        passes: The passes of a step.
        units: Their units.

    Returns:
        All work, and how many passes stood alone in at least one step.
    """
    with np.errstate(all="ignore"):
        known = np.array([np.nanmedian(row) if (~np.isnan(row)).any() else np.nan for row in alone])
    usual = np.array([_usual(index, known, passes, units) for index in range(len(passes))])
    weights = np.array([units[each.unit].reduce_bytes * _weight(each) for each in passes])
    filled = alone.copy()
    for (step, rank, first, last), work in shared.items():
        filled[first:last, step, rank] = _shares(usual[first:last], weights[first:last], work)
    return filled, int((~np.isnan(known)).sum())


def _weight(each: Pass) -> float:
    if not each.needs:
        return 0.1  # after the others the root has its embedding only
    return 1.0 if each.phase is Phase.FORWARD else 2.0


def _usual(index: int, known: Floats, passes: tuple[Pass, ...], units: tuple[UnitSize, ...]) -> float:
    if not np.isnan(known[index]):
        return float(known[index])
    me, size = passes[index], units[passes[index].unit].reduce_bytes
    alike = [
        known[other]
        for other, each in enumerate(passes)
        if (each.phase, each.needs) == (me.phase, me.needs)
        and units[each.unit].encloses == units[me.unit].encloses
        and abs(units[each.unit].reduce_bytes - size) <= _ALIKE_RATIO * size
        and not np.isnan(known[other])
    ]
    return float(np.median(alike)) if alike else np.nan


def _shares(usual: Floats, weights: Floats, work: float) -> Floats:
    missing = np.isnan(usual)
    sure = float(np.nansum(usual))
    if not missing.any():
        return np.asarray(usual * (work / sure) if sure > 0 else np.full(len(usual), work / len(usual)))
    least = 0.0
    if sure > work:  # nothing would be left for the others
        usual, sure = usual * (work / sure), work
    weights = np.where(missing, np.maximum(weights, 1e-9), 0.0)
    rest = max(least, work - sure)
    return np.asarray(np.where(missing, rest * weights / weights.sum(), usual), dtype=np.float64)
