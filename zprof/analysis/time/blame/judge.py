"""Charges waiting to the rank that came last, and says why it was late and where that began."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from zprof.analysis.time.blame.cases import cases_of, rows_of
from zprof.analysis.time.blame.host_reasons import CallsOf
from zprof.analysis.time.blame.origins import find_origins
from zprof.analysis.time.blame.progress import lag_of
from zprof.analysis.time.blame.reasons import find_reasons
from zprof.analysis.time.blame.stretches import stretches_of
from zprof.analysis.time.blame.work import RankWork
from zprof.analysis.time.transfer.arrival import UNKNOWN_RANK
from zprof.model.time import LateReason


def judge(frame: pd.DataFrame, work: Mapping[int, RankWork], calls: CallsOf) -> pd.DataFrame:
    """Add judged, blamed_rank, late_reason and origin_rank (-1 and "" where nobody is blamed).

    Args:
        frame: Collectives of all ranks, decomposed and exposed, on the common clock.
        work: What each of their ranks did.
        calls: What the host of a rank did, asked for few of them.
    """
    frame = frame.reset_index(drop=True)
    rows = rows_of(frame)
    cases = cases_of(rows)
    begins = {rank: did.begin_ns for rank, did in work.items()}
    stretches = stretches_of(rows, cases, lag_of(rows, work), begins)
    reasons = find_reasons(rows, cases, stretches, work, calls)
    origins = find_origins(rows, cases, reasons)
    blamed = rows.blamed != UNKNOWN_RANK
    case = np.where(blamed, cases.of_row, -1)
    known = case >= 0
    reason = np.where(blamed, str(LateReason.UNKNOWN), "").astype(object)
    origin = rows.blamed.copy()
    reason[known] = [str(each) for each in origins.reason[case[known]]]
    origin[known] = origins.rank[case[known]]
    return frame.assign(judged=rows.judged, blamed_rank=rows.blamed, late_reason=reason, origin_rank=origin)
