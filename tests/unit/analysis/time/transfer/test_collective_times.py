"""Sums of a step as means over a group's own ranks, by kind, by unit and by size; and the volume."""

from pathlib import Path
from statistics import fmean

import pytest

from tests.support.matched_rows import clocks, collective, table
from tests.support.simulations import simulated, with_pace
from tests.support.tables import changed
from zprof.analysis.columns import Columns
from zprof.analysis.time.collective_times import (
    measure_volume,
    sum_collective_times,
    sum_exposed_in_collectives,
    sum_message_sizes,
)
from zprof.analysis.time.decomposition import StepCounts, decompose_collectives, parse_group_ranks
from zprof.model.time import ExposedInCollectives
from zprof.model.training import TrainingFacts
from zprof.simulator.job import Pace
from zprof.simulator.regular import make_job

MS = 1_000_000
EIGHT = StepCounts(by_rank=dict.fromkeys(range(8), 1))


def frame(*collectives) -> Columns:
    found = decompose_collectives(table(*collectives), clocks())
    return changed(found, exposed_wait_ns=found.ints("wait_ns"), exposed_transfer_ns=10, dependency_ns=7)


def spans(number: int, ranks: tuple[int, ...] = (0, 1), late: int = 0) -> dict[int, tuple[int, int]]:
    at = number * 20 * MS
    return {rank: (at + late * (rank == ranks[-1]), at + late + 4 * MS) for rank in ranks}


def in_both_halves(**more) -> Columns:
    """Three collectives in each of two groups of four of the eight ranks."""
    halves = ((0, 1, 2, 3), (4, 5, 6, 7))
    return frame(
        *(
            collective(half * 3 + number, spans(number, ranks, late=MS), **more)
            for half, ranks in enumerate(halves)
            for number in range(3)
        )
    )


def test_a_group_of_half_the_ranks_is_not_diluted() -> None:
    first, second = sum_collective_times(in_both_halves(), EIGHT)
    for entry in (first, second):
        assert (entry.count, entry.bytes, entry.group_size) == (3, 3 << 20, 4)
        assert entry.wait_ns == 3 * MS * 3 // 4
        assert entry.total_ns == entry.wait_ns + entry.transfer_ns
        assert (entry.dependency_ns, entry.tail_ns, entry.intrinsic_ns) == (7, 0, 4 * MS)
        assert not entry.bound
    assert {first.group, second.group} == {"0,1,2,3", "4,5,6,7"}


@pytest.mark.parametrize(
    ("more", "steps", "count"),
    [
        ({"group": "pg:7", "group_size": 4}, EIGHT, 3),  # its ranks are those of its rows
        ({}, StepCounts(by_rank={0: 2, 1: 2, 2: 2, 3: 2, 4: 50}), 1.5),
    ],
)
def test_counts_are_per_step_of_the_groups_ranks(more, steps: StepCounts, count: float) -> None:
    rows = in_both_halves(**more)
    (entry,) = sum_collective_times(rows.at(rows.ints("rank") < 4), steps)
    assert entry.count == count


@pytest.mark.parametrize(
    ("group", "ranks"),
    [
        ("0,3", {0, 3}),
        ("0,3#dp", {0, 3}),
        ("pg:1", set()),
        ("", set()),
        ("1,x", set()),
        ("9" * 30, set()),
        ("²", set()),
    ],
)
def test_ranks_of_a_group(group: str, ranks: set[int]) -> None:
    assert parse_group_ranks(group) == ranks


def test_bandwidth_leaves_out_the_first_of_a_window_and_unresolved_times() -> None:
    slow = collective(0, {0: (0, 40 * MS), 1: (0, 40 * MS)}, first_of_window=True)
    fast = [collective(number, spans(3 * number)) for number in range(1, 4)]
    short = collective(9, {0: (0, 150), 1: (0, 150)})
    (entry,) = sum_collective_times(frame(slow, *fast, short), EIGHT)
    assert (entry.algbw_bytes_per_s, entry.intrinsic_ns) == (pytest.approx((1 << 20) / 4e-3), 4 * MS)
    (entry,) = sum_collective_times(frame(slow, short), EIGHT)
    assert (entry.algbw_bytes_per_s, entry.intrinsic_ns) == (None, None)
    (entry,) = sum_collective_times(frame(collective(0, spans(0), ranks=(0, 1, 2))), EIGHT)
    assert entry.bound, "ranks are missing"


def test_sizes_in_powers_of_four() -> None:
    sizes = [0, 1023, 1024, 4095, 4096, 1 << 20, (1 << 20) + 1, (1 << 22) - 1, 1 << 62, (1 << 63) - 1]
    rows = frame(*(collective(n, spans(n), bytes=size) for n, size in enumerate(sizes)))
    bars = sum_message_sizes(rows, EIGHT)
    assert [(bar.at_least_bytes, bar.below_bytes, bar.count) for bar in bars] == [
        (0, 1024, 2), (1024, 4096, 2), (4096, 16384, 1), (1 << 20, 1 << 22, 3), (1 << 62, (1 << 63) - 1, 2),
    ]  # fmt: skip
    exposed = (rows.ints("exposed_wait_ns") + rows.ints("exposed_transfer_ns")).sum()
    assert sum(bar.exposed_ns for bar in bars) == exposed // 2
    assert bars[3].busbw_bytes_per_s == pytest.approx((1 << 20) / 4e-3, rel=1e-5)


