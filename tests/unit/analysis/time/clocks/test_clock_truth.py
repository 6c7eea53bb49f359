"""Clocks on generated truth: offsets, drift, hosts, meshes of groups, and what causality allows."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.collective_rows import MS, US, Op, World, recorded, synchronised
from zprof.analysis.time.synchronise import synchronise

TINY = Op(kind="all_reduce", size=4, length=20 * US)
OFFSETS = {1: 5 * MS, 2: -5 * MS, 3: 3_141_592}
#: Ends of long collectives lie apart, always the same way; those of short ones do not.
APART = {
    "tail": lambda draw, rank, length: draw.randrange(600) + (150 * US * (rank % 2) if length > MS else 0)
}


def errors(seen, world):
    return {r: seen.clocks.offsets_ns[r] - world.offsets.get(r, 0) for r in seen.clocks.offsets_ns}


@pytest.mark.parametrize("stated", [True, False])
def test_offsets_of_milliseconds_within_two_microseconds(stated):
    world = World(offsets=OFFSETS, ops=[*[Op(length=6 * MS)] * 20, TINY], steps=5, stated=stated, **APART)
    seen = synchronised(world)
    assert max(abs(error) for error in errors(seen, world).values()) <= 2 * US
    assert seen.clocks.uncertainty_ns <= 2 * US


def test_without_short_collectives_the_doubt_is_stated():
    world = World(offsets=OFFSETS, ops=[Op(length=6 * MS)] * 20, stated=True, **APART)
    seen = synchronised(world)
    worst = max(abs(error) for error in errors(seen, world).values())
    assert 50 * US < worst <= seen.clocks.uncertainty_ns


@given(
    offsets=st.lists(st.integers(-50 * MS, 50 * MS), min_size=3, max_size=3),
    late=st.integers(0, 20 * MS),
    seed=st.integers(0, 999),
)
@settings(max_examples=25)
def test_the_true_offset_lies_within_what_causality_allows(offsets, late, seed):
    world = World(offsets=dict(enumerate(offsets, 1)), late={2: late}, seed=seed, stated=True)
    seen = synchronised(world)
    assert sorted(seen.clocks.interval_ns) == [1, 2, 3]
    for rank, (low, high) in seen.clocks.interval_ns.items():
        assert low <= world.offsets[rank] <= high
        assert low <= seen.clocks.offsets_ns[rank] <= high


def test_drift_over_a_long_window():
    world = World(
        ranks=3, steps=40, pause=500 * MS, offsets=OFFSETS, drifts={1: 20e-6, 2: -10e-6}, stated=True
    )
    seen = synchronised(world)
    for rank, drift in world.drifts.items():
        assert seen.clocks.of(rank).drift_ppb == pytest.approx(drift * 1e9, abs=200)
    frame = seen.collectives
    spread = (
        frame[frame["bytes"] == 4].groupby("instance")["end_ns"].agg(lambda ends: ends.max() - ends.min())
    )
    assert spread.max() < 5 * US
    assert seen.collectives["matched"].all()


def test_a_short_window_or_steady_clocks_show_no_drift():
    for pause, drifts in ((0, {1: 20e-6}), (500 * MS, {})):
        seen = synchronised(World(ranks=2, steps=40, pause=pause, drifts=drifts, stated=True))
        assert not any(clock.drift_ppb for clock in seen.clocks.of_rank.values())


def test_ranks_of_one_host_share_a_clock_unless_it_cannot_be():
    hosts = ["a", "a", "b", "b"]
    one = World(hosts=hosts, offsets={1: 800, 2: 5 * MS, 3: 5 * MS - 700}, stated=True)
    seen = synchronised(one)
    assert seen.clocks.offsets_ns[1] == 0
    assert seen.clocks.offsets_ns[2] == seen.clocks.offsets_ns[3]
    assert "one host" in seen.clocks.method
    for apart in (40 * US, 400 * US, 5 * MS):
        wrong = synchronised(replace(one, offsets={1: apart, 2: 5 * MS, 3: 5 * MS}))
        assert wrong.clocks.offsets_ns[1] == pytest.approx(apart, abs=2 * US)


def test_nameless_hosts_are_not_one():
    seen = synchronised(World(hosts=[""] * 4, offsets=OFFSETS, stated=True))
    assert seen.clocks.offsets_ns[1] == pytest.approx(5 * MS, abs=2 * US)
    assert "host" not in seen.clocks.method


def test_groups_that_overlap_carry_clocks_on():
    """Two tensor-parallel pairs and two data-parallel pairs: no group holds all ranks."""
    mesh = [Op(groups=[(0, 1), (2, 3)], length=20 * US), Op(groups=[(0, 2), (1, 3)], kind="reduce_scatter")]
    world = World(ops=[*mesh, TINY], offsets=OFFSETS, stated=True)
    world = replace(world, ops=[*mesh, replace(TINY, groups=[(0, 2), (1, 3)])])
    seen = synchronised(world)
    assert max(abs(error) for error in errors(seen, world).values()) <= 3 * US
    assert seen.collectives["matched"].all()


def test_groups_that_share_nothing_stay_apart():
    world = World(ops=[Op(groups=[(0, 1), (2, 3)], length=20 * US)], offsets=OFFSETS, stated=True)
    seen = synchronised(world)
    assert sorted(seen.clocks.offsets_ns) == [0, 1]
    assert [gap.rank for gap in seen.gaps if gap.what == "clock alignment"] == [2, 3]


def test_the_first_of_a_window_has_no_vote():
    """The profilers start apart: in the first collective the ends lie apart too."""
    world = World(ranks=2, ops=[replace(TINY, length=1), *[Op(length=6 * MS)] * 5], steps=1, stated=True)
    frame, timelines = recorded(world)
    first = (frame["rank"] == 1) & (frame["true"] == 0)
    frame.loc[first, "end_ns"] += 900 * US
    seen = synchronise(frame, timelines, 2)
    assert abs(seen.clocks.offsets_ns[1]) <= 2 * US
    assert seen.clocks.uncertainty_ns > 100 * US, "of long collectives only"


def test_one_rank():
    seen = synchronised(World(ranks=1, stated=True))
    assert seen.clocks.method == "one rank"
    assert seen.collectives["matched"].all()


@pytest.mark.parametrize("stated", [True, False])
def test_a_thousand_ranks_take_no_square_of_the_time(stated):
    took = {}
    for ranks in (64, 256):
        world = World(
            ranks=ranks, steps=20, stated=stated, offsets={rank: rank * 7 * US for rank in range(ranks)}
        )
        frame, timelines = recorded(world)
        runs = []
        for _ in range(3):
            begin = time.process_time()
            seen = synchronise(frame, timelines, ranks)
            runs.append(time.process_time() - begin)
        took[ranks] = min(runs)
        assert seen.collectives["matched"].all()
        assert max(abs(error) for error in errors(seen, world).values()) <= 2 * US
    assert took[256] / took[64] < 8
