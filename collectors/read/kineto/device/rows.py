"""Find the kernels and copies of a trace that are collectives, link them to the host calls that launched
them, and make their rows, with launch, unit, group and sequence.

A kernel's row has the exact start, end and stream of its event. A collective of several copies has one row
from the first start to the last end, on the stream of the first copy.

A kernel has the correlation of its call; on its thread, the call is nested in ``record_param_comms``
(which carries the metadata), in an operator and in a range. ``External id`` identifies the operator
directly, but old traces repeat the correlation there: it is used only if the times allow it. A collective
run by copy engines consists of copies; if it also has a kernel, the copies belong to the kernel's
collective. For a single rank, NCCL copies within the device.

Torch's symmetric memory has operators that copy between devices, with barrier kernels before and after
(``symm_mem::_low_contention_all_gather``, ``fused_all_gather_matmul``). The copies are the collective; each
barrier is a row of its own.

The kernels of a CUDA graph all have the correlation of ``cudaGraphLaunch``, and no operator describes them:
what their names say is all that is known.

The sends and receives of a batch (``batch_isend_irecv``) are one kernel, launched after their calls inside
``nccl:coalesced``. Each of them is a row of its own, with the times of the kernel.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.collectors.read.kineto.annotations import (
    IntervalIndex,
    RangeSpan,
    find_rows,
    find_units,
    get_collective_key,
)
from zprof.collectors.read.kineto.collectives import CollectiveRow, parse_collective_kind, parse_reduced_type
from zprof.collectors.read.kineto.device.metadata import (
    LaunchDescription,
    describe_arguments,
    describe_operator,
    is_collective_operator,
    is_nccl_annotation,
    merge_descriptions,
)
from zprof.collectors.read.kineto.process_groups import GroupResolver
from zprof.collectors.read.kineto.trace import ABSENT, Int64s, Trace, TraceProcessGroup
from zprof.model.collectives import CollectiveKind
from zprof.model.communication_kernels import identify_kernel, is_collective_kernel
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.run.ranges import RangeVerb

_POINT_TO_POINT = (CollectiveKind.SEND, CollectiveKind.RECV)
#: Method of rows whose sequence comes from the engine's own launch range.
BY_RANGE = "nccl_range"
_RECORD = "record_param_comms"
_BATCH = "nccl:coalesced"
_CALL_CATEGORIES = ("_runtime", "_driver")
NO_ROW = -1
#: Sources of the description; "_order" is appended if collectives are numbered by launch order only.
BY_METADATA, BY_OPERATOR, BY_NAME = "nccl", "operator", "kernel_name"
BY_COPIES = "copies"
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
_PEER_COPY_WORDS = ("PtoP", "PeerToPeer")
_DEVICE_COPY_WORDS = ("DtoD", "DeviceToDevice", *_PEER_COPY_WORDS)


class DeviceCollective(Struct, frozen=True, kw_only=True):
    """A collective on the device: its trace rows by start, its description, and the source of the
    description.
    """

    rows: tuple[int, ...]
    calls: tuple[int, ...]
    description: LaunchDescription
    method: str


class LaunchContext(Struct, frozen=True, kw_only=True):
    """Annotations around a launch.

    ``group`` and ``sequence`` come from a launch range that encloses only this collective.
    """

    unit: str | None = None
    group: str | None = None
    sequence: int | None = None


def find_launch_contexts(
    trace: Trace, collectives: Sequence[DeviceCollective], spans: Sequence[RangeSpan]
) -> list[LaunchContext]:
    """Return the annotations around each collective's launch."""
    calls = np.array(
        [collective.calls[0] if collective.calls else -1 for collective in collectives], np.int64
    )
    threads = np.where(calls >= 0, trace.thread[calls], ABSENT) if len(calls) else calls
    times = np.where(calls >= 0, trace.start_ns[calls], ABSENT) if len(calls) else calls
    units = find_units(trace, threads, times)
    launches = {
        span.row: span
        for span in spans
        if span.range.verb is RangeVerb.LAUNCH and get_collective_key(span.range) is not None
    }
    rows = IntervalIndex(trace, np.array(sorted(launches), dtype=np.int64)).find_innermost(threads, times)
    launch_ranges = [launches.get(row) for row in rows.tolist()]
    counts = Counter(id(span) for span in launch_ranges if span is not None)
    return [
        _make_context(unit, span if span is not None and counts[id(span)] == 1 else None)
        for unit, span in zip(units, launch_ranges, strict=True)
    ]


