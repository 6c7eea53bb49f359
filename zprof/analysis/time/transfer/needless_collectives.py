"""Measure what needless collectives cost, and report the inputs missing to identify them.

Waiting in these collectives does not count, because a late rank is waited for in the next collective instead.
With the fix they are not launched, and their data is not copied.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups
from zprof.analysis.per_step import count_steps, find_missing_collectives, max_noise_floor_ns, mean_per_step
from zprof.analysis.signal import Fact, Untested, make_fact
from zprof.analysis.time.collective_rows import select_kind
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence
from zprof.model.formatting import format_bytes

#: Minimum exposed time as a share of the step if the step without them decides their cost.
MIN_PLAYED_RATIO = 0.001
#: Fewer steps may be exceptions.
_MIN_STEPS = 3
#: Minimum size relative to the last micro-batch's reduction: less is something else (a norm per micro-batch).
_SAME_RATIO = 0.5
_UPDATE = ("rank", "step", "updates")


class CollectiveCost(Struct, frozen=True, kw_only=True):
    """Cost per step, as the mean over ranks and steps."""

    count: float
    bytes: float
    transfer_ns: float
    exposed_ns: float

    @property
    def size(self) -> str:
        """The bytes as text; some recordings do not contain them."""
        return format_bytes(int(self.bytes)) if self.bytes else "an unknown number of bytes"

    @property
    def size_facts(self) -> tuple[Fact, ...]:
        """The bytes as a fact; empty if unknown."""
        known = make_fact("bytes_per_step", self.bytes)
        return (known,) if self.bytes else ()

    @property
    def lost_ns(self) -> float:
        """The exposed transfer; if all is hidden the whole transfer, which takes the link from others."""
        return self.exposed_ns or self.transfer_ns


def price_collectives(analysis: RunAnalysis, rows: Columns) -> CollectiveCost:
    """Return the cost of these rows of the passes."""
    priced = analysis.collectives.at(rows.ints("row"))
    return CollectiveCost(
        count=mean_per_step(analysis, len(priced)),
        bytes=mean_per_step(analysis, priced.ints("bytes").sum()),
        transfer_ns=mean_per_step(analysis, priced.ints("transfer_ns").sum()),
        exposed_ns=mean_per_step(analysis, priced.ints("exposed_transfer_ns").sum()),
    )


def select_early_reductions(passes: Columns) -> tuple[Columns, int]:
    """Return the reductions before an update's last micro-batch, and how many of its micro-batches reduce."""
    reduces = ~passes.texts("kind").equals(CollectiveKind.ALL_GATHER.value)
    rows = passes.at(reduces & passes.known("micro_batch"))
    update = Groups(*(rows.ints(name) for name in _UPDATE)).codes
    each = Groups(update, rows.ints("micro_batch"))  # the micro-batches of each update, in order
    updates, micro_batch = Groups(update[each.first]), rows.ints("micro_batch")[each.first]
    reduced_bytes = each.sum(rows.ints("bytes"))
    last = updates.starts + updates.sizes - 1
    counts = reduced_bytes >= _SAME_RATIO * reduced_bytes[last][updates.codes]
    is_early = counts & (micro_batch < updates.max(np.where(counts, micro_batch, -1))[updates.codes])
    return rows.at(is_early[each.codes]), int(updates.sum(counts.astype(np.int64)).max(initial=0))


def find_unknown_units(analysis: RunAnalysis) -> Untested | None:
    """Return what is missing if gathers cannot be assigned to units and micro-batches, else None."""
    missing = find_unknown_micro_batches(analysis)
    if missing:
        return missing
    gathers = select_kind(analysis.passes, CollectiveKind.ALL_GATHER)
    if len(gathers) and not gathers.known("unit").any():
        return Untested(
            reason="the recording does not show which unit an all_gather belongs to",
            remedy="profile with the ranges of FSDP2 or of zprof",
        )
    return None


def find_unknown_micro_batches(analysis: RunAnalysis) -> Untested | None:
    """Return what is missing if collectives cannot be assigned to micro-batches, else None."""
    missing = find_missing_collectives(analysis)
    if missing:
        return missing
    if len(analysis.passes) and not analysis.passes.known("micro_batch").any():
        return Untested(
            reason="the recording does not show where forwards and backwards start",
            remedy="profile CPU activities too: ProfilerActivity.CPU",
        )
    return None


def rate_cost(analysis: RunAnalysis, cost: CollectiveCost) -> Confidence:
    """Return the confidence: counts prove it, but the cost may be noise, and two steps may be exceptions."""
    if cost.exposed_ns < max_noise_floor_ns(analysis):
        return Confidence.LOW
    enough = count_steps(analysis) >= _MIN_STEPS
    by_order = analysis.passes.texts("method").equals("order").any()
    return Confidence.HIGH if enough and not by_order else Confidence.MEDIUM
