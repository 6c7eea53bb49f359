"""Define the help on a metric, and helpers to resolve leaf paths and pick source rows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd

from zprof.analysis.analysis import RunAnalysis

_INDEX = re.compile(r"\[(\d+|\*)\]")
#: One entry per ``[...]`` of a leaf, None for ``[*]``.
Indices = tuple[int | None, ...]
#: Returns the source rows of a number, for an analysis and the indices of its leaf.
Rows = Callable[[RunAnalysis, Indices], pd.DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricHelp:
    """Help on one kind of report leaf.

    ``leaf`` has ``[]`` in place of indices. ``inputs`` are leaves in the notation of :func:`resolve_input`.
    ``rows`` returns the source rows, at most a few dozen, the most relevant first.
    """

    leaf: str
    title: str
    says: str
    formula: str = ""
    inputs: tuple[str, ...] = ()
    rows: Rows | None = None


def parent_path(leaf: str) -> str:
    """Return the parent of a leaf: ``time.per_rank[3]`` for ``time.per_rank[3].wall_ns``."""
    return leaf.rpartition(".")[0]


def resolve_input(leaf: str, name: str) -> str:
    """Return the path of an input of a leaf.

    ``name`` is a sibling, ``../name`` is one level up, and ``/name`` is an absolute path.
    """
    if name.startswith("/"):
        return name[1:]
    if name.startswith("../"):
        return f"{parent_path(parent_path(leaf))}.{name[3:]}"
    return f"{parent_path(leaf)}.{name}"


def strip_indices(leaf: str) -> str:
    """Return ``time.per_rank[3].wall_ns`` as ``time.per_rank[].wall_ns``."""
    return _INDEX.sub("[]", leaf)


def parse_indices(leaf: str) -> Indices:
    """Return the indices of a leaf, None for ``[*]``."""
    return tuple(None if index == "*" else int(index) for index in _INDEX.findall(leaf))


MAX_ROWS = 20
Entry = TypeVar("Entry")


def find_entry(entries: Sequence[Entry], indices: Indices) -> Entry | None:
    """Return the entry at the first index; None for ``[*]`` or an index out of range."""
    index = indices[0] if indices else None
    return entries[index] if index is not None and index < len(entries) else None


def pick_top_rows(rows: pd.DataFrame, names: Sequence[str], by: str) -> pd.DataFrame:
    """Return the `MAX_ROWS` rows with the largest values of ``by``, limited to the columns that exist."""
    columns = [name for name in names if name in rows.columns]
    if by in rows.columns:
        rows = rows.sort_values(by, ascending=False, kind="stable")
    return rows[columns].head(MAX_ROWS)
