"""Find repeated gathers of units in a step, the rule for each, and the memory needed to keep the units.

Each has one rule, in this order: a gather in a later micro-batch of a unit that an earlier one gathered
(ZP412); the third gather of a unit in a micro-batch, caused by recomputation (ZP415); the gather of the last
unit, whose forward has just ended (ZP414); and the rest, for a backward after its forward resharded the unit
(ZP413).

    headroom = device total - device used at the allocated peak        needed = bytes of the kept units

Headroom is known if the allocator and the device were sampled. A CPU rank or a trace alone does not show it.
If the gathers' sizes are not recorded, units of a model of known size need at most 4 bytes per parameter.
"""

from collections.abc import Mapping, Sequence

import pandas as pd
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap
from zprof.model.training import Phase
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import can_replay, mean_wall_ns
from zprof.rules.volume.needless_collectives import (
    CollectiveCost,
    price_collectives,
    read_passes,
    unknown_gathers_gap,
)

#: Minimum exposed time as a share of the step (docs/thresholds.md).
WORTH_RATIO: Mapping[Cause, float] = {
    Cause.ACCUMULATION_REGATHERS: 0.03,
    Cause.CHECKPOINT_REGATHERS: 0.02,
    Cause.LAST_UNIT_REGATHERED: 0.02,
    Cause.NEEDLESS_RESHARD_AFTER_FORWARD: 0.02,
}

#: Minimum exposed time as a share of the step if the replay decides their cost.
PROPOSED_RATIO = 0.001

#: Gathers of a unit in a micro-batch: one for its forward, one for its backward; a third is recomputation's.
_WITHOUT_RECOMPUTATION = 2
#: Compute from the end of the last unit's gather to its next one, in units: its own forward, as much again
#: that the gather ran ahead of, and less than one between.
_MAX_UNITS_BETWEEN = 3
_STEP = ["rank", "step"]


class Regathers(Struct, frozen=True, kw_only=True):
    """Repeated gathers of one rule: their rows, their cost, and all gathers."""

    rows: pd.DataFrame
    cost: CollectiveCost
    gathers: pd.DataFrame


def find_regathers(analysis: RunAnalysis, cause: Cause) -> Regathers | Gap | None:
    """Return the repeated gathers of one cause, None if there are none or if they are hidden well enough."""
    missing = unknown_gathers_gap(analysis, cause)
    if missing:
        return missing
    # a hidden gather costs the host its launch: if the step can be replayed, that decides
    least = 0.0 if can_replay(analysis) else WORTH_RATIO[cause]
    return _price_if_worth(analysis, read_gathers(analysis), cause, least)


def select_gone_with_cause(gathers: pd.DataFrame, cause: Cause) -> pd.DataFrame:
    """Return the gathers that disappear with a cause: a fix applies to every micro-batch of a step.

    Each gather counts for one rule, and gathers of later micro-batches count for ZP412. But a fix that keeps
    a unit after its forward, or gathers it once for its recomputation, also does so in later micro-batches.
    """
    if cause is Cause.ACCUMULATION_REGATHERS:
        return gathers[gathers["cause"] == cause.value]
    causes = [cause.value]
    if cause is Cause.NEEDLESS_RESHARD_AFTER_FORWARD:  # a program that keeps all units keeps the last one
        causes.append(Cause.LAST_UNIT_REGATHERED.value)
    return gathers[gathers["in_pass"].isin(causes)]


def select_needless_gathers(analysis: RunAnalysis) -> pd.DataFrame:
    """Return the rows of ``analysis.collectives`` that any of the rules would remove."""
    gathers = read_gathers(analysis)
    known = can_replay(analysis)
    found = [
        _price_if_worth(analysis, gathers, cause, PROPOSED_RATIO if known else least)
        for cause, least in WORTH_RATIO.items()
    ]
    rows = [again.rows["row"] for again in found if again is not None]
    return analysis.collectives.loc[pd.concat(rows)] if rows else analysis.collectives.iloc[:0]


