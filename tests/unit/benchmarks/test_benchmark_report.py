"""The benchmark's figures as a value and as a table."""

from typing import Any

import pytest

from benchmarks.engine import compute_pair_results, find_disagreements, format_table
from benchmarks.steps.launch import BFLOAT16, FLOAT32, Pair, Plan, list_contenders, list_pairs

PAIR = Pair(subject="engine", peer="other", equal_overlap=True)


def timed() -> dict[str, Any]:
    return {
        "wall_ns": {"engine": [9e6] * 6, "other": [10e6] * 6},
        "cpu_ns": {"engine": [4e6] * 6, "other": [8e6] * 6},
        "losses": {"engine": [2.0, 1.0], "other": [2.0, 1.0]},
    }


def counted(engine_peak: int = 900, own: int | None = 50) -> dict[str, Any]:
    return {
        "engine": {"peak_bytes": engine_peak, "moved_bytes": 50, "own_moved_bytes": own},
        "other": {"peak_bytes": 1000, "moved_bytes": 100, "own_moved_bytes": None},
    }


def test_ratios_are_the_engines_to_the_peers() -> None:
    [result] = compute_pair_results([PAIR], [timed(), timed()], [counted(), counted(950)])
    assert result["step_time_ratio"] == pytest.approx(0.9)
    assert result["step_time_interval"] == pytest.approx((0.9, 0.9))
    assert result["cpu_time_ratio"] == pytest.approx(0.5)
    assert result["peak_memory_ratio"] == pytest.approx(0.95)  # of the rank that needs the most
    assert result["bytes_moved_ratio"] == pytest.approx(0.5)


def test_the_table_shows_each_ratio_in_its_column() -> None:
    head, _, row = format_table(compute_pair_results([PAIR], [timed()], [counted()])).splitlines()
    for title, cell in (
        ("step time", "0.900"), ("CPU time", "0.500"), ("peak memory", "0.900"), ("bytes moved", "0.500"),
        ("peer's step", "10.0 ms"),
    ):  # fmt: skip
        end = head.index(title) + len(title)
        assert row[:end].endswith(cell), title


def test_what_was_not_measured_says_so() -> None:
    [result] = compute_pair_results([PAIR], [timed()], None)
    assert result["peak_memory_ratio"] is None
    assert format_table([result]).count("not measured") == 4


def test_contenders_that_do_other_work_are_named() -> None:
    off = timed()
    off["losses"]["other"] = [2.0, 1.1]
    lines = find_disagreements([timed(), off], [counted(own=49)], tolerance=1e-4)
    assert [line.partition(":")[0] for line in lines] == ["rank 1", "rank 0"]
    assert "losses of other are [2.0, 1.1]" in lines[0]
    assert "engine moves 49 bytes, by the trace 50" in lines[1]
    assert find_disagreements([timed()], [counted()], tolerance=1e-4) == []


def test_every_stage_meets_a_peer() -> None:
    names = list_contenders(list_pairs(FLOAT32))
    assert {"zero0", "zero1", "zero2", "zero3", "ddp", "ddp + zro", "fsdp2", "fsdp2 keep"} <= set(names)
    assert not any("ddp" in name for name in list_contenders(list_pairs(BFLOAT16)))


def test_a_plan_refuses_what_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="rounds is 0"):
        Plan(rounds=0)
    with pytest.raises(ValueError, match="dtype is float16"):
        Plan(dtype="float16")
