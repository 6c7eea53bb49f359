"""What larger messages win: the bounds of the model, the sizes tried, and what counts as traffic."""

from dataclasses import dataclass, replace

import pytest

from tests.support.exact import wall_for, with_clocks
from tests.support.link_runs import MS, US, gathers, link_run, norm, reduces
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.rules.transfer.bandwidth import bus_bandwidths
from zprof.rules.transfer.single_unit import single_unit
from zprof.rules.transfer.small_messages import (
    SmallMessages,
    find_small_messages,
    rate_small_messages,
    unknown_latency_gap,
)
from zprof.rules.transfer.traffic import (
    Pass,
    StepModel,
    StepTraffic,
    _split_passes,
    infer_prefetch_depth,
    is_guess,
    modelled_exposed_ns,
    read_step_traffic,
    sizes_that_help,
    transfer_times,
)

MIB = 1 << 20
KIB = 1 << 10
EMPTY = StepTraffic(gathers=None, reduces=None, compute_ns=0.0, before=False)


def test_the_model_errs_by_a_twentieth_and_half_of_what_it_misses_stays() -> None:
    step = StepModel(traffic=EMPTY, ahead=1, exposed_ns=100.0, missed_ns=0.0, idle_ns=0.0)
    assert step.bounded(40.0, 60.0) == pytest.approx((38.0, 63.0))
    assert step.bounded(40.0, 99.0)[1] == 100.0
    assert replace(step, missed_ns=40.0).saving_ns((2,)) == pytest.approx((0.95 * 80, 100.0))


@dataclass
class Best:
    """A step of which least shows with messages of one size."""

    times: float

    def then_ns(self, times: float) -> tuple[float, float]:
        return (0.0, abs(times - self.times))


@pytest.mark.parametrize(
    ("best", "most", "sizes"),
    [
        (2, 64, [2, 3, 4, 6, 8]),
        (6, 64, [6, 8, 12, 16, 24]),
        (16, 64, [16, 24, 32, 48, 64]),
        (64, 48, [48]),
        (2, 3, [2, 3]),
    ],
)
def test_from_the_best_size_to_four_times_it(best: float, most: float, sizes: list[float]) -> None:
    assert list(sizes_that_help(Best(best), most)) == sizes  # type: ignore[arg-type]
    assert list(sizes_that_help(Best(best), 1.9)) == []  # type: ignore[arg-type]


def test_three_ahead_is_the_deepest() -> None:
    passes = [Pass(compute_ns=20, gather_ns=1), *[Pass(compute_ns=1, gather_ns=1)] * 2]
    passes += [Pass(compute_ns=1, gather_ns=9), Pass(compute_ns=1, gather_ns=1)]
    assert infer_prefetch_depth(passes, modelled_exposed_ns(passes, 3)) == 3


@pytest.mark.parametrize(("size", "count"), [(KIB, 1), (KIB + 1, 2), (round(1.1 * KIB), 2), (900, 1)])
def test_less_than_a_1024th_is_no_traffic(size: int, count: int) -> None:
    analysis = link_run(gathers(1, MIB, MS), gathers(1, size, MS, begins_ns=100 * MS))
    traffic = read_step_traffic(analysis)
    assert traffic is not None
    assert traffic.gathers is not None
    assert traffic.gathers.count == count


@pytest.mark.parametrize(
    ("gathered", "reduced", "split"), [(3, 2, (1, True)), (2, 2, (2, False)), (4, 2, (2, True))]
)
def test_one_and_a_half_gathers_of_a_reduction_are_gathered_again(
    gathered: int, reduced: int, split: tuple[int, bool]
) -> None:
    assert _split_passes(gathered, reduced) == split


def test_gathers_that_begin_with_the_reductions_serve_no_pass() -> None:
    at_once = read_step_traffic(link_run(gathers(2, MIB, MS), reduces(2, MIB, MS, begins_ns=0)))
    first = read_step_traffic(link_run(gathers(2, MIB, MS), reduces(2, MIB, MS, begins_ns=1)))
    assert at_once is not None
    assert first is not None
    assert (at_once.before, first.before) == (False, True)


