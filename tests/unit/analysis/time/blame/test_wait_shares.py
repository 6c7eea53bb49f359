"""Every exposed nanosecond of waiting is blamed, tied or unjudged: never two of these, never none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.device_plays import MS, US, Collect, Join, Kernel, write
from tests.support.matched_rows import clocks, collective, table
from tests.support.schedules import Spec, play
from tests.support.schedules import write as write_schedule
from zprof.analysis.intervals import EMPTY
from zprof.analysis.time.analyse import analyse_time
from zprof.analysis.time.blame.judge import judge_lateness, sum_wait_shares
from zprof.analysis.time.host_calls import HostCalls
from zprof.analysis.time.rank import RankWork
from zprof.analysis.time.transfer.decomposition import decompose_collectives
from zprof.analysis.time.transfer.launch_delays import find_collective_launches
from zprof.model.time import LateReason
from zprof.run.reader import load

RANKS = (0, 1, 2)
NO_KERNELS, NO_STREAMS = np.empty((0, 3), np.int64), np.empty(0, np.int64)
QUIET = RankWork(
    on_device=True, begin_ns=0, compute=EMPTY, copies=EMPTY, blocked=EMPTY, kernels=np.empty((0, 3), np.int64)
)


def judged(*collectives, uncertainty_ns=100):
    """Judge tables made by hand, in which every wait is exposed and nothing else is known."""
    frame = decompose_collectives(table(*collectives), clocks(uncertainty_ns))
    for rank in frame["rank"].unique():
        mine = frame["rank"] == rank
        for name, values in (
            find_collective_launches(frame[mine], NO_KERNELS, NO_STREAMS).columns(frame[mine]).items()
        ):
            frame.loc[mine, name] = np.asarray(values, dtype=object)
    frame = frame.assign(exposed_wait_ns=frame["wait_ns"])
    nothing = HostCalls(allocator=EMPTY, sync=EMPTY, loader=EMPTY)
    return judge_lateness(frame, dict.fromkeys(range(16), QUIET), lambda rank: nothing)


def shares_of(frame, steps=1):
    return sum_wait_shares(frame, RANKS, steps)


times = st.tuples(st.integers(0, 2_000), st.integers(0, 5_000)).map(lambda pair: (pair[0], sum(pair)))
drawn = st.fixed_dictionaries(
    {
        "spans": st.dictionaries(st.sampled_from(RANKS), times, min_size=1),
        "kind": st.sampled_from(["all_reduce", "all_gather", "broadcast", "reduce", "recv", "send", "other"]),
        "peer_rank": st.one_of(st.none(), st.sampled_from((*RANKS, 7, -5, 1 << 40))),
        "first_of_window": st.booleans(),
        "refused": st.booleans(),
    }
)


@settings(max_examples=60)
@given(st.lists(drawn, min_size=1, max_size=8))
def test_the_parts_sum_to_all_exposed_wait(given_rows):
    collectives = [
        collective(
            -1 if row["refused"] else number,
            {rank: (number * 300 + start, number * 300 + end) for rank, (start, end) in row["spans"].items()},
            ranks=RANKS, kind=row["kind"], peer_rank=row["peer_rank"], first_of_window=row["first_of_window"],
        )
        for number, row in enumerate(given_rows)
    ]  # fmt: skip
    frame = judged(*collectives)
    shares = shares_of(frame)
    blamed = sum(entry.exposed_wait_ns for entry in shares.per_rank)
    assert blamed + shares.tied_ns + shares.unjudged_ns == frame["exposed_wait_ns"].sum()
    assert sum(entry.own_wait_ns for entry in shares.per_rank) == frame["exposed_wait_ns"].sum()
    assert set(frame["late_reason"]) <= {"", *LateReason}
    for entry in shares.per_rank:
        assert sum(entry.reasons.values()) == entry.exposed_wait_ns == sum(entry.origins.values())
        assert 0 <= entry.last_ratio <= 1
        assert entry.exposed_wait_ns <= entry.wait_ns
    assert (frame["blamed_rank"] != frame["rank"])[frame["exposed_wait_ns"] > 0].all()


def test_a_tie_is_nobody_s():
    shares = shares_of(judged(collective(0, {0: (0, 900), 1: (500, 900), 2: (600, 900)})))
    assert shares.tied_ns == 600 + 100
    assert shares.judged == 1
    assert all(entry.last_ratio == 0 and not entry.reasons for entry in shares.per_rank)


def test_the_first_of_a_window_is_not_judged_on_any_rank():
    rows = collective(0, {0: (0, 900), 1: (500, 900), 2: (5, 900)})
    rows[0]["first_of_window"] = True  # the windows of the others began a collective earlier
    shares = shares_of(judged(rows))
    assert shares.judged == 0
    assert shares.unjudged_ns == 500 + 495


def test_the_ratio_is_of_the_collectives_that_a_rank_took_part_in():
    both = [
        collective(
            number, {0: (number * 1000, number * 1000 + 900), 1: (number * 1000 + 500, number * 1000 + 900)}
        )
        for number in range(3)
    ]
    other = [
        collective(
            10 + number,
            {
                0: (5000 + number * 1000, 5900 + number * 1000),
                2: (5400 + number * 1000, 5900 + number * 1000),
            },
        )
        for number in range(5)
    ]
    ratios = {entry.rank: entry.last_ratio for entry in shares_of(judged(*both, *other)).per_rank}
    assert ratios == {0: 0.0, 1: 1.0, 2: 1.0}


def test_without_any_collective():
    shares = shares_of(judged(collective(0, {0: (0, 5)}))[:0])
    assert (shares.tied_ns, shares.unjudged_ns, shares.judged) == (0, 0, 0)


def test_a_rank_that_is_often_last_by_little_is_charged_with_little(tmp_path):
    """Of 20 units one rank is 30 us late to 12: noise accuses with microseconds, whatever the share."""
    ops = {}
    for rank in RANKS:
        ops[rank] = [Collect(key="first", group=RANKS), Join(key="first")]
        for unit in range(20):
            noise = 30 * US if rank == 1 and unit % 5 < 3 else 0
            meet = Collect(key=f"g{unit}", group=RANKS)
            ops[rank] += [Kernel(ns=4 * MS + noise), meet, Join(key=meet.key)]
    blame = analyse_time(load(write(tmp_path / "x.zprof", ops))).time.blame
    first = blame.per_rank[0]
    assert first.rank == 1
    assert first.last_ratio == pytest.approx(12 / 21)  # with the first one, at which nobody is late
    assert first.exposed_wait_ns == 12 * 2 * 30 * US
    assert first.exposed_wait_ns < 0.01 * 20 * 4 * MS


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_cpu_rank_that_computes_longer(tmp_path, prefetch):
    spec = Spec(ranks=3, prefetch=prefetch, slow_rank=1, slow_ns=40 * MS)
    analysis = analyse_time(load(write_schedule(tmp_path / "x.zprof", spec, play(spec))))
    first = analysis.time.blame.per_rank[0]
    assert first.rank == 1
    assert first.exposed_wait_ns > 0.9 * 2 * (40 * MS - prefetch * 4 * MS)
    assert max(first.reasons, key=first.reasons.get) == "compute"
    assert first.reasons["compute"] > 0.95 * first.exposed_wait_ns
    assert max(first.origins, key=first.origins.get) == 1
    total = analysis.collectives["exposed_wait_ns"].sum() / spec.steps
    parts = sum(entry.exposed_wait_ns for entry in analysis.time.blame.per_rank)
    parts += analysis.time.blame.tied_ns + analysis.time.blame.unjudged_ns
    assert parts == pytest.approx(total, abs=5)


def test_a_cpu_rank_whose_main_thread_is_silent_is_late_by_its_host(tmp_path):
    spec = Spec(ranks=3)
    truths = play(Spec(ranks=3, slow_rank=2, slow_ns=40 * MS))
    for truth in truths:  # the time is spent, but not in any operator
        truth.compute = [(start, min(end, start + 9 * MS), name) for start, end, name in truth.compute]
    blame = analyse_time(load(write_schedule(tmp_path / "x.zprof", spec, truths))).time.blame
    first = blame.per_rank[0]
    assert first.rank == 2
    assert first.reasons["host"] > 0.95 * first.exposed_wait_ns
