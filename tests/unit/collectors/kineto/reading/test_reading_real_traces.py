"""Real traces: each column equals an independent reader's, in every layout; cuts and damage are survived."""

import gzip
import io
import json
import random

import pytest

from tests.support.kineto_oracle import REAL, expected, seen
from zprof.collectors.kineto.reading.reader import read_text, read_trace
from zprof.model.errors import BadInput

SMALL = [path for path in REAL if path.stat().st_size < 40_000]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_every_column_of_a_real_trace(path):
    number, rows = expected(gzip.decompress(path.read_bytes()))
    trace = read_trace(path)
    assert trace.report.events == number
    assert seen(trace) == rows
    assert (trace.report.dropped, trace.report.repaired, trace.report.cut_short) == (0, 0, False)


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
@pytest.mark.parametrize("layout", [{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": 4}], ids=str)
def test_written_anew_by_python(path, layout):
    loaded = json.loads(gzip.decompress(path.read_bytes()))
    text = json.dumps(dict(reversed(loaded.items())), **layout).encode()
    trace = read_text(io.BytesIO(text), block_bytes=3000)
    assert (trace.report.events, seen(trace)) == expected(text)


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
def test_a_cut_leaves_a_begin_of_the_rows(path):
    chance, text, whole = random.Random(1), gzip.decompress(path.read_bytes()), seen(read_trace(path))
    first = text.index(b"traceEvents")
    for _ in range(12):
        stop = chance.randrange(first, len(text))
        try:
            trace = read_text(io.BytesIO(text[:stop]), block_bytes=3000)
        except BadInput:
            assert text[first:stop].count(b'"ph"') < 2
            continue
        assert trace.report.cut_short
        assert trace.report.dropped == 0
        without_base = [row[1:] for row in seen(trace)]
        assert without_base == [row[1:] for row in whole[: len(without_base)]]
        complete = len(re_events(text[:stop]))
        assert trace.report.events == complete


def re_events(text):
    """Events up to the last that is closed, by parsing each prefix that could be one."""
    begin = text.index(b"[", text.index(b"traceEvents"))
    for stop in range(len(text), begin, -1):
        if text[stop - 1 : stop] in (b"}", b"["):
            try:
                return json.loads(text[begin:stop] + b"]")
            except ValueError:
                continue
    return []


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
def test_damaged_bytes_cost_only_what_they_hit(path, tmp_path):
    chance, text = random.Random(2), gzip.decompress(path.read_bytes())
    whole = read_trace(path).report.events
    for _ in range(25):
        damaged = bytearray(text)
        places = [chance.randrange(len(text)) for _ in range(3)]
        for place in places:
            damaged[place] = chance.randrange(256)
        try:
            trace = read_text(io.BytesIO(bytes(damaged)), block_bytes=20_000)
        except BadInput:
            continue
        report = trace.report
        if not report.cut_short:
            assert whole - 12 <= report.events <= whole + 3


@pytest.mark.parametrize("path", SMALL[:4], ids=lambda path: path.name)
def test_a_damaged_or_cut_gzip_gives_what_is_there(path, tmp_path):
    chance, packed = random.Random(3), path.read_bytes()
    whole = read_trace(path)
    for _ in range(20):
        damaged = bytearray(packed[: chance.randrange(len(packed) // 2, len(packed))])
        if chance.random() < 0.5:
            damaged[chance.randrange(20, len(damaged))] ^= 1 << chance.randrange(8)
        copy = tmp_path / "copy.gz"
        copy.write_bytes(damaged)
        try:
            trace = read_trace(copy)
        except BadInput:
            continue
        assert trace.report.cut_short
        assert trace.report.events <= whole.report.events + 3
