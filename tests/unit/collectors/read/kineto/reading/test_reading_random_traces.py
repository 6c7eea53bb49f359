"""Random traces, laid out at random and read in blocks of random size, against an independent reader."""

import io
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.kineto_oracle import PACKINGS, expected, pack, seen
from zprof.base.errors import BadInput
from zprof.collectors.read.kineto.reading.reader import read_text
from zprof.collectors.read.kineto.reading.text import TraceText

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['"}, {"ph"', "\\", '\\"', "},\n  {", "nan", "nccl:all_reduce", "c10d::x", "gloo:größe", 'nccl:"q\\"']
)
WHOLE = st.integers(-(2**66), 2**66)
TIMES = st.integers(0, 2**50) | st.integers(0, 2**53).map(lambda thousandths: thousandths / 1000)
IDENTITIES = st.one_of(
    st.integers(0, 99), WHOLE, WHOLE.map(str), st.sampled_from(["Spans", "", "stream 7", None, True])
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), WHOLE, TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = {key: IDENTITIES for key in ("stream", "correlation", "External id", "external id", "bytes")} | {
    "Group size": st.integers(1, 9),
    "Seq": st.integers(1, 99),
    "Process Group Name": st.sampled_from(["0", "nccl:all_reduce"]),
    "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2),
    "inner": st.just([{"ph": "X", "name": "nccl:all_reduce"}, {"ph": "X"}]),
    "other": VALUES,
}
#: Of arguments that are kept: the key, and the field.
KEPT = {"Group size": "group_size", "Seq": "sequence", "Process Group Name": "group", "Input Dims": "dims"}
CATEGORIES = ["kernel", "Kernel", "cpu_op", "gpu_user_annotation", "cuda_sync", "gpu_memcpy", "new", None]
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXXsfM"), "name": TEXTS},
    optional={
        "cat": st.sampled_from(CATEGORIES),
        "pid": IDENTITIES,
        "tid": IDENTITIES,
        "ts": TIMES,
        "dur": TIMES,
        "args": st.fixed_dictionaries({}, optional=ARGUMENTS),
    },
)
some = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def native(top):
    """Return what libkineto writes: several keys on a line, two spaces."""
    rows = [
        "{\n    " + ",\n    ".join(", ".join(part) for part in (pairs[:5], pairs[5:]) if part) + "\n  }"
        for event in top["traceEvents"]
        for pairs in [[f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event.items()]]
    ]
    values = {key: json.dumps(value) for key, value in top.items()}
    values["traceEvents"] = "[\n  " + ",\n  ".join(rows) + "\n  ]"
    return "\n{\n" + ",\n".join(f"  {json.dumps(key)}: {value}" for key, value in values.items()) + "\n}"


LAYOUTS = [
    native,
    json.dumps,
    lambda top: json.dumps(top, separators=(",", ":")),
    lambda top: json.dumps(top, indent=2),
    lambda top: json.dumps(top, indent="\t").replace("\n", "\r\n"),
    lambda top: "\ufeff" + json.dumps(top, ensure_ascii=False),
]


@st.composite
def traces(draw, bases=(0, 1_700_000_000_000_000_000)):
    first = {"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}
    top = {"traceEvents": [first, *draw(st.lists(EVENTS, max_size=12))], "distributedInfo": {"rank": 3}}
    base = draw(st.sampled_from(bases))
    top |= {"baseTimeNanoseconds": base} if base else {}
    top |= draw(st.dictionaries(TEXTS.filter(lambda key: key not in top), VALUES, max_size=3))
    top = {key: top[key] for key in draw(st.permutations(list(top)))}
    return draw(st.sampled_from(LAYOUTS))(top).encode()


@some
@given(traces(), st.integers(1, 700), st.sampled_from(PACKINGS))
def test_random_traces_equal_an_independent_reader(text, block, packing):
    source = TraceText(io.BufferedReader(io.BytesIO(pack(text, packing))))
    trace = read_text(source, block_bytes=block)
    number, rows = expected(text.decode("utf-8-sig"))
    assert seen(trace) == rows
    assert (trace.report.events, trace.report.dropped, trace.report.cut_short) == (number, 0, False)
    assert trace.header.rank == 3


@some
@given(st.lists(EVENTS, max_size=12), st.integers(60, 4000), st.sampled_from("bi"))
def test_rows_of_collectives_have_their_arguments(events, block, first_phase):
    events = [{"cat": "kernel", "args": {}, **event, "ts": 1, "dur": 1} for event in events]
    text = json.dumps([{"ph": first_phase, "name": "begin", "ts": 1}, *events], indent=2).encode()
    trace = read_text(io.BytesIO(text), block_bytes=block)
    for row, event in enumerate(event for event in events if event["ph"] == "X"):
        named = event["name"].startswith(("nccl:", "c10d::", "gloo:"))
        if named or (event["cat"] == "kernel" and "Process Group Name" in event["args"]):
            stated = {key: event["args"].get(key) for key in KEPT}
            assert {key: getattr(trace.arguments[row], field) for key, field in KEPT.items()} == stated


@some
@given(traces(bases=(0,)), st.data(), st.integers(1, 300))
def test_a_cut_trace_has_the_rows_before_the_cut(text, data, block):
    number, rows = expected(text.decode("utf-8-sig"))
    cut = data.draw(st.integers(0, len(text) - 1))
    try:
        trace = read_text(io.BytesIO(text[:cut]), block_bytes=block)
    except BadInput:
        return
    assert seen(trace) == rows[: len(trace)]
    assert trace.report.events <= number
    assert trace.report.cut_short or not text[cut:].strip()


@some
@given(traces(), st.data(), st.integers(1, 300))
def test_random_damage_is_read_or_refused(text, data, block):
    damaged = bytearray(text)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.sampled_from(b'"\\{}[],:\xff\0n1 '))
    try:
        trace = read_text(io.BytesIO(bytes(damaged)), block_bytes=block)
    except BadInput:
        return
    assert len(trace) + trace.report.without_time <= trace.report.events
