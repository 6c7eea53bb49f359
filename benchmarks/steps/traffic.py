"""Bytes that a rank moves, counted from outside: from the launches of collectives in a profiler's trace.

The same for every contender: torch's own ``c10d::`` operators, the full (gathered) tensor each, times what a
rank of a ring sends for one byte of it: all-gather and reduce-scatter (N-1)/N, all-reduce 2 (N-1)/N, and
broadcast (N-1)/N, as all ranks but the last send it on (the mean over the ranks, whoever begins).
(gloo itself makes a reduce-scatter out of an all-reduce; what a library asked for is counted.)
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

_ITEM_BYTES = {"double": 8, "float": 4, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "int": 4}
_ITEM_BYTES |= {"unsigned char": 1, "signed char": 1, "bool": 1}
#: Operator: name of the collective, which input is the full tensor.
_FULL_TENSOR = {
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::broadcast_": ("broadcast", 0),
}
_CONTROL = frozenset(("c10d::barrier", "c10d::monitored_barrier_"))


def moved_bytes(events: Iterable[dict[str, Any]], *, ranks: int, list_item_bytes: int) -> Counter[str]:
    """By collective, of a trace that was recorded with ``record_shapes``.

    ``list_item_bytes`` are those of an element in a list of tensors, whose type a trace does not tell.

    Raises:
        ValueError: an operator of c10d that has no rule here, or whose sizes were not recorded.
    """
    moved: Counter[str] = Counter()
    for event in events:
        name = event.get("name", "")
        if event.get("cat") != "cpu_op" or not name.startswith("c10d::") or name in _CONTROL:
            continue
        if name not in _FULL_TENSOR:
            raise ValueError(f"{name} in the trace: no rule says what it moves")
        kind, index = _FULL_TENSOR[name]
        moved[kind] += round(_input_bytes(event["args"], index, list_item_bytes) * ring_factor(kind, ranks))
    return moved


def ring_factor(kind: str, ranks: int) -> float:
    """Bytes that a rank sends for one byte of the full tensor."""
    return (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks


def _input_bytes(arguments: dict[str, Any], index: int, list_item_bytes: int) -> int:
    dims = arguments.get("Input Dims", [])
    if len(dims) <= index or not dims[index]:
        raise ValueError("sizes of a collective are missing in the trace: record it with record_shapes")
    kind = arguments["Input type"][index]
    if kind == "TensorList":
        return list_item_bytes * sum(int(math.prod(shape)) for shape in dims[index])
    if kind not in _ITEM_BYTES:
        raise ValueError(f"a collective of type {kind}: its size is not known here")
    return int(math.prod(dims[index])) * _ITEM_BYTES[kind]
