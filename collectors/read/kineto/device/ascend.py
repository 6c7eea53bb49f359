"""Read the lanes of an Ascend trace (``trace_view.json`` of torch_npu, ``msprof_*.json``) as device work.

The file has the Trace Event Format, but not Kineto's categories. The process "Ascend Hardware" has one thread
per stream, whose events state the type of their task. "Communication" (older: "HCCL") has for each
communicator a thread "Group <name> Communication", with one event per operation
(``hcom_allReduce__275_237_1``), and threads "Plane <n>" with their tasks. "Overlap Analysis" repeats both as
sums. Compute and copies come from the streams, collectives from the communicators; all other events are left
out.

Sources: ``analysis/csrc/application/timeline/hccl_assembler.cpp`` and its test in Ascend/msprof; the types of
tasks that compute or copy: ``trace_event_bean.py`` of msprof_analyze in Ascend/mstt.
"""

import re
from collections import Counter

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from zprof.collectors.read.kineto.collectives import parse_collective_kind
from zprof.collectors.read.kineto.trace import (
    TASK_PREFIX,
    Arguments,
    Int64s,
    Mask,
    TextColumn,
    Trace,
    TraceHeader,
    TraceProcessGroup,
    int64_or_none,
)
from zprof.model.collectives import CollectiveKind
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

HARDWARE_PROCESS = "Ascend Hardware"
_COMMUNICATION_PROCESSES = ("Communication", "HCCL")
_COMMUNICATION_LANE = re.compile(r"(?:Group (.{1,200}) )?Communication")
#: ``hcom_<kind>__<end of the communicator's name>_<number>_<iteration>``; ranks of a communicator give equal
#: operations equal numbers (Ascend/msinsight, FAQ: a send and its receive).
_OPERATION = re.compile(r"hcom_([A-Za-z]{1,40})_(?:_\d{1,9}_(\d{1,9})_\d{1,9}$)?.*", re.ASCII)
_COMPUTE_TASKS = frozenset(
    {
        "AI_CORE",
        "AI_CPU",
        "AI_VECTOR_CORE",
        "AIV_SQE",
        "FFTS_PLUS",
        "MIX_AIC",
        "MIX_AIV",
        "KERNEL_AICORE",
        "KERNEL_AICPU",
        "KERNEL_AIVEC",
        "KERNEL_MIX_AIC",
        "KERNEL_MIX_AIV",
    }
)
_COPY_TASKS = frozenset({"MEMCPY_ASYNC", "PCIE_DMA_SQE", "SDMA", "SDMA_SQE"})
#: Tasks that wait, signal or mark, and do no work.
_CONTROL_TASK = re.compile(
    r"(?:EVENT|NOTIFY)_(?:WAIT|RECORD|RESET)\w*|(?:CAPTURE_|PLACE_HOLDER|WRITE_VALUE|PROFILER|MODEL_)\w*|.*_WAIT\w*"
)
_MAX_TASK_TYPES, _MAX_RANKS = 4, 1 << 16
_COMPUTE, _COPY, _CONTROL = "kernel", "gpu_memcpy", "npu_control"
#: A process id of the device is ``pid << 10 | sort index << 5 | device``.
_DEVICE_MASK = 31
#: Kinds whose ``count`` is the whole message. For others it may be that of a shard.
_COUNTED = frozenset(
    {CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.SEND, CollectiveKind.RECV}
)


def is_ascend(trace: Trace) -> bool:
    """Return True if a trace has the lanes of an Ascend device."""
    return HARDWARE_PROCESS in trace.process_names.values()


def read_ascend_lanes(trace: Trace) -> tuple[Trace, list[Gap]]:
    """Return the trace with Kineto's categories for device work, and gaps.

    Other traces, and traces without a task that computes, are returned as they are.
    """
    if not is_ascend(trace):
        return trace, []
    hardware = _in_processes(trace, (HARDWARE_PROCESS,))
    tasks = hardware & ~trace.name.where(lambda name: _OPERATION.fullmatch(name) is not None)
    compute = tasks & trace.category.where(lambda category: _get_task(category) in _COMPUTE_TASKS)
    if not compute.any():
        return trace, []
    copies = tasks & trace.category.where(lambda category: _get_task(category) in _COPY_TASKS)
    groups = _find_operations(trace)
    operations = np.zeros(len(trace), dtype=np.bool_)
    operations[list(groups)] = True
    category = _relabel(trace, compute | operations, copies)
    device = compute | copies | operations
    # Threads of communicators have small numbers, like streams: they follow the streams.
    first_lane = int(trace.thread[hardware].max(initial=0)) + 1
    stream = np.where(operations, first_lane + trace.thread, trace.thread)
    labelled = replace(
        trace,
        category=category,
        stream=np.where(device, stream, trace.stream),
        process=np.where(device, trace.process & _DEVICE_MASK, trace.process),
        arguments={**trace.arguments} | _describe_operations(trace, groups),
        header=_complete_header(trace, groups),
        # that events state no category is the format
        report=replace(trace.report, without_name=int(trace.name.where(lambda name: not name).sum())),
    )
    return labelled, _list_unknown_tasks(trace, tasks)


