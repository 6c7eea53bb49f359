"""Memory around the allocator as NVML samples tell it: collectives, context, other processes."""

from typing import Any

import pytest

from benchmarks.snapshot_truth.segments import MIB
from tests.support.run_tables import table_of_rows
from zprof.analysis.memory.device import OutsideTerms, compute_outside_terms
from zprof.run.schema import TABLES

SECOND = 1_000_000_000
Row = dict[str, Any]


def sample(time_s: float, process: int | None, reserved: int | None, **more: Any) -> Row:
    """Sizes in MiB."""
    row: Row = dict.fromkeys(field.name for field in TABLES["device"])
    row |= {
        "time_ns": int(time_s * SECOND),
        "device": "cuda:0",
        "reason": "period",
        "cost_ns": 1000,
        "process_bytes": None if process is None else process * MIB,
        "reserved_bytes": None if reserved is None else reserved * MIB,
        "used_bytes": 9_000 * MIB,
        "total_bytes": 16_000 * MIB,
    }
    return row | more


def group(
    name: str, begin_s: float, end_s: float, before: tuple[int, int], after: tuple[int | None, int]
) -> list[Row]:
    return [
        sample(begin_s, *before, reason="before_group", group=name),
        sample(end_s, *after, reason="after_group", group=name),
    ]


def outside(rows: list[Row], time_s: float, rank: int = 0) -> OutsideTerms:
    return compute_outside_terms(table_of_rows("device", rows), rank, "cuda:0", int(time_s * SECOND))


def test_process_less_reserved_is_collectives_and_context() -> None:
    rows = [
        *group("default", 1, 2, (900, 500), (1500, 600)),
        *group("tensor", 3, 4, (1500, 600), (1800, 700)),
        sample(5, 2100, 1000),
    ]
    found = outside(rows, 5.5)
    assert found.collectives_bytes == (500 + 200) * MIB
    assert found.context_bytes == (2100 - 1000 - 700) * MIB
    assert found.non_allocator_bytes == 1100 * MIB
    assert found.other_processes_bytes == (9000 - 2100) * MIB
    assert found.apart_ns == SECOND // 2
    assert found.gaps == ()


@pytest.mark.parametrize(
    ("groups", "time_s", "collectives"),
    [
        ([("outer", 1, 4, (900, 500), (1500, 600)), ("inner", 2, 3, (1000, 500), (1400, 600))], 5, 500),
        ([("again", 1, 2, (900, 500), (1000, 500)), ("again", 3, 4, (900, 500), (5000, 500))], 5, 100),
        ([("late", 3, 4, (900, 500), (1500, 500))], 1, 0),
    ],
    ids=["one within the other", "a group made twice", "after the moment"],
)  # fmt: skip
def test_the_growth_of_a_group_counts_once(groups: Any, time_s: int, collectives: int) -> None:
    rows = [row for values in groups for row in group(*values)] + [sample(time_s, 6000, 1000)]
    assert outside(rows, time_s).collectives_bytes == collectives * MIB


def test_the_nearest_sample_that_knows_the_process_is_taken() -> None:
    found = outside([sample(1, 800, 500), sample(2, 900, 500), sample(3, None, 500)], 3)
    assert (found.process_bytes, found.apart_ns) == (900 * MIB, SECOND)


def test_a_container_that_hides_processes_is_a_gap_and_keeps_the_device() -> None:
    found = outside([sample(1, None, 500)], 1, rank=4)
    assert (found.collectives_bytes, found.context_bytes, found.process_bytes) == (None, None, None)
    assert found.other_processes_bytes is None
    assert (found.used_bytes, found.total_bytes) == (9_000 * MIB, 16_000 * MIB)
    assert [gap.rank for gap in found.gaps] == [4]


@pytest.mark.parametrize("sampled", [False, True])
def test_without_a_sample_of_the_device_there_is_a_gap(sampled: bool) -> None:
    rows = [sample(1, 1, 1, device="cuda:1")]
    found = outside(rows, 0) if sampled else compute_outside_terms(None, 0, "cuda:0", 0)
    assert found.non_allocator_bytes is None
    assert found.gaps


CONTRADICTIONS: dict[str, list[Row]] = {
    "process smaller than its allocator": [sample(1, 400, 500)],
    "a group that shrank": [*group("g", 1, 2, (900, 500), (850, 500)), sample(3, 900, 500)],
    "less than its groups": [*group("g", 1, 2, (900, 500), (1900, 500)), sample(3, 1000, 500)],
    "a device smaller than the process": [sample(1, 800, 500, used_bytes=700 * MIB)],
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_a_gap_and_never_a_negative_term(name: str) -> None:
    found = outside(CONTRADICTIONS[name], 3)
    terms = (
        found.non_allocator_bytes,
        found.collectives_bytes,
        found.context_bytes,
        found.other_processes_bytes,
    )
    assert all(term is None or term >= 0 for term in terms)
    assert len(found.gaps) == 1
