"""Clocks on generated truth: offsets, drift, hosts, meshes of groups, and what causality allows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.collective_rows import MS, US, Op, World, synchronised
from zprof.analysis.time.clocks import RankClock, make_ping_table
from zprof.analysis.time.synchronise import ClockSource, SynchronisedRun, align_clocks

TINY = Op(kind="all_reduce", size=4, length=20 * US)
LONG = Op(length=6 * MS)
OFFSETS = {1: 5 * MS, 2: -5 * MS, 3: 3_141_592}
#: Ends of long collectives lie apart, always the same way; those of short ones do not.
APART = {
    "tail": lambda draw, rank, length: draw.randrange(600) + (150 * US * (rank % 2) if length > MS else 0)
}


def worst_error(seen: SynchronisedRun, world: World) -> int:
    return max(abs(found - world.offsets.get(rank, 0)) for rank, found in seen.clocks.offsets_ns.items())


@pytest.mark.parametrize("stated", [True, False])
def test_short_collectives_outvote_long_ones(stated: bool) -> None:
    world = World(offsets=OFFSETS, ops=[*[LONG] * 20, TINY], steps=5, stated=stated, **APART)
    seen = synchronised(world)
    assert worst_error(seen, world) <= 2 * US
    assert seen.clocks.uncertainty_ns <= 2 * US


def test_without_short_collectives_the_uncertainty_is_stated() -> None:
    world = World(offsets=OFFSETS, ops=[LONG] * 20, stated=True, **APART)
    seen = synchronised(world)
    assert 50 * US < worst_error(seen, world) <= seen.clocks.uncertainty_ns


@settings(max_examples=10)
@given(
    offsets=st.lists(st.integers(-50 * MS, 50 * MS), min_size=3, max_size=3),
    late=st.integers(0, 20 * MS),
    seed=st.integers(0, 999),
)
def test_the_true_offset_lies_within_what_causality_allows(offsets: list[int], late: int, seed: int) -> None:
    world = World(offsets=dict(enumerate(offsets, 1)), late={2: late}, seed=seed, stated=True)
    seen = synchronised(world)
    assert sorted(seen.clocks.interval_ns) == [1, 2, 3]
    for rank, (low, high) in seen.clocks.interval_ns.items():
        assert low <= world.offsets[rank] <= high
        assert low <= seen.clocks.offsets_ns[rank] <= high


def test_drift_over_a_long_window() -> None:
    drifts = {1: 20e-6, 2: -10e-6}
    world = World(ranks=3, steps=40, pause=500 * MS, offsets=OFFSETS, drifts=drifts, stated=True)
    seen = synchronised(world)
    for rank, drift in drifts.items():
        assert seen.clocks.of(rank).drift_ppb == pytest.approx(drift * 1e9, abs=200)
    rows = seen.collectives
    ends = rows[rows["bytes"] == 4].groupby("instance")["end_ns"]
    assert (ends.max() - ends.min()).max() < 5 * US
    assert rows["matched"].all()


@pytest.mark.parametrize(("pause", "drifts"), [(0, {1: 20e-6}), (500 * MS, {})])
def test_a_short_window_or_steady_clocks_show_no_drift(pause: int, drifts: dict[int, float]) -> None:
    seen = synchronised(World(ranks=2, steps=40, pause=pause, drifts=drifts, stated=True))
    assert not any(clock.drift_ppb for clock in seen.clocks.of_rank.values())


def test_ranks_of_one_host_share_a_clock_unless_causality_forbids_it() -> None:
    world = World(hosts=["a", "a", "b", "b"], offsets={1: 800, 2: 5 * MS, 3: 5 * MS - 700}, stated=True)
    offsets = synchronised(world).clocks.offsets_ns
    assert offsets[1] == 0
    assert offsets[2] == offsets[3]
    for apart in (40 * US, 5 * MS):
        wrong = synchronised(replace(world, offsets={1: apart, 2: 5 * MS, 3: 5 * MS}))
        assert wrong.clocks.offsets_ns[1] == pytest.approx(apart, abs=2 * US)
    nameless = synchronised(World(hosts=[""] * 4, offsets=OFFSETS, stated=True))
    assert nameless.clocks.offsets_ns[1] == pytest.approx(5 * MS, abs=2 * US)


def test_groups_that_overlap_carry_clocks_on() -> None:
    """Two tensor-parallel pairs and two data-parallel pairs: no group holds all ranks."""
    data = [(0, 2), (1, 3)]
    ops = [
        Op(groups=[(0, 1), (2, 3)], length=20 * US), Op(groups=data, kind="reduce_scatter"),
        replace(TINY, groups=data),
    ]  # fmt: skip
    world = World(ops=ops, offsets=OFFSETS, stated=True)
    seen = synchronised(world)
    assert worst_error(seen, world) <= 3 * US
    assert seen.collectives["matched"].all()
    for rank, true in OFFSETS.items():
        low, high = seen.clocks.interval_ns[rank]
        assert low <= true <= high < low + 50 * MS


Stamps = dict[int, dict[int, tuple[int, int]]]


def align(hosts: str, pings: Stamps):
    """Align by stamps of pings alone; ``hosts`` has a letter per rank."""
    names = dict(enumerate(hosts))
    base = dict.fromkeys(names, 0)
    return align_clocks(
        names, base, [ClockSource(name="clock pings", sharpness=0, table=make_ping_table(pings, base))]
    )


def test_stamps_that_no_clock_explains_align_nothing() -> None:
    stamps: Stamps = {0: {0: (0, 10 * US), 1: (50 * MS, 50 * MS + 10 * US)}}
    stamps[1] = {0: (9 * MS, 9 * MS + 10 * US), 1: (20 * MS, 20 * MS + 10 * US)}
    clocks, gaps = align("ab", stamps)
    assert list(clocks.offsets_ns) == [0]
    assert [gap.rank for gap in gaps] == [1]


@given(
    offset=st.integers(-(10**12), 10**12),
    drift=st.floats(-50_000, 50_000),
    after=st.lists(st.integers(0, 600 * 10**9), min_size=1, max_size=20),
)
def test_a_time_goes_to_the_common_clock_and_back(offset: int, drift: float, after: list[int]) -> None:
    """Over ten minutes of a clock that drifts by up to 50 ppm, to 2 us: the drift of the drift."""
    clock = RankClock(offset_ns=offset, drift_ppb=drift, origin_ns=offset)
    times = offset + np.array(after, dtype=np.int64)
    slack = 1 + 600 * 10**9 * (drift * 1e-9) ** 2
    assert np.abs(clock.local(clock.common(times)) - times).max() <= slack
