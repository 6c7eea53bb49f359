"""What is won when collectives carry two bytes an element instead of four.

The transfer of each is halved (latency stays, so a little less is won), and the step replayed with that
(:mod:`...replay`).  From three quarters of what the replay wins to 1.15 of it, never more than half of these
collectives' transfer, nor than all exposed transfer.  On simulated jobs the replay is at most 5 % too high.
Where not all ranks were seen, transfer may be waiting: the lower end then counts what the fastest collective
of the same kind and size took.
"""

from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.units import format_bytes
from zprof.rules.replay import won_ns
from zprof.rules.rows import mean_per_step
from zprof.rules.volume.traffic import is_bound, surely_moving_ns

_LEFT_RATIO = 0.5
_SURE_RATIO, _MOST_RATIO = 0.75, 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Halved:
    """Collectives whose bytes can be halved; times and bytes a step of a rank.

    ``bound``: not all ranks were seen, so ``exposed_ns`` may be waiting.
    """

    bytes: float
    transfer_ns: float
    exposed_ns: float
    saving_ns: tuple[float, float]
    bound: bool

    @property
    def size(self) -> str:
        """The bytes in words, of a step; they are not known of every recording."""
        return f" ({format_bytes(int(self.bytes))} a step)" if self.bytes else ""


def halved(analysis: RunAnalysis, rows: pd.DataFrame) -> Halved:
    """Price half of the bytes of ``rows``, which are rows of ``analysis.collectives``."""
    transfer = analysis.collectives["transfer_ns"].astype(float)
    chosen = pd.Series(0.0, index=transfer.index)
    chosen.loc[rows.index] = 1 - _LEFT_RATIO
    whole = mean_per_step(analysis, rows["transfer_ns"].sum())
    exposed = mean_per_step(analysis, analysis.collectives["exposed_transfer_ns"].sum())
    high = won_ns(analysis, transfer * (1 - chosen))
    bound = bool(is_bound(rows).any())
    low = won_ns(analysis, transfer - chosen * surely_moving_ns(analysis)) if bound else high
    most = min(_MOST_RATIO * high, _LEFT_RATIO * whole, exposed)
    return Halved(
        bytes=mean_per_step(analysis, rows["bytes"].sum()),
        transfer_ns=whole,
        exposed_ns=mean_per_step(analysis, rows["exposed_transfer_ns"].sum()),
        saving_ns=(min(_SURE_RATIO * low, most), most),
        bound=bound,
    )
