"""Make Arrow arrays from columns of Python values and numpy arrays without ``pa.array``.

``pa.array`` imports pandas, which takes 50 MB of the memory of a program that is being recorded.
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
        bits = np.packbits(np.fromiter(values, np.bool_, len(values)), bitorder="little")
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
