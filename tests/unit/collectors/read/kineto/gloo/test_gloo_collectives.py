"""Gloo's collectives and messages: executions joined to launches, groups, peers and roots, by hand."""

import pytest

from tests.support.kineto_traces import MAIN, at, converted, span, thread_name, trace_of
from zprof.collectors.read.kineto.trace import TraceProcessGroup

WORLD = TraceProcessGroup(name="0", description="default_pg", ranks=(0, 1, 2, 3))
INNER = TraceProcessGroup(name="1", description="tp", ranks=(0, 1))
OTHER = TraceProcessGroup(name="2", description="tp", ranks=(2, 3))
PIPELINE = TraceProcessGroup(name="1", description="pipeline", ranks=(0, 2))
PAIR = TraceProcessGroup(name="0", description="default_pg", ranks=(0, 1))
WIDE, NARROW = 30, 40
LAUNCH = "zero::launch {} pg=0 seq={} unit=b bytes={} dtype=float32"


def operator(name, start, *dims, **args):
    return span(name, start, start + 1, category="cpu_op", **{"Input Dims": [*dims, [], []]} | args)


def gather(start, full, part, **args):
    return operator("c10d::_allgather_base_", start, [full], [part], **args)


def scatter(start, full, part):
    return operator("c10d::_reduce_scatter_base_", start, [part], [full])


def reduce(start, elements):
    return operator("c10d::allreduce_", start, [[elements]])


def execution(op, start, elements, thread=WIDE, end=None, dtype="float"):
    shapes = {"Input Dims": [[elements]], "Input type": [dtype]}
    return span(f"gloo:{op}", start, end or start + 2, thread, **shapes)


def rows_of(*events, groups=(PAIR,), label="(pt_gloo_runloop)"):
    workers = [thread_name(thread, f"thread {thread} {label}") for thread in (WIDE, NARROW)]
    return converted(trace_of([*workers, *events], groups, 2 if groups == (PAIR,) else 4, rank=0))


def values(rows, *names):
    return [tuple(row[name] for name in names) for row in rows]


def test_executions_are_joined_to_launches_in_order():
    rows, gaps = rows_of(
        gather(10, 120, 60),
        reduce(14, 60),
        gather(18, 120, 60),
        execution("all_gather", 30, 60, NARROW, 34),
        execution("all_gather", 12, 60, WIDE, 29),
        execution("all_reduce", 16, 60, WIDE, 32, "c10::BFloat16"),
    )
    assert not gaps
    assert values(rows, "kind", "sequence", "start_ns", "bytes", "dtype") == [
        ("all_gather", 0, at(12), 480, "float32"),
        ("all_reduce", 1, at(16), 120, "bfloat16"),
        ("all_gather", 2, at(30), 480, "float32"),
    ]
    assert set(values(rows, "method", "wait_start_ns")) == {("gloo_fifo_order", None)}


def test_the_launch_range_has_the_kind_and_the_number():
    """Gloo runs a reduce-scatter as an all-reduce."""
    rows, gaps = rows_of(
        span(LAUNCH.format("reduce_scatter", 9, 480), 10, 15),
        scatter(11, 120, 60),
        execution("all_reduce", 20, 120, end=30),
        span("zero::wait reduce_scatter pg=0 seq=9 unit=b", 25, 31),
    )
    assert not gaps
    assert values(rows, "kind", "sequence", "bytes", "method", "unit") == [
        ("reduce_scatter", 9, 480, "gloo_fifo", "b")
    ]
    times = ("launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns")
    assert values(rows, *times) == [(at(10), at(15), at(25), at(31))]


def test_several_operators_under_one_launch_are_one_collective():
    (row,), gaps = rows_of(
        span(LAUNCH.format("all_gather", 0, 960), 10, 20),
        gather(11, 120, 60),
        gather(14, 120, 60),
        execution("all_gather", 20, 60, end=40),
        execution("all_gather", 25, 60, NARROW, 30),
    )
    assert not gaps
    assert (row["bytes"], row["start_ns"], row["end_ns"]) == (960, at(20), at(40))


def test_a_synchronous_call_waits_right_behind_its_launch():
    rows, _ = rows_of(
        gather(10, 120, 60, **{"Concrete Inputs": ["", "", "", "False", "-1"]}),
        execution("all_gather", 12, 60, end=40),
        span("zprof::wait", 13, 41),
        gather(50, 120, 60, **{"Concrete Inputs": ["", "", "", "True", "-1"]}),
        execution("all_gather", 52, 60, end=70),
        span("zprof::wait", 60, 71),
    )
    assert values(rows, "wait_start_ns", "wait_end_ns") == [(at(13), at(41)), (None, None)]


