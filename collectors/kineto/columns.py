"""A trace as columns: what the reader makes of a file, and the converters make tables of.

One entry an event with a duration, in the order of the file.  Texts that repeat are kept once.  Whole
numbers that an event does not have are ``ABSENT``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from zprof.collectors.kineto.arguments import Arguments

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: In place of a whole number that an event does not have.  Threads and processes that are called by a word
#: (the profiler's bookkeeping) have it too.
ABSENT = -(1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
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
    category: Words
    name: Words
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
