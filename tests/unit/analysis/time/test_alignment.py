"""Clock offsets from stamps, link by link."""

import random

import pytest

from zprof.analysis.time.clocks.alignment import SAME_HOST_UNCERTAINTY_NS, ClockSource
from zprof.analysis.time.clocks.alignment import align_clocks as align_sources
from zprof.analysis.time.clocks.bounds import make_ping_table

US, MS = 1_000, 1_000_000


def align(hosts, pings, collectives):
    """From stamps by rank and name."""
    base = dict.fromkeys(hosts, 0)
    named = [("clock pings", pings), ("collectives", collectives)]
    sources = [
        ClockSource(name=name, sharpness=place, table=make_ping_table(stamps, base))
        for place, (name, stamps) in enumerate(named)
        if stamps
    ]
    return align_sources(hosts, base, sources)


def played(offsets, count=6, duration=20 * US, spread=600, late=0, seed=1):
    """Stamps of collectives that end together on a true clock."""
    draw = random.Random(seed)
    found = {rank: {} for rank in offsets}
    for index in range(count):
        starts = {rank: index * 50 * MS + draw.randrange(5 * US) for rank in offsets}
        last = max(offsets)
        starts[last] += late
        end = max(starts.values()) + duration
        for rank, offset in offsets.items():
            found[rank][index] = (starts[rank] + offset, end + draw.randrange(spread) + offset)
    return found


def hosts_of(*names):
    return dict(enumerate(names))


def test_offsets_of_far_clocks():
    planted = {0: 0, 1: 5 * MS, 2: -5 * MS}
    clocks, gaps = align(hosts_of("a", "b", "c"), played(planted), {})
    assert not gaps
    assert {r: pytest.approx(o, abs=2 * US) for r, o in planted.items()} == dict(clocks.offsets_ns)
    assert clocks.method == "6 clock pings"


def test_a_late_rank_does_not_move_its_clock():
    planted = {0: 0, 1: 1 * MS}
    clocks, _ = align(hosts_of("a", "b"), played(planted, late=30 * MS), {})
    assert clocks.offsets_ns[1] == pytest.approx(MS, abs=2 * US)


def test_one_host_has_one_clock():
    clocks, _ = align(hosts_of("a", "a"), played({0: 0, 1: 3 * US}, spread=8 * US), {})
    assert clocks.offsets_ns == {0: 0, 1: 0}
    assert clocks.uncertainty_ns == SAME_HOST_UNCERTAINTY_NS


def test_one_host_unless_causality_forbids_it():
    clocks, _ = align(hosts_of("a", "a"), played({0: 0, 1: 5 * MS}), {})
    assert clocks.offsets_ns[1] == pytest.approx(5 * MS, abs=2 * US)


def test_short_collectives_outvote_long_ones():
    short = played({0: 0, 1: 2 * MS}, count=3)
    long = played({0: 0, 1: 2 * MS}, count=30, duration=6 * MS, spread=1)
    votes = {rank: {**short[rank], **{k + 100: v for k, v in long[rank].items()}} for rank in (0, 1)}
    for key, (start, end) in votes[1].items():
        if key >= 100:
            votes[1][key] = (start, end + 150 * US)  # the long ones end apart, always the same way
    clocks, _ = align(hosts_of("a", "b"), {}, votes)
    assert clocks.offsets_ns[1] == pytest.approx(2 * MS, abs=2 * US)


def test_the_estimate_stays_within_what_causality_allows():
    """Ends lie far apart in most collectives; one short one bounds the offset hard."""
    votes = {0: {}, 1: {}}
    for index in range(30):
        votes[0][index] = (index * MS, index * MS + 100 * US)
        votes[1][index] = (index * MS, index * MS + 400 * US)
    votes[0][30] = votes[1][30] = (90 * MS, 90 * MS + 10 * US)
    clocks, _ = align(hosts_of("a", "b"), {}, votes)
    assert abs(clocks.offsets_ns[1]) <= 10 * US


def test_links_go_on_from_rank_to_rank():
    """Ranks 0 and 2 share nothing; both share collectives with rank 1."""
    left = played({0: 0, 1: 4 * MS}, seed=2)
    right = played({1: 4 * MS, 2: -7 * MS}, seed=3)
    votes = {
        0: left[0],
        1: {**left[1], **{k + 100: v for k, v in right[1].items()}},
        2: {k + 100: v for k, v in right[2].items()},
    }
    clocks, gaps = align(hosts_of("a", "b", "c"), {}, votes)
    assert not gaps
    assert clocks.offsets_ns[2] == pytest.approx(-7 * MS, abs=3 * US)


def test_stamps_that_no_clock_explains_align_nothing():
    stamps = {0: {0: (0, 10 * US), 1: (50 * MS, 50 * MS + 10 * US)}}
    stamps[1] = {0: (9 * MS, 9 * MS + 10 * US), 1: (20 * MS, 20 * MS + 10 * US)}
    clocks, gaps = align(hosts_of("a", "b"), stamps, {})
    assert list(clocks.offsets_ns) == [0]
    assert [gap.rank for gap in gaps] == [1]


def test_one_rank_needs_no_alignment():
    clocks, gaps = align({3: "a"}, {}, {})
    assert clocks.offsets_ns == {3: 0}
    assert clocks.method == "one rank"
    assert not gaps
