"""Write the parts of a trace file around the events: head, process names, profiler marks, padding, tail."""

import json
from collections.abc import Sequence

from zprof.simulator.engine.schedule import ORIGIN_NS, SimulatedRun
from zprof.simulator.plan import SimulationPlan, Stamps, Vendor
from zprof.simulator.writing.events import EventBuffer, Layout
from zprof.simulator.writing.names import list_group_ranks

_WINDOW_NS = 7_889_238 * 10**9
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


def get_profiler_base_ns() -> int:
    """Return the start of the profiler's current window of about three months."""
    return ORIGIN_NS // _WINDOW_NS * _WINDOW_NS


def format_head(schedule: SimulatedRun, rank: int, properties: str, extras: Sequence[str]) -> str:
    """Format the text before the events."""
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


def format_tail(plan: SimulationPlan, rank: int) -> str:
    """Format the text after the events."""
    keys = [f'"traceName": "/tmp/traces/rank{rank}.json"', '"displayTimeUnit": "ms"']
    if plan.recording.stamps is Stamps.BASED:
        keys.append(f'"baseTimeNanoseconds": {get_profiler_base_ns()}')
    return _fit_layout(plan, "\n  ],\n  " + ",\n  ".join(keys) + "\n}")


def add_frame(
    plan: SimulationPlan, buffer: EventBuffer, host: int, device: int | None, rows: Sequence[tuple[int, str]]
) -> None:
    """Add the names of processes and threads, and the profiler's own marks."""
    layout = Layout(indented=plan.recording.indented)
    start_text = buffer.format_time(buffer.window.start_ns)
    texts = [
        *_format_process(layout, str(host), "CPU", host, start_text),
        *(
            _format_process(layout, str(device), f"GPU {device}", 5_000_000 + device, start_text)
            if device is not None
            else ()
        ),
    ]
    for row, name in rows:
        pid = str(host if device is None or name.startswith("thread") else device)
        texts.append(layout.metadata_template("thread_name", pid, str(row), "name", f'"{name}"') % start_text)
        texts.append(
            layout.metadata_template("thread_sort_index", pid, str(row), "sort_index", str(row)) % start_text
        )
    buffer.add_unconditionally(texts)
    buffer.add_unconditionally([layout.apply_layout(text) for text in _format_marks(buffer)])


def _format_process(layout: Layout, pid: str, label: str, order: int, start_text: str) -> list[str]:
    return [
        layout.metadata_template("process_name", pid, "0", "name", '"python3"') % start_text,
        layout.metadata_template("process_labels", pid, "0", "labels", f'"{label}"') % start_text,
        layout.metadata_template("process_sort_index", pid, "0", "sort_index", str(order)) % start_text,
    ]


def _format_marks(buffer: EventBuffer) -> list[str]:
    window = buffer.window
    duration = buffer.format_duration(window.start_ns, window.end_ns)
    start_text, end_text = buffer.format_time(window.start_ns), buffer.format_time(window.end_ns)
    return [
        f'  {{\n    "ph": "X", "cat": "Trace", "ts": {start_text}, "dur": {duration},\n'
        '    "pid": "Spans", "tid": "PyTorch Profiler",\n    "name": "PyTorch Profiler (0)",\n'
        '    "args": {\n      "Op count": 0\n    }\n  }',
        '  {\n    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n'
        f'    "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": {start_text}\n  }}',
        '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
        f'    "pid": "", "tid": "", "ts": {end_text}\n  }}',
    ]


def _describe_groups(schedule: SimulatedRun, rank: int) -> dict[str, object]:
    gloo = schedule.plan.vendor is Vendor.GLOO
    configs = [
        {
            "pg_name": groups.name,
            "pg_desc": groups.description,
            "backend_config": "cpu:gloo,cuda:gloo" if gloo else "cuda:nccl",
            "pg_size": groups.size,
            "ranks": list_group_ranks(groups, rank),
        }
        for groups in schedule.mesh.list_all()
    ]
    description: dict[str, object] = {
        "backend": "gloo" if gloo else "nccl",
        "rank": rank,
        "world_size": schedule.plan.ranks,
        "pg_count": len(configs),
        "pg_config": configs,
    }
    return description if gloo else {**description, "nccl_version": "2.27.5"}


def _fit_layout(plan: SimulationPlan, text: str) -> str:
    return text if plan.recording.indented else Layout(indented=False).apply_layout(text)


def add_padding(plan: SimulationPlan, buffer: EventBuffer, process: int, other_bytes: int) -> None:
    """Add events of an otherwise idle thread, evenly over the window, until the file has the planned size."""
    target_bytes = plan.recording.pad_to_bytes
    missing_bytes = target_bytes - other_bytes - sum(map(len, buffer.texts)) - 2 * len(buffer.texts)
    if missing_bytes <= 0:
        return
    layout = Layout(indented=plan.recording.indented)
    arguments = ('"Python parent id": %s', '"Python id": %s', '"Ev Idx": %s')
    templates = [
        layout.complete_template("python_function", name, str(process), str(process + 3), *arguments)
        for name in _PADDING_NAMES
    ]
    mean = sum(map(len, templates)) // len(templates) + 26
    count = max(1, missing_bytes // mean)
    start_ns, span = buffer.window.start_ns, buffer.window.end_ns - buffer.window.start_ns
    interval_ns = max(1, (span - _PADDING_LENGTH_NS) // count)
    for index in range(count):
        begin = start_ns + index * interval_ns
        template = templates[index & 7]
        buffer.add_complete(template, begin, begin + _PADDING_LENGTH_NS, index, index + 1, 500_000 + index)
