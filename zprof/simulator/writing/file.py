"""Write what surrounds the events in a trace file: head, process names, profiler marks, padding, tail."""

import json
from collections.abc import Sequence

from zprof.simulator.engine.schedule import ORIGIN_NS, Schedule
from zprof.simulator.plan import Plan, Stamps, Vendor
from zprof.simulator.writing.events import EventSheet, Layout
from zprof.simulator.writing.names import list_group_ranks

_WINDOW_NS = 7_889_238 * 10**9


def profiler_base_ns() -> int:
    """Return the start of the profiler's current window of about three months."""
    return ORIGIN_NS // _WINDOW_NS * _WINDOW_NS


def format_head(schedule: Schedule, rank: int, properties: str, extras: Sequence[str]) -> str:
    """Return everything before the events."""
    keys = [
        '"schemaVersion": 1',
        f'"deviceProperties": {properties}',
        *extras,
        f'"distributedInfo": {json.dumps(_describe_groups(schedule, rank))}',
        '"record_shapes": 1',
        f'"trace_id": "{schedule.plan.seed & 0xFFFFFFFF:08X}{rank:08X}"',
        f'"host_name": "node-{rank // max(1, schedule.plan.ranks_per_host)}"',
    ]
    return _fit_layout(schedule.plan, "{\n  " + ",\n  ".join(keys) + ',\n  "traceEvents": [\n')


def format_tail(plan: Plan, rank: int) -> str:
    """Return everything after the events."""
    keys = [f'"traceName": "/tmp/traces/rank{rank}.json"', '"displayTimeUnit": "ms"']
    if plan.recording.stamps is Stamps.BASED:
        keys.append(f'"baseTimeNanoseconds": {profiler_base_ns()}')
    return _fit_layout(plan, "\n  ],\n  " + ",\n  ".join(keys) + "\n}")


def add_frame(
    plan: Plan, sheet: EventSheet, host: int, device: int | None, rows: Sequence[tuple[int, str]]
) -> None:
    """Add names of processes and threads, and the profiler's own marks."""
    layout = Layout(indented=plan.recording.indented)
    opened = sheet.stamp(sheet.opening.opens_ns)
    texts = [
        *_format_process(layout, str(host), "CPU", host, opened),
        *(
            _format_process(layout, str(device), f"GPU {device}", 5_000_000 + device, opened)
            if device is not None
            else ()
        ),
    ]
    for row, name in rows:
        pid = str(host if device is None or name.startswith("thread") else device)
        texts.append(layout.named("thread_name", pid, str(row), "name", f'"{name}"') % opened)
        texts.append(layout.named("thread_sort_index", pid, str(row), "sort_index", str(row)) % opened)
    sheet.always(texts)
    sheet.always([layout.fitted(text) for text in _format_marks(sheet)])


def _format_process(layout: Layout, pid: str, label: str, order: int, opened: str) -> list[str]:
    return [
        layout.named("process_name", pid, "0", "name", '"python3"') % opened,
        layout.named("process_labels", pid, "0", "labels", f'"{label}"') % opened,
        layout.named("process_sort_index", pid, "0", "sort_index", str(order)) % opened,
    ]


def _format_marks(sheet: EventSheet) -> list[str]:
    opening = sheet.opening
    length = sheet.length(opening.opens_ns, opening.closes_ns)
    opened, closed = sheet.stamp(opening.opens_ns), sheet.stamp(opening.closes_ns)
    return [
        f'  {{\n    "ph": "X", "cat": "Trace", "ts": {opened}, "dur": {length},\n'
        '    "pid": "Spans", "tid": "PyTorch Profiler",\n    "name": "PyTorch Profiler (0)",\n'
        '    "args": {\n      "Op count": 0\n    }\n  }',
        '  {\n    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n'
        f'    "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": {opened}\n  }}',
        '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
        f'    "pid": "", "tid": "", "ts": {closed}\n  }}',
    ]


def _describe_groups(schedule: Schedule, rank: int) -> dict[str, object]:
    gloo = schedule.plan.vendor is Vendor.GLOO
    configs = [
        {
            "pg_name": groups.name,
            "pg_desc": groups.description,
            "backend_config": "cpu:gloo,cuda:gloo" if gloo else "cuda:nccl",
            "pg_size": groups.size,
            "ranks": list_group_ranks(groups, rank),
        }
        for groups in schedule.mesh.all()
    ]
    known: dict[str, object] = {
        "backend": "gloo" if gloo else "nccl",
        "rank": rank,
        "world_size": schedule.plan.ranks,
        "pg_count": len(configs),
        "pg_config": configs,
    }
    return known if gloo else {**known, "nccl_version": "2.27.5"}


def _fit_layout(plan: Plan, text: str) -> str:
    return text if plan.recording.indented else Layout(indented=False).fitted(text)


_PADDING_NAMES = (
    "torch/nn/modules/module.py(1784): _call_impl",
    "torch/nn/modules/linear.py(124): forward",
    "<built-in method linear of type object at 0x7f2c40a5d2e0>",
    "torch/utils/data/_utils/pin_memory.py(28): do_one_step",
    "threading.py(1016): _bootstrap_inner",
    "nn.Module: Linear_7",
    "torch/distributed/c10d_logger.py(81): wrapper",
    "<built-in method wait of torch._C._distributed_c10d.Work object at 0x7f2b3c1e9930>",
)
_PADDING_LENGTH_NS = 1_700


def add_padding(plan: Plan, sheet: EventSheet, process: int, around: int) -> None:
    """Add events of an otherwise idle thread, evenly over the window, until the file has the planned size."""
    wanted = plan.recording.pad_to_bytes
    missing = wanted - around - sum(map(len, sheet.texts)) - 2 * len(sheet.texts)
    if missing <= 0:
        return
    layout = Layout(indented=plan.recording.indented)
    arguments = ('"Python parent id": %s', '"Python id": %s', '"Ev Idx": %s')
    templates = [
        layout.complete("python_function", name, str(process), str(process + 3), *arguments)
        for name in _PADDING_NAMES
    ]
    mean = sum(map(len, templates)) // len(templates) + 26
    count = max(1, missing // mean)
    opens, span = sheet.opening.opens_ns, sheet.opening.closes_ns - sheet.opening.opens_ns
    pace = max(1, (span - _PADDING_LENGTH_NS) // count)
    for index in range(count):
        begin = opens + index * pace
        template = templates[index & 7]
        sheet.complete(template, begin, begin + _PADDING_LENGTH_NS, index, index + 1, 500_000 + index)
