"""What stands behind a number: said once for each kind of leaf of the report."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis

_INDEX = re.compile(r"\[(\d+|\*)\]")
#: One for each ``[...]`` of a leaf, None for ``[*]``.
Indices = tuple[int | None, ...]
#: Rows behind a number: a table of them for this analysis and these indices.
Rows = Callable[[RunAnalysis, Indices], pd.DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """A kind of leaf.  ``leaf`` has ``[]`` for an index; ``inputs`` are leaves, as :func:`input_path` says.

    ``rows`` gives what it was measured from, at most some dozens, the decisive ones first.
    """

    leaf: str
    title: str
    says: str
    formula: str = ""
    inputs: tuple[str, ...] = ()
    rows: Rows | None = None


def beside(leaf: str) -> str:
    """What the leaf stands in: ``time.per_rank[3]`` of ``time.per_rank[3].wall_ns``."""
    return leaf.rpartition(".")[0]


def input_path(leaf: str, name: str) -> str:
    """Where an input of a leaf stands: beside it; one level up for ``../name``; ``/name`` is a whole path."""
    if name.startswith("/"):
        return name[1:]
    if name.startswith("../"):
        return f"{beside(beside(leaf))}.{name[3:]}"
    return f"{beside(leaf)}.{name}"


def kind_of(leaf: str) -> str:
    """``time.per_rank[3].wall_ns`` as ``time.per_rank[].wall_ns``."""
    return _INDEX.sub("[]", leaf)


def indices_of(leaf: str) -> Indices:
    """Its indices, None for ``[*]``."""
    return tuple(None if index == "*" else int(index) for index in _INDEX.findall(leaf))
