"""Measure needless collectives, and report the inputs missing to identify them.

Waiting in these collectives does not count, because a late rank is waited for in the next collective instead.
With the fix of any of the rules about them they are not launched, and their data is not copied.
"""

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.per_step import count_steps, has_no_collectives, max_noise_floor_ns, mean_per_step
from zprof.analysis.time.collective_rows import select_kind
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import untested_gap


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
    def size_evidence(self) -> tuple[Fact, ...]:
        """The bytes as evidence; empty if unknown."""
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


_MIN_STEPS = 3


def unknown_gathers_gap(analysis: RunAnalysis, cause: Cause) -> Gap | None:
    """Return a gap if gathers cannot be assigned to units and micro-batches, else None."""
    missing = unknown_micro_batches_gap(analysis, cause)
    if missing:
        return missing
    gathers = select_kind(analysis.passes, CollectiveKind.ALL_GATHER)
    if len(gathers) and not gathers.known("unit").any():
        reason = "the recording does not show which unit an all_gather belongs to"
        return untested_gap(cause, reason, "profile with the ranges of FSDP2 or of zprof")
    return None


def unknown_micro_batches_gap(analysis: RunAnalysis, cause: Cause) -> Gap | None:
    """Return a gap if collectives cannot be assigned to micro-batches, else None."""
    if has_no_collectives(analysis):
        return untested_gap(cause, "no collective was recorded", "record the time window")
    if len(analysis.passes) and not analysis.passes.known("micro_batch").any():
        reason = "the recording does not show where forwards and backwards start"
        return untested_gap(cause, reason, "profile CPU activities too: ProfilerActivity.CPU")
    return None


def rate_confidence(analysis: RunAnalysis, price: CollectiveCost) -> Confidence:
    """Return the confidence: counts prove it, but the cost may be noise, and two steps may be exceptions."""
    if price.exposed_ns < max_noise_floor_ns(analysis):
        return Confidence.LOW
    enough = count_steps(analysis) >= _MIN_STEPS
    by_order = analysis.passes.texts("method").equals("order").any()
    return Confidence.HIGH if enough and not by_order else Confidence.MEDIUM
