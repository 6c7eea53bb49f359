"""Files that want to exhaust, to hang or to confuse: one clear error, or what is there, in bounded memory."""

import gzip
import io
import json
import os
import pickle
import re
import time
import tracemalloc
import zlib

import pytest

from tests.support.kineto_oracle import pack
from zprof.collectors.kineto.convert import convert_trace
from zprof.collectors.kineto.reading import columns as texts_module
from zprof.collectors.kineto.reading import rows as rows_module
from zprof.collectors.kineto.reading import rows as wanted_module
from zprof.collectors.kineto.reading import text as text_module
from zprof.collectors.kineto.reading import text as window_module
from zprof.collectors.kineto.reading.reader import read_text, read_trace
from zprof.collectors.kineto.reading.text import TraceText
from zprof.model.errors import BadInput

SPAN = '{"ph":"X","cat":"kernel","name":"good","ts":1,"dur":1,"pid":0,"tid":7,"args":{"stream":7}}'


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "empty"),
        (b"   \n", "empty"),
        (gzip.compress(b"", mtime=0), "empty"),
        (pickle.dumps({"segments": []}), "pickle"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b"PK\x03\x04rest", "zip"),
        (gzip.compress(b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", mtime=0), "list of lists"),
        (b"[1, 2]", "not a JSON object or a list of events"),
        (b"[]", "not a JSON object or a list of events"),
        (b"\x00\x01\x02", "not a JSON object"),
        (b"{}", "no traceEvents"),
        (b'{"traceEvents": 3}', "no traceEvents"),
        (b'{"traceEvents": {"a": 1}}', "no traceEvents"),
        (b"{", "ends before its events"),
        (b'{"a', "ends before its events"),
        (b'{"traceEvents": [', "none of its entries is an event"),
        (b'{"traceEvents": [1]}', "none of its entries is an event"),
        (b'[{"a": 1}, {"b": 2}]', "none of its entries is an event"),
        (b'{"traceEvents": [{"ph": "X', "none of its entries is an event"),
        (b'{"a": ' + b"[" * 3_000_000, "ends before its events"),
        (b'{"traceEvents": [' + b'{"a":[' * 500_000, "none of its entries is an event"),
        (b'{"traceEvents": [{"ph": "X", "ts": ' + b"1" * 3_000_000, "none of its entries is an event"),
        (b'{"x": "' + b"a" * 3_000_000, "ends before its events"),
        (gzip.compress(b"{}", mtime=0)[:4], "cut short"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:12]),
)
def test_what_is_no_trace_is_said_in_a_line(content, what, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=rf"x\.json: not a Kineto trace \(.*{what}") as caught:
        read_trace(path)
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "absent", tmp_path, tmp_path / "pipe"):
        with pytest.raises(BadInput, match=re.escape(str(path)) + ": cannot be read"):
            read_trace(path)


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_bomb_is_refused_before_it_is_unpacked(packing, tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "_MIN_LIMIT_BYTES", 1 << 20)
    path = tmp_path / "bomb"
    path.write_bytes(pack(b'{"x": [' + b" " * (64 << 20), packing))
    tracemalloc.start()
    with pytest.raises(BadInput, match="unpacks to more than"):
        read_trace(path)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("packing", ["gzip", "two gzips", "zstd"])
