"""Column builders for the trace reader: integers, exact nanosecond times, strings by code, and categories
under their current names.
"""

import mmap
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from zprof.collectors.read.kineto.trace import ABSENT, Int64s

_FIRST_ROWS = 1 << 14
_Number = TypeVar("_Number", np.int32, np.int64)
#: A trace has a few thousand names; the limits protect against malicious files.
_MAX_TEXTS, _MAX_CHARACTERS = 1 << 20, 64 << 20
DROPPED_TEXT = "(one of too many names)"
#: Current names for categories of 2020 and 2021, and for flows, which have no duration.
_CURRENT_NAMES = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
    "async": "ac2g",
    "async_cpu_to_gpu": "ac2g",
}
_MAX_CATEGORIES = 1 << 12
_STREAM_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"})
_THREAD_AS_STREAM_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"})
#: Times and ids are below this limit, and the sum of two fits into 64 bits.
NUMBER_LIMIT = 1 << 62
_MAX_DIGITS = 64
_STREAM = "stream "


class GrowingColumn(Generic[_Number]):
    """A column that rows are appended to.

    Its memory is mapped, so freeing it returns the memory to the system at once; heap memory may stay.
    """

    def __init__(self, kind: type[_Number]) -> None:
        self._kind: type[_Number] = kind
        self._pages = _map_pages(_FIRST_ROWS * np.dtype(kind).itemsize)
        self._rows: npt.NDArray[_Number] = np.frombuffer(self._pages, dtype=kind)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def append(self, rows: npt.NDArray[_Number]) -> None:
        """Append a copy of ``rows``."""
        end = self._used + len(rows)
        if end > len(self._rows):
            self._grow(max(2 * len(self._rows), end))
        self._rows[self._used : end] = rows
        self._used = end

    def _grow(self, rows: int) -> None:
        """Resize the mapping. Doubling is free: pages that were never written take no memory."""
        size = rows * np.dtype(self._kind).itemsize
        self._rows = np.empty(0, dtype=self._kind)  # A mapping with a view on it cannot be resized.
        try:
            self._pages.resize(size)
        except SystemError:  # Only Linux can resize a mapping.
            larger = _map_pages(size)
            larger[: len(self._pages)] = self._pages[:]
            self._pages = larger
        self._rows = np.frombuffer(self._pages, dtype=self._kind)

    def finish(self) -> npt.NDArray[_Number]:
        """Return the column, which must not grow afterwards."""
        return self._rows[: self._used]


class TextCodes(dict[str | None, int]):
    """Map each text to its code; a new text gets the next code.

    ``texts`` are the texts by code; ``dropped`` counts texts beyond the limits, which share a placeholder.

    Args:
        normalize: Returns the current name for a text; texts with the same name share a code.
        max_texts: Maximum number of texts.
    """

    def __init__(self, normalize: Callable[[str], str] = str, max_texts: int = _MAX_TEXTS) -> None:
        super().__init__()
        self._normalize = normalize
        self._max_texts = max_texts
        self._characters = 0
        self._codes: dict[str, int] = {}
        self.texts: list[str] = []
        self.dropped = 0

    def __missing__(self, text: str | None) -> int:
        characters = self._characters + len(text or "")
        if len(self) >= self._max_texts or characters > _MAX_CHARACTERS:
            self.dropped += 1
            return self._encode(DROPPED_TEXT)
        self._characters = characters
        self[text] = code = self._encode(self._normalize(text or ""))
        return code

    def _encode(self, text: str) -> int:
        if text not in self._codes:
            self._codes[text] = len(self.texts)
            self.texts.append(text)
        return self._codes[text]


