"""Numpy column tables, read by the analysis, the step model and the causes.

A table is a :class:`Columns`: named arrays of equal length. A column holds integers, floats, booleans,
integers with unknown values (:class:`OptionalInts`), or strings (:class:`Texts`, dictionary-encoded: a name
is compared once, however many rows have it). A selection keeps each row's number in the original table
(:attr:`Columns.row`), so rows of different selections can be told apart. :class:`Groups` computes one value
per group of rows.

pandas is imported only in :meth:`Columns.to_frame`, for tables returned to users.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from zprof.analysis.intervals import Int64s

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
#: Rows of a table: positions, a mask, or a range of positions.
Rows = Int64s | Mask | slice
_Scalar = TypeVar("_Scalar", bound=np.generic)
#: Code of an unknown string.
_NO_TEXT = -1


class OptionalInts:
    """Integers with unknown values, which are 0 in ``values`` and False in ``known``."""

    __slots__ = ("known", "values")

    def __init__(self, values: Int64s, known: Mask) -> None:
        self.values: Int64s = np.where(known, values, 0).astype(np.int64)
        self.known: Mask = np.asarray(known, dtype=np.bool_)

    @classmethod
    def of(cls, numbers: Iterable[int | None]) -> "OptionalInts":
        """Return these numbers; None is unknown."""
        listed = list(numbers)
        known = np.array([number is not None for number in listed], dtype=np.bool_)
        return cls(np.array([number or 0 for number in listed], dtype=np.int64), known)

    def __len__(self) -> int:
        return len(self.values)

    def at(self, rows: Rows) -> "OptionalInts":
        """Return the numbers of these rows."""
        return OptionalInts(self.values[rows], self.known[rows])

    def to_floats(self) -> Floats:
        """Return the numbers as floats, NaN for unknown ones."""
        return np.where(self.known, self.values.astype(np.float64), np.nan)

    def tolist(self) -> list[int | None]:
        """Return the numbers; None for unknown ones."""
        pairs = zip(self.values.tolist(), self.known.tolist(), strict=True)
        return [number if is_known else None for number, is_known in pairs]


class Texts(Sequence[str]):
    """Strings as codes into the distinct words: a predicate runs once per word. An unknown string is ""."""

    __slots__ = ("codes", "words")

    def __init__(self, words: Sequence[str], codes: npt.NDArray[np.integer[Any]]) -> None:
        self.words = tuple(words)
        self.codes: Int64s = np.asarray(codes, dtype=np.int64)

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> "Texts":
        """Encode these strings in order of first appearance; None is unknown."""
        numbers: dict[str, int] = {}
        codes = [_NO_TEXT if text is None else numbers.setdefault(text, len(numbers)) for text in texts]
        return cls(tuple(numbers), np.array(codes, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        code = int(self.codes[index])
        return self.words[code] if code >= 0 else ""

    def __iter__(self) -> Iterator[str]:
        words = (*self.words, "")  # the last one, for code -1, is empty
        return map(words.__getitem__, self.codes.tolist())

    @property
    def known(self) -> Mask:
        """Mask of the rows whose string is known."""
        return self.codes >= 0

    def tolist(self) -> list[str | None]:
        """Return the strings; None for unknown ones."""
        words = (*self.words, None)
        return [words[code] for code in self.codes.tolist()]

    def to_objects(self) -> npt.NDArray[np.object_]:
        """Return the strings as an object array; None for unknown ones."""
        return np.array([*self.words, None], dtype=np.object_)[self.codes]

    def match(self, predicate: Callable[[str], object]) -> Mask:
        """Return a mask of the known strings that satisfy the predicate."""
        is_match = np.array([*(bool(predicate(word)) for word in self.words), False], dtype=np.bool_)
        return is_match[self.codes]

    def equals(self, *texts: str) -> Mask:
        """Return a mask of the rows with one of these strings."""
        return self.match(frozenset(texts).__contains__)

    def at(self, rows: Rows) -> "Texts":
        """Return the strings of these rows."""
        return Texts(self.words, self.codes[rows])

    def list_distinct(self) -> list[str]:
        """Return the distinct known strings, in order of first appearance."""
        codes, first = np.unique(self.codes, return_index=True)
        return [self.words[code] for code in codes[np.argsort(first)].tolist() if code >= 0]

    def map(self, change: Callable[[str], str]) -> "Texts":
        """Replace each word; several words may map to the same string."""
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(change(word), len(numbers)) for word in self.words]
        return Texts(tuple(numbers), np.array([*codes, _NO_TEXT], dtype=np.int64)[self.codes])

    def with_text(self, rows: Rows, text: str | None) -> "Texts":
        """Replace the string in these rows; None is unknown."""
        words = self.words if text is None or text in self.words else (*self.words, text)
        codes = self.codes.copy()
        codes[rows] = _NO_TEXT if text is None else words.index(text)
        return Texts(words, codes)


Column = npt.NDArray[Any] | OptionalInts | Texts


class Columns:
    """A table: named columns of equal length, and each row's number in the original table."""

    def __init__(self, columns: Mapping[str, Column], row: Int64s | None = None) -> None:
        self._columns = dict(columns)
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns of different lengths: {sorted(lengths)}")
        self._length = lengths.pop() if lengths else 0
        self.row: Int64s = np.arange(self._length) if row is None else row

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._columns)

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def ints(self, name: str, missing: int = 0) -> Int64s:
        """Return an integer column, with ``missing`` for unknown values."""
        column = self._columns[name]
        if isinstance(column, OptionalInts):
            return column.values if missing == 0 else np.where(column.known, column.values, missing)
        assert not isinstance(column, Texts)
        return column.astype(np.int64, copy=False)

    def known(self, name: str) -> Mask:
        """Return a mask of the rows in which the column has a value."""
        column = self._columns[name]
        if isinstance(column, OptionalInts | Texts):
            return column.known
        if column.dtype.kind == "f":
            return ~np.isnan(column)
        return np.ones(self._length, dtype=np.bool_)

    def floats(self, name: str) -> Floats:
        """Return a numeric column as floats, NaN for unknown values; too imprecise for Unix times in ns."""
        column = self._columns[name]
        if isinstance(column, OptionalInts):
            return column.to_floats()
        assert not isinstance(column, Texts)
        return column.astype(np.float64, copy=False)

    def bools(self, name: str) -> Mask:
        """Return a boolean column."""
        column = self._columns[name]
        assert isinstance(column, np.ndarray)
        return column.astype(np.bool_, copy=False)

    def texts(self, name: str) -> Texts:
        """Return a string column."""
        column = self._columns[name]
        assert isinstance(column, Texts)
        return column

    def at(self, rows: Rows) -> "Columns":
        """Return these rows, given as a mask, positions in this table, or a range."""
        return Columns({name: _take(each, rows) for name, each in self._columns.items()}, self.row[rows])

    def pick(self, names: Iterable[str]) -> "Columns":
        """Return only these columns."""
        return Columns({name: self._columns[name] for name in names}, self.row)

    def group_by(self, *names: str) -> "Groups":
        """Group rows by equal values in these columns; numbers must all be known."""
        return Groups(*(self._columns[name] for name in names))  # type: ignore[arg-type]

    def sort_by(self, *names: str) -> "Columns":
        """Sort the rows by these columns, the first column first; the sort is stable."""
        return self.at(self.group_by(*names).order)

    def with_columns(self, **columns: Column) -> "Columns":
        """Return the table with these columns added or replaced."""
        return Columns(self._columns | columns, self.row)

    def renumber(self) -> "Columns":
        """Return the table with its rows renumbered from 0, no longer as a selection of another table."""
        return Columns(self._columns)

    @classmethod
    def concat(cls, parts: Sequence["Columns"]) -> "Columns":
        """Concatenate tables with the same columns, and renumber the rows."""
        if not parts:
            return cls({})
        return cls({name: concat_columns([part[name] for part in parts]) for name in parts[0].names})

    @classmethod
    def from_arrow(cls, table: "pa.Table") -> "Columns":
        """Convert an Arrow table of integers, floats, booleans and strings.

        Integer columns that are nullable in the table's schema become :class:`OptionalInts`.
        """
        return cls(
            {each.name: _read_arrow(table.column(each.name), nullable=each.nullable) for each in table.schema}
        )

    def to_arrow(self) -> "pa.Table":
        """Return an Arrow table; unknown integers and strings are null."""
        import pyarrow as pa

        arrays: dict[str, Any] = {}
        for name, column in self._columns.items():
            if isinstance(column, OptionalInts):
                arrays[name] = pa.array(column.values, mask=~column.known)
            elif isinstance(column, Texts):
                codes = pa.array(column.codes, mask=~column.known)
                arrays[name] = pa.DictionaryArray.from_arrays(codes, pa.array(column.words, pa.string()))
            else:
                arrays[name] = pa.array(column)
        return pa.table(arrays)

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> "Columns":
        """Build a table from the values of each row; a column with only None becomes a string column."""
        return cls({name: make_column([row[name] for row in rows]) for name in names})

    def list_rows(self) -> list[dict[str, Any]]:
        """Return each row as a dictionary of plain values; None for unknown values."""
        values = [
            [
                value if is_known else None
                for value, is_known in zip(column.tolist(), known.tolist(), strict=True)
            ]
            for column, known in ((self._columns[name], self.known(name)) for name in self._columns)
        ]
        return [dict(zip(self._columns, row, strict=True)) for row in zip(*values, strict=True)]

    def to_frame(self) -> "pd.DataFrame":
        """Return the table as a pandas DataFrame; unknown integers are ``NA``, unknown strings None."""
        import pandas as pd

        arrays: dict[str, Any] = {}
        for name, column in self._columns.items():
            if isinstance(column, OptionalInts):
                arrays[name] = pd.arrays.IntegerArray(column.values.copy(), ~column.known)
            elif isinstance(column, Texts):
                arrays[name] = column.to_objects()
            else:
                arrays[name] = column
        return pd.DataFrame(arrays, index=self.row)


