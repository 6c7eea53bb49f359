"""Hand-made analyses of what hosts do: ranks that all do the same in each step of 100 ms."""

import numpy as np
from msgspec.structs import replace

from tests.support.analyses import MS
from tests.support.rule_runs import run_of
from tests.support.tables import changed
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Mask
from zprof.analysis.time.host_idle import HOST_COLUMNS

WALL_NS = 100 * MS


def hosts(
    *, on_device: bool = True, ranks: int = 4, steps: int = 6, overlapped_ns: int = 0, **columns: float
) -> RunAnalysis:
    """Return ranks whose hosts have these columns in each step, and 0 in all others."""
    made = run_of(ranks=ranks, steps=steps)
    table = Columns(dict.fromkeys(HOST_COLUMNS, np.zeros(ranks * steps, dtype=np.int64)))
    rank, step = np.divmod(np.arange(ranks * steps), steps)
    values = {"on_device": on_device, "launches_seen": True, "loads": 1} | columns
    table = changed(table, rank=rank, step=step, **values)
    flat = changed(made.steps, wall_ns=WALL_NS, compute_ns=WALL_NS // 2, overlapped_ns=overlapped_ns)
    return replace(made, host=table, steps=flat)


def with_rows(analysis: RunAnalysis, chosen: Mask | None = None, **columns: float) -> RunAnalysis:
    """Return the same with other values in some rows of the hosts, or in all."""
    return replace(analysis, host=changed(analysis.host, chosen, **columns))
