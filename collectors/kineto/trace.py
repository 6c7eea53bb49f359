"""Define a trace as columns: what the reader makes of a file, and what the converters make tables of.

One entry per event with a duration, in the order of the file.  Repeated texts are kept once.  A whole
number that an event does not have is ``ABSENT``.  Of the arguments of events only those named here are
read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

#: How traces write the fields of ``Arguments``, where it is not the field's own name.
ARGUMENT_KEYS = {
    "dims": "Input Dims",
    "types": "Input type",
    "values": "Concrete Inputs",
    "external_id": "External id",
    "collective": "Collective name",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "split_in": "In split size",
    "split_out": "Out split size",
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
    "sync_kind": "cuda_sync_kind",
    "sync_stream": "wait_on_stream",
    "sync_record": "wait_on_cuda_event_record_corr_id",
    "sync_event": "wait_on_cuda_event_id",
}


class Arguments(msgspec.Struct, gc=False, rename=ARGUMENT_KEYS):
    """Arguments of one event as they stand in the file: any of them may be of any type.

    ``kind`` is the direction of a copy as ROCm writes it; ``grid`` is that of a kernel.
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
    split_out: Any = None
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
    sync_kind: Any = None
    sync_stream: Any = None
    sync_record: Any = None
    sync_event: Any = None


#: What the profiler calls the type of an argument that is no tensor.
_NO_TENSORS = ("", "Scalar", "ScalarList", "GenericList", "TensorList")


def int64_or_none(value: object) -> int | None:
    """A whole number that an int64 column can hold, else None."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) < 1 << 62 else None


def count_elements(dims: Any, argument: int | None = None, types: Any = None) -> int | None:
    """Elements of one argument of an operator, or of all tensors; a list of tensors is summed.

    ``[[6, 10], []]`` has 60 elements in argument 0; ``[[[8], [8]]]``, a tensor list, has 16.  A scalar has no
    extents, as arguments that are no tensors: in a list of tensors it has 1, and beside them where ``types``
    names its type.
    """
    types = types if isinstance(types, list) else []
    if not isinstance(dims, list):
        return None
    chosen = range(len(dims)) if argument is None else range(argument, min(argument + 1, len(dims)))
    named = [row < len(types) and types[row] not in _NO_TENSORS for row in chosen]
    counts = [
        count
        for row, scalar in zip(chosen, named, strict=True)
        for count in _iter_tensor_elements(dims[row], scalar)
    ]
    return sum(counts) if counts else None


def _iter_tensor_elements(entry: Any, scalar: bool) -> Iterator[int]:
    """Elements of the tensors of one argument; ``scalar``: without extents it is one of one element."""
    if not isinstance(entry, list) or not (entry or scalar):
        return
    if all(isinstance(extent, int) for extent in entry):
        yield _multiply_extents(entry)
        return
    for inner in entry:
        yield from _iter_tensor_elements(inner, True)


def _multiply_extents(extents: list[int]) -> int:
    product = 1
    for extent in extents:
        product *= max(0, min(extent, 1 << 40))
    return product


Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: In place of a whole number that an event does not have.  Threads and processes that are called by a word
#: (the profiler's bookkeeping) have it too.
ABSENT = -(1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    """A column of texts: a code a row, and each text once."""

    codes: npt.NDArray[np.int32]
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.texts[int(self.codes[row])]

    def where(self, predicate: Callable[[str], bool]) -> Mask:
        """The rows whose text answers yes; asked once for each distinct text."""
        answers = np.fromiter((predicate(text) for text in self.texts), np.bool_, len(self.texts))
        chosen: Mask = answers[self.codes] if len(self.codes) else np.zeros(0, dtype=np.bool_)
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group as ``distributedInfo.pg_config`` lists it; global ranks, sorted."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """What a trace says of itself outside its events; None and empty where it does not.

    ``rank`` and ``world_size`` are those of ``distributedInfo``.  ``devices`` are the names of GPUs.
    """

    base_ns: int = 0
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    groups: tuple[Group, ...] = ()
    devices: tuple[str, ...] = ()
    host: str = ""
    with_shapes: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """How reading went.  Each count that is not 0 becomes a gap (``zprof.collectors.kineto.convert``).

    ``events``: all objects of ``traceEvents`` that could be read, of any ``ph``.  ``repaired``: those of them
    that were not JSON as it should be and were mended; ``dropped``: pieces that could not be.  ``timeless``:
    events that should have a duration, but have no place in time, and so are in no column: ``ts`` or ``dur``
    is missing, negative or beyond any clock, or both are 0, as for work whose times the device never gave.
    ``nameless``: events that do not say what they are: their name, category or ``ph`` is missing or no text.
    Those with a duration are in the columns, with an empty text.
    ``unkept_names``, ``unkept_arguments``: events whose name or arguments were beyond all measure.
    ``cut_short``: the file ends early or its packing is damaged.  ``trailing_bytes``: after the last gzip
    member, left out.  ``resolution_ns``: 1, or more where the file's own times are coarser.
    """

    events: int = 0
    repaired: int = 0
    dropped: int = 0
    timeless: int = 0
    nameless: int = 0
    unkept_names: int = 0
    unkept_arguments: int = 0
    cut_short: bool = False
    trailing_bytes: int = 0
    resolution_ns: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One rank's trace.  Times are absolute: the header's base is in them.

    ``category`` is in today's words (``kernel``, not ``Kernel``).  ``process`` is the device's number for
    its work.  ``bytes`` are those of copies.  ``arguments`` holds those rows only whose other arguments
    zprof reads: collectives.  ``thread_names`` keeps every name that a thread ever had.
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
    header: TraceHeader = field(default_factory=TraceHeader)
    report: ReadReport = field(default_factory=ReadReport)

    def __len__(self) -> int:
        return len(self.start_ns)
