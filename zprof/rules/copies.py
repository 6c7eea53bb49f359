"""Copies around collectives: of parameters out of what was gathered, of gradients into what is reduced.

They go with their collectives: what is not gathered need not be copied out.  Each has its share of the copies
of its direction by its bytes.  Counted is the time in which nothing else computes.
"""

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.rules.rows import mean_per_step, of_kind

#: The operator that copies gradients together.
INTO = "chunk_cat"


def copies(analysis: RunAnalysis) -> pd.DataFrame:
    """Rows of the kernels that are copies."""
    kernels = analysis.kernels
    return kernels if kernels.empty else kernels[kernels["role"] != "compute"]


def copy_names(analysis: RunAnalysis) -> frozenset[str]:
    """Return the names of these kernels."""
    rows = copies(analysis)
    return frozenset(rows["name"].astype(str)) if len(rows) else frozenset()


def copies_of_gathers_ns(analysis: RunAnalysis, gathers: pd.DataFrame) -> float:
    """What copying these all_gathers out takes in a step, of rows of ``analysis.collectives``."""
    rows = copies(analysis)
    if rows.empty:
        return 0.0
    out = rows[~rows["name"].astype(str).str.contains(INTO)]
    mine, whole = (
        float(of_kind(each, CollectiveKind.ALL_GATHER)["bytes"].sum())
        for each in (gathers, analysis.collectives)
    )
    return mean_per_step(analysis, float(out["uncovered_ns"].sum())) * mine / whole if whole else 0.0
