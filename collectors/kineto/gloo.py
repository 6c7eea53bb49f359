"""Collectives that gloo ran: each execution joined to its launch (method "gloo_fifo").

Gloo's worker threads carry executions ``gloo:<op>`` without any id.  A process group works its queue in
order, so the k-th launch of an operator with n elements is the k-th such execution.  Where the numbers
of both differ, or an execution begins before its launch, none of them is joined: a guess would shift
every later one and accuse the wrong rank.

Kind, sequence and unit come from a ``::launch`` range around the c10d operator where there is one.  Else
the sequence is the order of launch, and the method "gloo_fifo_order" says so.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from zprof.collectors.kineto.groups import UNKNOWN_GROUP, GroupNames
from zprof.collectors.kineto.launches import Execution, GlooKey, Launch, find_executions, find_launches
from zprof.collectors.kineto.rows import CollectiveRow, Identity, RangeSpan, by_identity, identity
from zprof.collectors.kineto.trace import TraceColumns
from zprof.model.collectives import CollectiveKind
from zprof.model.gaps import Gap
from zprof.run.ranges import RangeVerb

METHOD = "gloo_fifo"
METHOD_BY_ORDER = "gloo_fifo_order"
_Pairs = list[tuple[Launch, Execution]]


def gloo_rows(
    trace: TraceColumns, spans: Sequence[RangeSpan], groups: GroupNames
) -> tuple[list[CollectiveRow], list[Gap]]:
    """A row for each execution of gloo that no ``::comm`` range stands for."""
    executions = find_executions(trace)
    if not executions and "kernel" in trace.category:
        return [], []  # the collectives of this trace ran on a device
    waits = by_identity(spans, RangeVerb.WAIT)
    rows: list[CollectiveRow] = []
    gaps: list[Gap] = []
    for key, launches in _by_key(find_launches(trace, spans, groups)).items():
        executed = executions.get(key, [])
        pairs = _pair(_without_unfinished(launches, len(executed), waits), executed)
        if pairs is not None:
            rows.extend(_row(launch, execution) for launch, execution in pairs if not launch.covered)
        elif not all(launch.covered for launch in launches):
            gaps.append(_unmatched(key, len(launches), len(executed)))
    if any(row.group == UNKNOWN_GROUP for row in rows):
        gaps.append(_unknown_group())
    if any(row.bytes == 0 and row.kind != CollectiveKind.BARRIER for row in rows):
        gaps.append(_unknown_bytes())
    return _merge(rows), gaps


def _by_key(launches: Sequence[Launch]) -> Mapping[GlooKey, list[Launch]]:
    found: dict[GlooKey, list[Launch]] = defaultdict(list)
    for launch in launches:
        found[launch.key].append(launch)
    return found


def _without_unfinished(
    launches: list[Launch], executed: int, waits: Mapping[Identity, RangeSpan]
) -> list[Launch]:
    """Leave out the last launches that nobody waited for: they may run on after the window closed."""
    kept = list(launches)
    while len(kept) > executed and kept[-1].stated is not None:
        key = identity(kept[-1].stated)
        if key is None or key in waits:
            break
        kept.pop()
    return kept


def _pair(launches: Sequence[Launch], executions: Sequence[Execution]) -> _Pairs | None:
    if len(launches) != len(executions):
        return None
    pairs = list(zip(launches, executions, strict=True))
    in_order = all(execution.start_ns >= launch.start_ns for launch, execution in pairs)
    return pairs if in_order else None


def _row(launch: Launch, execution: Execution) -> CollectiveRow:
    stated = launch.stated
    count = execution.elements or 0
    full = count * max(1, launch.group_size) if launch.operator.gathers else count
    dtype, size = execution.dtype or ("none", 0)
    sequence = launch.ordinal if stated is None or stated.sequence is None else stated.sequence
    return CollectiveRow(
        kind=str((stated.kind if stated else None) or launch.operator.kind),
        group=launch.group,
        group_size=launch.group_size,
        sequence=sequence,
        dtype=dtype,
        bytes=full * size,
        start_ns=execution.start_ns,
        end_ns=execution.end_ns,
        launch_start_ns=launch.start_ns,
        launch_end_ns=launch.end_ns,
        wait_start_ns=launch.wait.start_ns if launch.wait else None,
        wait_end_ns=launch.wait.end_ns if launch.wait else None,
        unit=stated.unit if stated else None,
        method=METHOD if stated else METHOD_BY_ORDER,
    )


def _merge(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """One row for a collective that its engine made of several operators under one launch range."""
    merged: dict[tuple[str, str, int], CollectiveRow] = {}
    for row in rows:
        key = row.method, row.group, row.sequence
        first = merged.get(key)
        if first is not None:
            row = replace(
                first,
                bytes=first.bytes + row.bytes,
                start_ns=min(first.start_ns, row.start_ns),
                end_ns=max(first.end_ns, row.end_ns),
            )
        merged[key] = row
    return list(merged.values())


def _unmatched(key: GlooKey, launched: int, executed: int) -> Gap:
    operator, count = key
    of = "" if count is None else f" of {count} elements"
    return Gap(
        what="collectives of gloo",
        reason=f"{launched} launches and {executed} executions of {operator}{of} do not pair up; "
        "none of them is counted",
        remedy="record again; a ::launch range per collective (docs/recording.md) makes them unambiguous",
    )


def _unknown_bytes() -> Gap:
    return Gap(
        what="bytes of collectives",
        reason="some collectives of gloo show no tensor: shapes were not recorded",
        remedy="profile with record_shapes=True",
    )


def _unknown_group() -> Gap:
    return Gap(
        what="process group of collectives",
        reason="this program has several process groups over different ranks, and gloo's events name none",
        remedy="write a ::launch range with pg=… around each collective (docs/recording.md)",
    )
