"""What a step loses to collectives that need not be: their exposed time, and what goes with it.

Without them the rank is not blocked in them: at least most of their exposed transfer is won.  What they
hide under compute wins nothing by itself, but it frees the link for those behind them.  Each also costs its
launch, its wake-up and the copies of what it moves; on a CPU rank those are the work of the thread that
computes, and may take as long as launching does, which copies too.  So more than the exposed time can be won.
Copies out of what was gathered that the trace names go with it: half of them at least.
Waiting in them is not counted: a late rank is waited for in the next collective just as well.
Where the model of the run knows the saving too, both must allow it (:mod:`zprof.rules.foreseen`).
The same jobs, simulated with and without them (``benchmarks.diagnosis``), won about the exposed time.
"""

from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Evidence
from zprof.model.units import format_bytes
from zprof.rules.copies import copies_of_gathers_ns
from zprof.rules.rows import mean_per_step

#: Of the exposed transfer; compute that moves up can meet another exposed collective.
_LEAST_RATIO = 0.7
#: Of the same: a free link lets the others begin sooner.
_MOST_RATIO = 1.3
#: Of copies that were named.
_LEAST_COPIED_RATIO = 0.5
#: Of each: wake-up on a CPU's main thread, and the copies; on a device the queue's gap, and the copies.
_EACH_CPU_NS = 100_000
_EACH_DEVICE_NS = 20_000
_COPIED_BYTES_PER_NS = 500.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
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


def price_of(analysis: RunAnalysis, rows: pd.DataFrame) -> Price:
    """The price of these rows of the passes."""
    priced = analysis.collectives.loc[rows["row"]]
    exposed = mean_per_step(analysis, priced["exposed_transfer_ns"].sum())
    copied = copies_of_gathers_ns(analysis, priced)
    count = mean_per_step(analysis, len(priced))
    moved = mean_per_step(analysis, priced["bytes"].sum())
    return Price(
        count=count,
        bytes=moved,
        transfer_ns=mean_per_step(analysis, priced["transfer_ns"].sum()),
        exposed_ns=exposed,
        low_ns=_LEAST_RATIO * exposed + _LEAST_COPIED_RATIO * copied,
        high_ns=_MOST_RATIO * exposed + _beside(analysis, priced, copied),
    )


def _beside(analysis: RunAnalysis, rows: pd.DataFrame, copied: float) -> float:
    """What they cost beside their transfer: on a CPU the thread that computes also launches them.

    Where no copies are named, they are guessed: as long as launching, or at the speed of a device.
    """
    count = mean_per_step(analysis, len(rows))
    if analysis.run.device == "cpu":
        launching = mean_per_step(analysis, (rows["launch_end_ns"] - rows["launch_start_ns"]).sum())
        return count * _EACH_CPU_NS + launching + max(launching, copied)
    guessed = mean_per_step(analysis, rows["bytes"].sum()) / _COPIED_BYTES_PER_NS
    return count * _EACH_DEVICE_NS + max(guessed, copied)
