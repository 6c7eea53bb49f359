"""The order of the units of a run, and how it shards them, from the messages of a typical step.

A unit that is gathered first in the backward and reduced last encloses the others (the root).  Messages that
name no unit are buckets: each is taken for a unit, in the reverse of the order in which they are reduced.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from zprof.planner.whatif.messages import GATHER
from zprof.planner.whatif.skeleton import UnitSize

#: What engines call the unit that encloses the others.
_ROOTS = frozenset({"root", "", "model", "module"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Units in forward order; ``backward``: those inside, in the order of their reductions.

    ``kept``: units that are gathered for the forward only.  ``before``: gathers serve the passes (stage 3).
    ``named``: messages say their unit.
    """

    units: tuple[UnitSize, ...]
    backward: tuple[int, ...]
    kept: frozenset[int]
    before: bool
    gathers: bool
    named: bool
    micro_batches: int
    reduce_each: bool


def order_of(rows: pd.DataFrame) -> Order | None:
    """From the sharding's messages; None where no step shows a reduction."""
    step = _typical(rows)
    gathers, reduces = step[step["kind"] == GATHER], step[step["kind"] != GATHER]
    if reduces.empty:
        return None
    named = bool(reduces["unit"].notna().all())
    if not named:
        return _of_buckets(gathers, reduces)
    reduced = _first_of_each(reduces["unit"])
    into = gathers[gathers["phase"].isin(["backward", "recompute"])]
    ahead = gathers[gathers["phase"] == "forward"]
    before = bool(len(into)) or (bool(len(ahead)) and _precede(ahead, reduces))
    forward = _first_of_each((ahead if before else gathers)["unit"]) or reduced[::-1]
    forward = _with_all(forward, reduced)
    root = _root(forward, reduced, _first_of_each(into["unit"]), before and bool(len(into)))
    sizes = [_size(unit, gathers, reduces, encloses=unit == root) for unit in forward]
    count = max(1, max(Counter(reduces["unit"]).values()))
    batches = max(count, max(Counter(ahead["unit"]).values(), default=1) if before else 1)
    return Order(
        units=tuple(sizes),
        backward=tuple(forward.index(unit) for unit in reduced if unit != root),
        kept=frozenset(forward.index(unit) for unit in forward if before and unit not in set(into["unit"])),
        before=before,
        gathers=bool(len(gathers)),
        named=True,
        micro_batches=batches,
        reduce_each=count == batches,
    )


def _typical(rows: pd.DataFrame) -> pd.DataFrame:
    """The messages of the (rank, step) whose number of messages is the most common, in launch order."""
    reduces = rows[rows["kind"] != GATHER]
    chosen = rows if reduces.empty else rows[rows["step"].isin(reduces["step"])]
    counts = chosen.groupby(["rank", "step"]).size()
    usual = counts.mode().iloc[-1]
    rank, step = counts[counts == usual].index[-1]
    mine: pd.DataFrame = chosen[(chosen["rank"] == rank) & (chosen["step"] == step)]
    return mine.assign(at=launched_ns(mine)).sort_values("at", kind="stable")


def launched_ns(rows: pd.DataFrame) -> "pd.Series[int]":
    """When each was launched; its start where nobody saw that."""
    return rows["launch_start_ns"].fillna(rows["start_ns"]).astype("int64")


def _precede(gathers: pd.DataFrame, reduces: pd.DataFrame) -> bool:
    return bool(gathers["at"].iloc[0] < reduces["at"].iloc[0])


def _first_of_each(names: "pd.Series[str]") -> list[str]:
    return list(dict.fromkeys(str(name) for name in names if isinstance(name, str)))


def _with_all(forward: list[str], reduced: list[str]) -> list[str]:
    missing = [unit for unit in reversed(reduced) if unit not in forward]
    return [*forward, *missing]


def _root(forward: list[str], reduced: list[str], again: list[str], gathered: bool) -> str | None:
    first = forward[0]
    if len(forward) < 2 or first != reduced[-1]:
        return None
    if gathered and again:
        return first if again[0] == first else None
    return first if first in _ROOTS else None


def _size(unit: str, gathers: pd.DataFrame, reduces: pd.DataFrame, *, encloses: bool) -> UnitSize:
    reduced = reduces[reduces["unit"] == unit]
    pieces = reduced.groupby("micro_batch", dropna=False)["bytes"].sum() if len(reduced) else None
    reduce_bytes = float(pieces.max()) if pieces is not None else 0.0
    gathered = gathers.loc[gathers["unit"] == unit, "bytes"]
    return UnitSize(
        name=unit,
        gather_bytes=float(gathered.median()) if len(gathered) else reduce_bytes,
        reduce_bytes=reduce_bytes,
        encloses=encloses,
    )


def _of_buckets(gathers: pd.DataFrame, reduces: pd.DataFrame) -> Order | None:
    sizes = reduces["bytes"].astype(float).tolist()
    whole = float(gathers["bytes"].sum()) / sum(sizes) if len(gathers) else 1.0
    units = [
        UnitSize(name=f"bucket {number}", gather_bytes=size * whole, reduce_bytes=size)
        for number, size in enumerate(reversed(sizes))
    ]
    return Order(
        units=tuple(units),
        backward=tuple(reversed(range(len(units)))),
        kept=frozenset(),
        before=False,
        gathers=bool(len(gathers)),
        named=False,
        micro_batches=1,
        reduce_each=True,
    )


def names_of(rows: pd.DataFrame) -> Sequence[str]:
    """The unit of each row; empty where it says none."""
    return [name if isinstance(name, str) else "" for name in rows["unit"]]