def _in_processes(trace: Trace, names: tuple[str, ...]) -> Mask:
    processes = [process for process, name in trace.process_names.items() if name in names]
    return np.isin(trace.process, np.array(processes, dtype=np.int64))


def _get_task(category: str) -> str:
    return category.removeprefix(TASK_PREFIX) if category.startswith(TASK_PREFIX) else ""


def _find_operations(trace: Trace) -> dict[int, str | None]:
    """Return the rows of HCCL operations, each with the name of its communicator."""
    groups: dict[int, str | None] = {}
    rows = np.flatnonzero(_in_processes(trace, _COMMUNICATION_PROCESSES))
    for row in rows.tolist():
        lane = trace.lane_names.get((int(trace.process[row]), int(trace.thread[row])), "")
        match = _COMMUNICATION_LANE.fullmatch(lane)
        if match is not None:
            groups[row] = match[1]
    return groups


def _describe_operations(trace: Trace, groups: dict[int, str | None]) -> dict[int, Arguments]:
    """Return arguments in Kineto's terms: kind, communicator and, if it is certain, size."""
    described = {}
    matches = {row: _OPERATION.fullmatch(trace.name[row]) for row in groups}
    numbers = {row: int(match[2]) for row, match in matches.items() if match is not None and match[2]}
    uses = Counter((groups[row], number) for row, number in numbers.items())
    for row, group in groups.items():
        match = matches[row]
        given = trace.arguments.get(row, Arguments())
        kind = parse_collective_kind(match[1]) if match is not None else CollectiveKind.OTHER
        described[row] = Arguments(
            collective=match[1] if match is not None else "other",
            group=group,
            group_size=given.rank_size,
            sequence=numbers[row] if row in numbers and uses[group, numbers[row]] == 1 else None,
            elements_in=int64_or_none(given.count) if kind in _COUNTED else None,
            dtype=given.data_type,
        )
    return described


def _complete_header(trace: Trace, groups: dict[int, str | None]) -> TraceHeader:
    """Return the header with the world size and the communicators of all ranks.

    The largest communicator is taken to span all ranks, as torch's default group does. The ranks of smaller
    ones are not in the file.
    """
    sizes = {
        group: size
        for row, group in groups.items()
        if (size := int64_or_none(trace.arguments.get(row, Arguments()).rank_size)) is not None
        and 0 < size <= _MAX_RANKS
    }
    world_size = trace.header.world_size or max(sizes.values(), default=None)
    found = tuple(
        TraceProcessGroup(name=group, description="", ranks=tuple(range(size)))
        for group, size in sizes.items()
        if group is not None and size == world_size
    )
    return replace(trace.header, world_size=world_size, groups=trace.header.groups or found)


def _relabel(trace: Trace, compute: Mask, copies: Mask) -> TextColumn:
    """Return the categories: compute, copies, and tasks that are neither."""
    texts = [_CONTROL if text.startswith(TASK_PREFIX) else text for text in trace.category.texts]
    codes = trace.category.codes.copy()
    for name, rows in ((_COMPUTE, compute), (_COPY, copies)):
        codes[rows] = len(texts)
        texts.append(name)
    return _merge_texts(codes, texts)


def _merge_texts(codes: npt.NDArray[np.int32], texts: list[str]) -> TextColumn:
    """Return the column with each text once."""
    distinct = list(dict.fromkeys(texts))
    new_code = np.array([distinct.index(text) for text in texts], dtype=np.int32)
    return TextColumn(codes=new_code[codes], texts=tuple(distinct))


def _list_unknown_tasks(trace: Trace, tasks: Mask) -> list[Gap]:
    """Return a gap for tasks with a duration whose type says neither work nor waiting."""
    rows: Int64s = np.flatnonzero(tasks & (trace.duration_ns > 0))
    codes, counts = np.unique(trace.category.codes[rows], return_counts=True)
    unknown = {
        _get_task(trace.category.texts[code]) or "(no type)": int(count)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
        if not _is_known_task(_get_task(trace.category.texts[code]))
    }
    if not unknown:
        return []
    named = sorted(unknown, key=lambda task: -unknown[task])[:_MAX_TASK_TYPES]
    return [make_gap("ascend_tasks_unknown", count=sum(unknown.values()), tasks=named)]


def _is_known_task(task: str) -> bool:
    return task in _COMPUTE_TASKS or task in _COPY_TASKS or _CONTROL_TASK.fullmatch(task) is not None
