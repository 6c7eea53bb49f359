"""Traps of real and broken traces: numbers, texts, times and identities that are not as they should be."""

import io
import json
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.collectors.kineto.convert import list_read_gaps
from zprof.collectors.kineto.reading.columns import microseconds_to_ns, to_int64, to_nanoseconds
from zprof.collectors.kineto.reading.reader import read_text
from zprof.collectors.kineto.trace import ABSENT

BASE = 1_790_857_026_000_000_000
GOOD = '{"ph":"X","cat":"kernel","name":"good","ts":1,"dur":1,"pid":0,"tid":7,"args":{"stream":7}}'


def read(*events, tail="", head=""):
    text = head or '{"traceEvents":[' + ",".join(events) + "]" + tail + "}"
    return read_text(io.BytesIO(text.encode(errors="surrogateescape")), block_bytes=4096)


def span(fields="", args=""):
    return (
        f'{{"ph":"X","cat":"kernel","name":"odd","ts":5,"dur":2,"pid":0,"tid":7{fields},"args":{{{args}}}}}'
    )


@pytest.mark.parametrize(
    ("args", "column", "want"),
    [
        ('"correlation":12', "correlation", 12),
        ('"correlation":"12"', "correlation", 12),
        ('"correlation":1.0', "correlation", 1),
        ('"correlation":1e3', "correlation", 1000),
        ('"correlation":null', "correlation", ABSENT),
        ('"correlation":true', "correlation", ABSENT),
        ('"correlation":[1]', "correlation", ABSENT),
        ('"correlation":1.5', "correlation", ABSENT),
        ('"correlation":"0x7f"', "correlation", ABSENT),
        ('"correlation":-1', "correlation", -1),
        ('"correlation":4294967295', "correlation", 4294967295),
        ('"correlation":9223372036854775807', "correlation", ABSENT),
        ('"correlation":18446744073709551615', "correlation", ABSENT),
        ('"correlation":' + "9" * 5000, "correlation", ABSENT),
        ('"correlation":1,"correlation":2', "correlation", 2),
        ('"External id":5', "external_id", 5),
        ('"external id":6', "external_id", 6),
        ('"External id":5,"external id":6', "external_id", 5),
        ('"bytes":"4096"', "bytes", 4096),
        ('"stream":20', "stream", 20),
        ("", "stream", 7),
    ],
)
def test_identities(args, column, want):
    trace = read(GOOD, span(args=args), GOOD)
    assert [trace.name[row] for row in range(3)] == ["good", "odd", "good"]
    assert int(getattr(trace, column)[1]) == want
    assert (trace.report.events, trace.report.dropped, trace.report.repaired) == (3, 0, 0)


@pytest.mark.parametrize(
    ("fields", "column", "want"),
    [
        (',"tid":"stream 20"', "thread", 20),
        (',"tid":"25738"', "thread", 25738),
        (',"tid":"Trace PyTorch Profiler"', "thread", ABSENT),
        (',"pid":""', "process", ABSENT),
        (',"pid":"Spans"', "process", ABSENT),
        (',"pid":null', "process", ABSENT),
        (',"pid":-3', "process", -3),
    ],
)
def test_threads_and_processes(fields, column, want):
    assert int(getattr(read(GOOD, span(fields)), column)[1]) == want


@pytest.mark.parametrize(
    ("category", "args", "tid", "want"),
    [
        ("kernel", '"stream":9', 7, 9),
        ("Kernel", '"stream":9', 7, 9),
        ("gpu_user_annotation", "", 7, 7),
        ("gpu_memcpy", "", 8, 8),
        ("cuda_sync", '"stream":-1', 8, -1),
        ("cuda_sync", "", 8, ABSENT),
        ("cuda_runtime", '"stream":"0x55d0"', 8, ABSENT),
        ("cuda_runtime", '"stream":7', 8, ABSENT),
        ("cpu_op", "", 8, ABSENT),
    ],
)
def test_streams(category, args, tid, want):
    assert int(read(GOOD, span(f',"cat":"{category}","tid":{tid}', args)).stream[1]) == want


