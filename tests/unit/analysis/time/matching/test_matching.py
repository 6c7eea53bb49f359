"""Matching on generated truth: no wrong pair, whatever is missing, wherever the windows begin."""

import random

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.collective_rows import (
    EPOCH_NS,
    MS,
    US,
    Op,
    World,
    recorded,
    split_truths,
    synchronise_frame,
    synchronised,
    whole,
    wrong_instances,
)
from zprof.analysis.time.clocks import make_ping_table
from zprof.analysis.time.steps import StepWindows
from zprof.analysis.time.synchronise import ClockSource, SynchronisedRun, make_hints
from zprof.model.gaps import GapKind

ALIKE = tuple(Op() for _ in range(6))
OFFSETS = {1: 5 * MS, 2: -5 * MS, 3: 3_141_592}
SHORT = Op(kind="all_reduce", size=4, length=20 * US)
STILL = {"jitter": 0, "tail": lambda draw, rank, length: 0}
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
}
#: Every third place of a rank, each rank's own; they begin with the first and end with the last of all.
PARTS = [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2))]
HARD = ["all alike, no steps marked", "queued back to back"]


def gaps_of(seen: SynchronisedRun, what: str) -> list[str]:
    return [gap.reason for gap in seen.gaps if gap.what == what]


@pytest.mark.parametrize("name", WORLDS)
def test_a_whole_recording_is_matched_in_order(name: str) -> None:
    world = WORLDS[name]
    seen = synchronised(world)
    assert not wrong_instances(seen)
    assert whole(seen) == world.steps * len(world.ops)
    assert not seen.shifts
    assert not seen.excluded
    assert not gaps_of(seen, "matching of collectives")
    rungs = {"sequence"} if world.stated else {"order"} if world.marked else {"order", "signature"}
    assert set(seen.collectives["rung"]) <= rungs


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "name", [name if name in HARD else pytest.param(name, marks=pytest.mark.slow) for name in WORLDS]
)
def test_one_event_dropped_anywhere_makes_no_instance_wrong(name: str, part: int) -> None:
    world = replace(WORLDS[name], ranks=3, steps=3, hosts=WORLDS[name].hosts[:3])
    count = 3 * len(world.ops)
    for rank in range(3):
        for place in range((part - rank) % 3, count, 3):
            seen = synchronised(world, lambda r, p, rank=rank, place=place: (r, p) == (rank, place))
            assert not wrong_instances(seen), (rank, place)
            assert not split_truths(seen), (rank, place)
            assert not seen.excluded
            assert whole(seen) >= count - 2, (rank, place)


#: A program of many short collectives, each much like the next: a wrong offset pairs nine tenths of the rows,
#: and their ends are spread less than three times as far as at the true one.
DENSE = World(
    ranks=8,
    steps=5,
    ops=[Op(length=(70, 90, 70)[place % 3] * US) for place in range(60)],
    compute=12 * US,
    jitter=14 * US,
    tail=lambda draw, rank, length: draw.randrange(10 * US),
    offsets={rank: (rank % 3 - 1) * 1_463_343 + rank * 100_003 for rank in range(8)},
    pause=2 * MS,
)


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("lost", [1, pytest.param(3, marks=pytest.mark.slow), 10])
def test_lost_events_of_a_dense_program_cost_themselves_only(lost: int, marked: bool) -> None:
    draw = random.Random(lost)
    count = DENSE.steps * len(DENSE.ops)
    drops = {(draw.randrange(DENSE.ranks), draw.randrange(count)) for _ in range(lost)}
    seen = synchronised(replace(DENSE, marked=marked), lambda rank, place: (rank, place) in drops)
    assert not wrong_instances(seen)
    assert not seen.excluded
    assert whole(seen) == count - len({place for _, place in drops})


def test_what_a_rank_lost_the_others_still_share() -> None:
    """Each rank lost another event, so the rank that the others are compared with lacks one too."""
    world = WORLDS["signatures that differ"]
    seen = synchronised(world, lambda rank, place: place == 2 + 3 * rank)
    assert not wrong_instances(seen)
    assert not split_truths(seen)
    assert (seen.collectives["instance"] >= 0).all()