@pytest.mark.parametrize(
    ("second", "executions"), [(11, [12]), (20, [9, 22])], ids=["lost", "before its launch"]
)
def test_an_execution_that_may_be_anothers_is_not_joined(second, executions):
    rows, gaps = rows_of(
        gather(10, 120, 60),
        gather(second, 120, 60),
        gather(30, 8, 4),
        *(execution("all_gather", start, 60) for start in executions),
        execution("all_gather", 31, 4),
        execution("all_gather", 33, 4, MAIN),
    )
    assert values(rows, "bytes", "sequence") == [(32, 2)]
    assert len(gaps) == 1


@pytest.mark.parametrize("lost", range(6))
@pytest.mark.parametrize("queued", [False, True], ids=["one by one", "launched ahead"])
def test_a_lost_execution_costs_its_own_row(lost, queued):
    """Each starts when it was launched and the worker is free: a hole shows where one is missing."""
    launches = [2 * place if queued else 100 * place for place in range(6)]
    starts = [3 + 20 * place if queued else 100 * place + 3 for place in range(6)]
    rows, gaps = rows_of(
        *(gather(start, 120, 60) for start in launches),
        *(
            execution("all_gather", start, 60, end=start + 18)
            for place, start in enumerate(starts)
            if place != lost
        ),
    )
    kept = [place for place in range(6) if place != lost]
    assert values(rows, "sequence", "start_ns") == [(place, at(starts[place])) for place in kept]
    assert len(gaps) == 1


def test_what_ran_between_tells_which_execution_is_lost():
    """Queued behind a reduction, a gather starts when that ends: so would the one before it."""
    rows, _ = rows_of(
        *(
            event
            for place in range(4)
            for event in (
                reduce(100 * place, 60),
                execution("all_reduce", 100 * place + 1, 60, end=100 * place + 81),
                gather(100 * place + 2, 120, 60),
                *(
                    []
                    if place == 1
                    else [execution("all_gather", 100 * place + 81, 60, end=100 * place + 91)]
                ),
            )
        )
    )
    gathers = [row for row in rows if row["kind"] == "all_gather"]
    assert values(gathers, "launch_start_ns") == [(at(2),), (at(202),), (at(302),)]


def test_waits_tell_which_execution_is_lost():
    """Launched ahead, on idle workers: only the return of a wait shows that the first one ran."""
    rows, _ = rows_of(
        *(
            event
            for number in range(3)
            for event in (
                span(LAUNCH.format("all_gather", number, 480), 10 + 3 * number, 12 + 3 * number),
                gather(10.5 + 3 * number, 120, 60),
                span(f"zero::wait all_gather pg=0 seq={number} unit=b", 20 + 40 * number, 50 + 40 * number),
            )
        ),
        execution("all_gather", 20, 60, end=49),
        execution("all_gather", 100, 60, end=129),
    )
    assert values(rows, "sequence", "start_ns") == [(0, at(20)), (2, at(100))]


def test_shapes_identify_the_group_and_threads_where_shapes_do_not():
    rows, gaps = rows_of(
        gather(10, 400, 100),
        execution("all_gather", 12, 100, WIDE),
        gather(20, 120, 60),
        execution("all_gather", 22, 60, NARROW),
        scatter(30, 120, 60),
        execution("all_reduce", 32, 120, NARROW),
        reduce(40, 7),
        execution("all_reduce", 42, 7, NARROW),
        groups=(WORLD, INNER, OTHER),
    )
    assert not gaps
    assert values(rows, "kind", "group", "sequence", "bytes") == [
        ("all_gather", "0,1,2,3", 0, 1600),
        ("all_gather", "0,1", 0, 480),
        ("reduce_scatter", "0,1", 1, 480),
        ("all_reduce", "0,1", 2, 28),
    ]


@pytest.mark.parametrize("label", ["(pt_gloo_runloop)", "(python)"])
def test_executions_without_launches_make_rows_and_a_gap(label):
    rows, gaps = rows_of(
        execution("all_reduce", 20, 7, WIDE),
        execution("all_gather", 10, 7, NARROW),
        span("aten::mm", 1, 2, category="cpu_op"),
        execution("broadcast", 30, 9, MAIN),
        groups=(WORLD,),
        label=label,
    )
    assert values(rows, "kind", "group", "sequence", "bytes", "method") == [
        ("all_gather", "0,1,2,3", 0, 112, "gloo_execution_order"),
        ("all_reduce", "0,1,2,3", 1, 28, "gloo_execution_order"),
    ]
    assert [gap.what for gap in gaps] == ["launches of collectives"]


