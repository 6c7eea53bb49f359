"""The tables ``alloc`` and ``role`` as numpy columns, small codes in the place of names."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.model.collectives import OPERATOR_PREFIXES
from zprof.model.tenants import PRECEDENCE, Tenant

Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

#: The end of what was never freed.
FOREVER = np.iinfo(np.int64).max
#: Code of bytes that no role claims; the codes below it are positions in ``PRECEDENCE``.
UNTAGGED = len(PRECEDENCE)
CODES: dict[Tenant, int] = {tenant: code for code, tenant in enumerate(PRECEDENCE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """Rows of ``alloc`` of one kind.  ``end_ns`` is FOREVER where no free or death was seen."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Rows of ``role``; ``tenant`` is a position in ``PRECEDENCE``."""

    generation: Int
    time_ns: Int
    tenant: Int
    sub: npt.NDArray[np.object_]
    gained: Bool
    backdated: Bool


def lives_of(alloc: pd.DataFrame, source: str, device: str) -> Lives:
    """The rows of one source (``storage`` or ``profiler``) on one device, in the order of time."""
    rows = alloc[(alloc["source"] == source) & (alloc["device"] == device) & (alloc["bytes"] > 0)]
    rows = rows.sort_values("allocated_ns", kind="stable")
    operator = _objects(rows["operator"])
    return Lives(
        generation=_ints(rows["generation"]),
        address=_ints(rows["address"]),
        bytes=_ints(rows["bytes"]),
        begin_ns=_ints(rows["allocated_ns"]),
        end_ns=_ints(rows["freed_ns"].fillna(FOREVER)),
        before_window=rows["before_window"].to_numpy(dtype=bool),
        known=np.array([name is not None for name in operator], dtype=bool),
        collective=np.array([str(name).startswith(OPERATOR_PREFIXES) for name in operator], dtype=bool),
        phase=_objects(rows["phase"]),
        module=_objects(rows["module"]),
        operator=operator,
    )


def claims_of(role: pd.DataFrame) -> Claims:
    """The claims of the six tenants; names that this version does not know are left out."""
    rows = role[role["tenant"].isin([tenant.value for tenant in PRECEDENCE])]
    codes = rows["tenant"].astype(str).map({tenant.value: code for tenant, code in CODES.items()})
    return Claims(
        generation=_ints(rows["generation"]),
        time_ns=_ints(rows["time_ns"]),
        tenant=_ints(codes),
        sub=_objects(rows["sub"]),
        gained=rows["gained"].to_numpy(dtype=bool),
        backdated=rows["backdated"].to_numpy(dtype=bool),
    )


def _ints(column: "pd.Series[Any]") -> Int:
    return np.asarray(column.astype("int64").to_numpy(), dtype=np.int64)


def _objects(column: "pd.Series[Any]") -> npt.NDArray[np.object_]:
    values = column.astype(object)
    return values.where(values.notna(), None).to_numpy(dtype=object)
