"""Bytes moved, counted from the launches of collectives in a trace."""

from typing import Any

import pytest

from benchmarks.steps.measure import count_moved_bytes


def launch(name: str, dims: list[Any], types: list[str]) -> dict[str, Any]:
    return {"cat": "cpu_op", "name": name, "args": {"Input Dims": dims, "Input type": types}}


GATHER = launch("c10d::_allgather_base_", [[800], [200], []], ["float", "float", ""])
SCATTER = launch("c10d::_reduce_scatter_base_", [[200], [800], []], ["c10::BFloat16", "c10::BFloat16", ""])
REDUCE = launch("c10d::allreduce_", [[[100], [20, 5]], []], ["TensorList", ""])
BROADCAST = launch("c10d::broadcast_", [[[64, 64]], []], ["TensorList", ""])


def test_full_tensors_times_the_factor_of_a_ring() -> None:
    moved = count_moved_bytes([GATHER, SCATTER, REDUCE, BROADCAST], ranks=4, list_item_bytes=4)
    assert moved == {
        "all_gather": 800 * 4 * 3 / 4,
        "reduce_scatter": 800 * 2 * 3 / 4,
        "all_reduce": 2 * 200 * 4 * 3 / 4,
        "broadcast": 4096 * 4 * 3 / 4,
    }


def test_what_gloo_makes_of_a_launch_is_not_counted_again() -> None:
    execution = {"cat": "user_annotation", "name": "gloo:all_reduce", "args": {"Input Dims": [[800]]}}
    barrier = launch("c10d::barrier", [[]], [""])
    assert (
        count_moved_bytes(
            [execution, barrier, {"name": "aten::add", "cat": "cpu_op"}], ranks=2, list_item_bytes=4
        )
        == {}
    )


def test_an_unknown_collective_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="c10d::alltoall_base_ in the trace: no rule"):
        count_moved_bytes([launch("c10d::alltoall_base_", [[8]], ["float"])], ranks=2, list_item_bytes=4)


def test_a_trace_without_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match="record it with record_shapes"):
        count_moved_bytes([launch("c10d::_allgather_base_", [[], []], ["", ""])], ranks=2, list_item_bytes=4)
