"""Reading trace files: exact times, threads, groups, and files that are none."""

import json
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.collectors.kineto.trace import microseconds_to_ns, read_trace
from zprof.model.errors import BadInput

BASE = 1_790_857_026_000_000_000


def event(**fields):
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1} | fields


def trace_file(tmp_path, *events, **keys):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": BASE, **keys, "traceEvents": list(events)}))
    return path


def test_times_are_exact_to_the_nanosecond(tmp_path):
    path = tmp_path / "trace.json"
    rows = ",".join(
        f'{{"ph":"X","cat":"cpu_op","name":"a","tid":1,"ts":4368137779{n:03d}.{n:03d},"dur":{n}.{n:03d}}}'
        for n in range(1000)
    )
    path.write_text(f'{{"traceEvents":[{rows}],"baseTimeNanoseconds":{BASE}}}')
    trace = read_trace(path)
    want = [BASE + 4_368_137_779_000_000 + n * 1000 + n for n in range(1000)]
    assert trace.start_ns.tolist() == want
    assert trace.duration_ns.tolist() == [n * 1000 + n for n in range(1000)]


@given(st.integers(0, 10**13), st.integers(0, 999))
def test_digits_become_nanoseconds(whole, fraction):
    text = f"{whole}.{fraction:03d}".rstrip("0").rstrip(".")
    assert microseconds_to_ns(msgspec.Raw(text.encode())) == whole * 1000 + fraction


@pytest.mark.parametrize("text", ["1e3", "1.5E+2", "-2.5", "0.1234567"])
def test_other_spellings_of_numbers(text):
    assert microseconds_to_ns(msgspec.Raw(text.encode())) == int(Decimal(text) * 1000)


@pytest.mark.parametrize("text", ["", "null", '"12"', "[1]", "1e999999", "9e30", "--1", "1.2.3"])
def test_what_is_no_time(text):
    assert microseconds_to_ns(msgspec.Raw(text.encode())) is None


def test_events_without_a_place_in_time_are_skipped(tmp_path):
    path = trace_file(
        tmp_path,
        event(name="good"),
        event(name="instant", ph="i"),
        event(name="no ts", ts=None),
        event(name="negative", dur=-1),
        event(name="far", ts=9e18),
        {"ph": "X"},
    )
    assert read_trace(path).name == ["good"]


def test_all_names_of_a_thread_are_kept(tmp_path):
    names = ["thread 7 (python)", "thread 7 (pt_gloo_runloop)"]
    rows = [{"ph": "M", "name": "thread_name", "tid": 7, "args": {"name": name}} for name in names]
    rows.append({"ph": "M", "name": "thread_name", "tid": "Spans", "args": {"name": 3}})
    assert read_trace(trace_file(tmp_path, *rows)).thread_names == {7: frozenset(names)}


def test_threads_that_are_words_become_minus_one(tmp_path):
    trace = read_trace(trace_file(tmp_path, event(tid="PyTorch Profiler"), event(tid=12)))
    assert trace.thread.tolist() == [-1, 12]


def test_groups_of_the_distributed_information(tmp_path):
    info = {
        "backend": "gloo",
        "rank": 0,
        "world_size": 2,
        "pg_config": [{"pg_name": "0", "ranks": [1, 0]}, {"pg_name": "1"}, {"pg_name": "2", "ranks": "[0]"}],
    }
    trace = read_trace(trace_file(tmp_path, distributedInfo=info))
    assert trace.groups == {"0": (0, 1)}
    assert trace.world_size == 2


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"traceEvents": 3}', "{}", "\x00", '{"traceEvents":[1]}']
)
def test_what_is_no_trace(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=r"x\.json: not a Kineto trace"):
        read_trace(path)


def test_no_such_file(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        read_trace(tmp_path / "absent.json")


def test_arguments_of_any_type_are_survived(tmp_path):
    odd = [None, 3, [], "x", {"Input Dims": "x", "Input type": 3, "stream": [], "correlation": "7"}]
    rows = [
        event(cat=cat, name=n, args=a)
        for a in odd
        for cat in ("kernel", "cpu_op")
        for n in ("gloo:a", "c10d::b")
    ]
    assert len(read_trace(trace_file(tmp_path, *rows))) == len(rows)
