"""Find the collectives that carry parameters and gradients, their types and minimum transfer."""

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, Groups, Mask
from zprof.model.collectives import BYTES_PER_ELEMENT, CollectiveKind
from zprof.rules.rule import select_kind

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

    rows: Columns

    @property
    def is_full(self) -> bool:
        """True if most of the bytes are sent in float32."""
        return self._ratio(self.rows.texts("dtype").equals(_FULL)) >= _MOSTLY_RATIO

    @property
    def is_half(self) -> bool:
        """True if most of the bytes are sent in types of one or two bytes."""
        return self._ratio(self.rows.texts("dtype").equals(*_HALF)) >= _MOSTLY_RATIO

    @property
    def full_rows(self) -> Columns:
        """Rows in float32."""
        return self.rows.at(self.rows.texts("dtype").equals(_FULL))

    @property
    def types(self) -> str:
        """Types of these rows, sorted by decreasing bytes."""
        if not len(self.rows):
            return ""
        types = self.rows.texts("dtype")
        by_type = Groups(types)
        order = np.argsort(-by_type.sum(weigh_rows(self.rows)), kind="stable")
        return ", ".join(types.at(by_type.first[order]))

    def _ratio(self, chosen: Mask) -> float:
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
        gathers=Direction(rows=select_kind(rows, *_GATHERS)),
        reductions=Direction(rows=select_kind(rows, *_REDUCTIONS)),
    )


def select_large(rows: Columns) -> Columns:
    """Return the rows of several ranks that carry at least 0.1 % of their rank's bytes per step."""
    rows = rows.at(rows.ints("group_size") != 1)
    sizes = weigh_rows(rows)
    rows, sizes = rows.at(sizes > 0), sizes[sizes > 0]
    if not len(rows):
        return rows
    a_step = np.median(rows.group_by("rank", "step").sum(sizes))
    return rows.at(sizes >= _SMALL_RATIO * a_step)


def weigh_rows(rows: Columns) -> Floats:
    """Return the weight of rows: their bytes, or their transfer if no bytes were recorded."""
    known = bool((rows.ints("bytes") > 0).any())
    return rows.floats("bytes" if known else "transfer_ns")


def surely_moving_ns(analysis: RunAnalysis) -> Floats:
    """Return a lower bound of each collective's transfer, in ns.

    If ranks are missing, apparent transfer can be a wait. The fastest collective of the same kind and
    size bounds it.
    """
    rows = analysis.collectives
    seen = rows.floats("transfer_ns")
    alike = rows.group_by("kind", "group", "bytes")
    fastest = alike.min(rows.ints("end_ns") - rows.ints("start_ns"))[alike.codes]
    return np.where(are_bounds(rows), np.minimum(seen, fastest), seen)


def are_bounds(rows: Columns) -> Mask:
    """Return a mask of rows not recorded on all ranks: waits are lower bounds, transfers upper bounds."""
    return rows.bools("bound") if "bound" in rows else ~rows.bools("matched")


def are_mostly_bounds(rows: Columns) -> bool:
    """Return True if most of the transfer of ``rows`` was not recorded on all ranks, so it may be waiting."""
    transfer = rows.ints("transfer_ns")
    return bool(transfer[are_bounds(rows)].sum() > transfer.sum() / 2)


def has_known_sizes(rows: Columns) -> bool:
    """Return True if the recording has the bytes of more than 90 % of the collectives."""
    several = (rows.ints("group_size") != 1) & ~rows.texts("kind").equals(CollectiveKind.BARRIER.value)
    return bool(several.any()) and float((rows.ints("bytes")[several] > 0).mean()) > 0.9


def count_elements(rows: Columns) -> float:
    """Return the number of elements of all rows; bytes of unknown type count as floats of 4."""
    types = rows.texts("dtype")
    sizes = np.array([*(BYTES_PER_ELEMENT.get(name, 4) for name in types.words), 4])[types.codes]
    return float((rows.ints("bytes") / sizes).sum())
