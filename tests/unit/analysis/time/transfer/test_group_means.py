"""Sums of a step as means over a group's own ranks, by kind, by unit and by size."""

import pytest

from tests.support.matched_rows import clocks, collective, table
from zprof.analysis.time.collective_rows import RankSteps, parse_group_ranks
from zprof.analysis.time.transfer.collective_times import (
    sum_collective_times,
    sum_message_sizes,
    sum_unit_times,
)
from zprof.analysis.time.transfer.decomposition import decompose_collectives

MS = 1_000_000
EIGHT = RankSteps(of_rank=dict.fromkeys(range(8), 1))


def frame(*collectives):
    found = decompose_collectives(table(*collectives), clocks())
    return found.assign(exposed_wait_ns=found["wait_ns"], exposed_transfer_ns=10, dependency_ns=7)


def spans(number, ranks, late=0):
    at = number * 20 * MS
    return {rank: (at + late * (rank == ranks[-1]), at + late + 4 * MS) for rank in ranks}


def in_both_halves(count, **more):
    """``count`` collectives in each of two groups of four of the eight ranks."""
    halves = ((0, 1, 2, 3), (4, 5, 6, 7))
    return [
        collective(half * count + number, spans(number, ranks, late=MS), **more)
        for half, ranks in enumerate(halves)
        for number in range(count)
    ]


def test_a_group_of_half_the_ranks_is_not_diluted():
    first, second = sum_collective_times(frame(*in_both_halves(3)), EIGHT)
    for entry in (first, second):
        assert entry.count == 3
        assert entry.bytes == 3 << 20
        assert entry.wait_ns == 3 * MS * 3 // 4
        assert entry.total_ns == entry.wait_ns + entry.transfer_ns
        assert entry.group_size == 4
        assert not entry.bound
        assert entry.dependency_ns == 7
        assert entry.tail_ns == 0
        assert entry.intrinsic_ns == 4 * MS
    assert {first.group, second.group} == {"0,1,2,3", "4,5,6,7"}


def test_a_group_that_does_not_say_its_ranks_is_that_of_its_rows():
    rows = frame(*in_both_halves(3, group="pg:7", group_size=4))
    (entry,) = sum_collective_times(rows[rows["rank"] < 4], EIGHT)
    assert entry.count == 3


def test_steps_of_the_ranks_count():
    rows = frame(*in_both_halves(3))
    (entry,) = sum_collective_times(
        rows[rows["rank"] < 4], RankSteps(of_rank={0: 2, 1: 2, 2: 2, 3: 2, 4: 50})
    )
    assert entry.count == 1.5


@pytest.mark.parametrize(
    ("group", "ranks"),
    [
        ("0,3", {0, 3}),
        ("0,3#dp", {0, 3}),
        ("pg:1", set()),
        ("stream:7", set()),
        ("", set()),
        ("1,x", set()),
        ("9" * 30, set()),
        ("²", set()),
    ],
)
def test_ranks_of_a_group(group, ranks):
    assert parse_group_ranks(group) == ranks


def test_bandwidth_leaves_the_first_of_a_window_and_the_unresolved_out():
    slow = collective(0, {0: (0, 40 * MS), 1: (0, 40 * MS)}, first_of_window=True)
    fast = [collective(number, spans(3 * number, (0, 1))) for number in range(1, 4)]
    short = collective(9, {0: (0, 150), 1: (0, 150)})
    (entry,) = sum_collective_times(frame(slow, *fast, short), EIGHT)
    assert entry.algbw_bytes_per_s == pytest.approx((1 << 20) / 4e-3)
    assert entry.intrinsic_ns == 4 * MS
    (entry,) = sum_collective_times(frame(slow, short), EIGHT)
    assert entry.algbw_bytes_per_s is None
    assert entry.intrinsic_ns is None


def test_a_gloo_reduce_scatter_says_what_its_wire_does():
    rows = frame(collective(0, spans(0, (0, 1)), kind="reduce_scatter", method="gloo_fifo"))
    assert "twice" in sum_collective_times(rows, EIGHT)[0].method
    rows = frame(collective(0, spans(0, (0, 1)), kind="reduce_scatter", method="nccl"))
    assert "twice" not in sum_collective_times(rows, EIGHT)[0].method


def test_missing_ranks_are_bounds():
    (entry,) = sum_collective_times(frame(collective(0, spans(0, (0, 1)), ranks=(0, 1, 2))), EIGHT)
    assert entry.bound
    assert "lower" in entry.method


def test_units():
    rows = frame(
        collective(0, spans(0, (0, 1), late=MS), unit="blocks.0"),
        collective(1, spans(1, (0, 1), late=MS), unit="blocks.0"),
        collective(2, spans(2, (0, 1)), unit="blocks.1", kind="all_gather"),
        collective(3, spans(3, (0, 1))),
        collective(4, spans(4, (0, 1)), unit=""),
    )
    first, second = sum_unit_times(rows, EIGHT)
    assert (first.unit, first.kind, first.group, first.count) == ("blocks.0", "all_reduce", "0,1", 2)
    assert (first.bytes, first.exposed_wait_ns, first.exposed_transfer_ns) == (2 << 20, MS, 20)
    assert (second.unit, second.kind, second.count) == ("blocks.1", "all_gather", 1)


def test_sizes_in_powers_of_four():
    sizes = [0, 1023, 1024, 4095, 4096, 1 << 20, (1 << 20) + 1, (1 << 22) - 1, 1 << 62, (1 << 63) - 1]
    rows = frame(*(collective(n, spans(n, (0, 1)), bytes=size) for n, size in enumerate(sizes)))
    bars = sum_message_sizes(rows, EIGHT)
    assert [(bar.at_least_bytes, bar.count) for bar in bars] == [
        (0, 2), (1024, 2), (4096, 1), (1 << 20, 3), (1 << 62, 2),
    ]  # fmt: skip
    for bar in bars:
        assert bar.below_bytes == (
            max(4 * bar.at_least_bytes, 1024) if bar.at_least_bytes < 1 << 62 else (1 << 63) - 1
        )
    assert (
        sum(bar.exposed_ns for bar in bars)
        == (rows["exposed_wait_ns"] + rows["exposed_transfer_ns"]).sum() // 2
    )
    assert bars[3].busbw_bytes_per_s == pytest.approx((1 << 20) / 4e-3, rel=1e-5)