def test_categories_are_todays():
    words = ["Operator", "cpu_op", "Kernel", "Memcpy", "Memset", "Runtime", "new_word", "kernel"]
    trace = read(*(span(f',"cat":"{word}"') for word in words))
    want = ["cpu_op", "cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "new_word", "kernel"]
    assert [trace.category[row] for row in range(8)] == want
    assert len(set(trace.category.texts)) == len(trace.category.texts)


@pytest.mark.parametrize(
    "broken",
    [
        span(args='"x": nan'),
        span(args='"x": NaN, "y": -Infinity, "z": inf'),
        span(args='"x": -nan(ind)'),
        span(',"name":"odd\udcff"'),
        span(',"name":"odd\x01"'),
        span(',"name":"odd\t"'),
        span(',"name":"odd\\q"'),
        span(args='"x": [1, nan], "in a text": "nan"'),
    ],
)
def test_what_is_mended(broken):
    trace = read(GOOD, broken, GOOD)
    assert (trace.report.events, trace.report.repaired, trace.report.dropped) == (3, 1, 0)
    assert [trace.name[row][:3] for row in range(3)] == ["goo", "odd", "goo"]
    assert trace.start_ns.tolist() == [1000, 5000, 1000]


@pytest.mark.parametrize(
    "broken",
    [
        '{"ph" "X"}',
        '{"ph":"X",,}',
        '{"ph":"X"}}',
        '{"ph":"X"',
        '{"name":"a"b","ph":"X"}',
        '{"a":[}',
        '{"name":"a,"ph":1}',
    ],
)
@pytest.mark.parametrize("between", [",", ", ", ",\n  "])
def test_what_is_broken_costs_little_else(broken, between):
    rows = [GOOD] * 8 + [broken] + [GOOD] * 8
    text = '{"traceEvents":[' + between.join(rows) + '],"distributedInfo":{"rank":5}}'
    trace = read_text(io.BytesIO(text.encode()), block_bytes=4096)
    assert trace.report.events >= 15
    assert trace.report.dropped >= 1
    assert set(trace.start_ns.tolist()) == {1000}
    assert trace.header.rank == 5


def test_half_a_pair_of_letters_is_replaced():
    trace = read(GOOD, span(',"name":"odd\\ud800"'))
    assert (trace.name[1], trace.report.events) == ("odd?", 2)


def test_a_bare_nan_in_every_event_of_a_long_file():
    trace = read(*[span(args='"est. achieved occupancy %": nan')] * 3000)
    assert (trace.report.events, trace.report.repaired, len(trace)) == (3000, 3000, 3000)


@pytest.mark.parametrize(
    ("ts", "dur"),
    [("0", "0"), ("0.0", "0.000"), ("null", "1"), ("1", "null"), ("1", "-1"), ("nan", "1"), ("9e18", "1"),
     ("-9e18", "1"),
     ('"x"', "1"), ("[]", "1"), ("1e999", "1"), ("1", "1e999"), ("9" * 400, "1"), ("-1", "1")],
)  # fmt: skip
def test_what_has_no_place_in_time(ts, dur):
    trace = read(GOOD, span(f',"ts":{ts},"dur":{dur}'))
    assert (trace.report.events, trace.report.timeless, len(trace)) == (2, 1, 1)


@pytest.mark.parametrize(
    ("ts", "want"),
    [
        ("4368137779001.001", 4_368_137_779_001_001),
        ("1712195495519689.047", 1_712_195_495_519_689_047),
        ("1712195495519689.999", 1_712_195_495_519_689_999),
        ("1712195495519689", 1_712_195_495_519_689_000),
        ("1.712195495519689047e15", 1_712_195_495_519_689_047),
        ("1.5e3", 1_500_000),
        ("1E+2", 100_000),
        ("2.0", 2000),
        ('"12.5"', 12_500),
        ("0.001", 1),
    ],
)
@pytest.mark.parametrize("others", [1, 200])
def test_times_are_exact(ts, want, others):
    trace = read(*[GOOD] * others, span(f',"ts":{ts}'), *[GOOD] * others)
    assert int(trace.start_ns[others]) == want
    assert trace.start_ns[others + 1 :].tolist() == [1000] * others


def test_digits_are_read_again_only_where_doubles_are_too_coarse():
    rows = [span(f',"ts":17121954955{n:05d}.{n % 1000:03d}') for n in range(700)]
    trace = read(*rows)
    assert trace.start_ns.tolist() == [int(f"17121954955{n:05d}{n % 1000:03d}") for n in range(700)]


def test_the_base_may_come_last_and_is_added_as_a_whole_number():
    trace = read(span(',"ts":4368137779001.001'), tail=f',"baseTimeNanoseconds":{BASE}')
    assert trace.start_ns.tolist() == [BASE + 4_368_137_779_001_001]
    assert trace.header.base_ns == BASE


def test_what_the_base_moves_beyond_all_time_is_left_out():
    kept = '"Collective name":"allreduce"'
    rows = [
        span(f',"ts":{2**62 // 1000 - 10}', kept),
        span("", kept),
        span(',"ts":-100'),
        span(',"ts":7', kept),
    ]
    trace = read(*rows, tail=',"baseTimeNanoseconds":50000')
    assert trace.start_ns.tolist() == [55_000, 57_000]
    assert trace.report.timeless == 2
    assert sorted(trace.arguments) == [0, 1]


@given(st.integers(0, 2**43 - 1), st.integers(0, 999))
def test_doubles_below_2_to_the_43_are_exact(whole, fraction):
    doubles = np.array([float(f"{whole}.{fraction:03d}")])
    assert to_nanoseconds(doubles).tolist() == [whole * 1000 + fraction]


@given(st.integers(0, 4 * 10**15), st.integers(0, 999))
def test_digits_become_nanoseconds(whole, fraction):
    text = f"{whole}.{fraction:03d}".rstrip("0").rstrip(".")
    assert microseconds_to_ns(text.encode()) == whole * 1000 + fraction


@pytest.mark.parametrize("text", ["1e3", "1.5E+2", "-2.5", "0.1234567", "0.0005", "0.0015001"])
def test_other_spellings_of_numbers(text):
    assert microseconds_to_ns(text.encode()) == int((Decimal(text) * 1000).to_integral_value())


@pytest.mark.parametrize(
    "text", ["", "null", '"x"', "[1]", "1e999999", "9e30", "--1", "1.2.3", "nan", "1" * 10**6]
)
def test_what_is_no_time(text):
    assert microseconds_to_ns(text.encode()) is None


@pytest.mark.parametrize(
    "value", [None, True, "", "-", "1_0", "٣", 2**62, -(2**62), float("nan"), float("inf"), [], {}]
)
def test_what_is_no_identity(value):
    assert to_int64(value) == ABSENT


def test_all_names_of_a_thread_are_kept():
    rows = [
        f'{{"ph":"M","name":"thread_name","tid":7,"args":{{"name":"{name}"}}}}' for name in ("one", "two")
    ]
    rows += [
        '{"ph":"M","name":"thread_name","tid":"Spans","args":{"name":3}}',
        '{"ph":"M","name":"x","tid":7}',
    ]
    assert read(GOOD, *rows).thread_names == {7: frozenset({"one", "two"})}


METADATA = (
    '"Collective name":"_allgather_base","In msg nelems":4,"Out msg nelems":8,"Group size":2,'
    '"dtype":"BFloat16","In split size":"[]","Out split size":"[]","Process Group Name":"3",'
    '"Process Group Description":"fsdp",'
    '"Process Group Ranks":"[0, 1]","Seq":9,"Rank":1,"Src Rank":0,"Dst Rank":1,'
    '"Process Group ID":5,"grid":[8,1,1],"correlation":4,"Input Dims":[[2,2],[]]'
)


OPERATORS = ("c10d::allreduce_", "gloo:broadcast", "nccl:all_reduce", "aten::mm")


def test_arguments_of_the_rows_that_need_them():
    trace = read(
        GOOD,
        span(args=METADATA),
        *(span(f',"cat":"cpu_op","name":"{name}"') for name in OPERATORS),
        span(',"cat":"cpu_op","name":"record_param_comms"', METADATA),
        span(',"cat":"cuda_sync"', '"cuda_sync_kind":"Stream Wait Event","wait_on_stream":20,"stream":-1'),
    )  # fmt: skip
    assert sorted(trace.arguments) == [1, 2, 3, 4, 6, 7]
    found = trace.arguments[1]
    assert (found.collective, found.elements_in, found.elements_out) == ("_allgather_base", 4, 8)
    assert (found.group, found.group_description, found.group_ranks) == ("3", "fsdp", "[0, 1]")
    assert (found.group_size, found.sequence, found.dtype, found.grid) == (2, 9, "BFloat16", [8, 1, 1])
    assert (found.rank, found.source_rank, found.destination_rank, found.group_id) == (1, 0, 1, 5)
    assert (found.split_in, found.dims, found.correlation, found.stream) == ("[]", [[2, 2], []], 4, None)
    assert (trace.arguments[7].sync_kind, trace.arguments[7].sync_stream) == ("Stream Wait Event", 20)
    assert trace.arguments[6].sequence == 9


def test_mended_events_have_their_arguments_too():
    trace = read(GOOD, span(args=METADATA + ',"x":nan'))
    assert trace.arguments[1] == read(GOOD, span(args=METADATA)).arguments[1]


def test_arguments_of_any_type_are_survived():
    odd = [
        "null",
        "3",
        "[]",
        '"x"',
        '{"Input Dims":"x","Input type":3,"stream":[],"correlation":"7","Seq":{}}',
    ]
    rows = [
        f'{{"ph":"X","cat":"{cat}","name":"{name}","ts":1,"dur":1,"args":{args}}}'
        for args in odd
        for cat in ("kernel", "cpu_op", "cuda_sync")
        for name in ("gloo:a", "c10d::b")
    ]
    trace = read(*rows)
    assert len(trace) == trace.report.events == len(rows)


def test_header_keeps_only_what_is_asked_for():
    secret = {
        "env": "TOKEN=hunter2",
        "distributedInfo": {"rank": "2", "token": "hunter2"},
        "metadata": ["hunter2"],
    }
    trace = read(head=json.dumps({**secret, "traceEvents": [json.loads(GOOD)], "more": secret}))
    assert trace.header.rank == 2
    assert "hunter2" not in repr(trace.header)


@pytest.mark.parametrize("tail", ["", f',"baseTimeNanoseconds":{BASE}'], ids=["absolute", "from a base"])
@pytest.mark.parametrize("bad", ["9" * 400, str(2**63), "-1", '"x"', "null"])
def test_each_impossible_field_is_a_gap_with_its_count(bad, tail):
    trace = read(GOOD, span(f',"ts":{bad}'), span(f',"dur":{bad}'), GOOD, tail=tail)
    assert (len(trace), trace.report.timeless) == (2, 2)
    (gap,) = list_read_gaps(trace.report)
    assert "2 of 4" in gap.reason


@pytest.mark.parametrize("bad", ["9" * 400, str(2**63), "-1", "null", "{}", '""'])
def test_what_does_not_say_what_it_is_is_a_gap(bad):
    trace = read(GOOD, span(f',"name":{bad}'), span(f',"cat":{bad}'), span(f',"ph":{bad}'), GOOD)
    assert trace.report.nameless == 3
    (gap,) = list_read_gaps(trace.report)
    assert "3 of 5" in gap.reason


def test_a_sound_trace_has_no_gap_of_its_reading():
    assert list_read_gaps(read(GOOD, GOOD).report) == []