class TextPredicate:
    """Cache the results of a predicate by code; it is called once per text."""

    def __init__(self, predicate: Callable[[str], bool]) -> None:
        self._predicate = predicate
        self._answers = np.zeros(0, dtype=np.bool_)

    def match(self, texts: list[str], codes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows with these codes."""
        new = texts[len(self._answers) :]
        if new:
            answers = np.fromiter(map(self._predicate, new), np.bool_, len(new))
            self._answers = np.concatenate([self._answers, answers])
        return self._answers[codes]


class Categories:
    """Encode categories and find streams. ``texts`` are the categories so far."""

    def __init__(self) -> None:
        self.texts = TextCodes(lambda category: _CURRENT_NAMES.get(category, category), _MAX_CATEGORIES)
        self._has_stream = TextPredicate(_STREAM_CATEGORIES.__contains__)
        self._stream_is_thread = TextPredicate(_THREAD_AS_STREAM_CATEGORIES.__contains__)

    def find_device_rows(self, codes: npt.NDArray[np.int32]) -> Int64s:
        """Return the rows of device work and device waits."""
        return np.flatnonzero(self._has_stream.match(self.texts.texts, codes))

    def get_streams(
        self, codes: npt.NDArray[np.int32], rows: Int64s, recorded: Int64s, thread: Int64s
    ) -> Int64s:
        """Return the stream of each event: ``recorded`` for ``rows``, else the thread for device work.

        ROCm's runtime calls also have a ``stream`` argument, but it is the address of a handle.
        """
        found = np.full(len(codes), ABSENT, dtype=np.int64)
        found[rows] = recorded
        uses_thread = self._stream_is_thread.match(self.texts.texts, codes) & (found == ABSENT)
        return np.where(uses_thread, thread, found)


def to_int64s(values: Sequence[object]) -> Int64s:
    """Return ids as written in the file; ABSENT for values that are not valid integers.

    ``struct.pack`` takes half the time of numpy to convert a list.
    """
    try:
        column = np.frombuffer(struct.pack(f"{len(values)}q", *values), dtype=np.int64)
    except struct.error:
        return np.fromiter(map(to_int64, values), dtype=np.int64, count=len(values))
    if column.max(initial=0) < NUMBER_LIMIT and column.min(initial=0) >= ABSENT:
        return column
    return np.where((column >= NUMBER_LIMIT) | (column < ABSENT), ABSENT, column)


def _map_pages(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def to_doubles(values: Sequence[float | None]) -> npt.NDArray[np.float64]:
    """Return times as written in the file, with NaN for None."""
    try:
        return np.frombuffer(struct.pack(f"{len(values)}d", *values), dtype=np.float64)
    except struct.error:
        return np.array(values, dtype=np.float64)


def to_int64(value: object) -> int:
    """Return ``12``, ``"12"`` or ``1.0`` as an integer, else ABSENT; traces of 2021 write a thread as
    ``"stream 7"``.
    """
    if isinstance(value, str):
        text = value.removeprefix(_STREAM)
        digits = text.removeprefix("-")
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) < _MAX_DIGITS else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -NUMBER_LIMIT < value < NUMBER_LIMIT:
        return ABSENT
    return value


def to_nanoseconds(microseconds: npt.NDArray[np.float64]) -> Int64s:
    """Convert microseconds to nanoseconds; ABSENT for values that are not a time.

    Below 2^43 µs this is exact for three decimals, but only because the integral part is converted
    separately: ``rint(µs * 1000)`` is off by 1 ns for about one value in 170 near 2^42.
    """
    is_valid = np.abs(microseconds) < NUMBER_LIMIT / 1000
    microseconds = np.where(is_valid, microseconds, 0.0)
    integral = np.floor(microseconds)
    found = integral.astype(np.int64) * 1000 + np.rint((microseconds - integral) * 1000).astype(np.int64)
    return np.where(is_valid, found, ABSENT)


def microseconds_to_ns(digits: bytes) -> int | None:
    """Convert a JSON number of microseconds to nanoseconds without a double; None if it is not a time."""
    digits = digits.strip(b'"')
    integral, _, fraction = digits.partition(b".")
    if (
        integral.isdigit()
        and len(integral) < 20
        and len(fraction) < 4
        and (not fraction or fraction.isdigit())
    ):
        found = int(integral) * 1000 + int(fraction.ljust(3, b"0"))
        return found if found < NUMBER_LIMIT else None
    try:
        value = Decimal(digits.decode("ascii")) * 1000 if len(digits) <= _MAX_DIGITS else Decimal("nan")
        return int(value.to_integral_value()) if abs(value) < NUMBER_LIMIT else None
    except (ArithmeticError, ValueError):
        return None
