"""Random traces, laid out at random and read in bites of random size, against an independent reader."""

import io
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.kineto_oracle import expected, seen
from zprof.collectors.kineto.reading.reader import read_text
from zprof.collectors.kineto.reading.structure import find_brackets, find_elements
from zprof.model.errors import BadInput

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['"}, {"ph"', "\\", '\\"', "},\n  {", "nan"]
)
WHOLE = st.integers(-(2**66), 2**66)
TIMES = st.one_of(
    st.integers(0, 2**50),
    st.decimals(0, 2**50, places=3).map(lambda value: Number(f"{value:f}")),
    st.decimals(0, 9_000, places=2).map(lambda value: Number(f"{value:e}")),
)
IDENTITIES = st.one_of(
    st.integers(0, 99), WHOLE, WHOLE.map(str), st.sampled_from(["Spans", "", "stream 7", None, True])
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), WHOLE, TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(
    st.sampled_from(["stream", "correlation", "External id", "external id", "bytes"]), IDENTITIES
).flatmap(lambda known: st.dictionaries(TEXTS, VALUES, max_size=2).map(lambda more: {**more, **known}))
CATEGORIES = ["kernel", "Kernel", "cpu_op", "gpu_user_annotation", "cuda_sync", "gpu_memcpy", "new", None]


class Number(float):
    """Written with its own digits."""

    def __new__(cls, digits):
        self = super().__new__(cls, float(digits))
        self.digits = digits
        return self

    def __repr__(self):
        return self.digits


class Encoder(json.JSONEncoder):
    """The pure Python encoder asks a float for its own ``__repr__``."""

    def iterencode(self, o, _one_shot=False):
        def text(value):
            return value.digits if isinstance(value, Number) else float.__repr__(value)

        return json.encoder._make_iterencode(
            {}, self.default, json.encoder.encode_basestring_ascii, self.indent, text,
            self.key_separator, self.item_separator, self.sort_keys, self.skipkeys, _one_shot,
        )(o, 0)  # fmt: skip


@st.composite
def events(draw):
    event = {
        "ph": draw(st.sampled_from("XXXXisfM")),
        "cat": draw(st.sampled_from(CATEGORIES)),
        "name": draw(TEXTS),
        "pid": draw(IDENTITIES),
        "tid": draw(IDENTITIES),
        "ts": draw(TIMES),
        "dur": draw(TIMES),
        "args": draw(ARGUMENTS),
    }
    kept = draw(st.permutations(list(event)))[: draw(st.integers(5, 8))]
    return {key: event[key] for key in kept}


@st.composite
def traces(draw):
    first = {"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}
    top = {"traceEvents": [first, *draw(st.lists(events(), max_size=12))], "schemaVersion": 1}
    top |= draw(st.sampled_from([{}, {"baseTimeNanoseconds": 1_700_000_000_000_000_000}]))
    top |= draw(st.dictionaries(TEXTS.filter(lambda key: key != "traceEvents"), VALUES, max_size=3))
    top = {key: top[key] for key in draw(st.permutations(list(top)))}
    layout = draw(
        st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": 4}, {"indent": "\t"}])
    )
    return json.dumps(top, cls=Encoder, **layout).encode()


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(traces(), st.integers(1, 700))
def test_random_traces(text, block):
    trace = read_text(io.BytesIO(text), block_bytes=block)
    number, rows = expected(text)
    assert seen(trace) == rows
    assert trace.report.events == number
    assert (trace.report.dropped, trace.report.cut_short) == (0, False)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(traces(), st.data())
def test_random_cuts_and_damage_end_cleanly(text, data):
    damaged = bytearray(text[: data.draw(st.integers(0, len(text)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(
                st.sampled_from(b'"\\{}[],:\xff\0n1 ')
            )
    try:
        trace = read_text(io.BytesIO(bytes(damaged)), block_bytes=data.draw(st.integers(1, 300)))
    except BadInput:
        return
    assert len(trace) + trace.report.timeless <= trace.report.events


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(content):
    with pytest.raises(BadInput):
        read_text(io.BytesIO(content), block_bytes=16)


@settings(max_examples=100)
@given(VALUES, st.integers(0, 3))
def test_brackets_against_a_walk_over_each_byte(value, indent):
    text = bytearray(json.dumps([value, {"a": value}, '[{\\"', 3, {}], indent=indent or None).encode())
    found = find_brackets(text, 0, len(text))
    assert list(zip(found.position.tolist(), found.depth.tolist(), strict=True)) == walk(text)
    inside = find_elements(text, 1, len(text))
    assert inside.closed == len(text) - 1
    read = [json.loads(text[start:stop]) for start, stop in inside.spans]
    assert read == [each for each in json.loads(text) if isinstance(each, list | dict)]


def walk(text):
    depth, in_string, escaped, found = 0, False, False, []
    for position, byte in enumerate(text):
        letter = chr(byte)
        if in_string:
            in_string = letter != '"' or escaped
            escaped = letter == "\\" and not escaped
        elif letter in "[{]}":
            depth += 1 if letter in "[{" else -1
            found.append((position, depth))
        else:
            in_string = letter == '"'
    return found
