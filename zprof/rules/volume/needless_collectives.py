"""Price collectives that a step could do without, and say what a recording lacks to tell them apart.

Without them the rank is not blocked in them: at least most of their exposed transfer is saved. What they
hide under compute saves nothing by itself, but it frees the link for those behind them. Each also costs its
launch, its wake-up and the copies of what it moves; on a CPU rank those are work of the thread that
computes. So more than the exposed time can be saved. Copies out of what was gathered that the trace names go
with it: half of them at least. Waiting in them is not counted: a late rank is waited for in the next
collective just as well. The same jobs, simulated with and without them (``benchmarks.diagnosis``), gained
about the exposed time.
"""

from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.passes.table import PASS_COLUMNS
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Evidence
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap
from zprof.rules.rule import gather_copies_ns, has_no_collectives, mean_per_step, noise_floor_ns, untested_gap

#: Of the exposed transfer; compute that moves up can meet another exposed collective.
_MIN_SAVING_RATIO = 0.7
#: Of the same: a free link lets the others begin sooner.
_MAX_SAVING_RATIO = 1.3
#: Of copies that were named.
_MIN_COPIED_RATIO = 0.5
#: Of each: wake-up on a CPU's main thread, and the copies; on a device the queue's gap, and the copies.
_EACH_CPU_NS = 100_000
_EACH_DEVICE_NS = 20_000
_COPIED_BYTES_PER_NS = 500.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """Of a step, as the mean over ranks and steps."""

    count: float
    bytes: float
    transfer_ns: float
    exposed_ns: float
    low_ns: float
    high_ns: float

    @property
    def size(self) -> str:
        """The bytes in words; they are not known of every recording."""
        return format_bytes(int(self.bytes)) if self.bytes else "an unknown number of bytes"

    @property
    def size_evidence(self) -> tuple[Evidence, ...]:
        """The bytes as evidence, none where they are not known."""
        known = Evidence(what="their bytes a step", value=self.bytes, unit="bytes")
        return (known,) if self.bytes else ()

    @property
    def saving_ns(self) -> tuple[float, float]:
        """At least and at most."""
        return self.low_ns, self.high_ns


def price_collectives(analysis: RunAnalysis, rows: pd.DataFrame) -> CollectiveCost:
    """The price of these rows of the passes."""
    priced = analysis.collectives.loc[rows["row"]]
    exposed = mean_per_step(analysis, priced["exposed_transfer_ns"].sum())
    copied = gather_copies_ns(analysis, priced)
    count = mean_per_step(analysis, len(priced))
    moved = mean_per_step(analysis, priced["bytes"].sum())
    return CollectiveCost(
        count=count,
        bytes=moved,
        transfer_ns=mean_per_step(analysis, priced["transfer_ns"].sum()),
        exposed_ns=exposed,
        low_ns=_MIN_SAVING_RATIO * exposed + _MIN_COPIED_RATIO * copied,
        high_ns=_MAX_SAVING_RATIO * exposed + _launch_and_copy_ns(analysis, priced, copied),
    )


def _launch_and_copy_ns(analysis: RunAnalysis, rows: pd.DataFrame, copied: float) -> float:
    """What they cost beside their transfer: on a CPU the thread that computes also launches them.

    Where no copies are named, they are guessed: as long as launching, or at the speed of a device.
    """
    count = mean_per_step(analysis, len(rows))
    if analysis.run.device == "cpu":
        launching = mean_per_step(analysis, (rows["launch_end_ns"] - rows["launch_start_ns"]).sum())
        return count * _EACH_CPU_NS + launching + max(launching, copied)
    guessed = mean_per_step(analysis, rows["bytes"].sum()) / _COPIED_BYTES_PER_NS
    return count * _EACH_DEVICE_NS + max(guessed, copied)


_MIN_STEPS = 3


def read_passes(analysis: RunAnalysis) -> pd.DataFrame:
    """The passes, with their columns also where nothing is in them."""
    return analysis.passes.reindex(columns=list(PASS_COLUMNS)) if analysis.passes.empty else analysis.passes


def unknown_gathers_gap(analysis: RunAnalysis, cause: Cause) -> Gap | None:
    """Why gathers cannot be told apart by unit and micro-batch, where they cannot."""
    missing = unknown_micro_batches_gap(analysis, cause)
    if missing:
        return missing
    gathers = read_passes(analysis)
    gathers = gathers[gathers["kind"] == CollectiveKind.ALL_GATHER.value]
    if len(gathers) and gathers["unit"].isna().all():
        reason = "the recording does not say which unit an all_gather is of"
        return untested_gap(cause, reason, "profile with the ranges of FSDP2, or of zprof's own grammar")
    return None


def unknown_micro_batches_gap(analysis: RunAnalysis, cause: Cause) -> Gap | None:
    """Why collectives cannot be assigned to micro-batches, where they cannot."""
    if has_no_collectives(analysis):
        return untested_gap(cause, "no collective was recorded", "record the time window")
    passes = read_passes(analysis)
    if len(passes) and passes["micro_batch"].isna().all():
        reason = "the recording does not show where a forward or a backward begins"
        return untested_gap(cause, reason, "profile CPU activities, too: ProfilerActivity.CPU")
    return None


def rate_confidence(analysis: RunAnalysis, price: CollectiveCost) -> Confidence:
    """Counts prove it; the price may be noise, and two steps may be the odd ones."""
    if price.exposed_ns < noise_floor_ns(analysis):
        return Confidence.LOW
    enough = analysis.steps["step"].nunique() >= _MIN_STEPS
    by_order = (read_passes(analysis)["method"] == "order").any()
    return Confidence.HIGH if enough and not by_order else Confidence.MEDIUM