def _make_context(unit: str | None, span: RangeSpan | None) -> LaunchContext:
    if span is None:
        return LaunchContext(unit=unit)
    return LaunchContext(unit=span.range.unit or unit, group=span.range.group, sequence=span.range.sequence)


def find_device_collectives(
    trace: Trace, spans: Sequence[RangeSpan]
) -> list[tuple[DeviceCollective, LaunchContext]]:
    """Return all kernels and copies that are collectives, in the host's launch order."""
    host = HostLaunches(trace)
    links = host.find_links(find_kernel_rows(trace))
    collectives = [*find_kernel_collectives(trace, links), *find_copy_collectives(trace, host, links)]
    collectives = _sort_by_launch(trace, collectives)
    return list(zip(collectives, find_launch_contexts(trace, collectives, spans), strict=True))


def list_described_groups(
    collectives: Iterable[tuple[DeviceCollective, LaunchContext]],
) -> list[TraceProcessGroup]:
    """Return the distinct groups whose ranks are given by the collectives."""
    descriptions = (collective.description for collective, _ in collectives)
    groups = dict.fromkeys((d.group or "", d.description, d.ranks) for d in descriptions if d.ranks)
    return [
        TraceProcessGroup(name=name, description=description, ranks=tuple(sorted(ranks)))
        for name, description, ranks in groups
    ]


def _sort_by_launch(trace: Trace, collectives: Sequence[DeviceCollective]) -> list[DeviceCollective]:
    """Sort by launch: all ranks of a group launch its collectives in the same order, regardless of stream.

    Kernels of different streams may start in a different order on each rank. A stream runs its work in launch
    order, so a collective without a launch in the trace is placed directly before the next collective on its
    stream with a known launch, else directly after the last one. Streams without any known launch were filled
    before the window: they come first, one after the other.
    """
    start = np.array([trace.start_ns[collective.rows[0]] for collective in collectives], dtype=np.int64)
    stream = np.array([_get_stream(trace, collective.rows[0]) for collective in collectives], dtype=np.int64)
    launch = np.array(
        [
            min((int(trace.start_ns[call]) for call in collective.calls), default=ABSENT)
            for collective in collectives
        ],
        dtype=np.int64,
    )
    order = np.lexsort((start, stream))
    nearest_launch, side = _find_neighbouring_launches(launch[order], stream[order])
    sorted_rows = np.lexsort((start[order], stream[order], side, nearest_launch))
    return [collectives[row] for row in order[sorted_rows].tolist()]


def _find_neighbouring_launches(launch: Int64s, stream: Int64s) -> tuple[Int64s, Int64s]:
    """Return the launch by which to sort each row (rows ordered by stream and start), and the side of it."""
    rows = np.arange(len(launch))
    known = launch != ABSENT
    following = np.minimum.accumulate(np.where(known, rows, len(rows))[::-1])[::-1]
    previous = np.maximum.accumulate(np.where(known, rows, -1))
    has_following = (following < len(rows)) & (stream[np.minimum(following, len(rows) - 1)] == stream)
    has_previous = (previous >= 0) & (stream[previous] == stream)
    nearest = np.where(has_following, following, np.where(has_previous, previous, rows))
    side = np.where(known, 0, np.where(has_following, -1, 1))
    return launch[nearest], side.astype(np.int64)


