"""How much of their time two ranks' rows must share to be believed the same collectives."""

import numpy as np
import pytest

from zprof.analysis.time.matching.overlap import RankRows
from zprof.analysis.time.matching.slots import HOST_LIMITS, VOTE_LIMITS, OverlapLimits, check_overlaps

MS = 1e6
ROWS = 15


def line(start: np.ndarray, end: np.ndarray) -> RankRows:
    ordinal = np.zeros(len(start), dtype=np.int64)
    return RankRows(
        signature=ordinal, start=start, end=end, step=ordinal, sync=np.ones(len(start), dtype=bool)
    )


def fits(
    moved_start: np.ndarray, moved_end: np.ndarray, limits: OverlapLimits = VOTE_LIMITS
) -> tuple[bool, list[int]]:
    """Whether the rank fits, and which of its rows are refused."""
    start = np.arange(ROWS) * 20 * MS
    first = line(start, start + 10 * MS)
    good, refused = check_overlaps(first, moved_start[None, :], moved_end[None, :], np.zeros(1), limits)
    return bool(good[0]), np.flatnonzero(refused[0]).tolist()


def late(rows: int, by_ms: float) -> tuple[np.ndarray, np.ndarray]:
    """The first ``rows`` enter and leave that much later on the other rank."""
    start = np.arange(ROWS) * 20 * MS
    shift = np.where(np.arange(ROWS) < rows, by_ms * MS, 0.0)
    return start + shift, start + 10 * MS + shift


@pytest.mark.parametrize(
    ("rows", "by_ms", "believed", "refused"),
    [
        (0, 0.0, True, []),
        (ROWS, 4.0, True, []),
        (6, 8.5, True, []),
        (7, 8.5, False, []),
        (1, 9.5, True, []),
        (2, 9.5, False, []),
        (1, 9.9, True, [0]),
        (1, 20.0, True, [0]),
        (2, 20.0, False, [0, 1]),
    ],
)
def test_some_rows_may_share_little_and_few_next_to_nothing(
    rows: int, by_ms: float, believed: bool, refused: list[int]
) -> None:
    assert fits(*late(rows, by_ms)) == (believed, refused)


@pytest.mark.parametrize(
    ("rows", "by_ms", "believed", "refused"),
    [
        (10, 8.5, True, []),
        (11, 8.5, False, []),
        (1, 9.85, True, []),
        (1, 9.95, True, [0]),
        (2, 9.5, False, []),
        (1, 20.0, True, [0]),
    ],
)
def test_the_clock_of_their_host_lets_more_rows_share_little(
    rows: int, by_ms: float, believed: bool, refused: list[int]
) -> None:
    assert fits(*late(rows, by_ms), HOST_LIMITS) == (believed, refused)


def test_rows_that_share_little_beside_a_refused_one_are_refused_too() -> None:
    """Of a stretch that is paired with its neighbours some rows may touch theirs by more than the limit."""
    count = 40
    start = np.arange(count) * 20 * MS
    first = line(start, start + 10 * MS)
    moved = start.copy()
    moved[10:13] += np.array([8.0, 20.0, 8.0]) * MS
    good, refused = check_overlaps(first, moved[None, :], moved[None, :] + 10 * MS, np.zeros(1), VOTE_LIMITS)
    assert good[0]
    assert np.flatnonzero(refused[0]).tolist() == [10, 11, 12]


def test_a_stretch_that_is_paired_with_its_neighbours_is_refused() -> None:
    """Each rank lost another event: between them all rows move by one, and only their ends touch."""
    start = np.arange(ROWS) * 10 * MS
    moved = start.copy()
    moved[4:7] += 10 * MS
    touching = 0.02 * MS
    first = line(start, start + 10 * MS + touching)
    for limits in (VOTE_LIMITS, HOST_LIMITS):
        believed, refused = check_overlaps(
            first, moved[None, :], moved[None, :] + 10 * MS, np.zeros(1), limits
        )
        assert not believed[0]
        assert np.flatnonzero(refused[0]).tolist() == [4, 5, 6]
