"""Numbers of a trace as columns: identities, and times in exact nanoseconds."""

import struct
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import numpy.typing as npt

from zprof.collectors.kineto.columns import ABSENT, Int64s

#: No time and no identity is as large; sums of two such fit a column.
LIMIT = 1 << 62
_MOST_DIGITS = 64
_STREAM = "stream "


def whole_numbers(values: Sequence[object]) -> Int64s:
    """Identities as they stand in the file; what is no number that a column holds is ABSENT.

    Packing takes half the time that numpy takes to convert a list.
    """
    try:
        column = np.frombuffer(struct.pack(f"{len(values)}q", *values), dtype=np.int64)
    except struct.error:
        return np.fromiter(map(whole_number, values), dtype=np.int64, count=len(values))
    if column.max(initial=0) < LIMIT and column.min(initial=0) >= ABSENT:
        return column
    return np.where((column >= LIMIT) | (column < ABSENT), ABSENT, column)


def doubles(values: Sequence[float | None]) -> npt.NDArray[np.float64]:
    """Times as they stand in the file; NaN for those that are none."""
    try:
        return np.frombuffer(struct.pack(f"{len(values)}d", *values), dtype=np.float64)
    except struct.error:
        return np.array(values, dtype=np.float64)


def whole_number(value: object) -> int:
    """``12``, ``"12"`` and ``1.0`` are numbers; in 2021 ``"stream 7"`` was the thread of stream 7."""
    if isinstance(value, str):
        value = _in_digits(value.removeprefix(_STREAM))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -LIMIT < value < LIMIT:
        return ABSENT
    return value


def _in_digits(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < _MOST_DIGITS else None


def nanoseconds(microseconds: npt.NDArray[np.float64]) -> Int64s:
    """Doubles of microseconds as nanoseconds; ABSENT for those that are none.

    Below 2^43 µs this is exact for three decimals, but only if the whole part goes its own way:
    ``rint(µs * 1000)`` is off by 1 ns for one in 170 of 2^42.
    """
    good = np.abs(microseconds) < LIMIT / 1000
    microseconds = np.where(good, microseconds, 0.0)
    whole = np.floor(microseconds)
    found = whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)
    return np.where(good, found, ABSENT)


def microseconds_to_ns(digits: bytes) -> int | None:
    """A JSON number of microseconds as whole nanoseconds, without going through a double."""
    digits = digits.strip(b'"')
    whole, _, fraction = digits.partition(b".")
    if whole.isdigit() and len(whole) < 20 and len(fraction) < 4 and (not fraction or fraction.isdigit()):
        found = int(whole) * 1000 + int(fraction.ljust(3, b"0"))
        return found if found < LIMIT else None
    try:
        value = Decimal(digits.decode("ascii")) * 1000 if len(digits) <= _MOST_DIGITS else Decimal("nan")
        return int(value.to_integral_value()) if abs(value) < LIMIT else None
    except (ArithmeticError, ValueError):
        return None
