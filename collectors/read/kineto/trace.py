"""Define a trace as columns: the interface between the file reader and the converters to tables.

One entry per event with a duration, in the order of the file. Repeated texts are stored once. A missing
integer is ``ABSENT``. Only the arguments listed here are read.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

#: Keys of ``Arguments`` in traces, if they differ from the field name.
ARGUMENT_KEYS = {
    "dims": "Input Dims",
    "types": "Input type",
    "values": "Concrete Inputs",
    "external_id": "External id",
    "collective": "Collective name",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "split_in": "In split size",
    "group": "Process Group Name",
    "group_id": "Process Group ID",
    "group_description": "Process Group Description",
    "group_ranks": "Process Group Ranks",
    "group_size": "Group size",
    "sequence": "Seq",
    "rank": "Rank",
    "source_rank": "Src Rank",
    "destination_rank": "Dst Rank",
    "first_global_rank": "Global rank start",
    "global_rank_stride": "Global rank stride",
    "task_type": "Task Type",
}
#: Category of an event that states no category but a task of an Ascend device: this and the type of the task.
TASK_PREFIX = "npu_task:"
#: Types that the profiler writes for arguments that are not tensors.
_NO_TENSORS = ("", "Scalar", "ScalarList", "GenericList", "TensorList")
#: Placeholder for a missing integer, and for threads and processes whose id is a word (the profiler's
#: bookkeeping).
ABSENT = -(1 << 62)


class Arguments(msgspec.Struct, gc=False, rename=ARGUMENT_KEYS):
    """Arguments of one event as written in the file; each may have any type.

    ``kind`` is the copy direction as written by ROCm; ``grid`` is the grid of a kernel. ``rank_size``,
    ``count`` and ``data_type`` describe an HCCL operation.
    """

    name: Any = None
    dims: Any = None
    types: Any = None
    values: Any = None
    stream: Any = None
    correlation: Any = None
    external_id: Any = None
    collective: Any = None
    elements_in: Any = None
    elements_out: Any = None
    split_in: Any = None
    group: Any = None
    group_id: Any = None
    group_description: Any = None
    group_ranks: Any = None
    group_size: Any = None
    sequence: Any = None
    dtype: Any = None
    rank: Any = None
    source_rank: Any = None
    destination_rank: Any = None
    first_global_rank: Any = None
    global_rank_stride: Any = None
    grid: Any = None
    kind: Any = None
    bytes: Any = None
    rank_size: Any = None
    count: Any = None
    data_type: Any = None


def int64_or_none(value: object) -> int | None:
    """Return ``value`` if it is an integer below 2^62 in size, else None."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) < 1 << 62 else None


def count_elements(dims: Any, argument: int | None = None, types: Any = None) -> int | None:
    """Return the elements of one argument of an operator, or of all arguments; tensor lists are summed.

    ``[[6, 10], []]`` has 60 elements in argument 0; ``[[[8], [8]]]``, a tensor list, has 16. A scalar tensor
    has no extents, like an argument that is not a tensor: it counts as 1 element in a list of tensors, and
    otherwise only if ``types`` has a tensor type for it.
    """
    types = types if isinstance(types, list) else []
    if not isinstance(dims, list):
        return None
    rows = range(len(dims)) if argument is None else range(argument, min(argument + 1, len(dims)))
    named = [row < len(types) and types[row] not in _NO_TENSORS for row in rows]
    counts = [
        count
        for row, scalar in zip(rows, named, strict=True)
        for count in _iter_tensor_elements(dims[row], scalar)
    ]
    return sum(counts) if counts else None


def _iter_tensor_elements(entry: Any, scalar: bool) -> Iterator[int]:
    """Yield the elements of each tensor in one argument; with ``scalar``, an empty list is one element."""
    if not isinstance(entry, list) or not (entry or scalar):
        return
    if all(isinstance(extent, int) for extent in entry):
        product = 1
        for extent in entry:
            product *= max(0, min(extent, 1 << 40))
        yield product
        return
    for inner in entry:
        yield from _iter_tensor_elements(inner, True)


Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class TextColumn(Struct, frozen=True, kw_only=True):
    """A column of texts: one code per row, and each distinct text once."""

    codes: npt.NDArray[np.int32]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.texts[int(self.codes[row])]

    def where(self, predicate: Callable[[str], bool]) -> Mask:
        """Return a mask of the rows whose text matches; ``predicate`` is called once per distinct text."""
        answers = np.fromiter((predicate(text) for text in self.texts), np.bool_, len(self.texts))
        return answers[self.codes] if len(self.codes) else np.zeros(0, dtype=np.bool_)


class TraceProcessGroup(Struct, frozen=True, kw_only=True):
    """A process group from ``distributedInfo.pg_config``; global ranks, sorted."""

    name: str
    description: str
    ranks: tuple[int, ...]


class TraceHeader(Struct, frozen=True, kw_only=True):
    """Facts in a trace outside its events; None or empty if missing.

    ``rank`` and ``world_size`` come from ``distributedInfo``. ``devices`` are GPU names.
    """

    base_ns: int = 0
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    groups: tuple[TraceProcessGroup, ...] = ()
    devices: tuple[str, ...] = ()
    host: str = ""


class ReadReport(Struct, frozen=True, kw_only=True):
    """Counts of problems found while reading. Each non-zero count becomes a gap (see ``convert``).

    ``events``: all objects of ``traceEvents`` that could be read, with any ``ph``. ``repaired``: events that
    were not valid JSON and were repaired. ``dropped``: pieces that could not be repaired. ``without_time``:
    events that should have a duration but have no valid time, and are therefore in no column: ``ts`` or
    ``dur`` is missing, negative or out of range, or both are 0 because the device never reported them.
    ``without_name``: events whose name, category or ``ph`` is missing or not text; those with a duration are
    in the columns, with an empty text. ``dropped_names``, ``dropped_arguments``: events whose name or
    arguments exceeded the limits. ``cut_short``: the file ends early or its compression is damaged.
    ``trailing_bytes``: ignored bytes after the last gzip member. ``resolution_ns``: 1, or more if the times
    in the file are coarser.
    """

    events: int = 0
    repaired: int = 0
    dropped: int = 0
    without_time: int = 0
    without_name: int = 0
    dropped_names: int = 0
    dropped_arguments: int = 0
    cut_short: bool = False
    trailing_bytes: int = 0
    resolution_ns: int = 1


class Trace(Struct, frozen=True, kw_only=True):
    """One rank's trace. Times are absolute: they include the header's base.

    ``category`` has current names (``kernel``, not ``Kernel``). For device work, ``process`` is the device
    number. ``bytes`` is for copies only. ``arguments`` has only rows of which zprof reads further arguments:
    collectives and device waits. ``thread_names`` has all names that a thread ever had, ``process_names`` the
    last name of each process whose id is a number, ``lane_names`` the last name of each process and thread.
    """

    start_ns: Int64s
    duration_ns: Int64s
    category: TextColumn
    name: TextColumn
    process: Int64s
    thread: Int64s
    stream: Int64s
    correlation: Int64s
    external_id: Int64s
    bytes: Int64s
    arguments: Mapping[int, Arguments]
    thread_names: Mapping[int, frozenset[str]]
    process_names: Mapping[int, str] = field(default_factory=dict)
    lane_names: Mapping[tuple[int, int], str] = field(default_factory=dict)
    header: TraceHeader = field(default_factory=TraceHeader)
    report: ReadReport = field(default_factory=ReadReport)

    def __len__(self) -> int:
        return len(self.start_ns)
