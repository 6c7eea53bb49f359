"""Find the kernels and copies of a trace that are collectives, and join them to the host calls that launched
them.

A kernel has the correlation of its call; the call is on a thread inside ``record_param_comms`` (which carries
the metadata), inside an operator, inside a range. ``External id`` names the operator directly, but old traces
repeat the correlation there: it is used only if the times allow it. A collective run by copy engines consists
of copies; if it has a kernel too, the copies belong to the kernel's collective. For a single rank NCCL copies
within the device.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLinks:
    """Rows of the host for each row of device work, or ``NO_ROW``.

    ``call``: the launch. ``record``: the ``record_param_comms``. ``operator``, ``annotation``: the innermost
    ones around the launch.
    """

    rows: Int64s
    call: Int64s
    record: Int64s
    operator: Int64s
    annotation: Int64s


class HostLaunches:
    """Host rows of a trace that launch or describe device work."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._calls = np.flatnonzero(
            trace.category.where(lambda category: category.endswith(_CALL_CATEGORIES))
        )
        self._records = find_rows(trace, ("cpu_op", "user_annotation"), _RECORD.__eq__)
        operators = find_rows(trace, ("cpu_op",), is_collective_operator)
        annotations = find_rows(trace, ("user_annotation", "cpu_op"), is_nccl_annotation)
        self._around = [IntervalIndex(trace, rows) for rows in (self._records, operators, annotations)]

    def links(self, rows: Int64s) -> LaunchLinks:
        """Return the host rows that the work in ``rows`` comes from."""
        trace = self._trace
        call = _match_numbers(trace.correlation[rows], self._calls, trace.correlation[self._calls])
        around, operator, annotation = (self._enclosing(found, call) for found in self._around)
        by_id = self._by_external_id(rows, call)
        record = np.where(by_id >= 0, by_id, around)
        return LaunchLinks(rows=rows, call=call, record=record, operator=operator, annotation=annotation)

    def _enclosing(self, intervals: IntervalIndex, call: Int64s) -> Int64s:
        known = call >= 0
        found = np.full(len(call), NO_ROW)
        calls = call[known]
        found[known] = intervals.find_innermost(self._trace.thread[calls], self._trace.start_ns[calls])
        return found

    def _by_external_id(self, rows: Int64s, call: Int64s) -> Int64s:
        trace = self._trace
        record = _match_numbers(trace.external_id[rows], self._records, trace.external_id[self._records])
        begun = trace.start_ns[record]
        ended = begun + trace.duration_ns[record]
        within = (trace.start_ns[call] >= begun) & (trace.start_ns[call] <= ended)
        unlaunched = (trace.external_id[rows] != trace.correlation[rows]) & (trace.start_ns[rows] >= begun)
        return np.where(np.where(call >= 0, within, unlaunched), record, NO_ROW)


def _match_numbers(wanted: Int64s, rows: Int64s, numbers: Int64s) -> Int64s:
    """Return, for each wanted number above 0, the first of ``rows`` that has it, else ``NO_ROW``."""
    asked = np.unique(wanted)
    place = np.minimum(np.searchsorted(asked, numbers), max(len(asked) - 1, 0))
    asked_for = asked[place] == numbers if len(asked) else np.zeros(len(numbers), dtype=np.bool_)
    rows, numbers = rows[asked_for], numbers[asked_for]
    order = np.argsort(numbers, kind="stable")
    rows, numbers = rows[order], numbers[order]
    if not len(rows):
        return np.full(len(wanted), NO_ROW)
    place = np.minimum(np.searchsorted(numbers, wanted), len(rows) - 1)
    return np.where((numbers[place] == wanted) & (wanted > 0), rows[place], NO_ROW)


#: Sources of the description; "_order" is appended if collectives are numbered by order of launch only.
BY_METADATA, BY_OPERATOR, BY_NAME = "nccl", "operator", "kernel_name"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCollective:
    """A collective on the device: its rows of the trace by start, its description, and the source of that."""

    rows: tuple[int, ...]
    calls: tuple[int, ...]
    described: LaunchDescription
    rung: str


