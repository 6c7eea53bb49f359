"""Traces written by hand: events as dictionaries, as a Kineto file has them, straight into columns."""

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from zprof.collectors.read.kineto.convert import convert_trace
from zprof.collectors.read.kineto.trace import (
    ABSENT,
    Arguments,
    TextColumn,
    Trace,
    TraceHeader,
    TraceProcessGroup,
)
from zprof.model.gaps import Gap

BASE = 1_790_857_026_000_000_000
MAIN = 10


def at(microseconds: float) -> int:
    return BASE + round(microseconds * 1000)


def span(
    name: str, start: float, end: float, thread: int = MAIN, category: str = "user_annotation", **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": end - start,
        "args": args,
    }


def thread_name(thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "tid": thread, "args": {"name": name}}


def trace_of(
    events: Iterable[dict[str, Any]],
    groups: Iterable[TraceProcessGroup] = (),
    world_size: int | None = None,
    rank: int | None = None,
) -> Trace:
    events = list(events)
    spans = [event for event in events if event["ph"] == "X"]
    arguments = [event["args"] for event in spans]
    return Trace(
        start_ns=_numbers(at(event["ts"]) for event in spans),
        duration_ns=_numbers(round(event["dur"] * 1000) for event in spans),
        category=words(event["cat"] for event in spans),
        name=words(event["name"] for event in spans),
        process=_numbers(event["pid"] for event in spans),
        thread=_numbers(event["tid"] for event in spans),
        stream=_of(arguments, "stream"),
        correlation=_of(arguments, "correlation"),
        external_id=_of(arguments, "External id"),
        bytes=_of(arguments, "bytes"),
        arguments={row: _decoded(args) for row, args in enumerate(arguments) if args},
        thread_names=_thread_names(events),
        header=TraceHeader(
            base_ns=BASE, rank=rank, world_size=world_size, backend="nccl", groups=tuple(groups)
        ),
    )


def converted(trace: Trace) -> tuple[list[dict[str, Any]], list[Gap]]:
    """The rows of ``collectives``, and the gaps."""
    tables, gaps = convert_trace(trace)
    columns = tables["collectives"]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], gaps


def words(texts: Iterable[str]) -> TextColumn:
    codes: dict[str, int] = {}
    column = np.array([codes.setdefault(text, len(codes)) for text in texts], dtype=np.int32)
    return TextColumn(codes=column, texts=tuple(codes))


def _decoded(args: dict[str, Any]) -> Arguments:
    return msgspec.convert(args, Arguments)


def _thread_names(events: list[dict[str, Any]]) -> dict[int, frozenset[str]]:
    names: dict[int, frozenset[str]] = {}
    for event in events:
        if event["ph"] == "M":
            names[event["tid"]] = names.get(event["tid"], frozenset()) | {event["args"]["name"]}
    return names


def _numbers(values: Iterable[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(list(values), dtype=np.int64)


def _of(arguments: list[dict[str, Any]], key: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    return _numbers(args.get(key, ABSENT) for args in arguments)
