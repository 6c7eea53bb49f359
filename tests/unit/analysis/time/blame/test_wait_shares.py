"""Every exposed nanosecond of waiting is blamed, tied or unjudged; and how late each rank was per step."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.device_plays import MS
from tests.support.matched_rows import clocks, collective, table
from tests.support.schedules import Spec, play
from tests.support.schedules import write as write_schedule
from zprof.analysis.columns import Columns
from zprof.analysis.intervals import EMPTY
from zprof.analysis.time.analyse import analyse_time
from zprof.analysis.time.critical_path import judge_lateness, measure_lateness, sum_wait_shares
from zprof.analysis.time.decomposition import decompose_collectives, find_collective_launches
from zprof.analysis.time.host_calls import HostCalls
from zprof.analysis.time.rank import RankWork
from zprof.model.time import LateReason, StepLateness
from zprof.run.reader import load

RANKS = (0, 1, 2)
NO_KERNELS, NO_STREAMS = np.empty((0, 3), np.int64), np.empty(0, np.int64)
QUIET = RankWork(
    on_device=True, begin_ns=0, compute=EMPTY, copies=EMPTY, blocked=EMPTY, kernels=np.empty((0, 3), np.int64)
)


def judged(*collectives):
    """Judge tables made by hand, in which every wait is exposed and nothing else is known."""
    rows = decompose_collectives(table(*collectives), clocks(uncertainty_ns=100))
    of_ranks = [rows.at(rows.ints("rank") == rank) for rank in np.unique(rows.ints("rank"))]
    rows = Columns.concat(
        [
            part.with_columns(**find_collective_launches(part, NO_KERNELS, NO_STREAMS).make_columns(part))
            for part in of_ranks
        ]
    )
    rows = rows.with_columns(exposed_wait_ns=rows.ints("wait_ns"))
    nothing = HostCalls(allocator=EMPTY, sync=EMPTY, loader=EMPTY)
    return judge_lateness(rows, dict.fromkeys(range(16), QUIET), lambda rank: nothing)


def shares_of(*collectives):
    return sum_wait_shares(judged(*collectives), RANKS, 1)


times = st.tuples(st.integers(0, 2_000), st.integers(0, 5_000)).map(lambda pair: (pair[0], sum(pair)))
drawn_rows = st.fixed_dictionaries(
    {
        "spans": st.dictionaries(st.sampled_from(RANKS), times, min_size=1),
        "kind": st.sampled_from(["all_reduce", "all_gather", "broadcast", "reduce", "recv", "send", "other"]),
        "peer_rank": st.one_of(st.none(), st.sampled_from((*RANKS, 7, -5, 1 << 40))),
        "first_of_window": st.booleans(),
        "refused": st.booleans(),
    }
)


@settings(max_examples=20)
@given(st.lists(drawn_rows, min_size=1, max_size=8))
def test_the_parts_sum_to_all_exposed_wait(drawn) -> None:
    collectives = [
        collective(
            -1 if row["refused"] else number,
            {rank: (number * 300 + start, number * 300 + end) for rank, (start, end) in row["spans"].items()},
            ranks=RANKS, kind=row["kind"], peer_rank=row["peer_rank"], first_of_window=row["first_of_window"],
        )
        for number, row in enumerate(drawn)
    ]  # fmt: skip
    rows = judged(*collectives)
    shares = sum_wait_shares(rows, RANKS, 1)
    exposed = rows.ints("exposed_wait_ns")
    blamed = sum(entry.exposed_wait_ns for entry in shares.per_rank)
    assert blamed + shares.tied_ns + shares.unjudged_ns == exposed.sum()
    assert sum(entry.own_wait_ns for entry in shares.per_rank) == exposed.sum()
    assert set(rows.texts("late_reason")) <= {"", *LateReason}
    for entry in shares.per_rank:
        assert sum(entry.reasons.values()) == entry.exposed_wait_ns == sum(entry.origins.values())
        assert 0 <= entry.last_ratio <= 1
        assert entry.exposed_wait_ns <= entry.wait_ns
    assert (rows.ints("blamed_rank") != rows.ints("rank"))[exposed > 0].all()


def test_a_tie_and_the_first_of_a_window_blame_nobody() -> None:
    tied = shares_of(collective(0, {0: (0, 900), 1: (500, 900), 2: (600, 900)}))
    assert (tied.tied_ns, tied.judged) == (600 + 100, 1)
    assert all(entry.last_ratio == 0 and not entry.reasons for entry in tied.per_rank)
    rows = collective(0, {0: (0, 900), 1: (500, 900), 2: (5, 900)})
    rows[0]["first_of_window"] = True  # the windows of the others began a collective earlier
    first = shares_of(rows)
    assert (first.unjudged_ns, first.judged) == (500 + 495, 0)


@pytest.mark.parametrize(("prefetch", "silent"), [(0, False), (1, False), (0, True)])
def test_a_late_cpu_rank(tmp_path: Path, prefetch: int, silent: bool) -> None:
    """It computes longer; ``silent``: or its main thread spends the time in nothing that was recorded."""
    spec = Spec(ranks=3, prefetch=prefetch, slow_rank=1, slow_ns=40 * MS)
    truths = play(spec)
    for truth in truths if silent else ():
        truth.compute = [(start, min(end, start + 9 * MS), name) for start, end, name in truth.compute]
    analysis = analyse_time(load(write_schedule(tmp_path / "x.zprof", spec, truths)))
    blame = analysis.time.blame
    first = blame.per_rank[0]
    assert first.rank == 1
    assert first.exposed_wait_ns > 0.9 * 2 * (40 * MS - prefetch * 4 * MS)
    assert first.reasons["host" if silent else "compute"] > 0.95 * first.exposed_wait_ns
    assert max(first.origins, key=first.origins.get) == 1
    total = analysis.collectives.ints("exposed_wait_ns").sum() / spec.steps
    parts = sum(entry.exposed_wait_ns for entry in blame.per_rank) + blame.tied_ns + blame.unjudged_ns
    assert parts == pytest.approx(total, abs=5)


begins = st.fixed_dictionaries({rank: st.integers(0, 5_000) for rank in RANKS})


def at(begin, instance=1, **more):
    """One collective, by the start of each rank."""
    base = instance * 10_000
    spans = {rank: (base + start, base + 6_000) for rank, start in begin.items()}
    return collective(instance, spans, **{"ranks": RANKS, "step": 0, **more})


@settings(max_examples=12)
@given(st.lists(st.tuples(st.integers(0, 3), begins), min_size=1, max_size=9))
def test_lateness_is_the_mean_over_the_collectives_of_a_step(drawn) -> None:
    late = defaultdict(list)
    for step, begin in drawn:
        for rank, start in begin.items():
            late[rank, step].append(start - min(begin.values()))
    rows = [at(begin, number, step=step) for number, (step, begin) in enumerate(drawn)]
    assert list(measure_lateness(judged(*rows))) == [
        StepLateness(
            rank=rank, step=step, collectives=len(ns), mean_ns=sum(ns) // len(ns), largest_ns=max(ns)
        )
        for (rank, step), ns in sorted(late.items())
    ]


@pytest.mark.parametrize(
    "left_out",
    [
        {"kind": "recv", "peer_rank": 0},
        {"kind": "broadcast", "peer_rank": 0},
        {"first_of_window": True},
        {"ranks": (0, 1, 2, 3)},
    ],
    ids=str,
)
def test_collectives_that_tell_nothing_are_no_lateness(left_out) -> None:
    odd = at({0: 0, 1: 4_000, 2: 100}, **left_out)
    assert measure_lateness(judged(odd)) == ()
    both = measure_lateness(judged(odd, at({0: 0, 1: 500, 2: 0}, 2)))
    assert [(entry.rank, entry.mean_ns) for entry in both] == [(0, 0), (1, 500), (2, 0)]