def make_device_rows(
    trace: Trace, collectives: Iterable[tuple[DeviceCollective, LaunchContext]], groups: GroupResolver
) -> tuple[list[CollectiveRow], list[Gap]]:
    """Make a row for each collective, by launch, and gaps for unknown facts."""
    ordinals: dict[tuple[str, object], int] = defaultdict(int)
    rows: list[CollectiveRow] = []
    in_graphs = 0
    for collective, context in collectives:
        description = collective.description
        group, size = _find_group(trace, collective, context, groups)
        full_bytes = (description.elements or 0) * (description.element_bytes or 0)
        stream = _get_stream(trace, collective.rows[0])
        row = CollectiveRow(
            kind=str(description.kind or CollectiveKind.OTHER),
            group=group,
            group_size=size,
            sequence=0,
            dtype=description.dtype or "unknown",
            bytes=max(0, full_bytes),
            start_ns=int(trace.start_ns[collective.rows[0]]),
            end_ns=max(_get_end_ns(trace, row) for row in collective.rows),
            launch_start_ns=min((int(trace.start_ns[call]) for call in collective.calls), default=None),
            launch_end_ns=max((_get_end_ns(trace, call) for call in collective.calls), default=None),
            unit=context.unit,
            stream=None if stream == ABSENT else stream,
            peer_rank=description.peer,
            method=collective.method,
        )
        key = row.group, (row.kind, row.peer_rank) if row.kind in _POINT_TO_POINT else None
        rows.append(_add_sequence(row, collective, context, ordinals[key]))
        ordinals[key] += 1
        in_graphs += collective.method == BY_NAME and _is_in_graph(trace, collective)
    return rows, _list_gaps(rows, in_graphs) if rows else _list_missing_device_work(trace)


def _is_in_graph(trace: Trace, collective: DeviceCollective) -> bool:
    """Return True if a collective was launched as part of a graph."""
    return any(trace.name[call].startswith(_GRAPH_LAUNCHES) for call in collective.calls)


def _list_gaps(rows: Sequence[CollectiveRow], in_graphs: int) -> list[Gap]:
    """Return gaps for unknown metadata, groups, sizes and launches.

    Args:
        rows: The collectives.
        in_graphs: How many of the rows have no metadata because a graph launched them.
    """
    described = [row for row in rows if not row.method.startswith(BY_NAME)]
    counts = {
        "collectives_in_graphs": in_graphs,
        "collectives_without_metadata": len(rows) - len(described) - in_graphs,
        "collectives_without_ranks": sum(row.group.startswith(("pg:", "stream:")) for row in described),
        "collectives_without_size": sum(
            not row.bytes and row.kind != CollectiveKind.BARRIER for row in described
        ),
        "collectives_without_launch": sum(row.launch_start_ns is None for row in rows),
    }
    return [make_gap(key, count=count, collectives=len(rows)) for key, count in counts.items() if count]


def _list_missing_device_work(trace: Trace) -> list[Gap]:
    """Return a gap if the host launched collectives; the trace has no device work for any of them."""
    # The collectives that the host launched, excluding single-rank groups.
    records = find_rows(trace, ("cpu_op",), _RECORD.__eq__).tolist()
    parsed = [describe_arguments(trace.arguments[row]) for row in records if row in trace.arguments]
    descriptions = [entry for entry in parsed if entry is not None]
    if descriptions:
        calls = sum(entry.group_size != 1 and len(entry.ranks) != 1 for entry in descriptions)
    else:
        calls = len(find_rows(trace, ("user_annotation", "cpu_op"), is_nccl_annotation))
    if not calls:
        return []
    has_device_work = trace.category.where(lambda name: name in ("kernel", "gpu_memcpy")).any()
    key = "no_kernel_of_collectives" if has_device_work else "no_gpu_work_of_collectives"
    return [make_gap(key, calls=calls)]


def _add_sequence(
    row: CollectiveRow, collective: DeviceCollective, context: LaunchContext, ordinal: int
) -> CollectiveRow:
    """Return the row with the recorded sequence, else with the order within the group.

    Sends and receives are numbered per peer: torch counts them per process, so the two sides would differ.
    """
    is_point_to_point = row.kind in _POINT_TO_POINT
    if collective.description.sequence is not None and not is_point_to_point:
        return replace(row, sequence=collective.description.sequence)
    if context.sequence is not None and not is_point_to_point:
        return replace(row, sequence=context.sequence, method=BY_RANGE)
    return replace(row, sequence=ordinal, method=f"{collective.method}_order")


