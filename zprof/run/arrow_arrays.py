"""Make Arrow arrays from Python values and numpy arrays, and numpy arrays from Arrow, without pandas.

``pa.array``, ``pa.scalar`` and ``Array.to_numpy`` import pandas: 50 MB of the memory of a program that is
being recorded, and most of the time of a short command. So do functions of ``pyarrow.compute`` that are given
a Python number.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_NUMPY_TYPES: dict[pa.DataType, type[np.generic]] = {
    pa.int64(): np.int64,
    pa.int32(): np.int32,
    pa.float64(): np.float64,
}
#: Numbers of these types are read where they are.
_READ_TYPES: dict[pa.DataType, type[np.generic]] = {
    **_NUMPY_TYPES,
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.uint8(): np.uint8,
    pa.uint16(): np.uint16,
    pa.uint32(): np.uint32,
    pa.uint64(): np.uint64,
    pa.float32(): np.float32,
}
#: Types of ``array.array``, which refuses a float in a column of integers.
_TYPE_CODES = {pa.int64(): "q", pa.int32(): "i", pa.float64(): "d"}


def make_array(values: Any, kind: pa.DataType) -> pa.Array:
    """Return a column of type ``kind``: a number, a bool or a dictionary of texts; None becomes null.

    Raises:
        ArrowException, TypeError, OverflowError: a value does not have that type.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if kind in _NUMPY_TYPES:
        if isinstance(values, np.ndarray):
            if not np.can_cast(values.dtype, _NUMPY_TYPES[kind], "same_kind"):
                raise TypeError(f"values of type {values.dtype} in a column of {kind}")
            return make_masked(values, kind, np.zeros(len(values), dtype=np.bool_))
        mask = np.fromiter((value is None for value in values), np.bool_, len(values))
        filled = array(_TYPE_CODES[kind], (0 if value is None else value for value in values))
        return make_masked(np.array(filled), kind, mask)
    if pa.types.is_dictionary(kind):
        return _encode_texts(values)
    if pa.types.is_boolean(kind):
        is_true = values if isinstance(values, np.ndarray) else np.fromiter(values, np.bool_, len(values))
        bits = np.packbits(is_true, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)], 0)
    return pa.array(values, type=kind)


def make_masked(values: npt.NDArray[Any], kind: pa.DataType, mask: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the numbers as a column; those where ``mask`` is set become null."""
    null_count = int(np.count_nonzero(mask))
    validity = pa.py_buffer(np.packbits(~mask, bitorder="little")) if null_count else None
    data = pa.py_buffer(np.ascontiguousarray(values, dtype=_NUMPY_TYPES[kind]))
    return pa.Array.from_buffers(kind, len(values), [validity, data], null_count)


def make_texts(texts: Sequence[str]) -> pa.StringArray:
    """Return texts as an array without nulls; what is not valid Unicode, as in some paths, is escaped."""
    encoded = [text.encode("utf-8", "backslashreplace") for text in texts]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def make_empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table without rows."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def join_chunks(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    if not column.num_chunks:
        return pa.nulls(0, column.type)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def read_numbers(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[Any]:
    """Return a column of numbers or truth values as a read-only array; what is null has any value.

    Raises:
        TypeError: the column has another type.
    """
    values = join_chunks(column)
    data = values.buffers()[1] if len(values) else b""
    if pa.types.is_boolean(values.type):
        return _read_bits(data, values)
    if values.type not in _READ_TYPES:
        raise TypeError(f"a column of {values.type} in place of numbers")
    kind = np.dtype(_READ_TYPES[values.type])
    return np.frombuffer(data, kind, len(values), values.offset * kind.itemsize if len(values) else 0)


def read_known(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that are not null."""
    values = join_chunks(column)
    if not values.null_count:
        return np.ones(len(values), dtype=np.bool_)
    return _read_bits(values.buffers()[0], values)


def _read_bits(data: pa.Buffer | bytes, values: pa.Array) -> npt.NDArray[np.bool_]:
    """Return the bits of the rows of an array as truth values."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    return bits[values.offset : values.offset + len(values)].astype(np.bool_)


def _encode_texts(values: Sequence[str | None]) -> pa.DictionaryArray:
    codes_by_text: dict[str, int] = {}
    codes = np.zeros(len(values), dtype=np.int32)
    mask = np.zeros(len(values), dtype=np.bool_)
    for index, value in enumerate(values):
        if value is None:
            mask[index] = True
        else:
            codes[index] = codes_by_text.setdefault(value, len(codes_by_text))
    return pa.DictionaryArray.from_arrays(
        make_masked(codes, pa.int32(), mask), make_texts(tuple(codes_by_text))
    )
