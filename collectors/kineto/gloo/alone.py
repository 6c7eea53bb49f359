"""Executions of gloo in a trace that has no launches (method "gloo_execution_order")."""

from collections import defaultdict
from collections.abc import Sequence

from zprof.collectors.kineto.collectives.groups import GroupNames
from zprof.collectors.kineto.collectives.names import kind_of
from zprof.collectors.kineto.collectives.rows import CollectiveRow
from zprof.collectors.kineto.gloo.executions import Execution
from zprof.collectors.kineto.gloo.gaps import gaps_of_rows, without_launches
from zprof.model.collectives import CollectiveKind
from zprof.model.gaps import Gap

METHOD = "gloo_execution_order"
_GATHERS = (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER)


def rows_of_executions(
    executions: Sequence[Execution], groups: GroupNames
) -> tuple[list[CollectiveRow], list[Gap]]:
    """A row for each execution, numbered by start."""
    group, size = groups.resolve(None)
    counts: dict[str, int] = defaultdict(int)
    rows = []
    for execution in executions:
        rows.append(_row(execution, group, size, counts[group]))
        counts[group] += 1
    return rows, [without_launches(len(rows)), *gaps_of_rows(rows)] if rows else []


def _row(execution: Execution, group: str, size: int, ordinal: int) -> CollectiveRow:
    kind = kind_of(execution.key[0]) or CollectiveKind.OTHER
    dtype, element_bytes = execution.dtype or ("none", 0)
    full = (execution.elements or 0) * (max(1, size) if kind in _GATHERS else 1)
    return CollectiveRow(
        kind=str(kind),
        group=group,
        group_size=size,
        sequence=ordinal,
        dtype=dtype,
        bytes=full * element_bytes,
        start_ns=execution.start_ns,
        end_ns=execution.end_ns,
        method=METHOD,
    )
