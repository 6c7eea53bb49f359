"""Texts that repeat, as a dictionary-encoded column."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zprof.collectors.snapshot.fields import clean


class Texts:
    """Gives each text a number, in the order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The text's number."""
        return self._numbers.setdefault(text, len(self._numbers))

    def column(self, numbers: npt.NDArray[np.int32]) -> Any:
        """The column of these numbers' texts; -1 is null."""
        values = pa.array(list(self._numbers), pa.string())
        indices = pa.array(numbers, pa.int32(), mask=numbers < 0)
        return pa.DictionaryArray.from_arrays(indices, values)


def column_of(texts: Sequence[str | None]) -> Any:
    """A column of texts; None is null."""
    known = Texts()
    numbers = {text: -1 if text is None else known.number(clean(text)) for text in dict.fromkeys(texts)}
    return known.column(np.array([numbers[text] for text in texts], dtype=np.int32))


def nullable(values: npt.NDArray[np.int64]) -> Any:
    """A column of integers; below 0 is null."""
    return pa.array(values, pa.int64(), mask=values < 0)
