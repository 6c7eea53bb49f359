"""Executions of gloo's collectives: ``gloo:<op>`` on the threads of a process group."""

from dataclasses import dataclass

import numpy as np

from zprof.collectors.kineto.arguments import Arguments, elements
from zprof.collectors.kineto.collectives.element_types import element_type
from zprof.collectors.kineto.collectives.finding import rows_of
from zprof.collectors.kineto.columns import Int64s, Trace
from zprof.collectors.kineto.gloo.operators import MESSAGES, WITHOUT_TENSOR, GlooKey

_WORKER = "pt_gloo_runloop"
_NOTHING = Arguments()


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One ``gloo:<op>`` on a worker thread.  ``dtype`` is torch's name and the bytes of an element."""

    thread: int
    start_ns: int
    end_ns: int
    elements: int | None
    dtype: tuple[str, int] | None
    key: GlooKey


def find_executions(trace: Trace) -> list[Execution]:
    """All executions by start."""
    rows = rows_of(trace, ("user_annotation", "cpu_op"), _is_execution)
    workers = _workers(trace, rows) if len(rows) else frozenset()
    found: list[Execution] = []
    for row in rows.tolist():
        thread = int(trace.thread[row])
        if thread not in workers:
            continue
        start = int(trace.start_ns[row])
        arguments = trace.arguments.get(row, _NOTHING)
        executed = trace.name[row].removeprefix("gloo:")
        count = elements(arguments.dims, types=arguments.types)
        key = (executed, None if executed in WITHOUT_TENSOR else count)
        types = arguments.types if isinstance(arguments.types, list) and arguments.types else [None]
        dtype = element_type(types[0])
        found.append(
            Execution(
                thread=thread,
                start_ns=start,
                end_ns=start + int(trace.duration_ns[row]),
                elements=count,
                dtype=dtype,
                key=key,
            )
        )
    return found


def _workers(trace: Trace, executions: Int64s) -> frozenset[int]:
    """Gloo's threads: they are called so, or (where none is: names are inherited) run no operators."""
    named = {t for t, names in trace.thread_names.items() if any(_WORKER in name for name in names)}
    if named:
        return frozenset(named)
    operators = trace.thread[trace.category.where("cpu_op".__eq__)]
    return frozenset(np.setdiff1d(trace.thread[executions], operators).tolist())


def _is_execution(name: str) -> bool:
    return name.startswith("gloo:") and name not in MESSAGES