def test_many_events_of_a_short_recording_are_lost() -> None:
    """A fifth of each rank's rows, each rank's own: what one rank lacks does not contradict the others."""
    world = World(ranks=2, steps=5, offsets={1: 3_141_592})
    drops = {(0, 1), (0, 6), (0, 13), (0, 18), (1, 3), (1, 8), (1, 10), (1, 15)}
    seen = synchronised(world, lambda rank, place: (rank, place) in drops)
    assert not wrong_instances(seen)
    assert whole(seen) == world.steps * len(world.ops) - len(drops)


@given(
    rank=st.integers(0, 3),
    place=st.integers(0, 47),
    seed=st.integers(0, 1000),
    jitter=st.integers(5, 60),
    marked=st.booleans(),
    alike=st.booleans(),
)
@settings(max_examples=8, derandomize=True, deadline=None)
def test_a_dropped_row_changes_the_partner_of_no_other(rank, place, seed, jitter, marked, alike) -> None:
    ops = [Op(size=1 << (20 if alike else 18 + number % 3), length=80 * US) for number in range(12)]
    world = World(ops=ops, jitter=jitter * US, compute=20 * US, marked=marked, seed=seed, offsets=OFFSETS)
    before, after = synchronised(world), synchronised(world, lambda *row: row == (rank, place))
    assert not wrong_instances(after)
    partners = [
        {
            (row["rank"], row["true"]): set(rows["rank"])
            for _, rows in seen.collectives[seen.collectives["instance"] >= 0].groupby("instance")
            for row in rows.to_dict("records")
        }
        for seen in (before, after)
    ]
    lost = before.collectives.query("rank == @rank")["true"].sort_values().iloc[place]
    assert all(partners[1].get(row) == found for row, found in partners[0].items() if row[1] != lost)


@pytest.mark.parametrize("hints", [True, False])
def test_groups_that_lack_nothing_are_the_clock_of_the_others(hints: bool) -> None:
    """Ranks leave the long collectives of the large group far apart, so that a shift by a step fits as well.

    A chain of small groups, whose ranks leave at once, tells.
    """
    small = [
        Op(kind="all_reduce", size=4, length=20 * US, groups=[pair]) for pair in [(0, 1), (2, 3), (1, 2)]
    ]
    world = World(
        ranks=4,
        steps=8,
        ops=[*ALIKE, *small],
        offsets={rank: 20 * MS * rank for rank in range(4)},
        marked=False,
        tail=lambda draw, rank, length: draw.randrange(length // 2 if length > MS else 600),
    )
    frame, timelines = recorded(world)
    large = frame["group"] == "0,1,2,3"
    lost = large & (frame["rank"] == 3) & (frame["true_step"] == 4) & frame["true"].mod(2).eq(0)
    frame = frame[~lost & (large | hints)].reset_index(drop=True)
    seen = synchronise_frame(frame, timelines, 4)
    assert not wrong_instances(seen)
    rows = seen.collectives[seen.collectives["group"] == "0,1,2,3"]
    expected = 8 * len(ALIKE) - int(lost.sum()) if hints else 0
    assert rows.loc[rows["matched"], "instance"].nunique() == expected


def test_ranks_without_a_path_to_the_first_are_hints_to_each_other() -> None:
    """Of four ranks, 2 and 3 share a source with each other only."""
    base = dict.fromkeys(range(4), EPOCH_NS)
    ping = {rank: {0: (EPOCH_NS + 9_000 * rank, EPOCH_NS + 9_000 * rank + 50 * US)} for rank in (2, 3)}
    source = ClockSource(name="a group", sharpness=1, table=make_ping_table(ping, base))
    hints = make_hints(dict.fromkeys(range(4), ""), base, [source])
    known = hints(2, 3).measured
    assert known is not None
    assert known.offset == 9_000
    assert hints(0, 2).measured is None


missing = given(
    drops=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 23)), max_size=8),
    begins=st.tuples(*[st.integers(0, 1)] * 3),
    ends=st.tuples(*[st.integers(3, 4)] * 3),
    offsets=st.tuples(*[st.integers(-50 * MS, 50 * MS)] * 2),
    name=st.sampled_from(sorted(WORLDS)),
    seed=st.integers(0, 1000),
)


def check_missing(drops, begins, ends, offsets, name, seed):
    world = WORLDS[name]
    if not world.hosts:
        world = replace(world, offsets={1: offsets[0], 2: offsets[1]})
    windows = {rank: (begins[rank], ends[rank]) for rank in range(3)}
    world = replace(world, ranks=3, windows=windows, seed=seed, hosts=world.hosts[:3])
    seen = synchronised(world, lambda rank, place: (rank, place) in drops)
    assert not wrong_instances(seen)
    assert not split_truths(seen)


PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


@missing
@settings(max_examples=20, derandomize=True, phases=PHASES)
def test_no_wrong_pair_whatever_is_missing(drops, begins, ends, offsets, name, seed):
    check_missing(drops, begins, ends, offsets, name, seed)


@pytest.mark.parametrize("places", [(1, 4), (7, 8)])
@pytest.mark.parametrize("name", ["all alike", "queued back to back", "one host, its clocks wrong"])
def test_two_ranks_lack_different_events_of_one_step(name: str, places: tuple[int, int]) -> None:
    """Counts and signatures agree, what lies between is off by one: only times tell, on free clocks."""
    world = replace(WORLDS[name], ranks=2, hosts=WORLDS[name].hosts[:2])
    seen = synchronised(world, lambda rank, place: place == places[rank])
    assert not wrong_instances(seen)
    assert whole(seen) == world.steps * len(world.ops) - 2


@pytest.mark.parametrize("lost", [None, 4])
def test_a_thread_without_a_processor_costs_no_match_of_a_whole_step(lost: int | None) -> None:
    """Rank 1 enters one collective as rank 0 leaves it, and leaves it late: gloo on a busy machine.

    With a row lost on both ranks, the step may have lost a different one on each.
    """
    world = World(ranks=2, steps=4, hosts=["a"] * 2, ops=(Op(), Op(kind="all_reduce")), seed=3)
    frame, timelines = recorded(world, lambda rank, place: place == lost)
    late, partner = (frame[(frame["rank"] == rank) & (frame["true"] == 5)].index[0] for rank in (1, 0))
    end = int(frame.loc[partner, "end_ns"])
    frame.loc[late, ["start_ns", "end_ns"]] = end - 30 * US, end + 2 * MS
    seen = synchronise_frame(frame, timelines, 2)
    assert not wrong_instances(seen)
    assert whole(seen) == (8 if lost is None else 6)


@pytest.mark.parametrize(
    ("marked", "ops", "stated"), [(True, ALIKE, False), (False, World().ops, False), (False, ALIKE, True)]
)
def test_windows_that_begin_a_step_apart(marked: bool, ops: tuple[Op, ...], stated: bool) -> None:
    windows = {0: (0, 5), 1: (1, 6), 2: (2, 6)}
    world = World(ranks=3, steps=6, ops=ops, windows=windows, marked=marked, stated=stated, offsets=OFFSETS)
    seen = synchronised(world)
    assert not wrong_instances(seen)
    assert whole(seen) == 3 * len(ops)
    assert not seen.excluded


@pytest.mark.parametrize(
    ("changes", "matched"),
    [
        ({"marked": False, "offsets": {1: 10**15}}, 0),
        ({"marked": True, "offsets": {1: 10**15}}, 5),
        ({"marked": False, "offsets": {1: 2 * MS}, "pause": 300 * MS}, 5),
    ],
    ids=["nothing tells", "marks tell", "rough clocks tell"],
)
def test_a_steady_program_is_not_matched_by_guess(changes: dict[str, object], matched: int) -> None:
    """Every step alike to the nanosecond: shifted by a step, all fits as well."""
    seen = synchronised(World(ranks=2, steps=6, ops=ALIKE, windows={1: (1, 6)}, **STILL, **changes))
    assert not wrong_instances(seen)
    assert whole(seen) == matched * len(ALIKE)


@pytest.mark.parametrize(("since", "shifts"), [(0, {}), (10, {2: -1})], ids=["all numbers", "from some on"])
def test_stated_numbers_that_count_something_else_on_one_rank(since: int, shifts: dict[int, int]) -> None:
    """A process may count all of its groups. From some point on, signatures agree and times do not."""
    world = World(ranks=4, stated=True, offsets=OFFSETS)
    world = replace(world, ops=[Op(length=MS)] * 6) if since else world
    frame, timelines = recorded(world)
    frame.loc[(frame["rank"] == 2) & (frame["true"] >= since), "sequence"] += 1
    seen = synchronise_frame(frame, timelines, 4)
    assert not wrong_instances(seen)
    assert seen.shifts == shifts
    assert whole(seen) == world.steps * len(world.ops)


