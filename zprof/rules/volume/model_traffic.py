"""Find the collectives that carry parameters and gradients, their types and minimum transfer."""

import numpy as np
import pandas as pd
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import BYTES_PER_ELEMENT, CollectiveKind

_GATHERS = (CollectiveKind.ALL_GATHER,)
_REDUCTIONS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
_HALF = ("bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_FULL = "float32"
#: Minimum share of a rank's bytes per step: losses, norms and flags are below it.
_SMALL_RATIO = 0.001
#: Minimum share of a direction's bytes to assign it a type: norms stay in float32 next to bfloat16.
_MOSTLY_RATIO = 0.5


class Direction(Struct, frozen=True, kw_only=True):
    """Gathers, or reductions: ``rows`` of the collectives' table."""

    rows: pd.DataFrame

    @property
    def is_full(self) -> bool:
        """True if most of the bytes are sent in float32."""
        return self._ratio(self._types == _FULL) >= _MOSTLY_RATIO

    @property
    def is_half(self) -> bool:
        """True if most of the bytes are sent in types of one or two bytes."""
        return self._ratio(self._types.isin(_HALF)) >= _MOSTLY_RATIO

    @property
    def full_rows(self) -> pd.DataFrame:
        """Rows in float32."""
        return self.rows[self._types == _FULL]

    @property
    def types(self) -> str:
        """Types of these rows, sorted by decreasing bytes."""
        if self.rows.empty:
            return ""
        sums = weigh_rows(self.rows).groupby(self._types).sum().sort_values(ascending=False, kind="stable")
        return ", ".join(str(name) for name in sums.index)

    @property
    def _types(self) -> "pd.Series[str]":
        return self.rows["dtype"].astype(str)

    def _ratio(self, chosen: "pd.Series[bool]") -> float:
        sizes = weigh_rows(self.rows)
        whole = float(sizes.sum())
        return float(sizes[chosen].sum()) / whole if whole else 0.0


class ModelTraffic(Struct, frozen=True, kw_only=True):
    """The collectives that carry parameters, and those that carry gradients."""

    gathers: Direction
    reductions: Direction


def read_model_traffic(analysis: RunAnalysis) -> ModelTraffic:
    """Return the collectives of several ranks that are large enough to carry a part of the model."""
    rows = select_large(analysis.collectives)
    return ModelTraffic(
        gathers=Direction(rows=_select_kinds(rows, _GATHERS)),
        reductions=Direction(rows=_select_kinds(rows, _REDUCTIONS)),
    )


def select_large(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of several ranks that carry at least 0.1 % of their rank's bytes per step."""
    rows = rows[rows["group_size"] != 1]
    sizes = weigh_rows(rows)
    rows, sizes = rows[sizes > 0], sizes[sizes > 0]
    if rows.empty:
        return rows
    a_step = sizes.groupby([rows["rank"], rows["step"]], observed=True).sum().median()
    return rows[sizes >= _SMALL_RATIO * a_step]


def weigh_rows(rows: pd.DataFrame) -> "pd.Series[float]":
    """Return the weight of rows: their bytes, or their transfer if no bytes were recorded."""
    known = bool((rows["bytes"] > 0).any())
    return rows["bytes" if known else "transfer_ns"].astype(float)


def surely_moving_ns(analysis: RunAnalysis) -> "pd.Series[float]":
    """Return a lower bound of each collective's transfer, in ns.

    If ranks are missing, apparent transfer can be a wait. The fastest collective of the same kind and
    size bounds it.
    """
    rows = analysis.collectives
    seen = rows["transfer_ns"].astype(float)
    alike = [rows["kind"].astype(str), rows["group"].astype(str), rows["bytes"]]
    fastest = (rows["end_ns"] - rows["start_ns"]).groupby(alike).transform("min").astype(float)
    return seen.where(~are_bounds(rows), np.minimum(seen, fastest))


def are_bounds(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return a mask of rows not recorded on all ranks: waits are lower bounds, transfers upper bounds."""
    if "bound" in rows.columns:
        return rows["bound"].astype(bool)
    return ~rows["matched"].astype(bool)


def are_mostly_bounds(rows: pd.DataFrame) -> bool:
    """Return True if most of the transfer of ``rows`` was not recorded on all ranks, so it may be waiting."""
    transfer = rows["transfer_ns"].astype(float)
    return bool(transfer[are_bounds(rows)].sum() > transfer.sum() / 2)


def has_known_sizes(rows: pd.DataFrame) -> bool:
    """Return True if the recording has the bytes of more than 90 % of the collectives."""
    several = rows[(rows["group_size"] != 1) & (rows["kind"].astype(str) != CollectiveKind.BARRIER.value)]
    return bool(len(several)) and float((several["bytes"] > 0).mean()) > 0.9


def _select_kinds(rows: pd.DataFrame, kinds: tuple[CollectiveKind, ...]) -> pd.DataFrame:
    return rows[rows["kind"].astype(str).isin([kind.value for kind in kinds])]


def count_elements(rows: pd.DataFrame) -> float:
    """Return the number of elements of all rows; bytes of unknown type count as floats of 4."""
    sizes = rows["dtype"].astype(str).map(BYTES_PER_ELEMENT).fillna(4)
    return float((rows["bytes"] / sizes).sum())
