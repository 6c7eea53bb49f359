"""Numbers, texts, times and identities of real and broken traces that are not as they should be."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.collectors.read.kineto.convert import list_read_gaps
from zprof.collectors.read.kineto.reading.columns import microseconds_to_ns, to_nanoseconds
from zprof.collectors.read.kineto.reading.reader import read_text
from zprof.collectors.read.kineto.trace import ABSENT

BASE = 1_790_857_026_000_000_000
GOOD = '{"ph":"X","cat":"kernel","name":"good","ts":1,"dur":1,"pid":0,"tid":7,"args":{"stream":7}}'


def read(*events, tail=""):
    text = '{"traceEvents":[' + ",".join(events) + "]" + tail + "}"
    return read_text(io.BytesIO(text.encode(errors="surrogateescape")), block_bytes=4096)


def span(fields="", args=""):
    return (
        f'{{"ph":"X","cat":"kernel","name":"odd","ts":5,"dur":2,"pid":0,"tid":7{fields},"args":{{{args}}}}}'
    )


@pytest.mark.parametrize(
    ("fields", "args", "column", "want"),
    [
        ("", '"correlation":12', "correlation", 12),
        ("", '"correlation":"12"', "correlation", 12),
        ("", '"correlation":null', "correlation", ABSENT),
        ("", '"correlation":true', "correlation", ABSENT),
        ("", '"correlation":[1]', "correlation", ABSENT),
        ("", '"correlation":1.5', "correlation", ABSENT),
        ("", '"correlation":"0x7f"', "correlation", ABSENT),
        ("", '"correlation":"1_0"', "correlation", ABSENT),
        ("", '"correlation":-1', "correlation", -1),
        ("", '"correlation":4611686018427387903', "correlation", 2**62 - 1),
        ("", '"correlation":4611686018427387904', "correlation", ABSENT),
        ("", '"correlation":' + "9" * 5000, "correlation", ABSENT),
        ("", '"correlation":1,"correlation":2', "correlation", 2),
        ("", '"External id":5,"external id":6', "external_id", 5),
        ("", '"external id":6', "external_id", 6),
        ("", '"bytes":"4096"', "bytes", 4096),
        (',"tid":"stream 20"', "", "thread", 20),
        (',"tid":"25738"', "", "thread", 25738),
        (',"tid":"Trace PyTorch Profiler"', "", "thread", ABSENT),
        (',"pid":null', "", "process", ABSENT),
        (',"pid":-3', "", "process", -3),
        (',"tid":8', '"stream":9', "stream", 9),
        (',"tid":8,"cat":"Kernel"', '"stream":9', "stream", 9),
        (',"tid":8,"cat":"gpu_user_annotation"', "", "stream", 8),
        (',"tid":8,"cat":"gpu_memcpy"', "", "stream", 8),
        (',"tid":8,"cat":"cuda_sync"', '"stream":-1', "stream", -1),
        (',"tid":8,"cat":"cuda_sync"', "", "stream", ABSENT),
        (',"tid":8,"cat":"cuda_runtime"', '"stream":7', "stream", ABSENT),
        (',"tid":8,"cat":"cpu_op"', "", "stream", ABSENT),
    ],
)
def test_identities(fields, args, column, want):
    trace = read(GOOD, span(fields, args), GOOD)
    assert [trace.name[row] for row in range(3)] == ["good", "odd", "good"]
    assert int(getattr(trace, column)[1]) == want
    assert (trace.report.events, trace.report.dropped, trace.report.repaired) == (3, 0, 0)


@pytest.mark.parametrize(
    "broken",
    [
        span(args='"x": NaN, "y": -Infinity, "z": inf, "w": nan'),
        span(args='"x": -nan(ind)'),
        span(',"name":"odd\udcff"'),
        span(',"name":"odd\x01"'),
        span(',"name":"odd\\q"'),
        span(args='"x": [1, nan], "in a text": "nan"'),
    ],
)
def test_a_repairable_event_is_repaired(broken):
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
        '{"name":"a"b"}',
        '{"a":[}',
        '{"name":"a,"ph":1}',
    ],
)
@pytest.mark.parametrize("between", [",", ",\n  "])
def test_a_broken_event_costs_few_others(broken, between):
    rows = [GOOD] * 8 + [broken] + [GOOD] * 8
    text = '{"traceEvents":[' + between.join(rows) + '],"distributedInfo":{"rank":5}}'
    trace = read_text(io.BytesIO(text.encode()), block_bytes=4096)
    assert trace.report.events >= 15
    assert trace.report.dropped >= 1
    assert set(trace.start_ns.tolist()) == {1000}
    assert trace.header.rank == 5


@pytest.mark.parametrize(
    ("ts", "dur"),
    [
        ("0", "0"),
        ("null", "1"),
        ("1", "null"),
        ("1", "-1"),
        ("nan", "1"),
        ("9e18", "1"),
        ('"x"', "1"),
        ("1", "1e999"),
        ('"1.2.3"', "1"),
        ("9" * 400, "1"),
        ("-1", "1"),
    ],
)
def test_an_event_without_a_place_in_time_is_left_out_and_counted(ts, dur):
    trace = read(GOOD, span(f',"ts":{ts},"dur":{dur}'))
    assert (trace.report.events, trace.report.without_time, len(trace)) == (2, 1, 1)
    assert list_read_gaps(trace.report)


@pytest.mark.parametrize(
    ("ts", "want"),
    [
        ("1712195495519689.047", 1_712_195_495_519_689_047),
        ("1.712195495519689047e15", 1_712_195_495_519_689_047),
        ('"12.5"', 12_500),
        ("0.0005", 0),
        ("0.0015001", 2),
    ],
)
@pytest.mark.parametrize("others", [1, 200])
def test_times_are_exact_and_the_base_is_added_as_a_whole_number(ts, want, others):
    rows = [*[GOOD] * others, span(f',"ts":{ts}'), *[GOOD] * others]
    assert read(*rows).start_ns.tolist() == [1000] * others + [want] + [1000] * others
    trace = read(*rows, tail=f',"baseTimeNanoseconds":{BASE}')
    assert trace.start_ns.tolist() == [BASE + 1000] * others + [BASE + want] + [BASE + 1000] * others


@given(st.integers(0, 4 * 10**15), st.integers(0, 999))
def test_microseconds_become_nanoseconds_exactly(whole, fraction):
    text = f"{whole}.{fraction:03d}"
    assert microseconds_to_ns(text.rstrip("0").rstrip(".").encode()) == whole * 1000 + fraction
    if whole < 2**43:
        assert to_nanoseconds(np.array([float(text)])).tolist() == [whole * 1000 + fraction]


@pytest.mark.parametrize("bad", ["9" * 400, "-1", "null", "{}", '""'])
def test_events_without_a_name_category_or_phase_are_counted(bad):
    trace = read(GOOD, span(f',"name":{bad}'), span(f',"cat":{bad}'), span(f',"ph":{bad}'), GOOD)
    assert trace.report.without_name == 3
    assert len(list_read_gaps(trace.report)) == 1
    assert list_read_gaps(read(GOOD, GOOD).report) == []


METADATA = (
    '"Collective name":"_allgather_base","In msg nelems":4,"Out msg nelems":8,"Group size":2,"Seq":9,'
    '"dtype":"BFloat16","In split size":"[]","Out split size":"[]","Process Group Name":"3","Rank":1,'
    '"Process Group Description":"fsdp","Process Group Ranks":"[0, 1]","Src Rank":0,"Dst Rank":1,'
    '"Process Group ID":5,"grid":[8,1,1],"correlation":4,"Input Dims":[[2,2],[]]'
)


@pytest.mark.parametrize("more", ["", ',"x":nan'], ids=["sound", "repaired"])
def test_arguments_of_the_rows_that_need_them(more):
    operators = ("c10d::allreduce_", "gloo:broadcast", "nccl:all_reduce", "aten::mm")
    trace = read(
        GOOD,
        span(args=METADATA + more),
        *(span(f',"cat":"cpu_op","name":"{name}"') for name in operators),
        span(',"cat":"cpu_op","name":"record_param_comms"', METADATA),
        span(',"cat":"cuda_sync"', '"cuda_sync_kind":"Stream Wait Event","wait_on_stream":20,"stream":-1'),
    )
    assert sorted(trace.arguments) == [1, 2, 3, 4, 6, 7]
    found = trace.arguments[1]
    assert (found.collective, found.elements_in, found.elements_out) == ("_allgather_base", 4, 8)
    assert (found.group, found.group_description, found.group_ranks) == ("3", "fsdp", "[0, 1]")
    assert (found.group_size, found.sequence, found.dtype, found.grid) == (2, 9, "BFloat16", [8, 1, 1])
    assert (found.rank, found.source_rank, found.destination_rank, found.group_id) == (1, 0, 1, 5)
    assert (found.split_in, found.dims, found.correlation, found.stream) == ("[]", [[2, 2], []], 4, None)
    assert trace.arguments[6].sequence == 9
