"""The model of a step's gathers and reductions: what counts as traffic, what shows of it, its latency."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec import Struct
from msgspec.structs import replace

from tests.support.link_runs import MS, US, gathers, link_run, reduces
from tests.support.rule_runs import in_groups_of_one, with_clocks
from zprof.rules.transfer.latency import read_latencies
from zprof.rules.transfer.traffic import (
    StepModel,
    StepTraffic,
    is_guess,
    measure_transfers,
    read_step_traffic,
    sizes_that_help,
)
from zprof.step.one_rank import TimedPass, infer_prefetch_depth, modelled_exposed_ns

MIB, KIB, MB = 1 << 20, 1 << 10, 1_000_000
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


def traffic(*sent: object) -> StepTraffic:
    found = read_step_traffic(link_run(*sent))  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize(("size", "count"), [(KIB, 1), (KIB + 1, 2)])
def test_messages_up_to_a_1024th_are_no_traffic(size: int, count: int) -> None:
    found = traffic(gathers(1, MIB, MS), gathers(1, size, MS, begins_ns=100 * MS)).gathers
    assert found is not None
    assert found.count == count


@pytest.mark.parametrize(("gathered", "keeps"), [(2, True), (3, False), (4, False)])
def test_one_and_a_half_gathers_for_each_reduction_are_gathered_again(gathered: int, *, keeps: bool) -> None:
    assert traffic(gathers(gathered, MIB, MS), reduces(2, MIB, MS)).keeps_units is keeps


@pytest.mark.parametrize(("begins_ns", "before"), [(0, False), (1, True)])
def test_gathers_that_start_with_the_reductions_serve_no_pass(begins_ns: int, *, before: bool) -> None:
    assert traffic(gathers(2, MIB, MS), reduces(2, MIB, MS, begins_ns=begins_ns)).before is before


def test_groups_of_one_rank_and_gathers_of_nothing_are_no_traffic() -> None:
    assert read_step_traffic(in_groups_of_one(link_run(gathers(2, MIB, MS)))) is None
    barriers = traffic(gathers(2, 0, MS, group="0,1"), reduces(2, MIB, MS, group="0,2"))
    assert (barriers.gathers is None, barriers.reduces is None) == (True, False)


@pytest.mark.parametrize(("uncertainty_ns", "timed"), [(MS // 2, False), (MS // 2 - 1, True)])
def test_what_the_clocks_cannot_tell_is_not_timed(uncertainty_ns: int, *, timed: bool) -> None:
    analysis = with_clocks(link_run(gathers(2, MIB, MS)), uncertainty_ns=uncertainty_ns)
    assert bool(len(measure_transfers(analysis, analysis.collectives))) is timed


LATENCY_NS = 500 * US
SIZES = (5 * MB, 5 * MB, 6 * MB, 7 * MB)


def latencies(
    sizes: Sequence[int], off_us: Sequence[int], times_gathered: float = 1.0
) -> Mapping[str, float]:
    """The latencies of a step whose messages take 500 us and a ms for 20 MB, each off by so much."""
    sent = []
    for number, (size, off) in enumerate(zip(sizes, off_us, strict=True)):
        each = round(LATENCY_NS + size / (20 * MB) * MS) + off * US
        begins = number * 20 * MS
        sent.append(gathers(3, size, round(times_gathered * each), begins_ns=begins))
        sent.append(reduces(3, size, each, begins_ns=400 * MS + begins))
    analysis = link_run(*sent)
    return read_latencies(replace(analysis, time=replace(analysis.time, fits=()))).by_ranks


def test_the_latency_is_read_from_sizes_that_are_apart() -> None:
    assert latencies(SIZES, (-8, 8, 4, -4)) == {"0,1": pytest.approx(LATENCY_NS, rel=0.1)}
    near = tuple(5 * MB + size // 100 for size in SIZES)
    assert latencies(near, (-40, 40, 35, -35)) == {}  # by more than the times scatter
    assert latencies((5 * MB,) * 4, (0,) * 4) == {}
    assert latencies(SIZES, (0,) * 4, times_gathered=2.0) == {}  # kinds of another speed are no line
