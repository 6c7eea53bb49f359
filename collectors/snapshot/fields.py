"""Takes columns out of the rows of a snapshot: lists of dicts from a stranger, checked as they are read.

A walk never goes deeper than the key that it asks for, so nesting, cycles and unknown keys cost nothing.
What is shared is counted each time that it is visited: ``Budget`` is how often that may be.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from zprof.model.errors import BadInput
from zprof.model.printable import printable, shorten

HINT = "dump the snapshot again with torch.cuda.memory._dump_snapshot"
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Row = dict[str, Any]
_LONGEST_NAME = 4096
#: Above what all sizes of a trace together can be; below it no sum of them overflows 64 bits.
_MOST_BYTES = 2.0**62


class Budget:
    """How many rows a snapshot may make us visit: a file of n bytes holds fewer than n that are its own.

    Without this a list that is shared many times (two bytes each) would be walked as often.
    """

    def __init__(self, nodes: int) -> None:
        self.left = nodes

    def spend(self, nodes: int, where: str) -> None:
        """Take ``nodes`` off; raises BadInput where nothing is left."""
        self.left -= nodes
        if self.left < 0:
            raise damaged(f"{where} repeats more rows than the file can hold")


def damaged(what: str) -> BadInput:
    """The error for a snapshot that is not as torch writes it."""
    return BadInput(f"not a snapshot as torch writes it: {what}", hint=HINT)


def rows_of(value: object, where: str, budget: Budget) -> list[Row]:
    """``value`` as a list of dicts."""
    if type(value) is not list and type(value) is not tuple:
        raise damaged(f"{where} is {_kind(value)}, not a list")
    budget.spend(len(value), where)
    _all_of(value, {dict}, where, "an entry")
    return cast(list[Row], value if type(value) is list else list(value))


def column(rows: Sequence[Row], key: str, default: object = None) -> list[Any]:
    """One column, unchecked."""
    try:
        return list(map(itemgetter(key), rows))  # twice as fast as get, and torch's rows have all keys
    except KeyError:
        return [row.get(key, default) for row in rows]


def integers(rows: Sequence[Row], key: str, where: str, default: int | None = None) -> Integers:
    """One column of 64-bit integers; a missing key is ``default``, where there is one.

    Raises:
        BadInput: a value is missing, is no integer, or does not fit.
    """
    values = column(rows, key, default)
    _all_of(values, {int}, where, key)
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise damaged(f"{where}: {key} does not fit into 64 bits") from None


def sizes(rows: Sequence[Row], key: str, where: str, default: int | None = None) -> Integers:
    """A column of integers of which none is negative: sizes, addresses, times."""
    found = integers(rows, key, where, default)
    if found.size and found.min() < 0:
        raise damaged(f"{where}: {key} is negative")
    return found


def check_sum(found: Integers, where: str) -> None:
    """Refuse sizes whose sum would overflow."""
    if found.sum(dtype=np.float64) > _MOST_BYTES:
        raise damaged(f"{where}: sizes are larger than any memory")


def words(rows: Sequence[Row], key: str, where: str, default: str = "") -> list[str]:
    """One column of texts; missing and None are ``default``."""
    values = column(rows, key, default)
    kinds = set(map(type, values))
    if type(None) in kinds:
        values = [default if value is None else value for value in values]
    _all_of(values, {str}, where, key)
    return values


def clean(text: str) -> str:
    """``text`` as data: half characters (a pickle may hold them) escaped, endless names cut."""
    if len(text) > _LONGEST_NAME:
        text = text[:_LONGEST_NAME] + "…"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def shown(text: str) -> str:
    """A name from the snapshot for a message of one line."""
    return shorten(printable(text[:_LONGEST_NAME]), 40)


def _all_of(values: Sequence[object], allowed: set[type], where: str, what: str) -> None:
    wrong = set(map(type, values)) - allowed
    if wrong:
        names = ", ".join(sorted(kind.__name__ for kind in wrong)[:3])
        expected = " or ".join(sorted(kind.__name__ for kind in allowed))
        raise damaged(f"{where}: {what} is {names.replace('NoneType', 'missing')}, not {expected}")


def _kind(value: object) -> str:
    return "missing" if value is None else type(value).__name__
