"""Make the rows of gloo: match executions (method "gloo_fifo") to their launches, and messages to their post.

Gloo's worker threads run executions ``gloo:<op>`` without any id. A process group processes its queue in
order, so the k-th launch of an operator with n elements is the k-th such execution. If executions are
missing, the times show which (:func:`locate_missing`), and executions that fit two launches are left out. If
launches are missing, or an execution starts before its launch, none is matched: a guess
would shift all later matches and blame the wrong rank.

Kind, sequence and unit come from a ``::launch`` range around the c10d operator if there is one; else the
sequence is the order of launch, and the method is "gloo_fifo_order". Gloo events do not identify the group,
but each group has its own worker threads: if shapes identify the group of some collectives (a gather over
four ranks is four times its input), their threads identify it for the others. Without any launch, executions
are numbered by start (method "gloo_execution_order").

A group's queue is processed in order, whatever the operator and the size, so the only unknown is where
executions are missing. The times show this: a worker starts an execution as soon as it is launched and the
worker is free, and before the wait for it returns; a missing execution leaves the workers idle for at least
the time of the shortest of its kind. The pairing that contradicts this least is chosen; executions that fit
another launch almost as well are left out.

Collectives run on worker threads, but a message is posted by its caller: the range ``gloo:send`` starts
within the operator ``c10d::send``, on the same thread, and ends when the caller has waited for it. Each
message can therefore be matched to its post and wait directly, without sequence numbers. A message starts
with its operator: the range starts after the data were handed to the socket, which can wake the receiver and
cost the sender its processor, so a receive of the same message may already have ended. A message that is
not waited for within the window has no range and becomes a gap. Data may arrive long before the wait, but the
range always ends at the wait: blocked time is taken from the waits, not from the range.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from zprof.collectors.read.kineto.annotations import (
    Identity,
    IntervalIndex,
    RangeSpan,
    find_rows,
    find_units,
    get_collective_key,
    index_by_collective,
)
from zprof.collectors.read.kineto.collectives import CollectiveRow, parse_collective_kind, parse_element_type
from zprof.collectors.read.kineto.gloo.launches import (
    MESSAGE_KINDS,
    EnclosingRanges,
    Execution,
    GlooKey,
    GlooLaunch,
    find_executions,
    find_launch_rows,
    find_launches,
)
from zprof.collectors.read.kineto.process_groups import GroupResolver, PeerResolver, parse_group_rank
from zprof.collectors.read.kineto.trace import Arguments, Int64s, Trace, count_elements
from zprof.model.collectives import UNKNOWN_GROUP, CollectiveKind
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.run.ranges import RangeVerb

BY_FIFO = "gloo_fifo"
BY_FIFO_ORDER = "gloo_fifo_order"
Pairs = list[tuple[GlooLaunch, Execution]]
BY_EXECUTION_ORDER = "gloo_execution_order"
_GATHERS = (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER)
Floats = npt.NDArray[np.float64]
#: More missing executions than this are not located.
_MAX_MISSING = 16
#: An alternative is clearly worse above this multiple of the usual delay of an execution.
_CLEAR_FACTOR = 2.0
_USUAL_QUANTILE = 0.9
_IMPOSSIBLE = float("inf")
BY_MESSAGE_ORDER = "gloo_message_order"
_NO_ARGUMENTS = Arguments()
#: Operators that post a message, and the argument with the peer's rank.
_POST_OPERATORS: dict[str, int | None] = {"c10d::send": 2, "c10d::recv_": 2, "c10d::recv_any_source_": None}


def make_gloo_rows(
    trace: Trace, spans: Sequence[RangeSpan], groups: GroupResolver
) -> tuple[list[CollectiveRow], list[Gap]]:
    """Return a row for each gloo execution without a ``::comm`` or ``::ping`` range, and gaps."""
    messages, message_gaps = make_message_rows(trace, spans, groups)
    collectives, gaps = _make_collective_rows(trace, spans, groups)
    return collectives + messages, gaps + message_gaps


def _make_collective_rows(
    trace: Trace, spans: Sequence[RangeSpan], groups: GroupResolver
) -> tuple[list[CollectiveRow], list[Gap]]:
    executions = find_executions(trace)
    if not executions and trace.category.where("kernel".__eq__).any():
        return [], []  # collectives ran on a device
    launches = find_launches(trace, spans, groups)
    if not launches:
        return make_execution_rows(executions, groups)
    launches = add_groups_by_thread(launches, executions)
    pairs, gaps = _match_executions(launches, executions, index_by_collective(spans, RangeVerb.WAIT))
    # Number the launches that no range encloses, within each group.
    counts: dict[str, int] = defaultdict(int)
    numbers: dict[int, int] = {}
    for launch in launches:
        if launch.index not in numbers:
            numbers[launch.index] = counts[launch.group]
            counts[launch.group] += launch.launch_range is None and not launch.has_no_row
    peers = PeerResolver(trace.header)
    rows = [
        _make_matched_row(launch, execution, numbers, peers)
        for launch, execution in pairs
        if not launch.has_no_row
    ]
    return _merge_rows(rows), gaps + _list_gaps(rows)


def _match_executions(
    launches: Sequence[GlooLaunch], executions: Sequence[Execution], waits: Mapping[Identity, RangeSpan]
) -> tuple[Pairs, list[Gap]]:
    executed: dict[GlooKey, list[Execution]] = defaultdict(list)
    for execution in executions:
        executed[execution.key].append(execution)
    launches_by_key: dict[GlooKey, list[GlooLaunch]] = defaultdict(list)
    for launch in launches:
        launches_by_key[launch.key].append(launch)
    found = {
        key: _pair_in_order(launched, executed.get(key, [])) for key, launched in launches_by_key.items()
    }
    for keys in _list_queues(launches_by_key, executed):
        missing = [key for key in keys if len(executed.get(key, [])) < len(launches_by_key[key])]
        located = _pair_with_missing(launches, executions, waits, keys) if missing else []
        found |= {key: [pair for pair in located if pair[0].key == key] for key in missing}
    gaps = [
        make_gap(
            "gloo_some_unmatched" if found[key] else "gloo_none_matched",
            launches=len(launched),
            executions=len(executed.get(key, [])),
            operator=key[0] if key[1] is None else f"{key[0]} of {key[1]} elements",
            matched=len(found[key]),
        )
        for key, launched in launches_by_key.items()
        if len(launched) - len(found[key]) > _count_unfinished(launched, waits)
        and not all(launch.has_no_row for launch in launched)
    ]
    return [pair for pairs in found.values() for pair in pairs], gaps


def _list_queues(
    launches_by_key: Mapping[GlooKey, Sequence[GlooLaunch]], executed: Mapping[GlooKey, Sequence[Execution]]
) -> list[frozenset[GlooKey]]:
    """Return the keys whose launches and executions passed through one queue: that of one group, on its
    threads.

    Keys of several groups, and keys with missing launches, are left out.
    """
    keys_by_group: dict[str, set[GlooKey]] = defaultdict(set)
    for key, launched in launches_by_key.items():
        groups = {launch.group for launch in launched}
        if len(groups) == 1 and len(executed.get(key, [])) <= len(launched):
            keys_by_group[groups.pop()].add(key)
    return [frozenset(keys) for keys in keys_by_group.values()]


def _pair_with_missing(
    launches: Sequence[GlooLaunch],
    executions: Sequence[Execution],
    waits: Mapping[Identity, RangeSpan],
    keys: frozenset[GlooKey],
) -> Pairs:
    """Return the pairs of a queue with missing executions, except ambiguous ones."""
    queued = [launch for launch in launches if launch.key in keys]
    ran = [execution for execution in executions if execution.key in keys]
    places = locate_missing(queued, [_find_wait_end(launch, waits) for launch in queued], ran)
    return [
        (queued[place], execution) for place, execution in zip(places, ran, strict=True) if place is not None
    ]


def _count_unfinished(launches: Sequence[GlooLaunch], waits: Mapping[Identity, RangeSpan]) -> int:
    """Return how many of the last launches have a range but no wait: they may end after the window."""
    for count, launch in enumerate(reversed(launches)):
        if launch.launch_range is None or _find_wait_end(launch, waits) is not None:
            return count
    return len(launches)


def _find_wait_end(launch: GlooLaunch, waits: Mapping[Identity, RangeSpan]) -> int | None:
    key = get_collective_key(launch.launch_range) if launch.launch_range is not None else None
    wait = waits.get(key) if key is not None else launch.wait
    return wait.end_ns if wait is not None else None


def _pair_in_order(launches: Sequence[GlooLaunch], executions: Sequence[Execution]) -> Pairs:
    """Return the pairs, none if the counts differ or an execution starts before its launch."""
    if len(launches) != len(executions):
        return []
    pairs = list(zip(launches, executions, strict=True))
    in_order = all(execution.start_ns >= launch.start_ns for launch, execution in pairs)
    return pairs if in_order else []


def _make_matched_row(
    launch: GlooLaunch, execution: Execution, ordinals: Mapping[int, int], peers: PeerResolver
) -> CollectiveRow:
    launch_range = launch.launch_range
    count = execution.elements or 0
    full_elements = count * max(1, launch.group_size) if launch.operator.gathers else count
    dtype, size = execution.dtype or ("none", 0)
    ordinal = ordinals[launch.index]
    return CollectiveRow(
        kind=str((launch_range.kind if launch_range else None) or launch.operator.kind),
        group=launch.group,
        group_size=launch.group_size,
        sequence=ordinal if launch_range is None or launch_range.sequence is None else launch_range.sequence,
        dtype=dtype,
        bytes=full_elements * size,
        start_ns=execution.start_ns,
        end_ns=execution.end_ns,
        launch_start_ns=launch.start_ns,
        launch_end_ns=launch.end_ns,
        wait_start_ns=launch.wait.start_ns if launch.wait else None,
        wait_end_ns=launch.wait.end_ns if launch.wait else None,
        unit=launch.unit,
        peer_rank=peers.find(launch.group, launch.root, exclude_self=False),
        method=BY_FIFO if launch_range else BY_FIFO_ORDER,
    )


def _merge_rows(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """Merge the rows of a collective that its engine split into several operators under one launch range."""
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


_NamedGroup = tuple[str, int]


_UNKNOWN: _NamedGroup = (UNKNOWN_GROUP, 0)


def add_groups_by_thread(launches: Sequence[GlooLaunch], executions: Sequence[Execution]) -> list[GlooLaunch]:
    """Return the launches, with the group filled in if all executions ran on threads of one group."""
    launched: dict[GlooKey, set[_NamedGroup]] = defaultdict(set)
    for launch in launches:
        launched[launch.key].add((launch.group, launch.group_size))
    ran_on: dict[GlooKey, set[int]] = defaultdict(set)
    for execution in executions:
        ran_on[execution.key].add(execution.thread)
    # The groups of each thread, from operators that a single known group launched.
    owners: dict[int, set[_NamedGroup]] = defaultdict(set)
    for key, groups in launched.items():
        if len(groups) == 1 and _UNKNOWN not in groups:
            for thread in ran_on.get(key, ()):
                owners[thread] |= groups
    return [_add_group(launch, ran_on[launch.key], owners) for launch in launches]


def _add_group(launch: GlooLaunch, threads: set[int], owners: Mapping[int, set[_NamedGroup]]) -> GlooLaunch:
    if launch.group != UNKNOWN_GROUP or not threads or not threads <= owners.keys():
        return launch
    groups = set().union(*(owners[thread] for thread in threads))
    if len(groups) != 1:
        return launch
    group, size = groups.pop()
    return replace(launch, group=group, group_size=size)


def make_execution_rows(
    executions: Sequence[Execution], groups: GroupResolver
) -> tuple[list[CollectiveRow], list[Gap]]:
    """Return a row for each execution, numbered by start, and gaps."""
    group, size = groups.resolve(None)
    counts: dict[str, int] = defaultdict(int)
    rows = []
    for execution in executions:
        rows.append(_make_execution_row(execution, group, size, counts[group]))
        counts[group] += 1
    return rows, [make_gap("gloo_without_launches", executions=len(rows)), *_list_gaps(rows)] if rows else []


def _list_gaps(rows: Sequence[CollectiveRow]) -> list[Gap]:
    """Return gaps for unknown groups and sizes."""
    counts = {
        "gloo_group_unknown": sum(row.group == UNKNOWN_GROUP for row in rows),
        "gloo_size_unknown": sum(row.bytes == 0 and row.kind != CollectiveKind.BARRIER for row in rows),
    }
    return [make_gap(key, count=count, collectives=len(rows)) for key, count in counts.items() if count]


def _make_execution_row(execution: Execution, group: str, size: int, ordinal: int) -> CollectiveRow:
    kind = parse_collective_kind(execution.key[0]) or CollectiveKind.OTHER
    dtype, element_bytes = execution.dtype or ("none", 0)
    full_elements = (execution.elements or 0) * (max(1, size) if kind in _GATHERS else 1)
    return CollectiveRow(
        kind=str(kind),
        group=group,
        group_size=size,
        sequence=ordinal,
        dtype=dtype,
        bytes=full_elements * element_bytes,
        start_ns=execution.start_ns,
        end_ns=execution.end_ns,
        method=BY_EXECUTION_ORDER,
    )


def locate_missing(
    launches: Sequence[GlooLaunch],
    wait_ends_ns: Sequence[int | None],
    executions: Sequence[Execution],
) -> list[int | None]:
    """Return the index of each execution's launch; None if another launch fits almost as well.

    Args:
        launches: The launches of a queue by start; more than the executions.
        wait_ends_ns: The end of the wait for each launch, if known.
        executions: The executions by start.
    """
    missing = len(launches) - len(executions)
    if not executions or not 0 < missing <= _MAX_MISSING:
        return [None] * len(executions)
    workers, shortest_ns = _read_worker_times(executions), _sum_shortest(launches, executions)

    def contradiction_ns(at: int, skipped_before: int, skipped: int) -> float:
        """Return how much a pair contradicts the times if executions are missing right before it."""
        launch, execution = launches[at + skipped], executions[at]
        own_free_ns, first_free_ns = workers[at]
        if execution.key != launch.key or execution.start_ns < launch.start_ns:
            return _IMPOSSIBLE
        wait_end_ns = wait_ends_ns[at + skipped]
        cost = max(0.0, execution.end_ns - wait_end_ns) if wait_end_ns is not None else 0.0
        if skipped == skipped_before:
            return cost + _delay_ns(launch, execution, own_free_ns)
        first_missing = launches[at + skipped_before]
        idle_ns = execution.start_ns - max(first_missing.start_ns, first_free_ns)
        missing_ns = shortest_ns[at + skipped] - shortest_ns[at + skipped_before]
        return cost + max(0.0, float(missing_ns) - idle_ns)

    steps = [_list_steps(contradiction_ns, at, missing) for at in range(len(executions))]
    before = [steps[0][0]]
    for step in steps[1:]:
        before.append((before[-1][:, None] + step).min(axis=0))
    after = [np.zeros(missing + 1)]
    for step in reversed(steps[1:]):
        after.append((step + after[-1][None, :]).min(axis=1))
    costs = np.array(before) + np.array(after[::-1])
    skipped = costs.argmin(axis=1)
    if not np.isfinite(costs.min()):
        return [None] * len(executions)
    delays = [
        _delay_ns(launches[at + count], executions[at], workers[at][0])
        for at, (skipped_before, count) in enumerate(pairwise([0, *skipped.tolist()]))
        if count == skipped_before
    ]
    clear_ns = _CLEAR_FACTOR * float(np.quantile(delays, _USUAL_QUANTILE)) if delays else _IMPOSSIBLE
    is_clear = np.sort(costs, axis=1)[:, 1] > costs.min(axis=1) + clear_ns
    return [
        at + int(count) if clear else None
        for at, (count, clear) in enumerate(zip(skipped, is_clear, strict=True))
    ]


def _read_worker_times(executions: Sequence[Execution]) -> list[tuple[float, float]]:
    """Return when workers became free before each execution: the worker that ran it, and the first of all
    workers.

    The executions of a queue are sorted by start.
    """
    free = {execution.thread: -_IMPOSSIBLE for execution in executions}
    times = []
    for execution in executions:
        own = free[execution.thread]
        times.append((own, min(free.values())))
        free[execution.thread] = max(own, execution.end_ns)
    return times


def _list_steps(contradiction_ns: Callable[[int, int, int], float], at: int, missing: int) -> Floats:
    """Return the contradiction of an execution, by the number of missing ones before the previous one and
    before it.
    """
    step = np.full((missing + 1, missing + 1), _IMPOSSIBLE)
    for skipped_before in range(missing + 1):
        for skipped in range(skipped_before, missing + 1):
            step[skipped_before, skipped] = contradiction_ns(at, skipped_before, skipped)
    return step


def _sum_shortest(launches: Sequence[GlooLaunch], executions: Sequence[Execution]) -> Floats:
    """Return the minimum total time of all launches before each one, from the shortest execution of each
    key.
    """
    shortest: dict[GlooKey, int] = {}
    for each in executions:
        shortest[each.key] = min(shortest.get(each.key, each.end_ns), each.end_ns - each.start_ns)
    return np.cumsum([0.0, *(float(shortest.get(launch.key, 0)) for launch in launches)])


def _delay_ns(launch: GlooLaunch, execution: Execution, own_free_ns: float) -> float:
    return float(max(0.0, execution.start_ns - max(launch.start_ns, own_free_ns)))


def make_message_rows(
    trace: Trace, spans: Sequence[RangeSpan], groups: GroupResolver
) -> tuple[list[CollectiveRow], list[Gap]]:
    """Return a row per message, numbered per group, kind and peer, and gaps."""
    executions = find_rows(trace, ("user_annotation", "cpu_op"), MESSAGE_KINDS.__contains__)
    posts = np.array(find_launch_rows(trace, _POST_OPERATORS.__contains__), dtype=np.int64)
    # The row of the operator in which each execution started, or -1.
    enclosing_posts = (
        IntervalIndex(trace, posts).find_innermost(trace.thread[executions], trace.start_ns[executions])
        if len(posts)
        else np.full(len(executions), -1, dtype=np.int64)
    )
    reader = _MessageReader(trace, spans, groups)
    counts: dict[tuple[str, str, int | None], int] = defaultdict(int)
    rows = []
    for row in reader.make_rows(executions, enclosing_posts):
        key = row.group, row.kind, row.peer_rank
        rows.append(replace(row, sequence=counts[key]))
        counts[key] += 1
    unfinished = (
        len(posts) - int((enclosing_posts >= 0).sum())
        if len(executions) or not bool(trace.category.where("kernel".__eq__).any())
        else 0
    )
    gaps = _list_gaps(rows)
    if unfinished:
        gaps.append(make_gap("messages_without_wait", posts=unfinished))
    without_post = sum(row.launch_start_ns is None for row in rows)
    if without_post:
        gaps.append(make_gap("messages_without_post", count=without_post, messages=len(rows)))
    without_peer = sum(row.peer_rank is None for row in rows) - without_post
    if without_peer:
        gaps.append(make_gap("messages_without_peer", count=without_peer, messages=len(rows)))
    return rows, gaps


class _MessageReader:
    """Convert gloo executions to collective rows."""

    def __init__(self, trace: Trace, spans: Sequence[RangeSpan], groups: GroupResolver) -> None:
        self._trace, self._groups, self._peers = trace, groups, PeerResolver(trace.header)
        self._ranges, self._waits = EnclosingRanges(spans), _MessageWaits(spans)
        self._engines_with_comm_ranges = {
            span.range.engine for span in spans if span.range.verb is RangeVerb.COMM
        }

    def make_rows(self, executions: Int64s, enclosing_posts: Int64s) -> list[CollectiveRow]:
        """Return rows by start, excluding messages with a ``::comm`` range."""
        posts = np.where(enclosing_posts >= 0, enclosing_posts, executions)
        units = find_units(self._trace, self._trace.thread[posts], self._trace.start_ns[posts])
        rows = [
            self._make_row(execution, post, unit)
            for execution, post, unit in zip(
                executions.tolist(), enclosing_posts.tolist(), units, strict=True
            )
        ]
        return [row for row in rows if row is not None]

    def _make_row(self, execution: int, post: int, unit: str | None) -> CollectiveRow | None:
        trace = self._trace
        thread, start = int(trace.thread[execution]), int(trace.start_ns[execution])
        end = start + int(trace.duration_ns[execution])
        arguments = trace.arguments.get(execution, _NO_ARGUMENTS)
        types = arguments.types if isinstance(arguments.types, list) and arguments.types else [None]
        dtype, size = parse_element_type(types[0]) or ("none", 0)
        group, group_size = self._groups.resolve(None)
        peer_index, launch_span = None, None
        if post >= 0:
            launch_span = int(trace.start_ns[post]), int(trace.start_ns[post] + trace.duration_ns[post])
            span = self._ranges.find(thread, *launch_span)
            if span is not None and span.range.engine in self._engines_with_comm_ranges:
                return None
            if span is not None and span.range.verb is RangeVerb.LAUNCH:
                group, group_size = self._groups.resolve(span.range.group)
                unit = span.range.unit or unit
            peer_index = parse_group_rank(
                trace.arguments.get(post, _NO_ARGUMENTS), _POST_OPERATORS[trace.name[post]]
            )
        wait = self._waits.find_enclosing(thread, end)
        return CollectiveRow(
            kind=str(MESSAGE_KINDS[trace.name[execution]]),
            group=group,
            group_size=group_size,
            sequence=0,
            dtype=dtype,
            bytes=(count_elements(arguments.dims, types=arguments.types) or 0) * size,
            start_ns=launch_span[0] if launch_span else start,
            end_ns=end,
            launch_start_ns=launch_span[0] if launch_span else None,
            launch_end_ns=launch_span[1] if launch_span else None,
            wait_start_ns=wait.start_ns if wait else None,
            wait_end_ns=wait.end_ns if wait else None,
            unit=unit,
            peer_rank=self._peers.find(group, peer_index, exclude_self=True),
            method=BY_MESSAGE_ORDER,
        )


class _MessageWaits:
    """Index the waits of a trace, to find the one in which a message ended."""

    def __init__(self, spans: Sequence[RangeSpan]) -> None:
        self._spans_by_thread: dict[int, list[RangeSpan]] = defaultdict(list)
        for span in spans:
            if span.range.verb is RangeVerb.WAIT:
                self._spans_by_thread[span.thread].append(span)

    def find_enclosing(self, thread: int, end_ns: int) -> RangeSpan | None:
        spans = self._spans_by_thread.get(thread, [])
        index = bisect_right(spans, end_ns, key=lambda span: span.start_ns) - 1
        return spans[index] if index >= 0 and end_ns <= spans[index].end_ns else None