@pytest.mark.parametrize(
    ("ranks", "steps", "expected"),
    [
        ((0, 0, 0, 3), {0: 3, 3: 1}, (100, 7)),
        ((0,), {0: 1, 1: 1}, (50, 4)),  # a rank without collectives dilutes
        ((), {0: 1}, None),
        ((0,), {}, None),
    ],
)
def test_exposed_time_is_a_mean_over_ranks(
    ranks: tuple[int, ...], steps: dict[int, int], expected: tuple[int, int] | None
) -> None:
    row = {"exposed_wait_ns": 100, "exposed_transfer_ns": 7, "bound": False}
    rows = Columns.from_rows([{"rank": rank, **row} for rank in ranks], ("rank", *row))
    found = sum_exposed_in_collectives(rows, StepCounts(by_rank=steps))
    assert found == (expected and ExposedInCollectives(wait_ns=expected[0], transfer_ns=expected[1]))


def test_exposed_time_is_that_of_the_ledger_where_groups_differ(tmp_path: Path) -> None:
    job = make_job(ranks=4, shard_size=2, steps=2, units=3, unit_params=1 << 20)
    time = simulated(with_pace(job, Pace(gpu=1.25), 1), tmp_path).analysis.time
    found = time.exposed_in_collectives
    assert found is not None
    assert len({entry.group for entry in time.collectives}) > 2
    for mine, term in ((found.wait_ns, "exposed_wait_ns"), (found.transfer_ns, "exposed_transfer_ns")):
        ledger = fmean(getattr(rank, term) for rank in time.per_rank)
        assert mine == pytest.approx(ledger, rel=1e-3, abs=2)  # but what runs across the ends of the window
    assert sum(entry.exposed_ns for entry in time.collectives) > 1.5 * (found.wait_ns + found.transfer_ns)


ONE = StepCounts(by_rank={0: 1})


def volume_rows(*collectives: tuple[str, str, int]) -> Columns:
    rows = [
        {
            "kind": kind,
            "group": group,
            "bytes": size,
            "rank": 0,
            "group_size": 0 if group == "unknown" else len(group.split("#")[0].split(",")),
        }
        for kind, group, size in collectives
    ]
    return Columns.from_rows(rows, ("kind", "group", "bytes", "rank", "group_size"))


def facts(**more: int) -> TrainingFacts:
    known = {"stage": 3, "parameters": 100, "shard_ranks": 2, "communication_bytes": 4}
    return TrainingFacts(**(known | more))  # type: ignore[arg-type]


GATHER = ("all_gather", "0,1", 400)
NORM, REPLICAS = ("all_reduce", "0,1,2,3", 4), ("all_reduce", "0,2,4", 200)
#: gloo does not say among which ranks: the bytes are those of one rank's part.
UNNAMED = ("all_gather", "unknown", 200)
MESH = [("all_gather", "0,2", 400), ("all_gather", "1,3#dp", 300), ("all_reduce", "2,3", 400)]
#: Rows, what the program says, the bytes that are counted, and how many gaps there are.
VOLUMES = {
    "an all-reduce counts twice": ([("all_reduce", "0,1", 400), GATHER], {}, 1200, 0),
    "all groups without tensor parallelism": (MESH, {}, 1500, 0),
    "data-parallel groups with tensor parallelism": (MESH, {"model_parallel_ranks": 2}, 700, 0),
    "messages between two ranks": ([GATHER, ("send", "0,1", 50), ("recv", "0,1", 50)], {}, 400, 0),
    "replicas of shards": ([("all_gather", "0,1", 1200), REPLICAS], {}, 1200, 1),
    "replicas of a known number": (
        [("all_gather", "0,1", 1200), ("all_reduce", "0,2", 200)], {"replica_ranks": 2}, 1600, 0,
    ),
    "parts gathered in the shard group": ([UNNAMED, REPLICAS], {"replica_ranks": 2}, 800, 0),
    "parts gathered in some group": ([UNNAMED], {}, None, 1),
    "a norm over all ranks": ([("all_gather", "0,1", 1200), NORM], {}, 1200, 0),
    "stage 0 reduces in any group": (
        [("all_reduce", "0,1,2,3", 400), ("all_reduce", "0,1", 4)], {"stage": 0}, 808, 0,
    ),
    "a barrier has no size": ([GATHER, ("barrier", "0,1", 0)], {}, 400, 0),
    "a size that no trace states": ([GATHER, ("all_gather", "0,1", 0)], {}, None, 1),
    "an unknown size on the wire": ([GATHER], {"communication_bytes": None}, None, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", VOLUMES)
def test_volume_that_the_formula_counts(name: str) -> None:
    rows, more, seen, gaps = VOLUMES[name]
    volume, found = measure_volume(volume_rows(*rows), facts(**more), ONE)
    assert (volume.seen_bytes if volume else None) == seen
    assert [gap.what for gap in found] == ["volume"] * gaps
    assert volume is None or volume.expected_bytes == (
        800 if more.get("stage") == 0 else 1200 + 400 * (more.get("replica_ranks", 1) - 1)
    )


def test_padding_travels_and_only_ranks_that_moved_something_count() -> None:
    rows = Columns.concat([volume_rows(GATHER), changed(volume_rows(("all_gather", "0,1", 600)), rank=1)])
    volume, _ = measure_volume(rows, facts(padding_elements=5), StepCounts(by_rank={0: 1, 1: 1, 2: 8}))
    assert volume is not None
    assert (volume.seen_bytes, volume.parameter_bytes) == (500, 420)
    unknown = changed(volume_rows(("all_gather", "0,2", 400), ("all_gather", "?", 300)), group_size=2)
    volume, _ = measure_volume(unknown, facts(model_parallel_ranks=2), ONE)
    assert volume is not None
    assert volume.seen_bytes == 400