@pytest.mark.parametrize(("doubt_ns", "seen"), [(MS // 2, False), (MS // 2 - 1, True)])
def test_what_the_clocks_cannot_tell_is_not_timed(doubt_ns: int, *, seen: bool) -> None:
    analysis = with_clocks(link_run(gathers(2, MIB, MS)), uncertainty_ns=doubt_ns)
    assert bool(len(transfer_times(analysis, analysis.collectives))) is seen


def test_messages_without_bytes_have_no_bandwidth() -> None:
    analysis = link_run(gathers(2, MIB, MS), gathers(2, 0, MS, begins_ns=100 * MS))
    each = bus_bandwidths(analysis, analysis.collectives, gathers(1, 1, 1).kind)
    assert set(each["bytes"]) == {MIB}


def met() -> SmallMessages:
    """A step that the model meets, of messages that are latency."""
    found = find_small_messages(
        link_run(gathers(32, MIB, MS), reduces(16, MIB, MS), norm(900 * US), compute_ns=5 * MS)
    )
    assert found is not None
    return found


@pytest.mark.parametrize(("missed", "confidence"), [(0.5, Confidence.HIGH), (0.51, Confidence.MEDIUM)])
def test_half_of_what_is_exposed_may_be_missed(missed: float, confidence: Confidence) -> None:
    small = met()
    step = replace(small.step, missed_ns=missed * small.step.exposed_ns)
    assert rate_small_messages(replace(small, step=step)) is confidence


@pytest.mark.parametrize(("rows", "confidence"), [(10, Confidence.HIGH), (9, Confidence.MEDIUM)])
def test_ten_messages_are_enough(rows: int, confidence: Confidence) -> None:
    small = met()
    traffic = small.step.traffic
    assert traffic.gathers is not None
    few = replace(traffic, gathers=replace(traffic.gathers, rows=traffic.gathers.rows.iloc[:rows]))
    assert rate_small_messages(replace(small, step=replace(small.step, traffic=few))) is confidence


def test_fewer_than_one_in_ten_quick_messages_refute_nothing() -> None:
    quick = gathers(3, MIB, 449 * US, begins_ns=100 * MS)
    found = find_small_messages(
        link_run(gathers(29, MIB, MS), quick, reduces(16, MIB, MS), norm(900 * US), compute_ns=5 * MS)
    )
    assert found is not None
    assert found.is_met


def test_four_messages_are_left_at_least() -> None:
    """Of 48 the largest are twelve times as large; nothing hides them, so the fewer the better."""
    found = find_small_messages(link_run(reduces(48, MIB, MS), norm(900 * US), compute_ns=0))
    assert found is not None
    assert max(found.sizes) == 12


@pytest.mark.parametrize(("high", "guess"), [(2.7, True), (3.0, False), (3.3, False)])
def test_two_hundredths_in_the_middle_are_no_guess(high: float, *, guess: bool) -> None:
    assert is_guess((1.0, high), 100.0) is guess


def test_three_hundredths_of_the_step_are_worth_it() -> None:
    small = met()
    wall = wall_for(small.saving_ns[1], 0.03)
    assert replace(small, wall_ns=wall).is_worth_it
    assert not replace(small, wall_ns=1.001 * wall).is_worth_it


def test_one_rank_has_nothing_to_know() -> None:
    analysis = link_run(gathers(32, MIB, MS), reduces(16, MIB, MS))
    alone = replace(analysis, run=replace(analysis.run, world_size=1))
    assert unknown_latency_gap(analysis, Cause.UNITS_TOO_SMALL) is not None
    assert unknown_latency_gap(alone, Cause.UNITS_TOO_SMALL) is None
    assert single_unit(replace(one_message(), run=alone.run), None) is None


def one_message() -> RunAnalysis:
    """The model as one unit."""
    whole = link_run(gathers(1, 200 * MIB, 10 * MS), reduces(1, 200 * MIB, 10 * MS), compute_ns=75 * MS)
    assert isinstance(single_unit(whole, None), Finding)
    return whole


def test_groups_of_one_rank_and_gathers_of_nothing_are_no_traffic() -> None:
    analysis = link_run(gathers(2, MIB, MS))
    alone = replace(analysis, collectives=analysis.collectives.assign(group_size=1))
    assert read_step_traffic(alone) is None
    barriers = link_run(gathers(2, 0, MS, group="0,1"), reduces(2, MIB, MS, group="0,2"))
    traffic = read_step_traffic(barriers)
    assert traffic is not None
    assert traffic.gathers is None
    assert traffic.reduces is not None
