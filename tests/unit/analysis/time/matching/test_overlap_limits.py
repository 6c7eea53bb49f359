"""How much of their time two ranks' rows must share to be believed the same collectives."""

import numpy as np
import pytest

from zprof.analysis.time.matching.overlap import RankRows
from zprof.analysis.time.matching.slots import HOST_LIMITS, VOTE_LIMITS, OverlapLimits, check_overlaps

MS = 1e6
ROWS = 15


def check(shift_ms: list[float], limits: OverlapLimits, period_ms: float = 20) -> tuple[bool, list[int]]:
    """Return if a rank whose rows of 10 ms lie that much later is believed, and which rows are refused."""
    start = np.arange(len(shift_ms)) * period_ms * MS
    moved = (start + np.array(shift_ms) * MS)[None, :]
    length = (10.02 if period_ms == 10 else 10) * MS
    none = np.zeros(len(start), dtype=np.int64)
    rows = RankRows(
        signature=none, start=start, end=start + length, step=none, sync=np.ones(len(start), dtype=bool)
    )
    good, refused = check_overlaps(rows, moved, moved + 10 * MS, np.zeros(1), limits)
    return bool(good[0]), np.flatnonzero(refused[0]).tolist()


@pytest.mark.parametrize(
    ("limits", "rows", "by_ms", "believed", "refused"),
    [
        (VOTE_LIMITS, ROWS, 4.0, True, []),
        (VOTE_LIMITS, 6, 8.5, True, []),
        (VOTE_LIMITS, 7, 8.5, False, []),
        (VOTE_LIMITS, 1, 9.5, True, []),
        (VOTE_LIMITS, 2, 9.5, False, []),
        (VOTE_LIMITS, 1, 9.9, True, [0]),
        (VOTE_LIMITS, 2, 20.0, False, [0, 1]),
        (HOST_LIMITS, 10, 8.5, True, []),
        (HOST_LIMITS, 11, 8.5, False, []),
        (HOST_LIMITS, 1, 9.85, True, []),
        (HOST_LIMITS, 1, 9.95, True, [0]),
        (HOST_LIMITS, 2, 9.5, False, []),
    ],
)
def test_some_rows_may_share_little_and_few_next_to_nothing(
    limits: OverlapLimits, rows: int, by_ms: float, believed: bool, refused: list[int]
) -> None:
    assert check([by_ms] * rows + [0.0] * (ROWS - rows), limits) == (believed, refused)


def test_rows_that_share_little_beside_a_refused_one_are_refused_too() -> None:
    shifts = [0.0] * 40
    shifts[10:13] = [8.0, 20.0, 8.0]
    assert check(shifts, VOTE_LIMITS) == (True, [10, 11, 12])


@pytest.mark.parametrize("limits", [VOTE_LIMITS, HOST_LIMITS])
def test_a_stretch_that_is_paired_with_its_neighbours_is_refused(limits: OverlapLimits) -> None:
    """Each rank lost another event: between them all rows move by one, and only their ends touch."""
    shifts = [0.0] * 4 + [10.0] * 3 + [0.0] * 8
    assert check(shifts, limits, period_ms=10) == (False, [4, 5, 6])