def find_kernel_rows(trace: Trace) -> Int64s:
    """Return the kernels that are collectives by their name or their metadata, by start."""
    named = find_rows(trace, ("kernel",), is_collective_kernel)
    stated = [
        row
        for row, arguments in trace.arguments.items()
        if arguments.collective is not None
        and trace.category[row] == "kernel"
        and parse_collective_kind(arguments.collective) is not None
    ]
    found = np.union1d(named, np.array(stated, dtype=np.int64))
    return found[np.argsort(trace.start_ns[found], kind="stable")]


def find_kernel_collectives(trace: Trace, links: LaunchLinks) -> list[DeviceCollective]:
    """Return the collective of each kernel."""
    return [
        _make_kernel_collective(trace, links, index, int(row))
        for index, row in enumerate(links.rows.tolist())
    ]


def describe_launch(trace: Trace, links: LaunchLinks, index: int) -> tuple[LaunchDescription | None, str]:
    """Return the description by metadata, else by the operators around the launch, and its source."""
    stated = merge_descriptions(
        _describe_by_metadata(trace, row) for row in (int(links.rows[index]), int(links.record[index]))
    )
    around = merge_descriptions(
        _describe_by_operator(trace, int(row[index])) for row in (links.operator, links.annotation)
    )
    if stated is not None:
        return stated if around is None else stated.completed(around), BY_METADATA
    record = int(links.record[index])
    if around is not None and record >= 0:  # from an old torch: it has the input's shape only
        around = around.completed(describe_operator("nccl:", trace.arguments.get(record)))
    return around, BY_OPERATOR


def _make_kernel_collective(trace: Trace, links: LaunchLinks, index: int, row: int) -> DeviceCollective:
    description, rung = describe_launch(trace, links, index)
    if description is None:
        known = identify_kernel(trace.name[row])
        kind = known.kind if known is not None else None
        description, rung = LaunchDescription(kind=kind or CollectiveKind.OTHER), BY_NAME
    if description.dtype is None:
        dtype, element_bytes = parse_reduced_type(trace.name[row]) or (None, None)
        description = description.completed(LaunchDescription(dtype=dtype, element_bytes=element_bytes))
    call = int(links.call[index])
    return DeviceCollective(rows=(row,), calls=(call,) if call >= 0 else (), described=description, rung=rung)


def _describe_by_metadata(trace: Trace, row: int) -> LaunchDescription | None:
    arguments = trace.arguments.get(row) if row >= 0 else None
    return describe_arguments(arguments) if arguments is not None else None


def _describe_by_operator(trace: Trace, row: int) -> LaunchDescription | None:
    return describe_operator(trace.name[row], trace.arguments.get(row)) if row >= 0 else None


BY_COPIES = "copies"
_BETWEEN = ("PtoP", "PeerToPeer")
_WITHIN = ("DtoD", "DeviceToDevice", *_BETWEEN)


def find_copy_rows(trace: Trace) -> Int64s:
    """Return the copies between and within devices, by start."""
    return find_rows(trace, ("gpu_memcpy",), lambda name: any(word in name for word in _WITHIN))


def find_copy_collectives(trace: Trace, host: HostLaunches, kernels: LaunchLinks) -> list[DeviceCollective]:
    """Return the collectives that consist of copies, each with all of its copies."""
    links = host.links(find_copy_rows(trace))
    taken = set(_find_owners(kernels).tolist()) - {-1}
    copies: dict[int, list[int]] = defaultdict(list)
    for index, owner in enumerate(_find_owners(links).tolist()):
        if owner >= 0 and owner not in taken:
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
    if description is None or not _carry_the_data(trace, rows, description):
        return None
    moved = sum(max(0, int(trace.bytes[row])) for row in rows)
    if description.elements is None or description.element_bytes is None:
        description = description.completed(LaunchDescription(elements=moved, element_bytes=1))
    calls = tuple(int(links.call[index]) for index in indices if links.call[index] >= 0)
    return DeviceCollective(rows=rows, calls=calls, described=description, rung=BY_COPIES)


def _carry_the_data(trace: Trace, rows: tuple[int, ...], description: LaunchDescription) -> bool:
    """Return whether the copies carry a collective's data: between devices, or in a group of one rank.

    Other copies within a device only rearrange results.
    """
    if description.group_size == 1 or len(description.ranks) == 1:
        return True
    return any(word in trace.name[row] for row in rows for word in _BETWEEN)
