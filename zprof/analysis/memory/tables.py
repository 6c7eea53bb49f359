"""Read and check the memory tables of a rank, and convert ``alloc`` and ``role`` to numpy columns.

Impossible values are rejected before a sum can overflow.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zprof.analysis.columns import Columns, Groups
from zprof.model.collectives import OPERATOR_PREFIXES
from zprof.model.errors import BadInput
from zprof.model.tenants import PRECEDENCE, Tenant
from zprof.run.manifest import rank_folder
from zprof.run.reader import Run
from zprof.run.schema import TABLES

Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
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


def read_checked_table(run: Run, rank: int, name: str) -> Columns:
    """Return one table of a rank.

    Raises:
        BadInput: damaged, with a null in a non-nullable column, or with a negative or impossibly large
        number.
    """
    table = Columns.from_arrow(run.table(rank, name))
    path = str(rank_folder(run.path, rank) / f"{name}.parquet")
    for field in TABLES[name]:
        if not field.nullable and not table.known(field.name).all():
            raise BadInput(f"{path}: column {field.name!r} has missing values", hint=_COPY_AGAIN)
    for column in _TIMES:
        if column in table and not _is_within(table.ints(column)[table.known(column)], 0, _MAX_VALUE):
            raise BadInput(f"{path}: column {column!r} has impossible times", hint=_COPY_AGAIN)
    for column in _SIZES:
        if column in table:
            sizes = table.ints(column)[table.known(column)]
            total = float(np.sum(sizes.astype(np.float64)))
            if not _is_within(sizes, 0, _MAX_VALUE) or total >= _MAX_VALUE:
                raise BadInput(f"{path}: column {column!r} has impossible sizes", hint=_COPY_AGAIN)
    return table


def read_stacks(
    run: Run, rank: int, alloc: Columns, generations: frozenset[int]
) -> Mapping[int, tuple[str, ...]]:
    """Return the frames, innermost first, of storages by generation; those without a stack are left out."""
    if not generations or not run.has_table(rank, "stack"):
        return {}
    generation = alloc.ints("generation")
    rows = alloc.at(np.isin(generation, list(generations)) & (generation >= 0) & alloc.known("stack"))
    number = dict(zip(rows.ints("generation").tolist(), rows.ints("stack").tolist(), strict=True))
    table = Columns.from_arrow(run.table(rank, "stack"))
    table = table.at(np.isin(table.ints("stack"), sorted(set(number.values())))).sort_by("stack", "depth")
    frames: dict[int, tuple[str, ...]] = {}
    for places in Groups(table.ints("stack")).split():
        stack = table.at(places[:MAX_FRAMES])
        lines = zip(stack.texts("file"), stack.ints("line").tolist(), stack.texts("function"), strict=True)
        frames[int(stack.ints("stack")[0])] = tuple(
            f"{file}:{line} {function}"[:MAX_FRAME_LENGTH] for file, line, function in lines
        )
    return {generation: frames[stack] for generation, stack in number.items() if stack in frames}


def sum_by_device(rows: Columns, name: str) -> dict[str, int]:
    """Return the sum of a column by the device of the rows."""
    device = rows.texts("device")
    groups = Groups(device)
    return dict(zip(device.at(groups.first), groups.sum(rows.ints(name)).tolist(), strict=True))


def _is_within(values: Int, low: int, high: int) -> bool:
    return not len(values) or bool(int(values.min()) >= low and int(values.max()) < high)


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


def read_lives(alloc: Columns, source: str, device: str) -> Lives:
    """Return the rows of one source (``storage`` or ``profiler``) on one device, sorted by time."""
    is_own = alloc.texts("source").equals(source) & alloc.texts("device").equals(device)
    rows = alloc.at(is_own & (alloc.ints("bytes") > 0)).sort_by("allocated_ns")
    operator = rows.texts("operator")
    return Lives(
        generation=rows.ints("generation"),
        address=rows.ints("address"),
        bytes=rows.ints("bytes"),
        begin_ns=rows.ints("allocated_ns"),
        end_ns=rows.ints("freed_ns", FOREVER),
        before_window=rows.bools("before_window"),
        known=operator.known,
        collective=operator.match(lambda name: name.startswith(OPERATOR_PREFIXES)),
        phase=rows.texts("phase").to_objects(),
        module=rows.texts("module").to_objects(),
        operator=operator.to_objects(),
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


def read_claims(role: Columns) -> Claims:
    """Return the claims of the six tenants; names unknown to this version are left out."""
    codes: dict[str, int] = {tenant.value: code for tenant, code in TENANT_CODES.items()}
    rows = role.at(role.texts("tenant").equals(*codes))
    tenant = rows.texts("tenant")
    return Claims(
        generation=rows.ints("generation"),
        time_ns=rows.ints("time_ns"),
        tenant=np.array([*(codes.get(word, UNTAGGED) for word in tenant.words), UNTAGGED])[tenant.codes],
        sub=rows.texts("sub").to_objects(),
        gained=rows.bools("gained"),
        backdated=rows.bools("backdated"),
    )
