"""Matching on generated truth: no wrong pair, whatever is missing, wherever the windows begin."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.collective_rows import (
    MS,
    US,
    Op,
    World,
    recorded,
    split_truths,
    synchronised,
    whole,
    wrong_instances,
)
from zprof.analysis.time.synchronise import synchronise

ALIKE = tuple(Op() for _ in range(6))
OFFSETS = {1: 5 * MS, 2: -5 * MS, 3: 3_141_592}
WORLDS = {
    "signatures that differ": World(offsets=OFFSETS),
    "all alike": World(offsets=OFFSETS, ops=ALIKE),
    "no steps marked": World(offsets=OFFSETS, marked=False),
    "all alike, no steps marked": World(offsets=OFFSETS, ops=ALIKE, marked=False),
    "one host, all alike, no steps marked": World(hosts=["a"] * 4, ops=ALIKE, marked=False),
    "one host, its clocks wrong": World(hosts=["a"] * 4, ops=ALIKE, offsets=OFFSETS),
    "stated": World(offsets=OFFSETS, stated=True),
    "one late": World(offsets=OFFSETS, late={2: 9 * MS}),
    "queued back to back": World(offsets=OFFSETS, ops=ALIKE, compute=0, jitter=0),
    "queued, ends apart": World(
        offsets=OFFSETS,
        ops=ALIKE,
        compute=0,
        jitter=0,
        tail=lambda draw, rank, length: draw.randrange(60 * US),
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_moved_without_need(name):
    world = WORLDS[name]
    seen = synchronised(world)
    assert not wrong_instances(seen)
    assert whole(seen) == world.steps * len(world.ops)
    assert not seen.shifts
    assert not seen.excluded
    assert not [gap for gap in seen.gaps if gap.what == "matching of collectives"]
    rung = {"sequence"} if world.stated else {"order", "signature"} if not world.marked else {"order"}
    assert set(seen.collectives["rung"]) <= rung


#: Every third place of a rank, each rank's own; they begin with the first and end with the last of all.
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2))])
@pytest.mark.parametrize("name", WORLDS)
def test_one_event_dropped_anywhere_makes_no_instance_wrong(name, part):
    world = WORLDS[name]
    world = replace(world, ranks=3, steps=3, hosts=world.hosts[:3])
    count = 3 * len(world.ops)
    for rank in range(3):
        for place in range((part - rank) % 3, count, 3):
            seen = synchronised(world, lambda r, p, rank=rank, place=place: (r, p) == (rank, place))
            assert not wrong_instances(seen), (rank, place)
            assert not split_truths(seen), (rank, place)
            assert not seen.excluded
            assert whole(seen) >= count - 2, (rank, place)


@pytest.mark.parametrize("hosts", [(), ("a", "a")], ids=["free clocks", "one host"])
def test_one_row_out_of_many_that_shares_nothing_costs_that_row(hosts):
    """A held-up thread enters and leaves one of 200 collectives late: the others are matched in order."""
    still = {"jitter": 0, "tail": lambda draw, rank, length: 0}
    world = World(ranks=2, steps=50, ops=ALIKE, hosts=hosts, offsets={} if hosts else {1: 10**15}, **still)
    frame, timelines = recorded(world)
    odd = frame[(frame["rank"] == 1) & (frame["true"] == 100)].index
    length = (frame.loc[odd, "end_ns"] - frame.loc[odd, "start_ns"]).item()
    frame.loc[odd, ["start_ns", "end_ns"]] += length - length // 130
    seen = synchronise(frame, timelines, 2)
    assert not wrong_instances(seen)
    assert not seen.excluded
    assert whole(seen) == 50 * len(world.ops) - 1
    assert set(seen.collectives.loc[seen.collectives["matched"], "rung"]) == {"order"}
    gaps = [gap.reason for gap in seen.gaps if gap.what == "matching of collectives"]
    assert gaps
    assert all(reason.startswith("1 in group") for reason in gaps)


@given(
    drops=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 23)), max_size=8),
    begins=st.tuples(*[st.integers(0, 1)] * 3),
    ends=st.tuples(*[st.integers(3, 4)] * 3),
    offsets=st.tuples(*[st.integers(-50 * MS, 50 * MS)] * 2),
    name=st.sampled_from(sorted(WORLDS)),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, derandomize=True, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_no_wrong_pair_whatever_is_missing(drops, begins, ends, offsets, name, seed):
    world = WORLDS[name]
    if not world.hosts:
        world = replace(world, offsets={1: offsets[0], 2: offsets[1]})
    windows = {rank: (begins[rank], ends[rank]) for rank in range(3)}
    world = replace(world, ranks=3, windows=windows, seed=seed, hosts=world.hosts[:3])
    seen = synchronised(world, lambda rank, place: (rank, place) in drops)
    assert not wrong_instances(seen)
    assert not split_truths(seen)


@pytest.mark.parametrize("places", [(1, 4), (2, 3), (0, 5), (7, 8)])
@pytest.mark.parametrize("name", ["all alike", "queued back to back", "one host, its clocks wrong"])
def test_two_ranks_lack_different_events_of_one_step(name, places):
    """Counts and signatures agree, what lies between is off by one: times alone tell, clocks are free."""
    world = replace(WORLDS[name], ranks=2, hosts=WORLDS[name].hosts[:2])
    seen = synchronised(world, lambda rank, place: place == places[rank])
    assert not wrong_instances(seen)
    assert whole(seen) == world.steps * len(world.ops) - 2


def test_many_lost_rows_of_a_steady_program_are_no_reason_to_guess():
    """What is true leaves rows over; what is wrong by two leaves fewer, and its ends agree as well."""
    windows = {0: (0, 3), 1: (1, 3), 2: (1, 3)}
    drops = {(0, 17), (1, 4), (2, 0), (2, 6), (2, 7), (2, 15)}
    world = replace(WORLDS["queued back to back"], ranks=3, windows=windows, seed=2093)
    world = replace(world, offsets={1: 24_392_590, 2: -1_934_495})
    seen = synchronised(world, lambda rank, place: (rank, place) in drops)
    assert not wrong_instances(seen)


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("ops", [World().ops, ALIKE], ids=["differ", "alike"])
@pytest.mark.parametrize("stated", [True, False])
def test_windows_that_begin_a_step_apart(marked, ops, stated):
    windows = {0: (0, 5), 1: (1, 6), 2: (2, 6)}
    world = World(ranks=3, steps=6, ops=ops, windows=windows, marked=marked, stated=stated, offsets=OFFSETS)
    seen = synchronised(world)
    assert not wrong_instances(seen)
    assert whole(seen) == 3 * len(ops)
    assert not seen.excluded


def test_rough_clocks_tell_whole_steps_apart():
    """No marks, every step alike; a step is longer than what clocks of two hosts are apart."""
    windows = {1: (1, 6)}
    still = {"jitter": 0, "tail": lambda draw, rank, length: 0, "pause": 300 * MS}
    world = World(ranks=2, steps=6, ops=ALIKE, marked=False, offsets={1: 2 * MS}, windows=windows, **still)
    seen = synchronised(world)
    assert not wrong_instances(seen)
    assert whole(seen) == 5 * len(ALIKE)


def test_a_steady_program_on_free_clocks_is_not_matched_by_guess():
    """Every step alike to the nanosecond, no marks, clocks of unknown origin: a step's shift fits as well."""
    windows = {1: (1, 6)}
    still = {"jitter": 0, "tail": lambda draw, rank, length: 0}
    world = World(ranks=2, steps=6, ops=ALIKE, marked=False, offsets={1: 10**15}, windows=windows, **still)
    seen = synchronised(world)
    assert not wrong_instances(seen)
    assert not seen.collectives["matched"].any()