def test_a_cut_stream_is_used_up_to_the_cut(packing, tmp_path):
    rows = [SPAN.replace('"ts":1', f'"ts":{n * n % 7919}') for n in range(20_000)]
    packed = pack(('{"traceEvents":[' + ",".join(rows) + "]}").encode(), packing)
    path = tmp_path / "cut"
    path.write_bytes(packed[: len(packed) * 2 // 3])
    trace = read_trace(path)
    assert trace.report.cut_short
    assert 8000 < trace.report.events < 19_000
    assert trace.start_ns.tolist() == [n * n % 7919 * 1000 for n in range(len(trace))]


def test_not_a_byte_before_the_damage_is_lost(tmp_path):
    whole = os.urandom(300_000)
    packed = gzip.compress(whole)[:-100]
    reference = zlib.decompressobj(wbits=31).decompress(packed)
    path = tmp_path / "cut.gz"
    path.write_bytes(packed)
    got, target = b"", bytearray(70_000)
    with path.open("rb") as file:
        text = TraceText(file)
        while size := text.readinto(memoryview(target)):
            got += target[:size]
    assert text.damaged
    assert got == reference


def test_a_wrong_checksum_is_damage(tmp_path):
    packed = bytearray(gzip.compress(f"[{SPAN}]".encode()))
    packed[-8] ^= 1
    path = tmp_path / "x.gz"
    path.write_bytes(packed)
    trace = read_trace(path)
    assert (len(trace), trace.report.cut_short) == (1, True)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize(
    ("behind", "size"),
    [
        (b"\0" * 100, 0),
        (b"\0" * 100 + b"junk", 4),
        (b"junk", 4),
        (b"\x1f\x8c" * 3_000_000, 6_000_000),
        (b"\x1f", 1),
    ],
    ids=["padding", "padding and more", "garbage", "much that begins like a member", "one byte"],
)
def test_what_follows_the_last_member_is_left_out_and_no_damage(behind, size, members, tmp_path):
    path = tmp_path / "x.gz"
    text = f"[{SPAN}]".encode()
    pieces = [text] if members == 1 else [text[:9], text[9:]]
    path.write_bytes(b"".join(map(gzip.compress, pieces)) + behind)
    trace = read_trace(path)
    assert (len(trace), trace.report.cut_short, trace.report.trailing_bytes) == (1, False, size)


def test_a_damaged_second_member_is_damage(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(f"[{SPAN},".encode()) + gzip.compress(f"{SPAN}]".encode())[:-9] + b"junk")
    report = read_trace(path).report
    assert (report.cut_short, report.trailing_bytes) == (True, 0)


def test_text_behind_the_end_is_told():
    for text in (f"[{SPAN}] more", f'{{"traceEvents":[{SPAN}]}}}}'):
        assert read_text(io.BytesIO(text.encode())).report.cut_short
    assert not read_text(io.BytesIO(f"[{SPAN}] \n".encode())).report.cut_short


def test_memory_does_not_grow_with_the_text():
    filler = '"x":"' + "a" * 20_000 + '"'
    row = SPAN.replace('"stream":7', f'"stream":7,{filler}')
    text = f'{{"traceEvents":[{",".join([row] * 1500)}],"env":[{",".join(["{" + filler + "}"] * 1500)}]}}'
    source = io.BytesIO(text.encode())
    del text
    tracemalloc.start()
    trace = read_text(source, block_bytes=64 << 10)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert len(trace) == 1500


def test_a_value_without_end_is_refused(monkeypatch):
    class Long:
        """Far more than the bound, of one digit."""

        def __init__(self, begin):
            self.parts = [begin, *[b"1" * 65_536] * 128]

        def readinto(self, target):
            part = self.parts.pop(0)[: len(target)] if self.parts else b""
            target[: len(part)] = part
            return len(part)

    monkeypatch.setattr(window_module, "_MAX_BYTES", 1 << 20)
    for begin in (b'{"x": ', b'{"traceEvents":[{"ph":', b'{"', b'[{"name":"'):
        with pytest.raises(BadInput, match="larger than"):
            read_text(Long(begin), block_bytes=64 << 10)


def test_too_many_names_become_one(monkeypatch):
    monkeypatch.setattr(texts_module, "_MAX_LETTERS", 2000)
    rows = [SPAN.replace("good", f"name {n:04d}") for n in range(1000)]
    trace = read_text(io.BytesIO(("[" + ",".join(rows) + "]").encode()))
    assert trace.report.unkept_names == 1000 - 222
    assert len(trace) == 1000
    assert trace.name[5] == "name 0005"
    assert trace.name[999] == texts_module.UNKEPT_TEXT


def test_too_many_and_too_large_arguments_are_not_kept(monkeypatch):
    monkeypatch.setattr(wanted_module, "_MAX_BYTES", 5000)
    long = json.dumps([[1]] * 20_000)
    rows = [SPAN.replace('"stream":7', '"stream":7,"Collective name":"allreduce"')] * 1000
    rows.append(SPAN.replace('"stream":7', f'"Collective name":"x","Input Dims":{long}'))
    trace = read_text(io.BytesIO(("[" + ",".join(rows) + "]").encode()))
    assert trace.report.unkept_arguments == 1001 - 5000 // len("allreduce")
    assert 1000 not in trace.arguments
    assert trace.arguments[3].collective == "allreduce"


def test_repeated_texts_of_arguments_are_kept_once():
    row = SPAN.replace('"stream":7', '"Collective name":"allreduce","Process Group Ranks":"[0, 1]"')
    found = read_text(io.BytesIO(f"[{row},{row}]".encode())).arguments
    assert found[0].group_ranks is found[1].group_ranks


def test_the_names_of_many_threads_cost_each_as_much_as_those_of_few():
    name = '{"ph":"M","name":"thread_name","pid":1,"tid":%d,"args":{"name":"t"}}'

    def seconds_each(count):
        text = "[" + ",".join([name % thread for thread in range(count)]) + "]"
        begin = time.process_time()
        trace = read_text(io.BytesIO(text.encode()))
        assert len(trace.thread_names) == count
        return (time.process_time() - begin) / count

    few = min(seconds_each(2_000) for _ in range(5))
    many = min(seconds_each(32_000) for _ in range(3))
    assert many < 5 * few  # To look through all for each new one would make it 16.


def test_names_of_threads_are_bounded_and_told_apart(monkeypatch):
    monkeypatch.setattr(rows_module, "_MAX_NAMES", 3)
    name = '{"ph":"M","name":"thread_name","pid":1,"tid":%d,"args":{"name":"%s"}}'
    rows = [name % at for at in [(1, "a"), (1, "a"), (1, "b"), (2, "a"), (2, "late"), (3, "late")]]
    trace = read_text(io.BytesIO(("[" + ",".join(rows) + "]").encode()))
    assert trace.thread_names == {1: {"a", "b"}, 2: {"a"}}


def test_events_that_come_again_and_again_are_refused():
    array = f'"traceEvents":[{SPAN}]'
    trace = read_text(io.BytesIO(("{" + ",".join([array] * 64) + "}").encode()))
    assert trace.report.events == 1
    with pytest.raises(BadInput, match="traceEvents more than 64 times"):
        read_text(io.BytesIO(("{" + ",".join([array] * 65) + "}").encode()))


def strided(first, size=1000):
    group = f'"Collective name":"allreduce","Process Group Name":"1","Group size":{size}'
    stride = f'"Global rank start":{first},"Global rank stride":1'
    return SPAN.replace('"stream":7', f'"stream":7,{group},{stride}')


def test_groups_that_few_numbers_make_large_are_counted_once_each(monkeypatch):
    monkeypatch.setattr(wanted_module, "_MAX_BYTES", 100_000)
    rows = [strided(0)] * 50 + [strided(first) for first in range(10)]
    trace = read_text(io.BytesIO(("[" + ",".join(rows) + "]").encode()))
    assert trace.report.unkept_arguments == 10 - 3
    assert trace.arguments[52].first_global_rank == 2
    assert 53 not in trace.arguments


def test_many_collectives_of_a_large_group_hold_its_ranks_once():
    rows = [strided(5, size=50_000)] * 200
    trace = read_text(io.BytesIO(("[" + ",".join(rows) + "]").encode()))
    tracemalloc.start()
    tables, _ = convert_trace(trace)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(tables["collectives"]["group_size"]) == {50_000}
    assert tables["collectives"]["group"][199].startswith("5,6,7,")
    assert peak_bytes < 48 << 20
