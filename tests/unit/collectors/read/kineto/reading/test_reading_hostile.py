"""Files that exhaust, hang or confuse a reader: one error, or the rows that are there, in bounded memory."""

import gzip
import io
import pickle
import tracemalloc
import zlib

import pytest

from tests.support.kineto_oracle import pack
from zprof.base.errors import BadInput
from zprof.collectors.read.kineto.reading import rows, structure, text
from zprof.collectors.read.kineto.reading.reader import read_text, read_trace

SPAN = '{"ph":"X","cat":"kernel","name":"good","ts":1,"dur":1,"pid":0,"tid":7,"args":{"stream":7}}'


def read(*events, **options):
    return read_text(io.BytesIO(("[" + ",".join(events) + "]").encode()), **options)


def with_args(args):
    return SPAN.replace('"stream":7', args)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        gzip.compress(b"", mtime=0),
        pickle.dumps({"segments": []}),
        b"<!DOCTYPE html><html></html>",
        b"PK\x03\x04rest",
        gzip.compress(b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", mtime=0),
        b"[]",
        b"{}",
        b'{"traceEvents": {"a": 1}}',
        b'{"traceEvents": [',
        b'[{"a": 1}, {"b": 2}]',
        b'{"traceEvents": [{"ph": "X',
        b'{"a": ' + b"[" * 3_000_000,
        b'{"traceEvents": [' + b'{"a":[' * 500_000,
        b'{"traceEvents": [{"ph": "X", "ts": ' + b"1" * 3_000_000,
        b'{"x": "' + b"a" * 3_000_000,
        gzip.compress(b"{}", mtime=0)[:4],
    ],
    ids=lambda value: repr(value[:12]),
)
def test_a_file_that_is_no_trace_is_refused_in_a_line(content, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"x\.json") as caught:
        read_trace(path)
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_bomb_is_refused_before_it_is_unpacked(packing, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_MIN_LIMIT_BYTES", 1 << 20)
    path = tmp_path / "bomb"
    content = b'{"x": [' + b" " * (64 << 20) + b'], "traceEvents": [' + SPAN.encode() + b"]}"
    path.write_bytes(pack(content, packing))
    del content
    tracemalloc.start()
    with pytest.raises(BadInput):
        read_trace(path)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("packing", ["gzip", "two gzips", "zstd"])
def test_a_cut_stream_is_read_up_to_the_cut(packing, tmp_path):
    spans = [SPAN.replace('"ts":1', f'"ts":{n * n % 7919}') for n in range(20_000)]
    packed = pack(('{"traceEvents":[' + ",".join(spans) + "]}").encode(), packing)
    packed = packed[: len(packed) * 2 // 3]
    path = tmp_path / "cut"
    path.write_bytes(packed)
    trace = read_trace(path)
    assert trace.report.cut_short
    assert trace.start_ns.tolist() == [n * n % 7919 * 1000 for n in range(len(trace))]
    if packing == "gzip":
        unpacked = zlib.decompressobj(wbits=31).decompress(packed)
        assert len(trace) == unpacked.count(b'"stream":7}}')
    assert 8000 < len(trace) < 19_000


def test_a_wrong_checksum_or_a_damaged_second_member_is_damage(tmp_path):
    path = tmp_path / "x.gz"
    packed = bytearray(gzip.compress(f"[{SPAN}]".encode()))
    packed[-8] ^= 1
    path.write_bytes(packed)
    trace = read_trace(path)
    assert (len(trace), trace.report.cut_short) == (1, True)
    path.write_bytes(gzip.compress(f"[{SPAN},".encode()) + gzip.compress(f"{SPAN}]".encode())[:-9] + b"junk")
    report = read_trace(path).report
    assert (report.cut_short, report.trailing_bytes) == (True, 0)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize(
    ("behind", "size"),
    [(b"\0" * 100, 0), (b"\0" * 100 + b"junk", 4), (b"\x1f\x8c" * 3_000_000, 6_000_000), (b"\x1f", 1)],
    ids=["padding", "padding and more", "much that begins like a member", "one byte"],
)
def test_bytes_behind_the_last_member_are_left_out_and_no_damage(behind, size, members, tmp_path):
    path = tmp_path / "x.gz"
    content = f"[{SPAN}]".encode()
    pieces = [content] if members == 1 else [content[:9], content[9:]]
    path.write_bytes(b"".join(map(gzip.compress, pieces)) + behind)
    trace = read_trace(path)
    assert (len(trace), trace.report.cut_short, trace.report.trailing_bytes) == (1, False, size)


@pytest.mark.parametrize("begin", [b'{"x": ', b'{"traceEvents":[{"ph":', b'{"', b'[{"name":"'])
def test_a_value_without_end_is_refused(begin, monkeypatch):
    monkeypatch.setattr(text, "_MAX_BYTES", 1 << 20)
    with pytest.raises(BadInput):
        read_text(io.BytesIO(begin + b"1" * (8 << 20)), block_bytes=64 << 10)


def test_arguments_beyond_the_bounds_are_not_kept(monkeypatch):
    large = with_args(f'"Collective name":"x","Input Dims":{[[1]] * 20_000}')
    assert read(large).report.dropped_arguments == 1
    monkeypatch.setattr(rows, "_MAX_BYTES", 5000)
    trace = read(*[with_args('"stream":7,"Collective name":"allreduce"')] * 1000, large)
    assert trace.report.dropped_arguments == 1001 - 5000 // len("allreduce")
    assert 1000 not in trace.arguments
    assert trace.arguments[3].collective == "allreduce"


def test_memory_does_not_grow_with_the_text():
    filler = '"x":"' + "a" * 20_000 + '"'
    source = io.BytesIO(("[" + ",".join([with_args(f'"stream":7,{filler}')] * 1500) + "]").encode())
    tracemalloc.start()
    trace = read_text(source, block_bytes=64 << 10)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert len(trace) == 1500


@pytest.mark.parametrize("part", [b"[", b"[],"])
def test_an_entry_of_brackets_takes_little_memory(part, monkeypatch):
    monkeypatch.setattr(text, "_MAX_BYTES", 16 << 20)
    monkeypatch.setattr(structure, "_MAX_BRACKETS", 1 << 18)
    source = io.BytesIO(b'{"traceEvents":[{"ph":"X","args":[' + part * (8 << 20))
    tracemalloc.start()
    with pytest.raises(BadInput):
        read_text(source)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