class Groups:
    """Groups of rows with equal keys, sorted by key.

    ``codes``: each row's group. ``first``: the position of each group's first row.
    """

    def __init__(self, *keys: npt.NDArray[Any] | Texts) -> None:
        numbers = [_number_key(key) for key in keys]
        self._length = len(numbers[0])
        #: Rows sorted by group, in their original order within it.
        self.order: Int64s = np.lexsort(numbers[::-1]).astype(np.int64) if numbers else np.arange(0)
        changes = np.zeros(max(0, self._length - 1), dtype=np.bool_)
        for number in numbers:
            changes |= number[self.order][1:] != number[self.order][:-1]
        self.starts: Int64s = np.flatnonzero(np.concatenate(([self._length > 0], changes)))
        self.codes: Int64s = np.empty(self._length, dtype=np.int64)
        self.codes[self.order] = np.repeat(np.arange(len(self.starts)), self.sizes)
        self.first: Int64s = self.order[self.starts]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> Int64s:
        """Number of rows of each group."""
        return np.diff(np.append(self.starts, self._length))

    def split(self) -> list[Int64s]:
        """Return the row positions of each group."""
        return np.split(self.order, self.starts[1:]) if len(self.starts) else []

    def sum(self, values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        """Return the sum of each group."""
        return self._reduce(np.add, values)

    def min(self, values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        """Return the minimum of each group."""
        return self._reduce(np.minimum, values)

    def max(self, values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        """Return the maximum of each group."""
        return self._reduce(np.maximum, values)

    def mean(self, values: npt.NDArray[Any]) -> Floats:
        """Return the mean of each group."""
        return self.sum(values.astype(np.float64)) / self.sizes

    def median(self, values: npt.NDArray[Any]) -> Floats:
        """Return the median of each group."""
        numbers = values.astype(np.float64)
        ordered = numbers[np.lexsort((numbers, self.codes))]
        low, high = self.starts + (self.sizes - 1) // 2, self.starts + self.sizes // 2
        return (ordered[low] + ordered[high]) / 2

    def cumsum(self, values: Int64s) -> Int64s:
        """Return the running sum within each row's group."""
        totals = np.cumsum(values[self.order])
        before = (totals - values[self.order])[self.starts]
        sums = np.empty(self._length, dtype=np.int64)
        sums[self.order] = totals - np.repeat(before, self.sizes)
        return sums

    def find_previous(self) -> Int64s:
        """Return the position of the previous row in each row's group; -1 for the group's first row."""
        previous = np.full(self._length, -1, dtype=np.int64)
        previous[self.order[1:]] = self.order[:-1]
        previous[self.first] = -1
        return previous

    def count_distinct(self, values: npt.NDArray[Any] | Texts) -> Int64s:
        """Return the number of distinct values of each group."""
        return np.bincount(self.codes[Groups(self.codes, values).first], minlength=len(self))

    def _reduce(self, operation: np.ufunc, values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
        if not len(self.starts):
            return values[:0]
        return operation.reduceat(values[self.order], self.starts)


def make_column(values: Sequence[Any]) -> Column:
    """Make a column from strings or from numbers of one kind; None is unknown."""
    known = [value for value in values if value is not None]
    if all(isinstance(value, str) for value in known):
        return Texts.of(values)
    if all(isinstance(value, bool) for value in values):
        return np.array(values, dtype=np.bool_)
    if all(isinstance(value, int) for value in known):
        return np.array(values, dtype=np.int64) if len(known) == len(values) else OptionalInts.of(values)
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def find_places(wanted: Sequence[npt.NDArray[Any]], among: Sequence[npt.NDArray[Any]]) -> Int64s:
    """Return each ``wanted`` row's position in ``among``, by equal keys; -1 if there is none."""
    keys = Groups(*(np.concatenate(pair) for pair in zip(among, wanted, strict=True)))
    count = len(among[0])
    places = np.full(len(keys), -1, dtype=np.int64)
    places[keys.codes[:count]] = np.arange(count)
    return places[keys.codes[count:]]


def concat_columns(parts: Sequence[Column]) -> Column:
    """Concatenate columns of one kind."""
    first = parts[0]
    if isinstance(first, OptionalInts) or any(isinstance(part, OptionalInts) for part in parts):
        values = [part.values if isinstance(part, OptionalInts) else np.asarray(part) for part in parts]
        known = [
            part.known if isinstance(part, OptionalInts) else np.ones(len(part), dtype=np.bool_)
            for part in parts
        ]
        return OptionalInts(np.concatenate(values), np.concatenate(known))
    if isinstance(first, Texts):
        numbers: dict[str, int] = {}
        codes = []
        for part in parts:
            assert isinstance(part, Texts)
            own = [numbers.setdefault(word, len(numbers)) for word in part.words]
            codes.append(np.array([*own, _NO_TEXT], dtype=np.int64)[part.codes])
        return Texts(tuple(numbers), np.concatenate(codes))
    return np.concatenate([np.asarray(part) for part in parts])


def _take(column: Column, rows: Rows) -> Column:
    return column[rows] if isinstance(column, np.ndarray) else column.at(rows)


def _number_key(key: npt.NDArray[Any] | Texts) -> npt.NDArray[Any]:
    """Return numbers that sort like the keys; an unknown string comes first."""
    if not isinstance(key, Texts):
        return key
    order = sorted(range(len(key.words)), key=key.words.__getitem__)
    places = np.empty(len(order) + 1, dtype=np.int64)
    places[order] = np.arange(len(order))
    places[-1] = _NO_TEXT
    return places[key.codes]


def _read_arrow(column: "pa.ChunkedArray", *, nullable: bool) -> Column:
    import pyarrow as pa

    from zprof.run.table_reader import join_chunks, read_known, read_numbers

    values = join_chunks(column)
    if pa.types.is_dictionary(values.type):
        words = values.dictionary.to_pylist()
        if None not in words and len(set(words)) == len(words):
            return Texts(words, np.where(read_known(values.indices), read_numbers(values.indices), _NO_TEXT))
        values = values.dictionary_decode()  # a word twice, or none as one of them
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return Texts.of(values.to_pylist())
    numbers, known = read_numbers(values), read_known(values)
    if numbers.dtype.kind == "f":
        return np.where(known, numbers, np.nan)
    if numbers.dtype.kind == "i" and (nullable or not known.all()):
        return OptionalInts(numbers, known)
    return numbers