def _price_if_worth(
    analysis: RunAnalysis, gathers: pd.DataFrame, cause: Cause, least_ratio: float
) -> Regathers | None:
    rows = gathers[gathers["cause"] == cause.value]
    if rows.empty:
        return None
    cost = price_collectives(analysis, rows)
    if least_ratio and cost.exposed_ns <= least_ratio * mean_wall_ns(analysis):
        return None
    return Regathers(rows=rows, cost=cost, gathers=gathers)


def read_gathers(analysis: RunAnalysis) -> pd.DataFrame:
    """Return the gathers of known units in the passes, with their ``cause`` and the step's ``micro_batches``.

    They are read once per analysis.

    ``cause`` is None for the first gather of a unit in a step. ``in_pass`` is the cause within the
    micro-batch alone, None for the first gather of a unit in it. Gathers without a known unit or micro-batch
    are excluded, and so are gathers of a unit that is called again.
    """
    return analysis.compute_once(_read_gathers)


def _read_gathers(analysis: RunAnalysis) -> pd.DataFrame:
    passes = read_passes(analysis)
    passes = passes.assign(micro_batches=passes.groupby(_STEP)["micro_batch"].transform("max") + 1)
    wanted = (passes["kind"] == CollectiveKind.ALL_GATHER.value) & (passes["phase"] != Phase.OPTIMIZER.value)
    rows = passes[wanted & passes["number"].notna() & passes["in_micro_batch"].notna()]
    rows = rows.astype({"micro_batches": "int64", "number": "int64", "in_micro_batch": "int64"})
    rows = rows[~_is_called_again(rows)]
    of_last = _is_of_last_unit(analysis, rows)
    third = rows["in_micro_batch"] > _WITHOUT_RECOMPUTATION
    third |= _is_of_kept_unit(rows, third, of_last)
    cause = pd.Series(Cause.NEEDLESS_RESHARD_AFTER_FORWARD.value, index=rows.index, dtype=object)
    cause = cause.mask(of_last, Cause.LAST_UNIT_REGATHERED.value)
    cause = cause.mask(third, Cause.CHECKPOINT_REGATHERS.value)
    in_pass = cause.where(third | (rows["in_micro_batch"] > 1), None)
    return rows.assign(cause=_assign_causes(rows, in_pass), in_pass=in_pass)


