"""What NVML says around the allocator, from samples with known truth."""

from typing import Any

import pandas as pd
import pytest
from history_tables import frame_of

from zprof.analysis.memory.device_terms import compute_outside_terms
from zprof.run.schema import TABLES

MIB = 1 << 20
SECOND = 1_000_000_000


def sample(time_s: float, process: int | None, reserved: int | None, **more: Any) -> dict[str, Any]:
    """Sizes in MiB."""
    row: dict[str, Any] = dict.fromkeys(field.name for field in TABLES["device"])
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


def group(name: str, begin_s: float, end_s: float, before: tuple[int, int], after: tuple[int, int]) -> Any:
    return [
        sample(begin_s, *before, reason="before_group", group=name),
        sample(end_s, *after, reason="after_group", group=name),
    ]


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    return frame_of("device", {name: [row[name] for row in rows] for name in rows[0]})


def test_process_less_reserved_is_collectives_and_context() -> None:
    rows = [
        *group("default", 1, 2, (900, 500), (1500, 600)),
        *group("tensor", 3, 4, (1500, 600), (1800, 700)),
        sample(5, 2100, 1000),
    ]
    outside = compute_outside_terms(table(*rows), 0, "cuda:0", 5 * SECOND + 7)
    assert outside.collectives_bytes == (500 + 200) * MIB
    assert outside.context_bytes == (2100 - 1000 - 700) * MIB
    assert outside.beside_bytes == 1100 * MIB
    assert outside.other_processes_bytes == (9000 - 2100) * MIB
    assert outside.apart_ns == 7
    assert outside.gaps == ()


def test_groups_that_begin_together_grow_once() -> None:
    rows = [
        *group("outer", 1, 4, (900, 500), (1500, 600)),
        *group("inner", 2, 3, (1000, 500), (1400, 600)),
        sample(5, 2100, 1000),
    ]
    assert compute_outside_terms(table(*rows), 0, "cuda:0", 5 * SECOND).collectives_bytes == 500 * MIB


def test_a_group_that_came_after_the_moment_does_not_count() -> None:
    rows = [*group("late", 3, 4, (900, 500), (1500, 500)), sample(1, 900, 500)]
    assert compute_outside_terms(table(*rows), 0, "cuda:0", 1 * SECOND).collectives_bytes == 0


def test_only_the_first_samples_of_a_group_count() -> None:
    rows = [
        *group("again", 1, 2, (900, 500), (1000, 500)),
        *group("again", 3, 4, (900, 500), (5000, 500)),
        sample(5, 6000, 500),
    ]
    assert compute_outside_terms(table(*rows), 0, "cuda:0", 5 * SECOND).collectives_bytes == 100 * MIB


def test_the_nearest_sample_that_knows_the_process_is_taken() -> None:
    rows = [sample(1, 800, 500), sample(2, 900, 500), sample(3, None, 500)]
    outside = compute_outside_terms(table(*rows), 0, "cuda:0", 3 * SECOND)
    assert outside.process_bytes == 900 * MIB
    assert outside.apart_ns == SECOND


def test_a_container_that_hides_processes_is_a_gap_and_keeps_the_device() -> None:
    outside = compute_outside_terms(table(sample(1, None, 500)), 4, "cuda:0", SECOND)
    assert (outside.collectives_bytes, outside.context_bytes, outside.process_bytes) == (None, None, None)
    assert outside.other_processes_bytes is None
    assert (outside.used_bytes, outside.total_bytes) == (9_000 * MIB, 16_000 * MIB)
    assert [gap.rank for gap in outside.gaps] == [4]


@pytest.mark.parametrize("frame", [None, table(sample(1, 1, 1)).assign(device="cuda:1")])
def test_no_sample_of_the_device_is_a_gap(frame: pd.DataFrame | None) -> None:
    outside = compute_outside_terms(frame, 0, "cuda:0", 0)
    assert outside.beside_bytes is None
    assert "no sample" in outside.gaps[0].reason


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([sample(1, 400, 500)], "less beside its allocator"),
        ([*group("g", 1, 2, (900, 500), (850, 500)), sample(3, 900, 500)], "shrank"),
        ([*group("g", 1, 2, (900, 500), (1900, 500)), sample(3, 1000, 500)], "less beside its allocator"),
        ([sample(1, 800, 500, used_bytes=700 * MIB)], "the device has less in use"),
    ],
)
def test_a_contradiction_is_a_gap_with_its_amount_and_never_a_negative_term(rows: Any, words: str) -> None:
    outside = compute_outside_terms(table(*rows), 0, "cuda:0", 3 * SECOND)
    terms = (
        outside.beside_bytes,
        outside.collectives_bytes,
        outside.context_bytes,
        outside.other_processes_bytes,
    )
    assert all(term is None or term >= 0 for term in terms)
    assert [words in gap.reason and "MiB" in gap.reason for gap in outside.gaps] == [True]


def test_a_group_without_an_answer_leaves_the_split_unknown() -> None:
    rows = [*group("g", 1, 2, (900, 500), (1000, 500)), sample(3, 1200, 500)]
    rows[1]["process_bytes"] = None
    outside = compute_outside_terms(table(*rows), 0, "cuda:0", 3 * SECOND)
    assert (outside.collectives_bytes, outside.context_bytes) == (None, None)
    assert outside.process_bytes == 1200 * MIB
    assert outside.beside_bytes == 700 * MIB
    assert [gap.what for gap in outside.gaps] == ["memory of collectives"]
