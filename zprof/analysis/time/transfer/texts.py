"""Numbers in place of texts: a column of millions of rows has few of them, and some are long."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s


def codes_of(column: "pd.Series[str]") -> tuple[Int64s, list[str]]:
    """A number for each row, and the text of each number.

    Rows share the objects of their texts, so these are told apart by identity first, and compared as
    texts only once each.
    """
    texts = column.to_numpy(dtype=object)
    identity = np.fromiter(map(id, texts), np.int64, len(texts))
    _, first, same = np.unique(identity, return_index=True, return_inverse=True)
    numbers: dict[str, int] = {}
    of_object = [numbers.setdefault(str(text), len(numbers)) for text in texts[first]]
    return np.array(of_object, dtype=np.int64)[same.ravel()], list(numbers)


def grouped(
    frame: pd.DataFrame, by: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """Rows by the texts of some columns; they come with ``columns`` only."""
    keys = [codes_of(frame[name]) for name in by]
    number = np.zeros(len(frame), dtype=np.int64)
    for codes, texts in keys:
        number = number * (len(texts) + 1) + codes
    order = np.argsort(number, kind="stable")
    first = np.flatnonzero(np.diff(number[order], prepend=-1))
    kept = frame[[*dict.fromkeys(columns)]]
    for mine in np.split(order, first[1:]) if len(order) else []:
        yield tuple(texts[codes[mine[0]]] for codes, texts in keys), kept.iloc[mine]
