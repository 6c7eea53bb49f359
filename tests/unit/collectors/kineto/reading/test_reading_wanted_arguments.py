"""The arguments of rows about collectives, whichever way they are decoded."""

import io
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zprof.collectors.kineto.reading.reader import read_text

NAMES = ["nccl:all_reduce", "c10d::broadcast", "gloo:größe", 'nccl:"q\\"', "ncclDevKernel", "aten::mm"]
FIELDS = {
    "Group size": "group_size", "Seq": "sequence", "Process Group Name": "group", "Input Dims": "dims",
    "correlation": "correlation",
}  # fmt: skip
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "Group size": st.integers(1, 9),
        "Seq": st.integers(1, 99),
        "Process Group Name": st.sampled_from(["0", "nccl:all_reduce"]),
        "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2),
        "correlation": st.integers(0, 2),
        "inner": st.just([{"ph": "X", "name": "nccl:all_reduce"}, {"ph": "X"}, {"ph": "X"}]),
    },
)
EVENTS = st.builds(
    lambda name, category, ts, arguments, ph: {
        "ph": ph, "cat": category, "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": 1, "args": arguments
    },
    st.sampled_from(NAMES), st.sampled_from(["kernel", "cpu_op"]), st.integers(1, 3), ARGUMENTS,
    st.sampled_from("XXXXXXsfiM"),
)  # fmt: skip
LAYOUTS = [{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": 1, "ensure_ascii": False}]


def kept(event):
    named = event["name"].startswith(("nccl:", "c10d::", "gloo:"))
    return named or (event["cat"] == "kernel" and "Process Group Name" in event["args"])


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(st.lists(EVENTS, max_size=12), st.sampled_from(LAYOUTS), st.integers(60, 4000), st.booleans())
def test_arguments_of_random_collectives(events, layout, block, unusual):
    """``unusual``: an event of a kind that the cheapest decoding does not know."""
    first = {"ph": "b" if unusual else "i", "name": "begin", "ts": 1}
    text = json.dumps({"traceEvents": [first, *events]}, **layout).encode()
    trace = read_text(io.BytesIO(text), block_bytes=block)
    rows = [event for event in events if event["ph"] == "X"]
    assert trace.report.events == len(events) + 1
    assert sorted(trace.arguments) == [row for row, event in enumerate(rows) if kept(event)]
    for row, found in trace.arguments.items():
        stated = rows[row]["args"]
        assert {key: getattr(found, field) for key, field in FIELDS.items()} == {
            key: stated.get(key) for key in FIELDS
        }


@pytest.mark.parametrize("kind", ["usual", "unusual"])
def test_twins_keep_their_own(kind):
    """Rows that differ in nothing but what is kept apart."""
    common = {"ph": "X", "cat": "cpu_op", "name": "nccl:send", "pid": 1, "tid": 2, "ts": 5, "dur": 1}
    events = [{**common, "args": {"Seq": number, "note": "nccl:send"}} for number in range(1, 5)]
    events += [] if kind == "usual" else [{"ph": "unheard of"}]
    trace = read_text(io.BytesIO(json.dumps({"traceEvents": events}, indent=2).encode()))
    assert [each.sequence for each in trace.arguments.values()] == [1, 2, 3, 4]