def test_a_bad_stamp_costs_one_instance() -> None:
    world = World(ranks=4, steps=6, stated=True, offsets=OFFSETS)
    frame, timelines = recorded(world)
    row = frame[(frame["rank"] == 1) & (frame["true"] == 9)].index
    frame.loc[row, ["start_ns", "end_ns"]] += 400 * MS
    seen = synchronise_frame(frame, timelines, 4)
    assert not seen.excluded
    assert whole(seen) == 6 * len(world.ops) - 1
    assert (seen.collectives.loc[seen.collectives["true"] == 9, "instance"] == -1).all()


def test_a_number_that_a_rank_states_twice_is_not_believed() -> None:
    world = World(ranks=4, steps=6, stated=True, offsets=OFFSETS, ops=ALIKE)
    frame, timelines = recorded(world)
    frame.loc[(frame["rank"] == 2) & (frame["true"] == 9), "sequence"] = 8
    seen = synchronise_frame(frame, timelines, 4)
    assert not wrong_instances(seen)
    assert not seen.excluded
    assert not seen.collectives.loc[seen.collectives["true"].isin([8, 9]), "matched"].any()
    assert whole(seen) == 6 * len(ALIKE) - 2


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("field", ["dtype", "bytes"])
def test_calls_on_which_ranks_disagree_cost_themselves_only(field: str, stated: bool) -> None:
    """One call of eight is an eighth of the group's rows."""
    one = Op(kind="broadcast", size=1 << 20, root=0)
    world = World(ranks=2, hosts=["a"] * 2, steps=8, ops=[one, *[SHORT] * 3, *ALIKE[:4]], stated=stated)
    frame, timelines = recorded(world)
    rows = (frame["kind"] == "broadcast") & (frame["rank"] == 1)
    frame.loc[rows, field] = {"dtype": "none", "bytes": 0}[field]
    seen = synchronise_frame(frame, timelines, 2)
    assert not wrong_instances(seen)
    assert not seen.excluded
    assert whole(seen) == 8 * 7


def test_a_receiver_of_a_scatter_has_no_tensor_of_its_own() -> None:
    world = World(ranks=2, hosts=["a"] * 2, steps=8, ops=[Op(kind="scatter", root=0), *[SHORT] * 6])
    frame, timelines = recorded(world)
    frame.loc[(frame["kind"] == "scatter") & (frame["rank"] == 1), ["dtype", "bytes"]] = ["none", 0]
    assert synchronise_frame(frame, timelines, 2).collectives["matched"].all()


def test_impossible_rows_of_a_kind_that_ranks_leave_early_cost_that_kind_only() -> None:
    ops = [Op(kind="broadcast", root=0), *[SHORT] * 5]
    frame, timelines = recorded(World(ranks=2, hosts=["a"] * 2, steps=8, ops=ops, stated=True))
    other = frame["kind"] == "broadcast"
    frame.loc[other & (frame["rank"] == 1), ["start_ns", "end_ns"]] -= 20 * MS
    seen = synchronise_frame(frame, timelines, 2)
    assert not seen.collectives.loc[other, "matched"].any()
    assert seen.collectives.loc[~other, "matched"].all()


@pytest.mark.parametrize("merged", [False, True])
def test_ranks_that_divide_the_same_collectives_into_other_steps_are_a_gap(merged: bool) -> None:
    frame, timelines = recorded(World(ranks=2, hosts=["a"] * 2, steps=8, stated=True))
    steps = timelines[1].host_steps
    if merged:  # its first three steps are one
        number = np.arange(6)
        begin, end = np.r_[steps.begin_ns[0], steps.begin_ns[3:]], np.r_[steps.end_ns[2], steps.end_ns[3:]]
        timelines[1].host_steps = StepWindows(number=number, begin_ns=begin, end_ns=end)
    kinds = {gap.kind for gap in synchronise_frame(frame, timelines, 2).gaps}
    assert (GapKind.STEP_BOUNDARIES in kinds) is merged


def test_a_missing_rank_leaves_instances_and_one_gap() -> None:
    ops = [Op(groups=[(0, 1), (2, 3)]), Op(groups=[(0, 2), (1, 3)], kind="all_reduce")]
    seen = synchronised(World(ops=ops, missing=[3]))
    assert not wrong_instances(seen)
    assert seen.collectives["instance"].ge(0).all()
    matched = seen.collectives.groupby("group")["matched"].mean()
    assert (matched["0,1"], matched["2,3"]) == (1.0, 0.0)
    assert len(gaps_of(seen, "wait and transfer")) == 1