def _find_group(
    trace: Trace, collective: DeviceCollective, context: LaunchContext, groups: GroupResolver
) -> tuple[str, int]:
    """Return the group's name and size: from its ranks, its name, the launch range, or as the only group."""
    description = collective.description
    name = description.group
    ranks = description.ranks or (groups.get_ranks(name) if name is not None else ())
    if ranks:
        return groups.get_display_name(name or "", ranks), len(ranks)
    if name is not None:
        return f"pg:{name}", description.group_size or 0
    if context.group is not None:
        return groups.resolve(context.group)
    single_group = groups.get_single_group() if collective.method != BY_NAME else None
    stream = _get_stream(trace, collective.rows[0])
    return single_group or (f"stream:{'unknown' if stream == ABSENT else stream}", 0)


def _get_stream(trace: Trace, row: int) -> int:
    return int(trace.stream[row])


def _get_end_ns(trace: Trace, row: int) -> int:
    return int(trace.start_ns[row] + trace.duration_ns[row])


class LaunchLinks(Struct, frozen=True, kw_only=True):
    """Host rows for each row of device work, or ``NO_ROW``.

    ``call``: the launch. ``record``: the ``record_param_comms``. ``operator``, ``annotation``: the innermost
    ones that enclose the launch.
    """

    rows: Int64s
    call: Int64s
    record: Int64s
    operator: Int64s
    annotation: Int64s


