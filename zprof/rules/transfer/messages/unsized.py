"""Messages of unknown sizes against the same ones of a baseline, in their order.

Traces without metadata do not say how much moves.  Where both runs send as many messages of a kind in a step,
they are taken for the same program's, and the k-th of one is held against the k-th of the other.
"""

from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.rules.rows import of_kind
from zprof.rules.transfer.messages.expected import KINDS

_STEP = ["rank", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsized:
    """Messages of one kind; times are of a step, ``reached_ratio`` the baseline's time over this run's."""

    kind: CollectiveKind
    count: int
    reached_ratio: float
    transfer_ns: float
    exposed_ns: float


def compare_unsized(analysis: RunAnalysis, baseline: RunAnalysis) -> list[Unsized]:
    """Return what of its time in the baseline each kind takes; kinds of other counts are left out."""
    found = []
    for kind in KINDS:
        rows, before = of_kind(analysis.collectives, kind), of_kind(baseline.collectives, kind)
        now_ns, then_ns = _quickest_ns(rows), _quickest_ns(before)
        if len(now_ns) and len(now_ns) == len(then_ns) and now_ns.sum() > 0:
            steps = max(1, len(rows[_STEP].drop_duplicates()))
            found.append(
                Unsized(
                    kind=kind,
                    count=len(rows),
                    reached_ratio=float(then_ns.sum() / now_ns.sum()),
                    transfer_ns=float(rows["transfer_ns"].sum()) / steps,
                    exposed_ns=float(rows["exposed_transfer_ns"].sum()) / steps,
                )
            )
    return found


def _quickest_ns(rows: pd.DataFrame) -> "pd.Series[int]":
    """Return the shortest time of each message of a step: that of a rank which waited for nobody."""
    launched = rows["launch_start_ns"].fillna(rows["start_ns"])
    place = rows.assign(launched=launched).sort_values("launched").groupby(_STEP).cumcount()
    return (rows["end_ns"] - rows["start_ns"]).groupby(place.reindex(rows.index)).min()
