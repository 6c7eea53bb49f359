"""Point-to-point messages and roots of gloo: rows with kind, peer and bytes, as torch 2.13 writes them."""

import pytest

from tests.support.kineto_traces import MAIN, at, converted, span, trace_of
from zprof.collectors.kineto.trace import Group

WORLD = Group(name="0", description="default_pg", ranks=(0, 1, 2, 3))
PIPELINE = Group(name="1", description="pipeline", ranks=(0, 2))


def post(name, start, place, elements, *, end=None):
    values = ["", "", "0"] if place is None else ["", "", str(place), "0"]
    shapes = {"Concrete Inputs": values, "Input Dims": [[[elements]], [], []]}
    return span(name, start, end or start + 1, category="cpu_op", **shapes)


def message(op, start, end, elements):
    return span(f"gloo:{op}", start, end, **{"Input Dims": [[elements]], "Input type": ["float"]})


def wait(start, end):
    return span("zprof::wait", start, end)


def rows_of(*events, groups=(WORLD,)):
    return converted(trace_of(events, groups, 4, rank=0))


def test_a_message_has_its_peer_its_bytes_its_post_and_its_wait():
    rows, gaps = rows_of(
        span("aten::mm", 0, 9, category="cpu_op"),
        post("c10d::send", 10, 2, 100),
        message("send", 10.5, 40, 100),
        post("c10d::recv_", 12, 2, 7),
        message("recv", 12.5, 30, 7),
        wait(15, 30.5),
        wait(31, 41),
    )
    assert not gaps
    assert [(r["kind"], r["group"], r["peer_rank"], r["bytes"], r["sequence"]) for r in rows] == [
        ("send", "0,1,2,3", 2, 400, 0),
        ("recv", "0,1,2,3", 2, 28, 0),
    ]
    sent, received = rows
    assert (sent["start_ns"], sent["end_ns"], sent["launch_start_ns"]) == (at(10.5), at(40), at(10))
    assert (sent["wait_start_ns"], received["wait_start_ns"]) == (at(31), at(15))


def test_messages_are_numbered_by_direction_and_peer():
    events = []
    for start, (op, place) in enumerate([("send", 1), ("send", 2), ("recv", 1), ("send", 1)], start=1):
        name = "c10d::send" if op == "send" else "c10d::recv_"
        events += [post(name, 10 * start, place, 1), message(op, 10 * start + 0.5, 10 * start + 5, 1)]
    rows, _ = rows_of(*events)
    assert [row["sequence"] for row in rows] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("groups", "place", "peer"),
    [
        ([PIPELINE], 1, 2),  # the place is of the group, not of the world
        ([WORLD, PIPELINE], 3, 3),  # only the world has so many
        ([WORLD, PIPELINE], 1, None),  # 1 of the world, or 2 of the pipeline
        ([WORLD, PIPELINE], 9, None),
    ],
)
def test_a_place_in_a_group_is_a_global_rank_only_where_groups_agree(groups, place, peer):
    (row,), gaps = rows_of(
        post("c10d::send", 10, place, 1), message("send", 10.5, 20, 1), wait(11, 20.5), groups=groups
    )
    assert row["peer_rank"] == peer
    assert ("point-to-point messages" in {gap.what for gap in gaps}) == (peer is None)


def test_what_is_unknown_of_messages_is_a_gap():
    rows, gaps = rows_of(
        post("c10d::recv_any_source_", 10, None, 5),
        message("recvAnySource", 10.5, 20, 5),
        post("c10d::send", 30, 1, 5),  # nobody waited for it
        message("recv", 50, 60, 5),  # nobody is seen to post it
    )
    assert [(row["kind"], row["peer_rank"], row["bytes"]) for row in rows] == [
        ("recv", None, 20),
        ("recv", None, 20),
    ]
    assert len([gap for gap in gaps if gap.what == "point-to-point messages"]) == 3


def test_messages_that_went_to_nccl_are_not_gloo_s():
    rows, gaps = rows_of(
        post("c10d::send", 10, 1, 5, end=12),
        span("record_param_comms", 10.2, 10.8, category="cpu_op", **{"Collective name": "send"}),
    )
    assert not rows
    assert "point-to-point messages" not in {gap.what for gap in gaps}


def test_roots_of_one_sided_collectives_are_global_ranks():
    worker = 30

    def launch(name, start, values, dims):
        return span(
            name, start, start + 1, category="cpu_op", **{"Concrete Inputs": values, "Input Dims": dims}
        )

    def execution(op, start):
        return span(f"gloo:{op}", start, start + 5, worker, **{"Input Dims": [[6]], "Input type": ["float"]})

    tail = ["False", "-1"]
    rows, _ = rows_of(
        launch("c10d::broadcast_", 10, ["", "", "1", "0", *tail], [[[6]], [], []]),
        execution("broadcast", 12),
        launch("c10d::reduce_", 20, ["", "", "", "0", "0", *tail], [[[6]], [], []]),
        execution("reduce", 22),
        launch("c10d::gather_", 30, ["", "", "", "1", *tail], [[], [[6]], []]),
        execution("gather", 32),
        launch("c10d::scatter_", 40, ["", "", "", "0", *tail], [[[6]], [], []]),
        execution("scatter", 42),
        span("aten::mm", 0, 9, MAIN, category="cpu_op"),
        groups=[PIPELINE],
    )
    assert [(row["kind"], row["peer_rank"]) for row in rows] == [
        ("broadcast", 2),
        ("reduce", 0),
        ("gather", 2),
        ("scatter", 0),
    ]
