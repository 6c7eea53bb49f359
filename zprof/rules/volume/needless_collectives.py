"""Estimate the cost of needless collectives, and report the inputs missing to identify them.

Without these collectives the rank is not blocked in them: at least most of their exposed transfer is saved.
The part hidden by compute saves nothing by itself, but frees the link for later collectives. Each also costs
its launch, its wake-up and the copies of its data; on a CPU rank these run on the computing thread. So more
than the exposed time can be saved. Copies out of gathered buffers that the trace identifies disappear too: at
least half of them. Waiting in these collectives does not count, because a late rank is waited for in the next
collective instead. The same jobs, simulated with and without them (``benchmarks.diagnosis``), gained about
the exposed time.
"""

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.time.collective_rows import select_kind
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import (
    count_steps,
    estimate_gather_copies_ns,
    has_no_collectives,
    max_noise_floor_ns,
    mean_per_step,
    untested_gap,
)

#: Minimum share of the exposed transfer: compute that starts earlier can run into another exposed collective.
_MIN_SAVING_RATIO = 0.7
#: Maximum share of the same: a free link lets other collectives start sooner.
_MAX_SAVING_RATIO = 1.3
#: Minimum share of the identified copies.
_MIN_COPIED_RATIO = 0.5
#: Extra time of each: wake-up of a CPU's main thread and the copies; on a device the queue's gap and the
#: copies.
_EACH_CPU_NS = 100_000
_EACH_DEVICE_NS = 20_000
_COPIED_BYTES_PER_NS = 500.0


class CollectiveCost(Struct, frozen=True, kw_only=True):
    """Cost per step, as the mean over ranks and steps."""

    count: float
    bytes: float
    transfer_ns: float
    exposed_ns: float
    low_ns: float
    high_ns: float

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
    def saving_ns(self) -> tuple[float, float]:
        """Lower and upper bound of the saving."""
        return self.low_ns, self.high_ns


def price_collectives(analysis: RunAnalysis, rows: Columns) -> CollectiveCost:
    """Return the cost of these rows of the passes."""
    priced = analysis.collectives.at(rows.ints("row"))
    exposed = mean_per_step(analysis, priced.ints("exposed_transfer_ns").sum())
    copied = estimate_gather_copies_ns(analysis, priced)
    count = mean_per_step(analysis, len(priced))
    moved = mean_per_step(analysis, priced.ints("bytes").sum())
    return CollectiveCost(
        count=count,
        bytes=moved,
        transfer_ns=mean_per_step(analysis, priced.ints("transfer_ns").sum()),
        exposed_ns=exposed,
        low_ns=_MIN_SAVING_RATIO * exposed + _MIN_COPIED_RATIO * copied,
        high_ns=_MAX_SAVING_RATIO * exposed + _launch_and_copy_ns(analysis, priced, copied),
    )


def _launch_and_copy_ns(analysis: RunAnalysis, rows: Columns, copied: float) -> float:
    """Return their cost in addition to the transfer: on a CPU the computing thread also launches them.

    If no copies are identified, their time is estimated: as long as launching, or at a device's copy speed.
    """
    count = mean_per_step(analysis, len(rows))
    if analysis.run.device == "cpu":
        timed = rows.known("launch_end_ns") & rows.known("launch_start_ns")
        launch_ns = (rows.ints("launch_end_ns") - rows.ints("launch_start_ns"))[timed]
        launching = mean_per_step(analysis, launch_ns.sum())
        return count * _EACH_CPU_NS + launching + max(launching, copied)
    guessed = mean_per_step(analysis, rows.ints("bytes").sum()) / _COPIED_BYTES_PER_NS
    return count * _EACH_DEVICE_NS + max(guessed, copied)


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
