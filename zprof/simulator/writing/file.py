"""A whole trace file around the events of one rank."""

import json
from collections.abc import Sequence

from zprof.simulator.clocks import ORIGIN_NS
from zprof.simulator.engine.schedule import Schedule
from zprof.simulator.plan import Plan, Stamps, Vendor
from zprof.simulator.writing.layout import Layout
from zprof.simulator.writing.metadata import ranks_of
from zprof.simulator.writing.sheet import Sheet

_WINDOW_NS = 7_889_238 * 10**9


def base_ns() -> int:
    """The start of the profiler's current window of about three months."""
    return ORIGIN_NS // _WINDOW_NS * _WINDOW_NS


def head(schedule: Schedule, rank: int, properties: str, extras: Sequence[str]) -> str:
    """Everything before the events."""
    keys = [
        '"schemaVersion": 1',
        f'"deviceProperties": {properties}',
        *extras,
        f'"distributedInfo": {json.dumps(_distributed(schedule, rank))}',
        '"record_shapes": 1',
        f'"trace_id": "{schedule.plan.seed & 0xFFFFFFFF:08X}{rank:08X}"',
        f'"host_name": "node-{rank // max(1, schedule.plan.ranks_per_host)}"',
    ]
    return _fitted(schedule.plan, "{\n  " + ",\n  ".join(keys) + ',\n  "traceEvents": [\n')


def tail(plan: Plan, rank: int) -> str:
    """Everything behind the events."""
    keys = [f'"traceName": "/tmp/traces/rank{rank}.json"', '"displayTimeUnit": "ms"']
    if plan.recording.stamps is Stamps.BASED:
        keys.append(f'"baseTimeNanoseconds": {base_ns()}')
    return _fitted(plan, "\n  ],\n  " + ",\n  ".join(keys) + "\n}")


def frame(plan: Plan, sheet: Sheet, host: int, device: int | None, rows: Sequence[tuple[int, str]]) -> None:
    """Add names of processes and threads, and the marks of the profiler itself."""
    layout = Layout(indented=plan.recording.indented)
    opened = sheet.stamp(sheet.opening.opens_ns)
    texts = [
        *_process(layout, str(host), "CPU", host, opened),
        *(
            _process(layout, str(device), f"GPU {device}", 5_000_000 + device, opened)
            if device is not None
            else ()
        ),
    ]
    for row, name in rows:
        pid = str(host if device is None or name.startswith("thread") else device)
        texts.append(layout.named("thread_name", pid, str(row), "name", f'"{name}"') % opened)
        texts.append(layout.named("thread_sort_index", pid, str(row), "sort_index", str(row)) % opened)
    sheet.always(texts)
    sheet.always([layout.fitted(text) for text in _marks(sheet)])


def _process(layout: Layout, pid: str, label: str, order: int, opened: str) -> list[str]:
    return [
        layout.named("process_name", pid, "0", "name", '"python3"') % opened,
        layout.named("process_labels", pid, "0", "labels", f'"{label}"') % opened,
        layout.named("process_sort_index", pid, "0", "sort_index", str(order)) % opened,
    ]


def _marks(sheet: Sheet) -> list[str]:
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


def _distributed(schedule: Schedule, rank: int) -> dict[str, object]:
    gloo = schedule.plan.vendor is Vendor.GLOO
    configs = [
        {
            "pg_name": groups.name,
            "pg_desc": groups.description,
            "backend_config": "cpu:gloo,cuda:gloo" if gloo else "cuda:nccl",
            "pg_size": groups.size,
            "ranks": ranks_of(groups, rank),
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


def _fitted(plan: Plan, text: str) -> str:
    return text if plan.recording.indented else Layout(indented=False).fitted(text)
