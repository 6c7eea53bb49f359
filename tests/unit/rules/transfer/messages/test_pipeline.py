"""The model of a step: what shows of gathers and reductions, by hand."""

import pytest

from zprof.rules.transfer.traffic import Pass, infer_prefetch_depth, modelled_exposed_ns

FORWARD = [Pass(compute_ns=10, gather_ns=4)] * 3
BACKWARD = [Pass(compute_ns=20, gather_ns=4, reduce_ns=6)] * 3


@pytest.mark.parametrize(
    ("passes", "ahead", "shows"),
    [
        (FORWARD, 1, 4),  # the first gather
        (FORWARD, 0, 12),  # all of them
        ([*FORWARD, *BACKWARD], 1, 4 + 6),  # and the last reduction
        ([Pass(compute_ns=10, gather_ns=14)] * 3, 1, 14 + 2 * 4),  # what compute is too short for
        ([Pass(compute_ns=10, gather_ns=14)] * 3, 0, 3 * 14),
        ([Pass(compute_ns=10, reduce_ns=25)] * 2, 1, 10 + 50 - 20),  # the link is never free again
        ([Pass(compute_ns=10, reduce_ns=6, replicate_ns=30)] * 2, 1, 10 + 6 + 60 - 20),
        ([Pass(compute_ns=10), Pass(compute_ns=10)], 1, 0),
    ],
)
def test_what_shows(passes: list[Pass], ahead: int, shows: float) -> None:
    assert modelled_exposed_ns(passes, ahead) == pytest.approx(shows)


def test_a_gather_waits_until_what_it_fills_is_free() -> None:
    """With one ahead, the third gather begins when the first pass is computed, not before."""
    passes = [
        Pass(compute_ns=10, gather_ns=1),
        Pass(compute_ns=1, gather_ns=1),
        Pass(compute_ns=1, gather_ns=9),
    ]
    assert modelled_exposed_ns(passes, 1) == pytest.approx(1 + 8)
    assert modelled_exposed_ns(passes, 2) == pytest.approx(1)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_what_is_dropped_after_forward_and_gathered_at_once_shows(ahead: int) -> None:
    """Two passes of one unit: the second gather begins after the first pass, however far ahead others go."""
    turning = Pass(compute_ns=20, gather_ns=4, turns=True)
    assert modelled_exposed_ns([Pass(compute_ns=10, gather_ns=4), turning], ahead) == pytest.approx(8)
    after = [Pass(compute_ns=20, gather_ns=4)]
    assert modelled_exposed_ns(
        [Pass(compute_ns=10, gather_ns=4), turning, *after], ahead or 1
    ) == pytest.approx(8)


def test_the_depth_is_the_one_that_explains_what_was_seen() -> None:
    assert infer_prefetch_depth(FORWARD, 12) == 0
    assert infer_prefetch_depth(FORWARD, 4) == 1
    uneven = [
        Pass(compute_ns=10, gather_ns=1),
        Pass(compute_ns=1, gather_ns=1),
        Pass(compute_ns=1, gather_ns=9),
    ]
    assert infer_prefetch_depth(uneven, 1) == 2
