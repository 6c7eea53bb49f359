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

from zprof.collectors.kineto.collectives.groups import GroupNames
from zprof.collectors.kineto.collectives.rows import CollectiveRow
from zprof.collectors.kineto.collectives.spans import Identity, RangeSpan, by_identity, identity
from zprof.collectors.kineto.columns import Trace
from zprof.collectors.kineto.gloo.alone import rows_of_executions
from zprof.collectors.kineto.gloo.executions import Execution, find_executions
from zprof.collectors.kineto.gloo.gaps import gaps_of_rows, unmatched
from zprof.collectors.kineto.gloo.launches import Launch, find_launches
from zprof.collectors.kineto.gloo.messages import message_rows
from zprof.collectors.kineto.gloo.operators import GlooKey
from zprof.collectors.kineto.gloo.peers import Peers
from zprof.collectors.kineto.gloo.threads import with_groups_of_threads
from zprof.model.gaps import Gap
from zprof.run.ranges import RangeVerb

METHOD = "gloo_fifo"
METHOD_BY_ORDER = "gloo_fifo_order"
Pairs = list[tuple[Launch, Execution]]


def gloo_rows(
    trace: Trace, spans: Sequence[RangeSpan], groups: GroupNames
) -> tuple[list[CollectiveRow], list[Gap]]:
    """A row for each execution of gloo that no ``::comm`` range stands for."""
    messages, message_gaps = message_rows(trace, spans, groups)
    collectives, gaps = _collective_rows(trace, spans, groups)
    return collectives + messages, gaps + message_gaps


def _collective_rows(
    trace: Trace, spans: Sequence[RangeSpan], groups: GroupNames
) -> tuple[list[CollectiveRow], list[Gap]]:
    executions = find_executions(trace)
    if not executions and trace.category.where("kernel".__eq__).any():
        return [], []  # the collectives of this trace ran on a device
    launches = find_launches(trace, spans, groups)
    if not launches:
        return rows_of_executions(executions, groups)
    launches = with_groups_of_threads(launches, executions)
    pairs, gaps = _join(launches, executions, by_identity(spans, RangeVerb.WAIT))
    numbers = _ordinals(launches)
    peers = Peers(trace.header)
    rows = [_row(launch, execution, numbers, peers) for launch, execution in pairs if not launch.covered]
    return _merge(rows), gaps + gaps_of_rows(rows)


def _join(
    launches: Sequence[Launch], executions: Sequence[Execution], waits: Mapping[Identity, RangeSpan]
) -> tuple[Pairs, list[Gap]]:
    executed: dict[GlooKey, list[Execution]] = defaultdict(list)
    for execution in executions:
        executed[execution.key].append(execution)
    pairs, gaps = Pairs(), []
    for key, launched in _by_key(launches).items():
        found = executed.get(key, [])
        joined = _pair(_without_unfinished(launched, len(found), waits), found)
        if joined is not None:
            pairs += joined
        elif not all(launch.covered for launch in launched):
            gaps.append(unmatched(key, len(launched), len(found)))
    return pairs, gaps


def _by_key(launches: Sequence[Launch]) -> Mapping[GlooKey, list[Launch]]:
    found: dict[GlooKey, list[Launch]] = defaultdict(list)
    for launch in launches:
        found[launch.key].append(launch)
    return found


def _ordinals(launches: Sequence[Launch]) -> Mapping[int, int]:
    """Numbers within each group of the launches that no range encloses."""
    counts: dict[str, int] = defaultdict(int)
    found: dict[int, int] = {}
    for launch in launches:
        if launch.index not in found:
            found[launch.index] = counts[launch.group]
            counts[launch.group] += launch.stated is None and not launch.covered
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


def _pair(launches: Sequence[Launch], executions: Sequence[Execution]) -> Pairs | None:
    if len(launches) != len(executions):
        return None
    pairs = list(zip(launches, executions, strict=True))
    in_order = all(execution.start_ns >= launch.start_ns for launch, execution in pairs)
    return pairs if in_order else None


def _row(launch: Launch, execution: Execution, ordinals: Mapping[int, int], peers: Peers) -> CollectiveRow:
    stated = launch.stated
    count = execution.elements or 0
    full = count * max(1, launch.group_size) if launch.operator.gathers else count
    dtype, size = execution.dtype or ("none", 0)
    ordinal = ordinals[launch.index]
    return CollectiveRow(
        kind=str((stated.kind if stated else None) or launch.operator.kind),
        group=launch.group,
        group_size=launch.group_size,
        sequence=ordinal if stated is None or stated.sequence is None else stated.sequence,
        dtype=dtype,
        bytes=full * size,
        start_ns=execution.start_ns,
        end_ns=execution.end_ns,
        launch_start_ns=launch.start_ns,
        launch_end_ns=launch.end_ns,
        wait_start_ns=launch.wait.start_ns if launch.wait else None,
        wait_end_ns=launch.wait.end_ns if launch.wait else None,
        unit=launch.unit,
        peer_rank=peers.find(launch.group, launch.root, other=False),
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
