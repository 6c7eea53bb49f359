"""Lines of a Chrome JSON trace: slices, flows, names of rows.

Texts come from files of strangers: they are escaped as everywhere else, cut, and written as ASCII JSON.
Times are nanoseconds since the trace's begin and become microseconds with three decimals, exactly.
"""

import json
from collections.abc import Mapping

from zprof.model.printable import printable

_LONGEST = 300
Args = Mapping[str, str | int | float]


def text(value: str) -> str:
    """A name as a JSON string."""
    return json.dumps(printable(value[:_LONGEST]))


def microseconds(time_ns: int) -> str:
    """``1234567`` as ``1234.567``."""
    sign, left = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return f"{sign}{left // 1000}.{left % 1000:03d}"


def arguments(values: Args) -> str:
    """Arguments of a slice."""
    parts = (f"{text(key)}:{_value(value)}" for key, value in values.items())
    return "{" + ",".join(parts) + "}"


def slice_line(
    pid: int, tid: int, start_ns: int, duration_ns: int, name: str, category: str, args: str
) -> str:
    """A complete event; ``name``, ``category`` and ``args`` are JSON already."""
    return (
        f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{microseconds(start_ns)},'
        f'"dur":{microseconds(duration_ns)},"name":{name},"cat":{category},"args":{args}}}'
    )


def flow_lines(number: int, name: str, begin: tuple[int, int, int], end: tuple[int, int, int]) -> list[str]:
    """An arrow from a slice to another, each as process, thread and a time within it."""
    common = f'"id":{number},"cat":"collective","name":{text(name)}'
    return [
        f'{{"ph":"s",{common},{_place(*begin)}}}',
        f'{{"ph":"f","bp":"e",{common},{_place(*end)}}}',
    ]


def process_lines(pid: int, name: str, index: int) -> list[str]:
    """Name and position of a process."""
    return [
        _metadata("process_name", pid, 0, f'"name":{text(name)}'),
        _metadata("process_sort_index", pid, 0, f'"sort_index":{index}'),
    ]


def thread_lines(pid: int, tid: int, name: str) -> list[str]:
    """Name of a row; rows stand in the order of their numbers."""
    return [
        _metadata("thread_name", pid, tid, f'"name":{text(name)}'),
        _metadata("thread_sort_index", pid, tid, f'"sort_index":{tid}'),
    ]


def _metadata(kind: str, pid: int, tid: int, args: str) -> str:
    return f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"{kind}","args":{{{args}}}}}'


def _place(pid: int, tid: int, time_ns: int) -> str:
    return f'"pid":{pid},"tid":{tid},"ts":{microseconds(time_ns)}'


def _value(value: str | int | float) -> str:
    return text(value) if isinstance(value, str) else json.dumps(value, allow_nan=False)
