"""Ranks that share a busy host: one clock, though pings and collectives are left late by turns."""

import pytest

from tests.support.collective_rows import MS, US, Op, World, recorded, whole, wrong_instances
from zprof.analysis.time.synchronise import SynchronisedRun, synchronise

STEPS = 8
SMALL = Op(length=100 * US)
OPS = (SMALL, Op(size=1 << 21, length=130 * US), SMALL, Op(kind="reduce_scatter", length=120 * US))
#: By how much the second rank leaves each ping later (below 0: the first).
HELD_UP = {
    "not at all": (0, 0, 0, 0),
    "always alike": (600 * US, 604 * US, 598 * US, 601 * US),
    "at the start only": (700 * US, 705 * US, 40 * US, 45 * US),
    "at the end only": (3 * US, 0, -650 * US, -655 * US),
}


def busy(rank_1_is_ahead_ns: int = 0) -> World:
    """Every fourth collective is left, and the next one entered, two milliseconds late."""
    return World(
        ranks=2, steps=STEPS, ops=OPS, hosts=["a", "a"], pause=1_200 * MS, offsets={1: rank_1_is_ahead_ns},
        tail=lambda draw, rank, length: draw.choice([10 * US, 15 * US, 25 * US, 2 * MS]), seed=5,
    )  # fmt: skip


def seen(world: World, held_up: tuple[int, ...]) -> SynchronisedRun:
    frame, timelines = recorded(world)
    ahead = world.offsets[1]
    for rank, timeline in enumerate(timelines):
        first, last = int(frame["start_ns"].min()) - 5 * MS, int(frame["end_ns"].max()) + 5 * MS
        for name, (at, late) in enumerate(zip((first, first + MS, last, last + MS), held_up, strict=True)):
            mine = rank * ahead
            end = at + 300 * US + max(0, late if rank else -late)
            timeline.pings[f"ping {name}"] = (at + mine, end + mine)
    return synchronise(frame, timelines, 2)


@pytest.mark.parametrize("held_up", HELD_UP.values(), ids=HELD_UP)
def test_one_clock_holds_against_pings_that_are_left_late(held_up: tuple[int, ...]) -> None:
    found = seen(busy(), held_up)
    assert not wrong_instances(found)
    assert whole(found) == STEPS * len(OPS)
    assert found.clocks.offsets_ns[1] == 0
    assert not found.clocks.of(1).drift_ppb


def test_clocks_of_one_name_that_do_differ_are_read_from_pings() -> None:
    found = seen(busy(20 * MS), HELD_UP["not at all"])
    assert not wrong_instances(found)
    assert whole(found) == STEPS * len(OPS)
    assert found.clocks.offsets_ns[1] == pytest.approx(20 * MS, abs=300 * US)
