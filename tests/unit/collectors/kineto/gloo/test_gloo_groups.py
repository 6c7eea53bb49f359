"""Gloo's collectives of several groups, and without launches: what shapes and threads can tell."""

import pytest

from tests.support.kineto_traces import MAIN, converted, span, thread_name, trace_of
from zprof.collectors.kineto.trace import Group

WORLD = Group(name="0", description="default_pg", ranks=(0, 1, 2, 3))
INNER = Group(name="1", description="tp", ranks=(0, 1))
OTHER = Group(name="2", description="tp", ranks=(2, 3))
WIDE, NARROW = 30, 40


def operator(name, start, *dims):
    return span(name, start, start + 1, category="cpu_op", **{"Input Dims": [*dims, [], []]})


def gather(start, full, part):
    return operator("c10d::_allgather_base_", start, [full], [part])


def execution(op, start, elements, thread):
    shapes = {"Input Dims": [[elements]], "Input type": ["float"]}
    return span(f"gloo:{op}", start, start + 2, thread, **shapes)


def rows_of(*events, groups=(WORLD, INNER, OTHER), named=True):
    label = "(pt_gloo_runloop)" if named else "(python)"
    workers = [thread_name(thread, f"thread {thread} {label}") for thread in (WIDE, NARROW)]
    return converted(trace_of([*workers, *events], groups, 4, rank=0))


def test_shapes_tell_the_group_of_a_gather():
    rows, gaps = rows_of(
        gather(10, 400, 100),
        execution("all_gather", 12, 100, WIDE),
        gather(20, 120, 60),
        execution("all_gather", 22, 60, NARROW),
        operator("c10d::_reduce_scatter_base_", 30, [60], [120]),
        execution("all_reduce", 32, 120, NARROW),
    )
    assert not gaps
    assert [(row["kind"], row["group"], row["sequence"], row["bytes"]) for row in rows] == [
        ("all_gather", "0,1,2,3", 0, 1600),
        ("all_gather", "0,1", 0, 480),
        ("reduce_scatter", "0,1", 1, 480),
    ]


def test_threads_tell_the_group_of_what_shapes_do_not():
    rows, gaps = rows_of(
        gather(10, 120, 60),
        execution("all_gather", 12, 60, NARROW),
        operator("c10d::allreduce_", 20, [[7]]),
        execution("all_reduce", 22, 7, NARROW),
        operator("c10d::allreduce_", 30, [[8]]),
        execution("all_reduce", 32, 8, WIDE),
    )
    assert [(row["group"], row["sequence"]) for row in rows] == [("0,1", 0), ("0,1", 1), ("unknown", 0)]
    assert "that of 1 of 3 collectives is unknown" in gaps[0].reason


def test_an_operator_that_ran_on_threads_of_two_groups_is_not_guessed():
    rows, _ = rows_of(
        gather(10, 400, 100),
        execution("all_gather", 12, 100, WIDE),
        gather(20, 120, 60),
        execution("all_gather", 22, 60, NARROW),
        operator("c10d::allreduce_", 30, [[7]]),
        execution("all_reduce", 32, 7, NARROW),
        operator("c10d::allreduce_", 40, [[7]]),
        execution("all_reduce", 42, 7, WIDE),
    )
    assert [row["group"] for row in rows[2:]] == ["unknown", "unknown"]


@pytest.mark.parametrize("named", [True, False])
def test_executions_alone_make_rows(named):
    rows, gaps = rows_of(
        execution("all_reduce", 20, 7, WIDE),
        execution("all_gather", 10, 7, NARROW),
        span("aten::mm", 1, 2, category="cpu_op"),
        execution("broadcast", 30, 9, MAIN),
        groups=[WORLD],
        named=named,
    )
    assert [(row["kind"], row["group"], row["sequence"], row["bytes"], row["method"]) for row in rows] == [
        ("all_gather", "0,1,2,3", 0, 112, "gloo_execution_order"),
        ("all_reduce", "0,1,2,3", 1, 28, "gloo_execution_order"),
    ]
    assert "a reduce-scatter is not told from an all-reduce" in gaps[0].reason


def test_operators_that_went_to_nccl_are_not_gloo_s():
    rows, gaps = rows_of(
        operator("c10d::allreduce_", 10, [[7]]),
        span("record_param_comms", 10.2, 10.8, category="cpu_op", **{"Collective name": "allreduce"}),
        operator("c10d::allreduce_", 20, [[7]]),
        execution("all_reduce", 22, 7, WIDE),
        groups=[WORLD],
    )
    assert [row["method"] for row in rows] == ["gloo_fifo_order"]
    assert [gap.what for gap in gaps] == ["collectives on the device"]


def test_shapes_of_any_size_are_bounded():
    shapes = {"Input Dims": [[1 << 39, 1 << 39]], "Input type": ["float"]}
    (row,), _ = rows_of(span("gloo:all_reduce", 1, 2, WIDE, **shapes))
    assert row["bytes"] == 1 << 62
