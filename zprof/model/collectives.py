"""Define the kinds of collectives and their traffic per byte.

Bus-bandwidth factors follow NCCL's performance tests: an all-reduce of S bytes over N ranks moves 2 S (N-1)/N
through each rank, an all-gather or reduce-scatter with a full tensor of S bytes moves S (N-1)/N.
"""

from collections.abc import Mapping
from enum import StrEnum

#: Name of a group if neither its ranks nor their number was recorded.
UNKNOWN_GROUP = "unknown"
#: Description of the group that a recording uses to compare clocks; it is not part of the program.
CLOCK_GROUP = "zprof_clocks"
#: Bytes per element, by the name of its type.
BYTES_PER_ELEMENT: Mapping[str, int] = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "int64": 8, "int32": 4, "int8": 1, "uint8": 1,
}  # fmt: skip


class CollectiveKind(StrEnum):
    """Operation of a collective."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"
    RECV = "recv"
    BARRIER = "barrier"
    OTHER = "other"


#: Prefixes of operators that run collectives.
OPERATOR_PREFIXES = ("c10d::", "gloo:", "nccl:", "_c10d_functional::")
#: Kinds that no rank can leave before all ranks have entered.
FULL_SYNC = frozenset(
    {
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.BARRIER,
    }
)


def bus_factor(kind: CollectiveKind, group_size: int) -> float:
    """Return the bytes that pass through each rank per byte of the full tensor."""
    if group_size <= 1:
        return 0.0
    share = (group_size - 1) / group_size
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * share
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL):
        return share
    return 0.0 if kind is CollectiveKind.BARRIER else 1.0


def is_unknown_size(kind: str, size_bytes: int) -> bool:
    """Return True if 0 bytes mean an unknown size: only a barrier moves no bytes."""
    return size_bytes == 0 and kind != CollectiveKind.BARRIER
