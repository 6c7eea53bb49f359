"""Real traces: each column equals an independent reader's, in every layout; cuts and damage are survived."""

import gzip
import io
import json

import pytest

from tests.support.kineto_oracle import REAL, expected, seen
from zprof.collectors.read.kineto.reading.reader import read_text, read_trace

SMALL = [path for path in REAL if path.stat().st_size < 40_000]
of_small = pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
of_all = [pytest.param(path, id=path.name, marks=[] if path in SMALL else pytest.mark.slow) for path in REAL]


@pytest.mark.parametrize("path", of_all)
def test_every_column_of_a_real_trace(path):
    number, rows = expected(gzip.decompress(path.read_bytes()))
    trace = read_trace(path)
    assert trace.report.events == number
    assert seen(trace) == rows
    assert (trace.report.dropped, trace.report.repaired, trace.report.cut_short) == (0, 0, False)


@of_small
@pytest.mark.parametrize("layout", [{"separators": (",", ":")}, {"indent": 2}], ids=str)
def test_a_real_trace_written_anew_by_python(path, layout):
    loaded = json.loads(gzip.decompress(path.read_bytes()))
    text = json.dumps(dict(reversed(loaded.items())), **layout).encode()
    trace = read_text(io.BytesIO(text), block_bytes=3000)
    assert (trace.report.events, seen(trace)) == expected(text)
