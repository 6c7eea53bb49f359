"""How many elements the arguments of an operator have, as the profiler writes shapes."""

from typing import Any

import pytest

from zprof.collectors.kineto.trace import count_elements


@pytest.mark.parametrize(
    ("dims", "argument", "types", "count"),
    [
        ([[6, 10], []], 0, None, 60),
        ([[6, 10], []], 1, None, None),
        ([[6, 10], []], 1, ["float", ""], None),
        ([[6, 10], []], 1, ["float", "Scalar"], None),
        ([[6, 10], []], 1, ["float", "float"], 1),
        ([[[8], [8]]], 0, None, 16),
        ([[[]], [], []], 0, ["TensorList", "", ""], 1),
        ([[]], None, ["float"], 1),
        ([[]], None, None, None),
        ([[0]], None, ["float"], 0),
        ([[2], [3]], None, None, 5),
        ([[2]], 5, None, None),
        ("[[2]]", None, None, None),
        ([[2]], None, "float", 2),
    ],
)
def test_elements(dims: Any, argument: int | None, types: Any, count: int | None) -> None:
    assert count_elements(dims, argument, types) == count