def test_marked_steps_decide_where_times_cannot():
    windows = {1: (1, 6)}
    still = {"jitter": 0, "tail": lambda draw, rank, length: 0}
    world = World(ranks=2, steps=6, ops=ALIKE, offsets={1: 10**15}, windows=windows, **still)
    seen = synchronised(world)
    assert not wrong_instances(seen)
    assert whole(seen) == 5 * len(ALIKE)


def test_a_missing_rank_leaves_instances_and_one_gap():
    pairs = [(0, 1), (2, 3)]
    ops = [Op(groups=pairs), Op(groups=[(0, 2), (1, 3)], kind="all_reduce")]
    seen = synchronised(World(ops=ops, missing=[3]))
    assert not wrong_instances(seen)
    assert seen.collectives["instance"].ge(0).all()
    of_group = seen.collectives.groupby("group")["matched"].agg(["min", "max"])
    assert of_group.loc["0,1", "min"]
    assert not of_group.loc["2,3", "max"]
    (bounds,) = [gap for gap in seen.gaps if gap.what == "wait and transfer"]
    assert "1,3 and 2,3" in bounds.reason


def test_many_partly_loaded_groups_are_one_gap():
    ops = [Op(groups=[(rank, rank + 20) for rank in range(20)])]
    seen = synchronised(World(ranks=40, ops=ops, missing=range(20, 40)))
    (bounds,) = [gap for gap in seen.gaps if gap.what == "wait and transfer"]
    assert "20 groups" in bounds.reason
    assert not seen.collectives["matched"].any()


def test_numbers_that_count_something_else_on_one_rank_are_not_believed():
    """A process counts all of its groups: its numbers are stated, and wrong by a constant."""
    world = World(ranks=4, stated=True, offsets=OFFSETS)
    frame, timelines = recorded(world)
    frame.loc[frame["rank"] == 2, "sequence"] += 1
    seen = synchronise(frame, timelines, 4)
    assert not wrong_instances(seen)
    assert whole(seen) == world.steps * len(world.ops)
    assert set(seen.collectives["rung"]) == {"order"}


