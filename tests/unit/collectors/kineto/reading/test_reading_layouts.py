"""Every layout in every packing, and every size of bites that the text comes in, gives the same columns."""

import io
import json

import pytest

from tests.support.kineto_oracle import PACKINGS, expected, pack, seen
from zprof.collectors.kineto.reading.reader import read_text, read_trace

BASE = 1_790_857_026_000_000_000
HEAD = {"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8}, "baseTimeNanoseconds": BASE}
LATER = [{"ph": "X", "cat": "kernel", "name": "not an event", "ts": 1, "dur": 2, "args": {}}] * 40


def events(number=60):
    rows = []
    for n in range(number):
        at = {"pid": 0, "tid": 7, "ts": 4368137779000.125 + n, "name": f'k"{n % 7}\\\n é'}
        rows.append(
            {
                "ph": "X",
                "cat": "kernel",
                **at,
                "dur": n / 8,
                "args": {"stream": 7, "correlation": n, "grid": [1]},
            }
        )
        rows.append(
            {"ph": "s", "id": n, "pid": 0, "tid": 7, "ts": 4368137779000.5, "cat": "ac2g", "name": "ac2g"}
        )
    return [*rows, {"name": "thread_name", "ph": "M", "tid": 7, "args": {"name": "stream 7"}}]


def native(top):
    """As libkineto writes: several keys a line, two spaces."""
    rows = ",\n  ".join(_native_event(event) for event in top["traceEvents"])
    values = {key: json.dumps(value) for key, value in top.items()} | {"traceEvents": f"[\n  {rows}\n  ]"}
    return "\n{\n" + ",\n".join(f'  "{key}": {value}' for key, value in values.items()) + "\n}"


def _native_event(event):
    pairs = [f'"{key}": {json.dumps(value)}' for key, value in event.items() if key != "args"]
    lines = [", ".join(part) for part in (pairs[:5], pairs[5:]) if part]
    if "args" in event:
        inside = ", ".join(f'"{key}": {json.dumps(value)}' for key, value in event["args"].items())
        lines.append(f'"args": {{\n      {inside}\n    }}')
    return "{\n    " + ",\n    ".join(lines) + "\n  }"


LAYOUTS = {
    "native": native,
    "compact": lambda top: json.dumps(top, separators=(",", ":")),
    "json.dump": json.dumps,
    "indent 2": lambda top: json.dumps(top, indent=2),
    "indent 4": lambda top: json.dumps(top, indent=4),
    "tabs and CRLF": lambda top: json.dumps(top, indent="\t").replace("\n", "\r\n"),
    "sorted keys": lambda top: json.dumps(top, sort_keys=True),
    "not ASCII": lambda top: "\ufeff" + json.dumps(top, ensure_ascii=False),
}
ORDERS = {
    "last": lambda rows: {**HEAD, "traceEvents": rows},
    "first": lambda rows: {"traceEvents": rows, **HEAD},
    "between": lambda rows: {
        "host_name": "a]}",
        "stackFrames": LATER,
        "traceEvents": rows,
        **HEAD,
        "x": LATER,
    },
}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_orders_and_packings(layout, order, packing, tmp_path):
    text = LAYOUTS[layout](ORDERS[order](events())).encode()
    path = tmp_path / "trace"
    path.write_bytes(pack(text, packing))
    trace = read_trace(path)
    assert (trace.report.events, seen(trace)) == expected(text.decode("utf-8-sig"))
    assert trace.header.rank == 3
    assert trace.thread_names == {7: frozenset({"stream 7"})}
    assert not trace.report.cut_short


@pytest.mark.parametrize("block", [1, 2, 3, 7, 100, 333, 4096])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bites_of_any_size(layout, order, block):
    text = LAYOUTS[layout](ORDERS[order](events(12))).encode()
    trace = read_text(io.BytesIO(text), block_bytes=block)
    assert (trace.report.events, seen(trace)) == expected(text.decode("utf-8-sig"))
    assert trace.header.world_size == 8
    assert trace.report.dropped == 0


@pytest.mark.parametrize("layout", ["compact", "json.dump", "indent 2", "tabs and CRLF"])
def test_a_bare_list(layout):
    text = LAYOUTS[layout](events()).encode()
    trace = read_text(io.BytesIO(text), block_bytes=500)
    assert (trace.report.events, seen(trace)) == expected(text)


def test_an_event_larger_than_the_buffer():
    rows = events(5)
    rows[4]["args"]["Input Dims"] = [[3, 4]] * 100_000
    text = json.dumps({"traceEvents": rows}).encode()
    trace = read_text(io.BytesIO(text), block_bytes=1000)
    assert (trace.report.events, seen(trace)) == expected(text)


def test_an_event_in_an_event_is_no_event():
    inner = {"ph": "X", "cat": "kernel", "name": "inner", "ts": 5, "dur": 5}
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": "a", "ts": n, "dur": 1, "args": {"l": [inner] * 3}}
        for n in range(1, 40)
    ]
    for layout in (json.dumps, lambda top: json.dumps(top, indent=1)):
        text = layout({"traceEvents": rows}).encode()
        trace = read_text(io.BytesIO(text), block_bytes=400)
        assert (trace.report.events, seen(trace)) == expected(text)


def test_the_last_of_two_lists_of_events_counts():
    one, two = json.dumps(events(3)), json.dumps(events(5))
    text = f'{{"traceEvents": {one}, "traceEvents": {two}}}'.encode()
    trace = read_text(io.BytesIO(text))
    assert (trace.report.events, seen(trace)) == expected(text)


def test_no_events_at_all_is_an_empty_trace():
    trace = read_text(io.BytesIO(b'{"traceEvents": [], "distributedInfo": {"rank": 1}}'))
    assert (len(trace), trace.report.events, trace.header.rank) == (0, 0, 1)


def test_the_reader_tells_how_far_it_is(tmp_path):
    path = tmp_path / "trace.gz"
    path.write_bytes(pack(json.dumps({"traceEvents": events(2000)}).encode(), "gzip"))
    told = []
    read_trace(path, told.append)
    assert told == sorted(told)
    assert told[-1] == path.stat().st_size
