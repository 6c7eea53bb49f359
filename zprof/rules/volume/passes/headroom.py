"""Whether a rank has room to keep its units gathered: free memory of the device at the peak.

    headroom = device total - device used at the allocated peak        needed = bytes of the kept units

Known where the allocator and the device were sampled; a CPU rank or a trace alone does not say it.  Where
the gathers' sizes are not recorded, units of a model of known size need at most 4 bytes a parameter.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Evidence
from zprof.model.units import format_bytes

_PEAK = "allocated peak"
_MOST_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """``free_bytes`` of the rank that has least, None where no memory was recorded.

    ``needed_bytes`` is 0 where the recording does not say how large the units are.
    """

    needed_bytes: int
    free_bytes: int | None

    @property
    def suffices(self) -> bool | None:
        """Whether the units fit; None where that is not known."""
        if self.free_bytes is None or not self.needed_bytes:
            return None
        return self.free_bytes >= self.needed_bytes

    @property
    def says(self) -> str:
        """In words."""
        if not self.needed_bytes:
            return "how much memory it takes to keep them is not known"
        needed = format_bytes(self.needed_bytes)
        if self.free_bytes is None:
            return f"to keep them takes {needed}, whether there is room is not known"
        room = "there is room" if self.suffices else "there is no room"
        return f"to keep them takes {needed}, {room}: {format_bytes(self.free_bytes)} are free at the peak"

    @property
    def evidence(self) -> Sequence[Evidence]:
        """Rows of a finding."""
        needed = Evidence(what="memory to keep all units", value=self.needed_bytes, unit="bytes")
        rows = [needed] if self.needed_bytes else []
        if self.free_bytes is not None:
            rows.append(Evidence(what="free at the peak", value=self.free_bytes, unit="bytes"))
        return rows

    def at_most(self, confidence: Confidence) -> Confidence:
        """A saving for which there may be no room is not sure, and one for which there is none a note."""
        if self.suffices is False:
            return Confidence.LOW
        return Confidence.MEDIUM if confidence is Confidence.HIGH and not self.suffices else confidence


def headroom_of(analysis: RunAnalysis, gathers: pd.DataFrame) -> Headroom:
    """The room for the units of ``gathers``, each counted once."""
    each = gathers.groupby(["rank", "step", "unit", "number"])["bytes"].sum()  # its pieces together
    once = each.groupby(["rank", "unit"]).max().groupby("rank").sum()
    free = [
        device.device_total_bytes - device.device_used_bytes
        for device in analysis.memory.devices
        if device.moment == _PEAK
        and device.device_total_bytes is not None
        and device.device_used_bytes is not None
    ]
    needed = int(once.max()) if len(once) else 0
    return Headroom(
        needed_bytes=needed or _MOST_BYTES * (analysis.training.parameters or 0),
        free_bytes=min(free, default=None),
    )
