"""Collectives of other people's traces, where these are at hand."""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support.kineto_traces import converted
from zprof.collectors.kineto.convert import convert_trace
from zprof.collectors.kineto.reading.reader import read_trace
from zprof.model.kernels import is_collective_kernel

TRACES = Path(os.environ.get("ZPROF_TEST_DATA", Path(__file__).parents[5] / "shared/data")) / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces here")


def rows_of(name):
    return converted(read_trace(TRACES / name))


def counted(rows, *columns):
    return Counter(tuple(row[column] for column in columns) for row in rows)


def test_first_metadata_of_an_a100():
    rows, gaps = rows_of("hta_nccl_data.json.gz")
    assert not gaps
    assert counted(rows, "kind", "group", "group_size", "stream", "method") == {
        ("all_reduce", "0,1", 2, 40, "nccl_order"): 15,
        ("broadcast", "0,1", 2, 40, "nccl_order"): 6,
    }
    assert Counter(row["dtype"] for row in rows) == {"float32": 18, "int64": 3}
    assert counted(rows, "bytes")[(2_049_000 * 4,)] == 3
    assert {row["unit"] for row in rows if row["kind"] == "broadcast"} == {"DDP.forward"}
    assert all(row["launch_start_ns"] < row["start_ns"] for row in rows)
    assert [row["sequence"] for row in rows] == list(range(21))


def test_one_gather_and_symmetric_memory_of_a_b200():
    rows, gaps = rows_of("tracelens_b200_eager.json.gz")
    (gather,) = [row for row in rows if row["kind"] == "all_gather"]
    assert (gather["bytes"], gather["dtype"], gather["stream"]) == (201_088 * 2, "bfloat16", 7)
    assert (gather["group"], gather["group_size"]) == ("0,1,2,3,4,5,6,7#3", 8)
    assert counted(rows, "kind", "method") == {
        ("all_gather", "nccl_order"): 1,
        ("all_reduce", "operator_order"): 73,
    }
    assert counted(rows, "bytes")[(2_557_440 * 2,)] == 37, "shapes of torch's own operators"
    assert ["73 of 74" in gap.reason for gap in gaps] == [True]


def test_kernels_called_send_and_receive_are_what_their_operators_say():
    for rank in (0, 1):
        rows, gaps = rows_of(f"hta_trace_filter_2of128/sampled_rank-{rank}.json.gz")
        assert counted(rows, "kind", "stream") == {
            ("all_reduce", 84): 4,
            ("all_to_all", 84): 4,
            ("all_gather", 203): 2,
        }
        assert {row["group"] for row in rows} == {"stream:84", "stream:203"}
        assert {row["bytes"] for row in rows if row["kind"] == "all_gather"} == {1 << 30}
        assert ["10 of 10" in gap.reason for gap in gaps] == [True]


def test_names_of_2020_without_metadata():
    rows, gaps = rows_of("hta_df_index_resolver.json.gz")
    assert counted(rows, "kind", "stream", "group", "group_size") == {
        ("all_reduce", 14, "stream:14", 0): 2020
    }
    assert [gap.what for gap in gaps] == ["process group of collectives", "bytes of collectives"]


def test_gloo_without_launches():
    rows, gaps = rows_of("hta_cpu_only_gloo_rank-34.pt.trace.json.gz")
    assert counted(rows, "kind", "group_size", "method") == {("all_reduce", 300, "gloo_execution_order"): 10}
    assert Counter(row["bytes"] for row in rows) == {321_271 * 4: 5, 2_082_411 * 4: 5}
    assert [gap.what for gap in gaps] == ["launches of collectives"]


def test_launches_without_a_device():
    rows, gaps = rows_of("hta_rank_non_gpu.json.gz")
    assert not rows
    assert "launched 6 collectives" in gaps[0].reason


@pytest.mark.parametrize("name", ["hta_ns_resolution_rank-0.pt.trace.json.gz", "hta_mi250_minitoy.json.gz"])
def test_no_collectives_and_nothing_to_say(name):
    assert rows_of(name) == ([], [])


def test_kernels_and_rows_are_the_same_events():
    """What the analysis recognises rows by: start, end and stream of the kernel, exactly."""
    for path in sorted(TRACES.rglob("*.json.gz")):
        tables, _ = convert_trace(read_trace(path))
        events, rows = tables["events"], tables["collectives"]
        names, categories = events["name"].to_pylist(), events["category"].to_pylist()
        starts, durations = events["start_ns"].tolist(), events["duration_ns"].tolist()
        of_events = Counter(
            (start, start + duration, stream)
            for start, duration, stream, name, category in zip(
                starts, durations, events["stream"].to_pylist(), names, categories, strict=True
            )
            if category == "kernel" and is_collective_kernel(name)
        )
        of_rows = zip(rows["start_ns"], rows["end_ns"], rows["stream"], strict=True)
        assert of_events == Counter(row for row in of_rows if row[2] is not None), path.name
