"""Read checked columns from the rows of an untrusted snapshot (lists of dicts), and encode columns for Arrow.

Only requested keys are visited, so nesting, cycles and unknown keys cost nothing. A shared object is counted
on every visit: ``Budget`` limits the number of visits.
"""

from collections.abc import Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zprof.base.errors import BadInput
from zprof.run.table_reader import make_masked, make_texts

HINT = "dump the snapshot again with torch.cuda.memory._dump_snapshot"
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Row = dict[str, Any]
_MAX_NAME = 4096
#: No trace's sizes add up to this; sums below it fit into 64 bits.
_MAX_BYTES = 2.0**62
_MAX_DEPTH = 1024
_MAX_LINE = 1 << 40


class Budget:
    """Limit the rows that a snapshot may make the reader visit: a file of n bytes has fewer than n rows.

    Otherwise a list that is referenced many times (two bytes each) would be walked each time.
    """

    def __init__(self, rows: int) -> None:
        self.rows_left = rows

    def spend(self, rows: int, where: str) -> None:
        """Subtract ``rows``; raises BadInput if the budget is exceeded."""
        self.rows_left -= rows
        if self.rows_left < 0:
            raise make_damaged_error(f"{where} references more rows than the file can contain")


def make_damaged_error(what: str) -> BadInput:
    """Return the error for a snapshot that does not have torch's format."""
    return BadInput(f"not in torch's snapshot format: {what}", hint=HINT)


def read_rows(value: object, where: str, budget: Budget) -> list[Row]:
    """Return ``value`` checked as a list of dicts."""
    if type(value) is not list and type(value) is not tuple:
        found = "missing" if value is None else type(value).__name__
        raise make_damaged_error(f"{where} is {found}, not a list")
    budget.spend(len(value), where)
    _check_types(value, {dict}, where, "an entry")
    return cast(list[Row], value if type(value) is list else list(value))


def read_column(rows: Sequence[Row], key: str, default: object = None) -> list[Any]:
    """Return one column, unchecked."""
    try:
        return list(map(itemgetter(key), rows))  # twice as fast as get(); torch's rows have all keys
    except KeyError:
        return [row.get(key, default) for row in rows]


def read_integers(rows: Sequence[Row], key: str, where: str, default: int | None = None) -> Integers:
    """Return one column of 64-bit integers; a missing key is ``default``, if given.

    Raises:
        BadInput: a value is missing, is not an integer, or does not fit.
    """
    return to_integers(read_column(rows, key, default), key, where)


def to_integers(values: list[Any], key: str, where: str) -> Integers:
    """Return values as 64-bit integers; raises BadInput as ``read_integers``."""
    _check_types(values, {int}, where, key)
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise make_damaged_error(f"{where}: {key} does not fit into 64 bits") from None


def read_sizes(rows: Sequence[Row], key: str, where: str, default: int | None = None) -> Integers:
    """Return a column of non-negative integers: sizes, addresses, times."""
    return check_sizes(read_integers(rows, key, where, default), key, where)


def check_sizes(sizes: Integers, key: str, where: str) -> Integers:
    """Return the values; raises BadInput if one is negative."""
    if sizes.size and sizes.min() < 0:
        raise make_damaged_error(f"{where}: {key} is negative")
    return sizes


def check_total(sizes: Integers, where: str) -> None:
    """Check that the sum of sizes does not overflow; raises BadInput if it does."""
    if sizes.sum(dtype=np.float64) > _MAX_BYTES:
        raise make_damaged_error(f"{where}: sizes exceed any possible memory")


def read_texts(rows: Sequence[Row], key: str, where: str, default: str = "") -> list[str]:
    """Return one column of texts; missing values and None are ``default``."""
    values = read_column(rows, key, default)
    kinds = set(map(type, values))
    if type(None) in kinds:
        values = [default if value is None else value for value in values]
    _check_types(values, {str}, where, key)
    return values


def clean_text(text: str) -> str:
    """Return ``text`` with lone surrogates (which a pickle may contain) escaped, cut to the limit
    on names.
    """
    if len(text) > _MAX_NAME:
        text = text[:_MAX_NAME] + "…"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _check_types(values: Sequence[object], allowed: set[type], where: str, what: str) -> None:
    wrong = set(map(type, values)) - allowed
    if wrong:
        names = ", ".join(sorted(kind.__name__ for kind in wrong)[:3])
        expected = " or ".join(sorted(kind.__name__ for kind in allowed))
        raise make_damaged_error(f"{where}: {what} is {names.replace('NoneType', 'missing')}, not {expected}")


class TextNumbers:
    """Assign numbers to strings in the order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the text's number."""
        return self._numbers.setdefault(text, len(self._numbers))

    def column(self, numbers: npt.NDArray[np.int32]) -> Any:
        """Return the column of texts with these numbers; -1 is null."""
        indices = make_masked(numbers, pa.int32(), numbers < 0)
        return pa.DictionaryArray.from_arrays(indices, make_texts(tuple(self._numbers)))


