"""The drawing of who waits for whom: each rank has one box, and lanes lead to all that it waits for."""

import re

from hypothesis import given
from hypothesis import strategies as st

from zprof.base.parsing import parse_number_ranges
from zprof.model.hang import Hang, HangStatus, RankAtHang, StuckOperation, Wait, group_waits
from zprof.reports.page import Code, WaitGraph, WaitRow
from zprof.reports.pages.wait_graph import build_wait_graph

RANKS = st.sets(st.integers(0, 11), min_size=1, max_size=4).map(lambda ranks: tuple(sorted(ranks)))
EDGES = st.lists(st.tuples(RANKS, RANKS).filter(lambda edge: not {*edge[0]} & {*edge[1]}), max_size=6)


def make_hang(edges: list[tuple[tuple[int, ...], tuple[int, ...]]], *causes: int) -> Hang:
    operations = tuple(
        StuckOperation(
            operation="all_reduce",
            group=f"g{number}",
            description="tp",
            role="tensor",
            ranks=tuple(sorted({*waiting, *awaited})),
            sequence=7,
            sizes="",
            dtypes="",
            entered=waiting,
            late=awaited,
        )
        for number, (waiting, awaited) in enumerate(edges)
    )
    return Hang(
        status=HangStatus.STUCK,
        operations=operations,
        culprits=tuple(RankAtHang(rank=rank, operation=0) for rank in causes),
        waits=tuple(
            Wait(operation=number, ranks=waiting, for_ranks=awaited)
            for number, (waiting, awaited) in enumerate(edges)
        ),
    )


def draw(hang: Hang) -> WaitGraph | None:
    return build_wait_graph(hang, group_waits(hang), Code(lines=()))


def list_ranks(row: WaitRow) -> frozenset[int]:
    return parse_number_ranges(re.sub("^ranks? ", "", row.text).replace(" ", ""))


@given(EDGES, st.integers(0, 11))
def test_each_rank_has_one_box_and_lanes_to_what_it_waits_for(
    edges: list[tuple[tuple[int, ...], tuple[int, ...]]], cause: int
) -> None:
    graph = draw(make_hang(edges, cause))
    if graph is None:
        assert not edges
        return
    boxes = [list_ranks(row) for row in graph.rows if not row.is_wait]
    assert sorted(rank for box in boxes for rank in box) == sorted({r for e in edges for s in e for r in s})
    drawn: set[tuple[frozenset[int], frozenset[int]]] = set()
    for at, row in enumerate(graph.rows):
        for lane in (lane for lane in row.lanes if lane.joins):
            ends = {follow_lane(graph, at, lane.x, step) for step in (-1, 1)} - {None}
            assert len(ends) == 1
            below = max(number for number in range(at) if not graph.rows[number].is_wait)
            drawn.add((list_ranks(graph.rows[below]), list_ranks(graph.rows[ends.pop() or 0])))
    home = {rank: box for box in boxes for rank in box}
    assert drawn == {
        (home[one], home[other]) for waiting, awaited in edges for one in waiting for other in awaited
    }


def follow_lane(graph: WaitGraph, at: int, x: int, step: int) -> int | None:
    """Return the row that a lane arrives at in this direction, None if it ends before."""
    while True:
        lane = next(lane for lane in graph.rows[at].lanes if lane.x == x)
        if lane.arrives:
            return at
        if lane.ends if step > 0 else lane.starts:
            return None
        at += step


def test_alike_ranks_share_a_box_below_the_cause() -> None:
    pairs = [((rank,), (rank + 8,)) for rank in range(8)]
    graph = draw(make_hang([(tuple(range(8, 15)), (15,)), *pairs], 15))
    assert graph is not None
    assert [row.text for row in graph.rows] == [
        "rank 15",
        "ranks 7-14",
        "wait for rank 15 in all_reduce #7 of tp",
        "ranks 0-6",
        "each waits for some of ranks 8-14 in all_reduce #7 of tp",
    ]
    assert [row.mark for row in graph.rows if row.mark] == ["cause"]
