"""Hand-made tables of kernels by name, and analyses that have them."""

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from tests.support.analyses import MS
from tests.support.rule_runs import run_of
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.time.rank import KERNEL_COLUMNS


def kernel_row(name: str, milliseconds: float, **more: float | str) -> dict[str, float | str]:
    """One name of one rank; ``milliseconds`` are its total, all else is nothing unless said."""
    zero: dict[str, float | str] = dict.fromkeys(KERNEL_COLUMNS, 0)
    counts = {"count": 80, "alone_median_ns": np.nan, "overlapped_median_ns": np.nan}
    return zero | counts | {"name": name, "role": "compute", "total_ns": int(milliseconds * MS)} | more


def with_kernels(
    analysis: RunAnalysis, rows: Iterable[dict[str, float | str]], *, device: str = "cuda"
) -> RunAnalysis:
    """The analysis with these kernels on each of its ranks."""
    made = [row | {"rank": rank.rank} for rank in analysis.time.per_rank for row in rows]
    return replace(
        analysis,
        run=replace(analysis.run, device=device),
        kernels=Columns.from_rows(made, KERNEL_COLUMNS),
    )


def healthy(ranks: int = 2) -> RunAnalysis:
    """Eight steps of six units, 216 ms of compute each."""
    return run_of(ranks=ranks)