def _is_called_again(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return a mask of third gathers of the last unit if no other unit has any: a head called in parts."""
    third = rows[rows["in_micro_batch"] > _WITHOUT_RECOMPUTATION]
    alone = third.groupby(_STEP)["unit"].transform("nunique") == 1
    first = rows[rows["number"] == 1].groupby(_STEP)["unit"]
    last = third.join(first.last().rename("last_unit"), on=_STEP)["last_unit"]
    several = third.join(first.nunique().rename("units"), on=_STEP)["units"] > 1
    found = alone & (third["unit"] == last) & several
    return found.reindex(rows.index, fill_value=False)


def _is_of_kept_unit(
    rows: pd.DataFrame, third: "pd.Series[bool]", of_last: "pd.Series[bool]"
) -> "pd.Series[bool]":
    """Return a mask of gathers by recomputation for kept units, which nothing else gathers.

    If recomputation makes a third gather of the units, it also makes the second one of the last unit, and the
    only one of a unit that was kept since the previous micro-batch.
    """
    step = [rows[name] for name in _STEP]
    unit = [*step, rows["unit"]]
    micro_batch = [*unit, rows["micro_batch"]]
    repeats = third.groupby(unit).transform("max")
    last = of_last.groupby(unit).transform("max") & third.groupby(step).transform("max")
    count = rows.groupby(micro_batch)["in_micro_batch"].transform("max")
    forward = (rows["phase"] == Phase.FORWARD.value).groupby(micro_batch).transform("max")
    since_before = (repeats | last) & ~forward & (rows["micro_batch"] > 0) & (count == 1)
    return since_before | (last & of_last & (count == _WITHOUT_RECOMPUTATION))


def _assign_causes(rows: pd.DataFrame, in_pass: "pd.Series[str]") -> "pd.Series[str]":
    again = rows["number"] > 1
    # a unit kept from the first micro-batch on would not be gathered in a later one at all
    begins = (rows["in_micro_batch"] == 1) & (rows["phase"] == Phase.FORWARD.value)
    begins = begins.groupby([rows[name] for name in (*_STEP, "unit", "micro_batch")]).transform("max")
    further = again & (rows["micro_batch"] > 0) & begins
    # of a micro-batch that did not start with a forward, it is only known that the unit was there
    cause = in_pass.where(in_pass.notna(), Cause.NEEDLESS_RESHARD_AFTER_FORWARD.value)
    return cause.mask(further, Cause.ACCUMULATION_REGATHERS.value).where(again, None)


def _is_of_last_unit(analysis: RunAnalysis, rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return a mask of gathers of the forward's last unit that follow with little compute in between.

    The last unit is the same in all steps of a rank: if events are missing, a step seems to end with another.
    """
    first = rows[rows["number"] == 1]
    last = first.groupby(_STEP)["unit"].last().groupby("rank").agg(lambda units: units.mode().iloc[0])
    units = first.groupby(_STEP)["unit"].nunique().rename("units")
    rows = rows.join(last.rename("last_unit"), on="rank").join(units, on=_STEP)
    rows = rows.join(_forward_ns(analysis), on=_STEP)
    little = rows["compute_between_ns"] < _MAX_UNITS_BETWEEN * rows["forward_ns"] / rows["units"]
    found = (rows["unit"] == rows["last_unit"]) & (rows["units"] > 1) & little.fillna(False)
    return found.astype(bool)


def _forward_ns(analysis: RunAnalysis) -> "pd.Series[float]":
    """Return the forward's compute per step: a third of all, also with recomputation (then a quarter)."""
    steps = analysis.steps.set_index(_STEP)
    return (steps["compute_ns"] / 3).rename("forward_ns")


_PEAK_MOMENT = "allocated peak"
_MAX_BYTES_PER_PARAMETER = 4


class Headroom(Struct, frozen=True, kw_only=True):
    """Memory to keep units: minimum ``free_bytes`` of any rank, None if no memory was recorded.

    ``needed_bytes`` is 0 if the sizes of the units were not recorded.
    """

    needed_bytes: int
    free_bytes: int | None

    @property
    def suffices(self) -> bool | None:
        """True if the units fit, None if unknown."""
        if self.free_bytes is None or not self.needed_bytes:
            return None
        return self.free_bytes >= self.needed_bytes

    @property
    def description(self) -> str:
        """The headroom as text."""
        if not self.needed_bytes:
            return "the memory needed to keep them is unknown"
        needed = format_bytes(self.needed_bytes)
        if self.free_bytes is None:
            return f"keeping them takes {needed}, headroom unknown"
        fits = "which fits" if self.suffices else "which does not fit"
        return f"keeping them takes {needed}, {fits}: {format_bytes(self.free_bytes)} are free at the peak"

    @property
    def evidence(self) -> Sequence[Fact]:
        """The headroom as evidence of a finding."""
        needed = make_fact("memory_to_keep_units", self.needed_bytes)
        rows = [needed] if self.needed_bytes else []
        if self.free_bytes is not None:
            rows.append(make_fact("free_at_peak", self.free_bytes))
        return rows

    def at_most(self, confidence: Confidence) -> Confidence:
        """Return the confidence, at most MEDIUM if the memory may not suffice, LOW if it does not."""
        if self.suffices is False:
            return Confidence.LOW
        return Confidence.MEDIUM if confidence is Confidence.HIGH and not self.suffices else confidence


def measure_headroom(analysis: RunAnalysis, gathers: pd.DataFrame) -> Headroom:
    """Return the headroom for the units of ``gathers``, each counted once."""
    each = gathers.groupby(["rank", "step", "unit", "number"])["bytes"].sum()  # a unit's pieces together
    once = each.groupby(["rank", "unit"]).max().groupby("rank").sum()
    free = [
        device.device_total_bytes - device.device_used_bytes
        for device in analysis.memory.devices
        if device.moment == _PEAK_MOMENT
        and device.device_total_bytes is not None
        and device.device_used_bytes is not None
    ]
    needed = int(once.max()) if len(once) else 0
    return Headroom(
        needed_bytes=needed or _MAX_BYTES_PER_PARAMETER * (analysis.training.parameters or 0),
        free_bytes=min(free, default=None),
    )
