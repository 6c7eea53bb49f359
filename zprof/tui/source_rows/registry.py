"""Find the rows that a number was measured from."""

from collections.abc import Mapping

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.paths import Path
from zprof.tui.source_rows.communication import COMMUNICATION_ROWS
from zprof.tui.source_rows.memory import MEMORY_ROWS
from zprof.tui.source_rows.ranks import RANK_ROWS
from zprof.tui.source_rows.selection import Rows
from zprof.tui.source_rows.time import TIME_ROWS

_ROWS: Mapping[str, Rows] = {**TIME_ROWS, **RANK_ROWS, **COMMUNICATION_ROWS, **MEMORY_ROWS}


def find_source_rows(leaf: Path, analysis: RunAnalysis) -> pd.DataFrame | None:
    """Return the rows that a leaf was measured from, the most relevant first; None if there are none."""
    rows = _ROWS.get(leaf.pattern)
    return rows(analysis, leaf.indices) if rows else None
