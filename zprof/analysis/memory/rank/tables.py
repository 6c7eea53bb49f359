"""The memory tables of a rank, checked: what is impossible is refused before a sum can overflow."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from zprof.model.errors import BadInput
from zprof.run.manifest import rank_folder
from zprof.run.reader import Run
from zprof.run.schema import TABLES

#: Times and sums of sizes stay below this, so that their differences and sums are int64 too.
_LIMIT = 1 << 61
_AGAIN = "copy the run again, or record it again"
_TIMES = ("time_ns", "allocated_ns", "freed_ns", "released_ns", "mapped_ns", "unmapped_ns")
_SIZES = ("bytes", "requested_bytes", "block_bytes")
#: Frames of a stack, and characters of a frame, that a report shows.
MAX_FRAMES = 64
MAX_FRAME_LENGTH = 400


def checked_frame(run: Run, rank: int, name: str) -> pd.DataFrame:
    """One table of a rank.

    Raises:
        BadInput: damaged, or with a null where none can be, a negative or impossibly large number.
    """
    frame = run.frame(rank, name)
    where = str(rank_folder(run.path, rank) / f"{name}.parquet")
    for field in TABLES[name]:
        if not field.nullable and bool(frame[field.name].isna().any()):
            raise BadInput(f"{where}: column {field.name!r} has rows without a value", hint=_AGAIN)
    for column in _TIMES:
        if column in frame and not _between(frame[column].dropna(), 0, _LIMIT):
            raise BadInput(f"{where}: column {column!r} holds times that no clock has", hint=_AGAIN)
    for column in _SIZES:
        if column in frame and not _sizes(frame[column].dropna()):
            raise BadInput(f"{where}: column {column!r} holds sizes that no device has", hint=_AGAIN)
    return frame


def stacks_of(
    run: Run, rank: int, alloc: pd.DataFrame, generations: frozenset[int]
) -> Mapping[int, tuple[str, ...]]:
    """Frames, innermost first, of the storages of these generations; those without a stack are left out."""
    if not generations or not run.has_table(rank, "stack"):
        return {}
    rows = alloc[
        alloc["generation"].isin(list(generations)) & (alloc["generation"] >= 0) & alloc["stack"].notna()
    ]
    number = {int(g): int(s) for g, s in zip(rows["generation"], rows["stack"], strict=True)}
    frames = _frames(run.table(rank, "stack"), sorted(set(number.values())))
    return {generation: frames[stack] for generation, stack in number.items() if stack in frames}


def _frames(table: pa.Table, numbers: list[int]) -> Mapping[int, tuple[str, ...]]:
    chosen = table.filter(pc.is_in(table["stack"], value_set=pa.array(numbers, type=pa.int64()))).to_pandas()
    chosen = chosen.sort_values(["stack", "depth"], kind="stable")
    return {
        int(stack): tuple(
            f"{file}:{line} {function}"[:MAX_FRAME_LENGTH]
            for file, line, function in zip(rows["file"], rows["line"], rows["function"], strict=True)
        )
        for stack, rows in chosen.groupby("stack").head(MAX_FRAMES).groupby("stack")
    }


def _between(column: "pd.Series[int]", low: int, high: int) -> bool:
    return column.empty or bool(int(column.min()) >= low and int(column.max()) < high)


def _sizes(column: "pd.Series[int]") -> bool:
    return _between(column, 0, _LIMIT) and float(np.sum(column.to_numpy(dtype=np.float64))) < _LIMIT
