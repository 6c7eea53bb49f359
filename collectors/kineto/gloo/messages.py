"""Read gloo's point-to-point messages (``gloo:send``, ``gloo:recv``).

Collectives run on worker threads, but a message is posted by its caller: the range ``gloo:send`` starts
within the operator ``c10d::send``, on the same thread, and ends when the caller has waited for it. Each
message can therefore be matched to its post and wait directly, without sequence numbers. A message that is
not waited for within the window has no range and becomes a gap. Data may arrive long before the wait, but the
range always ends at the wait: blocked time is taken from the waits, not from the range.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from zprof.collectors.kineto.annotations import IntervalIndex, RangeSpan, find_rows, find_units
from zprof.collectors.kineto.collective_gaps import (
    list_gloo_gaps,
    make_missing_post_gap,
    make_missing_wait_gap,
    make_unknown_peers_gap,
)
from zprof.collectors.kineto.collectives import CollectiveRow, parse_element_type
from zprof.collectors.kineto.gloo.launches import MESSAGE_KINDS, EnclosingRanges, find_launch_rows
from zprof.collectors.kineto.process_groups import GroupResolver, PeerResolver, parse_group_rank
from zprof.collectors.kineto.trace import Arguments, Int64s, Trace, count_elements
from zprof.model.gaps import Gap
from zprof.run.ranges import RangeVerb

BY_MESSAGE_ORDER = "gloo_message_order"
_NO_ARGUMENTS = Arguments()
#: Operators that post a message, and the argument with the peer's rank.
_POST_OPERATORS: dict[str, int | None] = {"c10d::send": 2, "c10d::recv_": 2, "c10d::recv_any_source_": None}


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
    gaps = list_gloo_gaps(rows)
    if unfinished:
        gaps.append(make_missing_wait_gap(unfinished))
    without_post = sum(row.launch_start_ns is None for row in rows)
    if without_post:
        gaps.append(make_missing_post_gap(without_post, len(rows)))
    without_peer = sum(row.peer_rank is None for row in rows) - without_post
    if without_peer:
        gaps.append(make_unknown_peers_gap(without_peer, len(rows)))
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
            start_ns=start,
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