class HostLaunches:
    """Index the host rows of a trace that launch or describe device work."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._calls = np.flatnonzero(
            trace.category.where(lambda category: category.endswith(_CALL_CATEGORIES))
        )
        self._records = find_rows(trace, ("cpu_op", "user_annotation"), _RECORD.__eq__)
        operators = find_rows(trace, ("cpu_op",), is_collective_operator)
        annotations = find_rows(trace, ("user_annotation", "cpu_op"), is_nccl_annotation)
        self._enclosing_indexes = [
            IntervalIndex(trace, rows) for rows in (self._records, operators, annotations)
        ]

    def find_links(self, rows: Int64s) -> LaunchLinks:
        """Return the host rows that launched or describe the device work in ``rows``."""
        trace = self._trace
        call = _match_numbers(trace.correlation[rows], self._calls, trace.correlation[self._calls])
        enclosing, operator, annotation = (
            self._find_enclosing(found, call) for found in self._enclosing_indexes
        )
        by_id = self._find_by_external_id(rows, call)
        record = np.where(by_id >= 0, by_id, enclosing)
        return LaunchLinks(rows=rows, call=call, record=record, operator=operator, annotation=annotation)

    def _find_enclosing(self, intervals: IntervalIndex, call: Int64s) -> Int64s:
        known = call >= 0
        found = np.full(len(call), NO_ROW)
        calls = call[known]
        found[known] = intervals.find_innermost(self._trace.thread[calls], self._trace.start_ns[calls])
        return found

    def _find_by_external_id(self, rows: Int64s, call: Int64s) -> Int64s:
        trace = self._trace
        record = _match_numbers(trace.external_id[rows], self._records, trace.external_id[self._records])
        starts = trace.start_ns[record]
        ends = starts + trace.duration_ns[record]
        within = (trace.start_ns[call] >= starts) & (trace.start_ns[call] <= ends)
        unlaunched = (trace.external_id[rows] != trace.correlation[rows]) & (trace.start_ns[rows] >= starts)
        return np.where(np.where(call >= 0, within, unlaunched), record, NO_ROW)


def find_kernel_rows(trace: Trace) -> Int64s:
    """Return the kernels that are collectives according to their name or metadata, by start."""
    named = find_rows(trace, ("kernel",), is_collective_kernel)
    from_metadata = [
        row
        for row, arguments in trace.arguments.items()
        if arguments.collective is not None
        and trace.category[row] == "kernel"
        and parse_collective_kind(arguments.collective) is not None
    ]
    found = np.union1d(named, np.array(from_metadata, dtype=np.int64))
    return found[np.argsort(trace.start_ns[found], kind="stable")]


def _match_numbers(targets: Int64s, rows: Int64s, numbers: Int64s) -> Int64s:
    """Return the first of ``rows`` with each target number above 0, else ``NO_ROW``."""
    distinct_targets = np.unique(targets)
    index = np.minimum(np.searchsorted(distinct_targets, numbers), max(len(distinct_targets) - 1, 0))
    is_target = (
        distinct_targets[index] == numbers
        if len(distinct_targets)
        else np.zeros(len(numbers), dtype=np.bool_)
    )
    rows, numbers = rows[is_target], numbers[is_target]
    order = np.argsort(numbers, kind="stable")
    rows, numbers = rows[order], numbers[order]
    if not len(rows):
        return np.full(len(targets), NO_ROW)
    index = np.minimum(np.searchsorted(numbers, targets), len(rows) - 1)
    return np.where((numbers[index] == targets) & (targets > 0), rows[index], NO_ROW)


def find_kernel_collectives(trace: Trace, links: LaunchLinks) -> list[DeviceCollective]:
    """Return the collective of each kernel, and all messages of a kernel that is a batch of messages."""
    describer = LaunchDescriber(trace, links)
    batches = find_batches(trace, links)
    found = []
    for index, row in enumerate(links.rows.tolist()):
        descriptions = batches.get(index) or [describer.describe(index)]
        found += [_make_kernel_collective(trace, links, index, row, *described) for described in descriptions]
    return found


def find_batches(trace: Trace, links: LaunchLinks) -> dict[int, list[tuple[LaunchDescription | None, str]]]:
    """Return the messages of each kernel that is a batch, by position in ``links``, with their source.

    They are the sends and receives that the thread called since the batch before, and that launched nothing.
    """
    ends = find_rows(trace, ("user_annotation", "cpu_op"), _BATCH.__eq__)
    if not len(ends):
        return {}
    kernels = {int(row): index for index, row in enumerate(links.annotation) if links.record[index] < 0}
    launched = set(links.record.tolist())
    records = find_rows(trace, ("cpu_op", "user_annotation"), _RECORD.__eq__)
    events = np.concatenate((records, ends))
    order = np.lexsort((trace.start_ns[events], trace.thread[events]))
    batches: dict[int, list[tuple[LaunchDescription | None, str]]] = {}
    waiting: list[LaunchDescription | None] = []
    thread = ABSENT
    for position in order.tolist():
        row = int(events[position])
        if trace.thread[row] != thread:
            thread, waiting = int(trace.thread[row]), []
        if position < len(records):
            arguments = trace.arguments.get(row)
            if row not in launched and arguments is not None:
                waiting.append(describe_arguments(arguments))
            continue
        is_known = all(entry is not None and entry.kind in _POINT_TO_POINT for entry in waiting)
        if row in kernels and is_known:
            batches[kernels[row]] = [(entry, BY_METADATA) for entry in waiting]
        waiting = []
    return batches


class LaunchDescriber:
    """Describe launches from the arguments of their host rows.

    Equal arguments are one object (see ``reading.rows``), so each kind of operator, and each combination of
    operators, is described once.
    """

    def __init__(self, trace: Trace, links: LaunchLinks) -> None:
        self._trace = trace
        self._links = links
        self._by_operator: dict[tuple[str, int, int], LaunchDescription] = {}
        self._by_operators: dict[tuple[int, ...], LaunchDescription | None] = {}

    def describe(self, index: int) -> tuple[LaunchDescription | None, str]:
        """Return the description from metadata, else from the operators around the launch, and its source."""
        links = self._links
        record = int(links.record[index])
        from_metadata = merge_descriptions(map(self._describe_by_metadata, (int(links.rows[index]), record)))
        operators = [
            self._describe_operator(self._trace.name[row], row)
            for row in (int(links.operator[index]), int(links.annotation[index]))
            if row >= 0
        ]
        if from_metadata is None and _is_barrier(self._trace, int(links.rows[index])):
            return None, BY_NAME
        if from_metadata is not None:
            enclosing = self._merge_operators(operators)
            return from_metadata if enclosing is None else from_metadata.fill_missing(enclosing), BY_METADATA
        if operators and record >= 0:  # written by an old torch: only the input's shape
            operators.append(self._describe_operator("nccl:", record))
        return self._merge_operators(operators), BY_OPERATOR

    def _describe_by_metadata(self, row: int) -> LaunchDescription | None:
        arguments = self._trace.arguments.get(row) if row >= 0 else None
        return describe_arguments(arguments) if arguments is not None else None

    def _describe_operator(self, name: str, row: int) -> LaunchDescription:
        arguments = self._trace.arguments.get(row)
        key = (name, 0, 0) if arguments is None else (name, id(arguments.dims), id(arguments.types))
        if key not in self._by_operator:
            self._by_operator[key] = describe_operator(name, arguments)
        return self._by_operator[key]

    def _merge_operators(self, operators: Sequence[LaunchDescription]) -> LaunchDescription | None:
        key = tuple(map(id, operators))
        if key not in self._by_operators:
            self._by_operators[key] = merge_descriptions(operators)
        return self._by_operators[key]


def _is_barrier(trace: Trace, row: int) -> bool:
    """Return True if the name of a kernel says that it only synchronizes."""
    known = identify_kernel(trace.name[row]) if trace.category[row] == "kernel" else None
    return known is not None and known.kind is CollectiveKind.BARRIER


def _make_kernel_collective(
    trace: Trace, links: LaunchLinks, index: int, row: int, description: LaunchDescription | None, method: str
) -> DeviceCollective:
    if description is None:
        known = identify_kernel(trace.name[row])
        kind = known.kind if known is not None else None
        description, method = LaunchDescription(kind=kind or CollectiveKind.OTHER), BY_NAME
    if description.dtype is None:
        reduced_type = parse_reduced_type(trace.name[row])
        if reduced_type is not None:
            dtype, element_bytes = reduced_type
            description = description.fill_missing(
                LaunchDescription(dtype=dtype, element_bytes=element_bytes)
            )
    call = int(links.call[index])
    return DeviceCollective(
        rows=(row,), calls=(call,) if call >= 0 else (), description=description, method=method
    )


def find_copy_collectives(trace: Trace, host: HostLaunches, kernels: LaunchLinks) -> list[DeviceCollective]:
    """Return the collectives that consist of copies, each with all of its copies."""
    # The copies between and within devices, by start.
    links = host.find_links(
        find_rows(trace, ("gpu_memcpy",), lambda name: any(word in name for word in _DEVICE_COPY_WORDS))
    )
    kernel_owners = {
        owner
        for row, owner in zip(kernels.rows.tolist(), _find_owners(kernels).tolist(), strict=True)
        if owner >= 0 and not _is_barrier(trace, row)
    }
    copies: dict[int, list[int]] = defaultdict(list)
    for index, owner in enumerate(_find_owners(links).tolist()):
        if owner >= 0 and owner not in kernel_owners:
            copies[owner].append(index)
    describer = LaunchDescriber(trace, links)
    found = (
        _make_copy_collective(trace, links, indices, describer.describe(indices[0])[0])
        for indices in copies.values()
    )
    return [collective for collective in found if collective is not None]


def _find_owners(links: LaunchLinks) -> Int64s:
    """Return the host row that each copy or kernel belongs to, or ``NO_ROW``."""
    return np.where(
        links.record >= 0, links.record, np.where(links.operator >= 0, links.operator, links.annotation)
    )


def _make_copy_collective(
    trace: Trace, links: LaunchLinks, indices: list[int], description: LaunchDescription | None
) -> DeviceCollective | None:
    rows = tuple(int(links.rows[index]) for index in indices)
    if description is None:
        return None
    # Copies within a device only rearrange results, except in a group of one rank.
    has_one_rank = description.group_size == 1 or len(description.ranks) == 1
    if not has_one_rank and not any(word in trace.name[row] for row in rows for word in _PEER_COPY_WORDS):
        return None
    moved_bytes = sum(max(0, int(trace.bytes[row])) for row in rows)
    if description.elements is None or description.element_bytes is None:
        description = description.fill_missing(LaunchDescription(elements=moved_bytes, element_bytes=1))
    calls = tuple(int(links.call[index]) for index in indices if links.call[index] >= 0)
    return DeviceCollective(rows=rows, calls=calls, description=description, method=BY_COPIES)