def test_operators_that_went_to_nccl_are_not_those_of_gloo():
    rows, gaps = rows_of(
        reduce(10, 7),
        span("record_param_comms", 10.2, 10.8, category="cpu_op", **{"Collective name": "allreduce"}),
        reduce(20, 7),
        execution("all_reduce", 22, 7),
        post("c10d::send", 30, 1, 5),
        span("record_param_comms", 30.2, 30.8, category="cpu_op", **{"Collective name": "send"}),
    )
    assert values(rows, "method") == [("gloo_fifo_order",)]
    assert [gap.what for gap in gaps] == ["collectives on the device"]


def post(name, start, place, elements):
    inputs = ["", "", "0"] if place is None else ["", "", str(place), "0"]
    shapes = {"Concrete Inputs": inputs, "Input Dims": [[[elements]], [], []]}
    return span(name, start, start + 1, category="cpu_op", **shapes)


def message(op, start, end, elements):
    return span(f"gloo:{op}", start, end, **{"Input Dims": [[elements]], "Input type": ["float"]})


def test_a_message_has_its_peer_its_bytes_its_post_and_its_wait():
    rows, gaps = rows_of(
        span("aten::mm", 0, 9, category="cpu_op"),
        post("c10d::send", 10, 2, 100),
        message("send", 10.5, 40, 100),
        post("c10d::recv_", 12, 2, 7),
        message("recv", 12.5, 30, 7),
        span("zprof::wait", 15, 30.5),
        span("zprof::wait", 31, 41),
        post("c10d::send", 50, 2, 1),
        message("send", 50.5, 55, 1),
        span("zprof::wait", 51, 56),
        groups=(WORLD,),
    )
    assert not gaps
    assert values(
        rows, "kind", "group", "peer_rank", "bytes", "sequence", "launch_start_ns", "wait_start_ns"
    ) == [
        ("send", "0,1,2,3", 2, 400, 0, at(10), at(31)),
        ("recv", "0,1,2,3", 2, 28, 0, at(12), at(15)),
        ("send", "0,1,2,3", 2, 4, 1, at(50), at(51)),
    ]
    # The range starts after the data were handed over; the receiver may have them already.
    assert (rows[0]["start_ns"], rows[0]["end_ns"]) == (at(10), at(40))


@pytest.mark.parametrize(
    ("groups", "place", "peer"),
    [
        ((PIPELINE,), 1, 2),  # the place is of the group, not of the world
        ((WORLD, PIPELINE), 3, 3),  # only the world has so many
        ((WORLD, PIPELINE), 1, None),  # 1 of the world, or 2 of the pipeline
        ((WORLD, PIPELINE), 9, None),
        ((WORLD, PIPELINE), 0, None),  # no rank sends to itself
    ],
)
def test_a_place_in_a_group_is_a_global_rank_only_where_groups_agree(groups, place, peer):
    wait = span("zprof::wait", 11, 20.5)
    (row,), gaps = rows_of(
        post("c10d::send", 10, place, 1), message("send", 10.5, 20, 1), wait, groups=groups
    )
    assert row["peer_rank"] == peer
    assert ("point-to-point messages" in {gap.what for gap in gaps}) == (peer is None)


@pytest.mark.parametrize(
    ("op", "inputs", "dims", "root"),
    [
        ("broadcast", ["", "", "1", "0"], [[[6]], [], []], 2),
        ("reduce", ["", "", "", "0", "0"], [[[6]], [], []], 0),
        ("gather", ["", "", "", "1"], [[], [[6]], []], 2),
        ("scatter", ["", "", "", "0"], [[[6]], [], []], 0),
    ],
)
def test_roots_are_global_ranks(op, inputs, dims, root):
    args = {"Concrete Inputs": [*inputs, "False", "-1"], "Input Dims": dims}
    launch = span(f"c10d::{op}_", 10, 11, category="cpu_op", **args)
    rows, _ = rows_of(launch, execution(op, 12, 6), groups=(PIPELINE,))
    assert values(rows, "kind", "peer_rank") == [(op, root)]