def test_numbers_that_slip_by_one_on_one_rank_are_repaired():
    """Signatures agree, times do not: a rank's numbers go on one too far from some point on."""
    world = World(ranks=4, stated=True, offsets=OFFSETS, ops=[Op(length=MS)] * 6)
    frame, timelines = recorded(world)
    frame.loc[(frame["rank"] == 2) & (frame["true"] > 9), "sequence"] += 1
    seen = synchronise(frame, timelines, 4)
    assert not wrong_instances(seen)
    assert seen.shifts == {2: -1}
    assert whole(seen) == world.steps * len(world.ops)


def test_a_bad_stamp_costs_one_instance():
    world = World(ranks=4, steps=6, stated=True, offsets=OFFSETS)
    frame, timelines = recorded(world)
    row = frame[(frame["rank"] == 1) & (frame["true"] == 9)].index
    frame.loc[row, ["start_ns", "end_ns"]] += 400 * MS
    seen = synchronise(frame, timelines, 4)
    assert not seen.excluded
    assert whole(seen) == 6 * len(world.ops) - 1
    assert (seen.collectives.loc[seen.collectives["true"] == 9, "instance"] == -1).all()


def test_sends_meet_their_receives_by_direction():
    world = World(ranks=2, offsets={1: 5 * MS}, ops=[Op(kind="all_reduce", size=4, length=20 * US), Op()])
    frame, timelines = recorded(world)
    message = frame["kind"] == "all_gather"
    frame.loc[message & (frame["rank"] == 0), "kind"] = "send"
    frame.loc[message & (frame["rank"] == 1), "kind"] = "recv"
    frame.loc[message, "peer_rank"] = 1 - frame.loc[message, "rank"]
    seen = synchronise(frame, timelines, 2)
    assert not wrong_instances(seen)
    assert seen.collectives["matched"].all()


def test_a_receiver_cannot_leave_before_the_root_has_entered():
    ops = [Op(kind="all_reduce", size=4, length=20 * US), Op(kind="broadcast", root=0)]
    world = World(ranks=3, ops=ops, stated=True)
    assert whole(synchronised(world)) == 2 * world.steps
    frame, timelines = recorded(world)
    row = frame[(frame["rank"] == 2) & (frame["kind"] == "broadcast")].index[1]
    frame.loc[row, ["start_ns", "end_ns"]] -= 20 * MS
    seen = synchronise(frame, timelines, 3)
    assert seen.collectives.loc[row, "instance"] == -1


def test_what_contradicts_the_clocks_of_other_groups_is_refused():
    """A broadcast alone bounds clocks on one side only, which any clock can satisfy."""
    world = World(ranks=3, ops=[Op(kind="all_reduce", size=4, length=20 * US), Op(kind="broadcast", root=0)])
    frame, timelines = recorded(replace(world, stated=True))
    other = frame["kind"] == "broadcast"
    frame.loc[other, "group"] = "0,1,2#other"
    assert synchronise(frame, timelines, 3).collectives["matched"].all()
    frame.loc[other & (frame["rank"] == 2), ["start_ns", "end_ns"]] -= 20 * MS
    seen = synchronise(frame, timelines, 3)
    assert (seen.collectives.loc[other, "instance"] == -1).all()
    assert seen.collectives.loc[~other, "matched"].all()
    assert any("left before" in gap.reason for gap in seen.gaps)


def test_one_stream_without_a_group_on_each_rank():
    frame, timelines = recorded(World(offsets=OFFSETS))
    frame = frame.assign(group="stream:7", group_size=0)
    seen = synchronise(frame, timelines, 4)
    assert not wrong_instances(seen)
    assert set(seen.collectives["rung"]) == {"stream"}
    assert seen.collectives["matched"].all()
    assert not synchronise(frame, timelines, 8).collectives["matched"].any()


def test_streams_without_a_group_are_matched_by_name_if_all_ranks_have_the_same():
    frame, timelines = recorded(World(offsets=OFFSETS))
    two = frame.assign(group=["stream:7", "stream:9"] * (len(frame) // 2), group_size=0)
    seen = synchronise(two, timelines, 4)
    assert not wrong_instances(seen)
    assert seen.collectives["matched"].all()
    assert seen.collectives.groupby("instance")["group"].nunique().max() == 1
    # Of a larger job these ranks may be in different groups, on streams of the same number.
    assert (synchronise(two, timelines, 8).collectives["instance"] == -1).all()
    other = (two["rank"] == 3) & (two["group"] == "stream:9")
    unlike = two.assign(group=two["group"].mask(other, "stream:11"))
    assert (synchronise(unlike, timelines, 4).collectives["instance"] == -1).all()
