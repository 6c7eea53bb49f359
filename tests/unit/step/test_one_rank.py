"""The model of a step on one rank: what shows of its messages, and what other sizes would change."""

import pytest
from msgspec import Struct
from msgspec.structs import replace

from tests.support.link_runs import MS, gathers, link_run, reduces
from zprof.step.one_rank import (
    StepModel,
    TimedPass,
    gather_again,
    infer_prefetch_depth,
    is_guess,
    modelled_exposed_ns,
    sizes_that_help,
)
from zprof.step.traffic import StepTraffic, read_step_traffic

FORWARD = [TimedPass(compute_ns=10, gather_ns=4)] * 3
BACKWARD = [TimedPass(compute_ns=20, gather_ns=4, reduce_ns=6)] * 3
LONG = [TimedPass(compute_ns=10, gather_ns=14)] * 3
#: With one ahead the third gather starts when the first pass is computed, not before.
UNEVEN = [
    TimedPass(compute_ns=10, gather_ns=1),
    TimedPass(compute_ns=1, gather_ns=1),
    TimedPass(compute_ns=1, gather_ns=9),
]
DEEP = [
    TimedPass(compute_ns=20, gather_ns=1), *[TimedPass(compute_ns=1, gather_ns=1)] * 2,
    TimedPass(compute_ns=1, gather_ns=9), TimedPass(compute_ns=1, gather_ns=1),
]  # fmt: skip
#: The backward of the last unit gathers what its forward has just dropped.
TURN = [TimedPass(compute_ns=10, gather_ns=4), TimedPass(compute_ns=20, gather_ns=4, turns=True)]


@pytest.mark.parametrize(
    ("passes", "ahead", "shows"),
    [
        (FORWARD, 1, 4),  # the first gather
        (FORWARD, 0, 12),  # all of them
        ([*FORWARD, *BACKWARD], 1, 4 + 6),  # and the last reduction
        (LONG, 1, 14 + 2 * 4),  # what compute is too short for
        (LONG, 0, 3 * 14),
        ([TimedPass(compute_ns=10, reduce_ns=25)] * 2, 1, 10 + 50 - 20),  # the link is never free again
        ([TimedPass(compute_ns=10, reduce_ns=6, replicate_ns=30)] * 2, 1, 10 + 6 + 60 - 20),
        ([TimedPass(compute_ns=10)] * 2, 1, 0),
        (UNEVEN, 1, 1 + 8),
        (UNEVEN, 2, 1),
        (TURN, 0, 8),
        (TURN, 2, 8),
        ([*TURN, TimedPass(compute_ns=20, gather_ns=4)], 1, 8),
    ],
)
def test_what_shows_of_passes(passes: list[TimedPass], ahead: int, shows: float) -> None:
    assert modelled_exposed_ns(passes, ahead) == pytest.approx(shows)


@pytest.mark.parametrize(
    ("passes", "seen", "depth"), [(FORWARD, 12, 0), (FORWARD, 4, 1), (UNEVEN, 1, 2), (DEEP, 1, 3)]
)
def test_the_prefetch_depth_explains_what_was_seen(passes: list[TimedPass], seen: float, depth: int) -> None:
    assert infer_prefetch_depth(passes, seen) == depth


def test_the_model_errs_by_a_twentieth_and_half_of_what_it_misses() -> None:
    empty = StepTraffic(gathers=None, reduces=None, compute_ns=0.0, before=False)
    step = StepModel(traffic=empty, ahead=1, exposed_ns=100.0, missed_ns=0.0, idle_ns=0.0)
    assert step.bounded(40.0, 60.0) == pytest.approx((38.0, 63.0))
    assert step.bounded(40.0, 99.0)[1] == 100.0
    assert replace(step, missed_ns=40.0).saving_ns((2,)) == pytest.approx((0.95 * 80, 100.0))


class Best(Struct):
    """A step of which least shows with messages of one size."""

    times: float

    def then_ns(self, times: float) -> tuple[float, float]:
        return (0.0, abs(times - self.times))


@pytest.mark.parametrize(
    ("best", "most", "sizes"),
    [(2, 64, [2, 3, 4, 6, 8]), (16, 64, [16, 24, 32, 48, 64]), (64, 48, [48]), (2, 3, [2, 3]), (2, 1.9, [])],
)
def test_sizes_from_the_best_to_four_times_it_help(best: float, most: float, sizes: list[float]) -> None:
    assert list(sizes_that_help(Best(best), most)) == sizes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("saving", "guess"), [((0, 90), True), ((1, 2.9), True), ((1, 3), False), ((2, 2), False)]
)
def test_a_guess_is_below_two_hundredths_in_the_middle(saving: tuple[float, float], *, guess: bool) -> None:
    assert is_guess(saving, 100) == guess


@pytest.mark.parametrize(("gathered", "keeps"), [(2, True), (3, False), (4, False)])
def test_one_and_a_half_gathers_for_each_reduction_are_gathered_again(gathered: int, *, keeps: bool) -> None:
    traffic = read_step_traffic(link_run(gathers(gathered, 1 << 20, MS), reduces(2, 1 << 20, MS)))
    assert traffic is not None
    assert (gather_again(traffic) != traffic) is keeps
