"""Find the kernels and copies of a trace that are collectives, and link them to the host calls that launched
them.

A kernel has the correlation of its call; on its thread, the call is nested in ``record_param_comms`` (which
carries the metadata), in an operator and in a range. ``External id`` identifies the operator directly, but
old traces repeat the correlation there: it is used only if the times allow it. A collective run by copy
engines consists of copies; if it also has a kernel, the copies belong to the kernel's collective. For a
single rank, NCCL copies within the device.
"""

from collections import defaultdict

import numpy as np
from msgspec import Struct

from zprof.collectors.kineto.annotations import IntervalIndex, find_rows
from zprof.collectors.kineto.collectives import parse_collective_kind, parse_reduced_type
from zprof.collectors.kineto.device.metadata import (
    LaunchDescription,
    describe_arguments,
    describe_operator,
    is_collective_operator,
    is_nccl_annotation,
    merge_descriptions,
)
from zprof.collectors.kineto.trace import Int64s, Trace
from zprof.model.collectives import CollectiveKind
from zprof.model.kernels import identify_kernel, is_collective_kernel

_RECORD = "record_param_comms"
_CALL_CATEGORIES = ("_runtime", "_driver")
NO_ROW = -1
#: Sources of the description; "_order" is appended if collectives are numbered by launch order only.
BY_METADATA, BY_OPERATOR, BY_NAME = "nccl", "operator", "kernel_name"
BY_COPIES = "copies"
_PEER_COPY_WORDS = ("PtoP", "PeerToPeer")
_DEVICE_COPY_WORDS = ("DtoD", "DeviceToDevice", *_PEER_COPY_WORDS)


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


class DeviceCollective(Struct, frozen=True, kw_only=True):
    """A collective on the device: its trace rows by start, its description, and the source of the
    description.
    """

    rows: tuple[int, ...]
    calls: tuple[int, ...]
    description: LaunchDescription
    method: str


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
    """Return the collective of each kernel."""
    return [
        _make_kernel_collective(trace, links, index, int(row))
        for index, row in enumerate(links.rows.tolist())
    ]


def describe_launch(trace: Trace, links: LaunchLinks, index: int) -> tuple[LaunchDescription | None, str]:
    """Return the description from metadata, else from the operators around the launch, and its source."""
    from_metadata = merge_descriptions(
        _describe_by_metadata(trace, row) for row in (int(links.rows[index]), int(links.record[index]))
    )
    enclosing = merge_descriptions(
        _describe_by_operator(trace, int(row[index])) for row in (links.operator, links.annotation)
    )
    if from_metadata is not None:
        return from_metadata if enclosing is None else from_metadata.fill_missing(enclosing), BY_METADATA
    record = int(links.record[index])
    if enclosing is not None and record >= 0:  # written by an old torch: only the input's shape
        enclosing = enclosing.fill_missing(describe_operator("nccl:", trace.arguments.get(record)))
    return enclosing, BY_OPERATOR


def _make_kernel_collective(trace: Trace, links: LaunchLinks, index: int, row: int) -> DeviceCollective:
    description, method = describe_launch(trace, links, index)
    if description is None:
        known = identify_kernel(trace.name[row])
        kind = known.kind if known is not None else None
        description, method = LaunchDescription(kind=kind or CollectiveKind.OTHER), BY_NAME
    if description.dtype is None:
        dtype, element_bytes = parse_reduced_type(trace.name[row]) or (None, None)
        description = description.fill_missing(LaunchDescription(dtype=dtype, element_bytes=element_bytes))
    call = int(links.call[index])
    return DeviceCollective(
        rows=(row,), calls=(call,) if call >= 0 else (), description=description, method=method
    )


def _describe_by_metadata(trace: Trace, row: int) -> LaunchDescription | None:
    arguments = trace.arguments.get(row) if row >= 0 else None
    return describe_arguments(arguments) if arguments is not None else None


def _describe_by_operator(trace: Trace, row: int) -> LaunchDescription | None:
    return describe_operator(trace.name[row], trace.arguments.get(row)) if row >= 0 else None


def find_copy_rows(trace: Trace) -> Int64s:
    """Return the copies between and within devices, by start."""
    return find_rows(trace, ("gpu_memcpy",), lambda name: any(word in name for word in _DEVICE_COPY_WORDS))


def find_copy_collectives(trace: Trace, host: HostLaunches, kernels: LaunchLinks) -> list[DeviceCollective]:
    """Return the collectives that consist of copies, each with all of its copies."""
    links = host.find_links(find_copy_rows(trace))
    kernel_owners = set(_find_owners(kernels).tolist()) - {-1}
    copies: dict[int, list[int]] = defaultdict(list)
    for index, owner in enumerate(_find_owners(links).tolist()):
        if owner >= 0 and owner not in kernel_owners:
            copies[owner].append(index)
    found = (_make_copy_collective(trace, links, indices) for indices in copies.values())
    return [collective for collective in found if collective is not None]


def _find_owners(links: LaunchLinks) -> Int64s:
    """Return the host row that each copy or kernel belongs to, or ``NO_ROW``."""
    return np.where(
        links.record >= 0, links.record, np.where(links.operator >= 0, links.operator, links.annotation)
    )


def _make_copy_collective(trace: Trace, links: LaunchLinks, indices: list[int]) -> DeviceCollective | None:
    description, _ = describe_launch(trace, links, indices[0])
    rows = tuple(int(links.rows[index]) for index in indices)
    if description is None or not _carries_payload(trace, rows, description):
        return None
    moved_bytes = sum(max(0, int(trace.bytes[row])) for row in rows)
    if description.elements is None or description.element_bytes is None:
        description = description.fill_missing(LaunchDescription(elements=moved_bytes, element_bytes=1))
    calls = tuple(int(links.call[index]) for index in indices if links.call[index] >= 0)
    return DeviceCollective(rows=rows, calls=calls, description=description, method=BY_COPIES)


def _carries_payload(trace: Trace, rows: tuple[int, ...], description: LaunchDescription) -> bool:
    """Return True if the copies carry a collective's data: between devices, or in a group of one rank.

    Other copies within a device only rearrange results.
    """
    if description.group_size == 1 or len(description.ranks) == 1:
        return True
    return any(word in trace.name[row] for row in rows for word in _PEER_COPY_WORDS)
