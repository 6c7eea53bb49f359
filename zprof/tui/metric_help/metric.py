"""The type of a metric's help, paths of leaves, and helpers to pick rows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd

from zprof.analysis.analysis import RunAnalysis

_INDEX = re.compile(r"\[(\d+|\*)\]")
#: One for each ``[...]`` of a leaf, None for ``[*]``.
Indices = tuple[int | None, ...]
#: Rows behind a number: a table of them for this analysis and these indices.
Rows = Callable[[RunAnalysis, Indices], pd.DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricHelp:
    """A kind of leaf.  ``leaf`` has ``[]`` for an index; ``inputs`` are leaves, as :func:`input_path` says.

    ``rows`` gives what it was measured from, at most some dozens, the decisive ones first.
    """

    leaf: str
    title: str
    says: str
    formula: str = ""
    inputs: tuple[str, ...] = ()
    rows: Rows | None = None


def parent_path(leaf: str) -> str:
    """What the leaf stands in: ``time.per_rank[3]`` of ``time.per_rank[3].wall_ns``."""
    return leaf.rpartition(".")[0]


def resolve_input(leaf: str, name: str) -> str:
    """Where an input of a leaf stands: beside it; one level up for ``../name``; ``/name`` is a whole path."""
    if name.startswith("/"):
        return name[1:]
    if name.startswith("../"):
        return f"{parent_path(parent_path(leaf))}.{name[3:]}"
    return f"{parent_path(leaf)}.{name}"


def strip_indices(leaf: str) -> str:
    """``time.per_rank[3].wall_ns`` as ``time.per_rank[].wall_ns``."""
    return _INDEX.sub("[]", leaf)


def parse_indices(leaf: str) -> Indices:
    """Its indices, None for ``[*]``."""
    return tuple(None if index == "*" else int(index) for index in _INDEX.findall(leaf))


MAX_ROWS = 20
Entry = TypeVar("Entry")


def find_entry(entries: Sequence[Entry], at: Indices) -> Entry | None:
    """The entry that the first index names; None for ``[*]``, and where there is none."""
    place = at[0] if at else None
    return entries[place] if place is not None and place < len(entries) else None


def pick_top_rows(rows: pd.DataFrame, names: Sequence[str], by: str) -> pd.DataFrame:
    """Those with most of a column first, in these columns as far as they are there."""
    shown = [name for name in names if name in rows.columns]
    if by in rows.columns:
        rows = rows.sort_values(by, ascending=False, kind="stable")
    return rows[shown].head(MAX_ROWS)
