"""Splits each collective into waiting for the last rank and moving bytes.

With S the latest start over the ranks on the common clock, on rank i:

    wait_i = max(0, min(S, e_i) - s_i)      transfer_i = e_i - max(S, s_i), at least 0

and wait + transfer = duration.  The intrinsic time is the first end minus S.  Where ranks are missing
S is only known from below, so a wait is a lower and a transfer an upper bound.
"""

import numpy as np
import pandas as pd

from zprof.analysis.time.matching.ladder import is_full_sync

UNKNOWN_RANK = -1


def decompose(frame: pd.DataFrame, uncertainty_ns: int) -> pd.DataFrame:
    """Add arrival_ns (S), wait_ns, transfer_ns, intrinsic_ns (NaN where unknown), last_rank, lateness_ns.

    ``last_rank`` is -1 where ranks are missing, and where the last two arrived within twice the
    uncertainty of the clocks.
    """
    known = (frame["instance"] >= 0) & is_full_sync(frame)
    grouped = frame.groupby("instance")["start_ns"]
    arrival = grouped.transform("max").where(known, frame["start_ns"])
    first_end = frame.groupby("instance")["end_ns"].transform("min")
    wait = (np.minimum(arrival, frame["end_ns"]) - frame["start_ns"]).clip(lower=0)
    matched = known & frame["matched"]
    return frame.assign(
        arrival_ns=arrival,
        wait_ns=wait,
        transfer_ns=frame["end_ns"] - frame["start_ns"] - wait,
        intrinsic_ns=(first_end - arrival).where(matched),
        lateness_ns=(frame["start_ns"] - grouped.transform("min")).where(known, 0),
        last_rank=_last_rank(frame, 2 * uncertainty_ns).where(matched, UNKNOWN_RANK).astype(np.int64),
    )


def _last_rank(frame: pd.DataFrame, tie_ns: int) -> pd.Series:
    """The rank that arrived last in each instance, on all of its rows; -1 for a tie."""
    ordered = frame[["instance", "rank", "start_ns"]].sort_values(["instance", "start_ns"], kind="stable")
    lead = ordered["start_ns"] - ordered.groupby("instance")["start_ns"].shift(1)
    last = ordered.assign(lead=lead).groupby("instance").last()
    ranks = last["rank"].where(last["lead"] > tie_ns, UNKNOWN_RANK)
    return frame["instance"].map(ranks)