def factorize_texts(
    texts: Sequence[str | None], absent: Sequence[str] = (), rows: Flags | None = None
) -> Any:
    """Return a column of texts; None and the texts in ``absent`` are null.

    ``rows`` is a mask: the texts fill its True rows; the others are null.
    """
    numbering = TextNumbers()
    numbers = {
        text: -1 if text is None or text in absent else numbering.number(clean_text(text))
        for text in dict.fromkeys(texts)
    }
    codes = np.fromiter(map(numbers.__getitem__, texts), dtype=np.int32, count=len(texts))
    if rows is not None:
        spread = np.full(len(rows), -1, dtype=np.int32)
        spread[rows] = codes
        codes = spread
    return numbering.column(codes)


def nullable_integers(values: npt.NDArray[np.int64]) -> Any:
    """Return a column of integers; negative ones are null."""
    return make_masked(values, pa.int64(), values < 0)


class StackTable:
    """Number stacks in the order of first use. The snapshot must outlive the table, which stores
    object ids.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._by_list: dict[int, int] = {}
        self._by_sample: dict[tuple[int, int, int, int], tuple[Sequence[object], int]] = {}
        self._by_identities: dict[tuple[int, ...], int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_identity: dict[int, int] = {}
        self._by_content: dict[tuple[str, int, str], int] = {}

    def numbers(self, lists: Sequence[object], where: str) -> Integers:
        """Return the stack number of each list of frames; -1 for an empty list.

        Raises:
            BadInput: an entry is not a frame.
        """
        identities = list(map(id, lists))
        known = self._by_list
        for identity, frames in dict(zip(identities, lists, strict=True)).items():
            if identity not in known:
                known[identity] = self._add_stack(frames, where)
        return np.fromiter(map(known.__getitem__, identities), dtype=np.int64, count=len(identities))

    def columns(self) -> dict[str, Any]:
        """Return the table ``stack``."""
        frames = list(self._by_content)
        stacks = list(self._by_frames)
        depths = np.array([len(stack) for stack in stacks], dtype=np.int64)
        frame_numbers = np.fromiter(chain.from_iterable(stacks), dtype=np.int64, count=int(depths.sum()))
        before = np.repeat(np.cumsum(depths) - depths, depths)
        files, functions = TextNumbers(), TextNumbers()
        file = np.array([files.number(frame[0]) for frame in frames], dtype=np.int32)
        function = np.array([functions.number(frame[2]) for frame in frames], dtype=np.int32)
        line = np.array([frame[1] for frame in frames], dtype=np.int64)
        return {
            "stack": np.repeat(np.arange(len(stacks), dtype=np.int64), depths),
            "depth": np.arange(len(frame_numbers), dtype=np.int64) - before,
            "file": files.column(file[frame_numbers]),
            "line": line[frame_numbers],
            "function": functions.column(function[frame_numbers]),
        }

    def _add_stack(self, frames: object, where: str) -> int:
        if frames is None:
            return -1
        if type(frames) is not list and type(frames) is not tuple:
            raise make_damaged_error(f"{where}: frames is {type(frames).__name__}, not a list")
        if not frames:
            return -1
        used_frames = frames[:_MAX_DEPTH] if len(frames) > _MAX_DEPTH else frames
        depth = len(used_frames)
        self._budget.spend(depth, f"frames of {where}")
        # Most lists have the same frames as an earlier one: comparing them is faster than hashing them.
        sample = (depth, id(used_frames[0]), id(used_frames[depth // 2]), id(used_frames[-1]))
        similar = self._by_sample.get(sample)
        if similar is not None and all(map(is_, used_frames, similar[0])):
            return similar[1]
        identities = tuple(map(id, used_frames))
        number = self._by_identities.get(identities)
        if number is None:
            known = self._by_identity
            try:
                key = tuple(map(known.__getitem__, identities))
            except KeyError:
                key = tuple([self._number_frame(frame, where) for frame in used_frames])
            number = self._by_frames.setdefault(key, len(self._by_frames))
            self._by_identities[identities] = number
        self._by_sample[sample] = (used_frames, number)
        return number

    def _number_frame(self, frame: object, where: str) -> int:
        if type(frame) is not dict:
            raise make_damaged_error(f"{where}: a frame is {type(frame).__name__}, not dict")
        file, line, name = frame.get("filename", "?"), frame.get("line", 0), frame.get("name", "?")
        if type(file) is not str or type(name) is not str or type(line) is not int:
            raise make_damaged_error(f"{where}: a frame without file, line and name")
        if not -_MAX_LINE < line < _MAX_LINE:
            raise make_damaged_error(f"{where}: a line number is out of range")
        content = (clean_text(file), line, clean_text(name))
        number = self._by_content.setdefault(content, len(self._by_content))
        self._by_identity[id(frame)] = number
        return number