def test_sends_meet_their_receives_by_direction() -> None:
    frame, timelines = recorded(World(ranks=2, offsets={1: 5 * MS}, ops=[SHORT, Op()]))
    message = frame["kind"] == "all_gather"
    frame.loc[message & (frame["rank"] == 0), "kind"] = "send"
    frame.loc[message & (frame["rank"] == 1), "kind"] = "recv"
    frame.loc[message, "peer_rank"] = 1 - frame.loc[message, "rank"]
    seen = synchronise_frame(frame, timelines, 2)
    assert not wrong_instances(seen)
    assert seen.collectives["matched"].all()


def test_rows_that_contradict_the_clocks_of_other_groups_are_refused() -> None:
    """A broadcast alone bounds clocks on one side only, which any clock can satisfy."""
    frame, timelines = recorded(World(ranks=3, ops=[SHORT, Op(kind="broadcast", root=0)], stated=True))
    other = frame["kind"] == "broadcast"
    frame.loc[other, "group"] = "0,1,2#other"
    assert synchronise_frame(frame, timelines, 3).collectives["matched"].all()
    frame.loc[other & (frame["rank"] == 2), ["start_ns", "end_ns"]] -= 20 * MS
    seen = synchronise_frame(frame, timelines, 3)
    assert (seen.collectives.loc[other, "instance"] == -1).all()
    assert seen.collectives.loc[~other, "matched"].all()
    assert gaps_of(seen, "matching of collectives")


def test_streams_stand_for_groups_only_where_all_ranks_have_the_same() -> None:
    """Of a larger job these ranks may be in different groups, on streams of the same number."""
    frame, timelines = recorded(World(offsets=OFFSETS))
    one = frame.assign(group="stream:7", group_size=0)
    two = frame.assign(group=["stream:7", "stream:9"] * (len(frame) // 2), group_size=0)
    other = (two["rank"] == 3) & (two["group"] == "stream:9")
    unlike = two.assign(group=two["group"].mask(other, "stream:11"))
    for rows in (one, two):
        seen = synchronise_frame(rows, timelines, 4)
        assert not wrong_instances(seen)
        assert seen.collectives["matched"].all()
        assert seen.collectives.groupby("instance")["group"].nunique().max() == 1
    for rows, ranks in ((one, 8), (two, 8), (unlike, 4)):
        assert not synchronise_frame(rows, timelines, ranks).collectives["matched"].any()


#: By how much rank 1 leaves each ping later (below 0: rank 0 does).
HELD_UP = {
    "not at all": (0, 0, 0, 0),
    "always": (600 * US, 604 * US, 598 * US, 601 * US),
    "at the start only": (700 * US, 705 * US, 40 * US, 45 * US),
    "at the end only": (3 * US, 0, -650 * US, -655 * US),
}


def with_pings(ahead: int, held_up: tuple[int, ...]) -> SynchronisedRun:
    """Every fourth collective is left, and the next one entered, two milliseconds late."""
    ops = (Op(length=100 * US), Op(size=1 << 21, length=130 * US), Op(kind="reduce_scatter", length=120 * US))
    world = World(
        ranks=2, steps=8, ops=ops, hosts=["a", "a"], pause=1_200 * MS, offsets={1: ahead},
        tail=lambda draw, rank, length: draw.choice([10 * US, 15 * US, 25 * US, 2 * MS]), seed=5,
    )  # fmt: skip
    frame, timelines = recorded(world)
    for rank, timeline in enumerate(timelines):
        first, last = int(frame["start_ns"].min()) - 5 * MS, int(frame["end_ns"].max()) + 5 * MS
        for name, (at, late) in enumerate(zip((first, first + MS, last, last + MS), held_up, strict=True)):
            end = at + 300 * US + max(0, late if rank else -late)
            timeline.pings[f"ping {name}"] = (at + rank * ahead, end + rank * ahead)
    seen = synchronise_frame(frame, timelines, 2)
    assert not wrong_instances(seen)
    assert whole(seen) == 8 * len(ops)
    return seen


@pytest.mark.parametrize("name", HELD_UP)
def test_ranks_of_one_busy_host_keep_one_clock(name: str) -> None:
    seen = with_pings(0, HELD_UP[name])
    assert seen.clocks.offsets_ns[1] == 0
    assert not seen.clocks.of(1).drift_ppb
