"""How far the hidden share of both runs may differ by chance: by the shares of their steps."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.comparison import MIN_STEPS, bootstrap_interval
from zprof.tui.figures import Unit
from zprof.tui.pages.compare_leaves import Compared, Part, part_of, rank_of
from zprof.tui.pages.compare_places import Place
from zprof.tui.session import Loaded

HIDDEN_SHARE = "overlap_ratio"
#: The interval is worked out of whole numbers: of a share, these parts of it.
_PARTS = 1e9


def share_interval(loaded: Loaded, place: Place) -> tuple[float, float] | None:
    """The 95 % interval of B's hidden share minus A's; None where steps do not tell it.

    As of the step time: the steps of each run are drawn anew, by themselves.
    """
    comparison, before = loaded.report.comparison, loaded.before
    is_share = place.row.name == HIDDEN_SHARE and part_of(place.section) in (Part.STEP, Part.RANK)
    if not is_share or before is None or comparison is None:
        return None
    if any(rank.upper_bound for rank in (*loaded.report.time.per_rank, *comparison.baseline_time)):
        return None
    rank = rank_of(place.section)
    shares = [_shares(analysis.steps, rank) for analysis in (before, loaded.analysis)]
    if min(map(len, shares)) < MIN_STEPS:
        return None
    low, high = bootstrap_interval(shares[0] * _PARTS, shares[1] * _PARTS)
    return low / _PARTS, high / _PARTS


def _shares(steps: pd.DataFrame, rank: int | None) -> npt.NDArray[np.float64]:
    """Of each step with collectives, the share of their time that is hidden; of one rank, or of all."""
    if steps.empty:
        return np.empty(0)
    mine = steps if rank is None else steps[steps["rank"] == rank]
    sums = mine.groupby("step")[["overlapped_ns", "collective_ns"]].sum()
    sums = sums[sums["collective_ns"] > 0]
    return (sums["overlapped_ns"] / sums["collective_ns"]).to_numpy(dtype=np.float64)


def share_figure(interval: tuple[float, float]) -> Compared:
    """``-84..-78 pt``: in points, as the change is."""
    low, high = (100 * end for end in interval)
    return Compared(value=interval[1], unit=Unit.RATIO, leaves=(), words=f"{low:+.0f}..{high:+.0f} pt")
