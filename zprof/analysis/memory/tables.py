"""Read and check the memory tables of a rank, and convert ``alloc`` and ``role`` to numpy columns.

Impossible values are rejected before a sum can overflow.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from zprof.model.collectives import OPERATOR_PREFIXES
from zprof.model.errors import BadInput
from zprof.model.tenants import PRECEDENCE, Tenant
from zprof.run.manifest import rank_folder
from zprof.run.reader import Run
from zprof.run.schema import TABLES

#: Times and sums of sizes stay below this, so that their differences and sums also fit in int64.
_MAX_VALUE = 1 << 61
_COPY_AGAIN = "copy the run again, or record it again"
_TIMES = ("time_ns", "allocated_ns", "freed_ns", "released_ns", "mapped_ns", "unmapped_ns")
_SIZES = ("bytes", "requested_bytes", "block_bytes")
#: Frames per stack, and characters per frame, that a report shows.
MAX_FRAMES = 64
MAX_FRAME_LENGTH = 400
#: End of a block that was never freed.
FOREVER = np.iinfo(np.int64).max
#: Code of unclaimed bytes; the codes below it are positions in ``PRECEDENCE``.
UNTAGGED = len(PRECEDENCE)
TENANT_CODES: dict[Tenant, int] = {tenant: code for code, tenant in enumerate(PRECEDENCE)}


def read_checked_frame(run: Run, rank: int, name: str) -> pd.DataFrame:
    """Return one table of a rank.

    Raises:
        BadInput: damaged, with a null in a non-nullable column, or with a negative or impossibly large
        number.
    """
    frame = run.frame(rank, name)
    path = str(rank_folder(run.path, rank) / f"{name}.parquet")
    for field in TABLES[name]:
        if not field.nullable and bool(frame[field.name].isna().any()):
            raise BadInput(f"{path}: column {field.name!r} has missing values", hint=_COPY_AGAIN)
    for column in _TIMES:
        if column in frame and not _is_within(frame[column].dropna(), 0, _MAX_VALUE):
            raise BadInput(f"{path}: column {column!r} has impossible times", hint=_COPY_AGAIN)
    for column in _SIZES:
        if column in frame:
            sizes = frame[column].dropna()
            total = float(np.sum(sizes.to_numpy(dtype=np.float64)))
            if not _is_within(sizes, 0, _MAX_VALUE) or total >= _MAX_VALUE:
                raise BadInput(f"{path}: column {column!r} has impossible sizes", hint=_COPY_AGAIN)
    return frame


def read_stacks(
    run: Run, rank: int, alloc: pd.DataFrame, generations: frozenset[int]
) -> Mapping[int, tuple[str, ...]]:
    """Return the frames, innermost first, of storages by generation; those without a stack are left out."""
    if not generations or not run.has_table(rank, "stack"):
        return {}
    rows = alloc[
        alloc["generation"].isin(list(generations)) & (alloc["generation"] >= 0) & alloc["stack"].notna()
    ]
    number = {int(g): int(s) for g, s in zip(rows["generation"], rows["stack"], strict=True)}
    table = run.table(rank, "stack")
    numbers = sorted(set(number.values()))
    rows_of_stacks = table.filter(
        pc.is_in(table["stack"], value_set=pa.array(numbers, type=pa.int64()))
    ).to_pandas()
    rows_of_stacks = rows_of_stacks.sort_values(["stack", "depth"], kind="stable")
    frames = {
        int(stack): tuple(
            f"{file}:{line} {function}"[:MAX_FRAME_LENGTH]
            for file, line, function in zip(rows["file"], rows["line"], rows["function"], strict=True)
        )
        for stack, rows in rows_of_stacks.groupby("stack").head(MAX_FRAMES).groupby("stack")
    }
    return {generation: frames[stack] for generation, stack in number.items() if stack in frames}


def _is_within(column: "pd.Series[int]", low: int, high: int) -> bool:
    return column.empty or bool(int(column.min()) >= low and int(column.max()) < high)


Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Lives(Struct, frozen=True, kw_only=True):
    """Rows of ``alloc`` from one source; ``end_ns`` is FOREVER without a recorded free."""

    generation: Int
    address: Int
    bytes: Int
    begin_ns: Int
    end_ns: Int
    before_window: Bool
    known: Bool
    collective: Bool
    phase: npt.NDArray[np.object_]
    module: npt.NDArray[np.object_]
    operator: npt.NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.address)


class Claims(Struct, frozen=True, kw_only=True):
    """Rows of ``role``; ``tenant`` is a position in ``PRECEDENCE``."""

    generation: Int
    time_ns: Int
    tenant: Int
    sub: npt.NDArray[np.object_]
    gained: Bool
    backdated: Bool


def read_lives(alloc: pd.DataFrame, source: str, device: str) -> Lives:
    """Return the rows of one source (``storage`` or ``profiler``) on one device, sorted by time."""
    rows = alloc[(alloc["source"] == source) & (alloc["device"] == device) & (alloc["bytes"] > 0)]
    rows = rows.sort_values("allocated_ns", kind="stable")
    operator = _to_objects(rows["operator"])
    return Lives(
        generation=_to_ints(rows["generation"]),
        address=_to_ints(rows["address"]),
        bytes=_to_ints(rows["bytes"]),
        begin_ns=_to_ints(rows["allocated_ns"]),
        end_ns=_to_ints(rows["freed_ns"].fillna(FOREVER)),
        before_window=rows["before_window"].to_numpy(dtype=bool),
        known=np.array([name is not None for name in operator], dtype=bool),
        collective=np.array([str(name).startswith(OPERATOR_PREFIXES) for name in operator], dtype=bool),
        phase=_to_objects(rows["phase"]),
        module=_to_objects(rows["module"]),
        operator=operator,
    )


def make_empty_lives() -> Lives:
    """Return no rows: a history has no storages of its own."""
    numbers, flags = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    texts = np.empty(0, dtype=object)
    return Lives(
        generation=numbers,
        address=numbers,
        bytes=numbers,
        begin_ns=numbers,
        end_ns=numbers,
        before_window=flags,
        known=flags,
        collective=flags,
        phase=texts,
        module=texts,
        operator=texts,
    )


def read_claims(role: pd.DataFrame) -> Claims:
    """Return the claims of the six tenants; names unknown to this version are left out."""
    rows = role[role["tenant"].isin([tenant.value for tenant in PRECEDENCE])]
    codes = rows["tenant"].astype(str).map({tenant.value: code for tenant, code in TENANT_CODES.items()})
    return Claims(
        generation=_to_ints(rows["generation"]),
        time_ns=_to_ints(rows["time_ns"]),
        tenant=_to_ints(codes),
        sub=_to_objects(rows["sub"]),
        gained=rows["gained"].to_numpy(dtype=bool),
        backdated=rows["backdated"].to_numpy(dtype=bool),
    )


def _to_ints(column: "pd.Series[Any]") -> Int:
    return np.asarray(column.astype("int64").to_numpy(), dtype=np.int64)


def _to_objects(column: "pd.Series[Any]") -> npt.NDArray[np.object_]:
    values = column.astype(object)
    return values.where(values.notna(), None).to_numpy(dtype=object)
