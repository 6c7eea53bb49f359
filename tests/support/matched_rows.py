"""Tables of collectives made by hand, as the analysis sees them after matching: on one clock."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tests.support.tables import as_columns
from zprof.analysis.columns import Columns
from zprof.analysis.time.clocks import Clocks, RankClock

BASE_NS = 1_790_857_026_000_000_000
_NULLABLE = ("launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns", "stream", "peer_rank")


def clocks(uncertainty_ns: int = 100, **of_rank: int) -> Clocks:
    """Clocks that agree; ``r3=500``: the uncertainty of rank 3 where it is another one."""
    each = {int(name[1:]): value for name, value in of_rank.items()}
    return Clocks(
        of_rank={rank: RankClock() for rank in range(16)},
        uncertainty_ns=max([uncertainty_ns, *each.values()]),
        method="made up",
        rank_uncertainty_ns={rank: each.get(rank, uncertainty_ns) for rank in range(16)},
    )


def collective(
    instance: int, spans: Mapping[int, tuple[int, int]], *, ranks: Sequence[int] = (), **more: object
) -> list[dict[str, object]]:
    """Rows of one collective: spans by rank, on a clock that begins at 0.

    Args:
        instance: Its number; the sequence too.
        spans: Start and end on each rank that is loaded.
        ranks: The group, where it has more ranks than these.
        more: Columns that differ from an all_reduce of 1 MiB.
    """
    group = sorted(ranks or spans)
    common = {
        "instance": instance,
        "sequence": instance,
        "kind": "all_reduce",
        "group": ",".join(map(str, group)),
        "group_size": len(group),
        "dtype": "float32",
        "bytes": 1 << 20,
        "unit": None,
        "method": "nccl",
        "matched": instance >= 0 and len(spans) == len(group),
        "first_of_window": False,
        **dict.fromkeys(_NULLABLE),
    } | more
    return [
        {**common, "rank": rank, "start_ns": BASE_NS + start, "end_ns": BASE_NS + end}
        for rank, (start, end) in spans.items()
    ]


def table(*collectives: list[dict[str, object]]) -> Columns:
    """All rows as one table, in the order of ranks, as the analysis joins them."""
    frame = pd.DataFrame([row for rows in collectives for row in rows])
    frame = frame.astype(dict.fromkeys(_NULLABLE, "Int64")).sort_values("rank", kind="stable")
    for column in ("instance", "sequence", "group_size", "bytes", "rank", "start_ns", "end_ns"):
        frame[column] = frame[column].astype(np.int64)
    return as_columns(frame)
