"""Hold the numbers of a screen against the JSON of the report, by a resolver of its own."""

import re
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest

from zprof.model.cursor import follow, read
from zprof.model.quantities import Aggregation, Unit, Value, parse_path

#: A figure is rounded to whole nanoseconds or bytes on its way: means of the report may be.
_ROUNDING = 1.0


def _find(tree: Any, leaf: str) -> list[Any]:
    nodes = [tree]
    for step in re.findall(r"\w+|\[\*\]|\[\d+\]", leaf):
        if step == "[*]":
            nodes = [child for node in nodes for child in (node.values() if isinstance(node, dict) else node)]
        elif step.startswith("["):
            nodes = [node[int(step[1:-1])] for node in nodes]
        else:
            nodes = [node[step] for node in nodes]
    return [node for node in nodes if node is not None]


def _combine(tree: Any, figure: Value) -> float | None:
    values = [_find(tree, str(leaf)) for leaf in figure.leaves]
    flat = [value for group in values for value in group]
    if not flat:
        return None
    if figure.how is Aggregation.DIFFERENCE:
        return sum(values[0]) - sum(sum(group) for group in values[1:])
    if figure.how in (Aggregation.SHARE, Aggregation.PER_WORK):
        return sum(values[0]) / sum(sum(group) for group in values[1:])
    if figure.how is Aggregation.COUNT:
        return sum(len(node) for node in flat)
    if figure.how is Aggregation.LEAF:
        assert len(flat) == 1, figure
    return {
        Aggregation.MEAN: fmean,
        Aggregation.SUM: sum,
        Aggregation.LARGEST: max,
        Aggregation.SMALLEST: min,
    }.get(figure.how, max)(flat)


def read_leaves(report: object, *leaves: str, **options: Any) -> Value:
    """Return the number that the leaves at these paths yield."""
    return read(*(follow(report, parse_path(leaf)) for leaf in leaves), **options)


def assert_leaves(tree: Any, figures: Sequence[Value]) -> None:
    """Assert that each figure has the value that its leaves make in the JSON of the report."""
    for figure in figures:
        assert figure.leaves, figure
        if figure.low is not None:
            ends = [_find(tree, str(leaf)) for leaf in figure.leaves]
            assert ends == [[figure.low], [figure.number]], figure
            continue
        expected = _combine(tree, figure)
        if expected is None:
            assert figure.number is None
        else:
            tolerance = 1e-9 if figure.unit in (Unit.RATIO, Unit.FACTOR) else _ROUNDING
            assert figure.number == pytest.approx(expected, abs=tolerance), figure
