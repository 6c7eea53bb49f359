"""Who waits for whom, by kind of collective, and who surely came last."""

import numpy as np
import pytest

from tests.support.matched_rows import clocks, collective, table
from zprof.analysis.time.transfer.decomposition import decompose_collectives


def decomposed(*collectives, uncertainty_ns=100, **of_rank):
    frame = decompose_collectives(table(*collectives), clocks(uncertainty_ns, **of_rank))
    return frame.set_index(["instance", "rank"])


def column(frame, name, instance=0):
    return dict(zip(frame.loc[instance].index, frame.loc[instance, name].tolist(), strict=True))


ARRIVE = {0: (1_000, 9_000), 1: (4_000, 9_300), 2: (2_000, 9_100)}


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"])
def test_everybody_waits_for_the_last_of_all(kind):
    frame = decomposed(collective(0, ARRIVE, kind=kind))
    assert column(frame, "wait_ns") == {0: 3_000, 1: 0, 2: 2_000}
    assert column(frame, "transfer_ns") == {0: 5_000, 1: 5_300, 2: 5_100}
    assert column(frame, "tail_ns") == {0: 300, 1: 0, 2: 200}
    assert set(column(frame, "intrinsic_ns").values()) == {5_000}
    assert set(column(frame, "last_rank").values()) == {1}
    assert not frame["bound"].any()


@pytest.mark.parametrize("kind", ["broadcast", "scatter"])
def test_a_broadcast_waits_for_its_root_only(kind):
    frame = decomposed(collective(0, ARRIVE, kind=kind, peer_rank=2))
    assert column(frame, "wait_ns") == {0: 1_000, 1: 0, 2: 0}
    assert column(frame, "last_rank") == {0: 2, 1: -1, 2: -1}
    assert set(column(frame, "intrinsic_ns").values()) == {5_300}  # of the last to start, from its own start


@pytest.mark.parametrize("kind", ["reduce", "gather"])
def test_the_root_of_a_reduce_waits_for_all(kind):
    frame = decomposed(collective(0, ARRIVE, kind=kind, peer_rank=0))
    assert column(frame, "wait_ns") == {0: 3_000, 1: 0, 2: 0}
    assert column(frame, "last_rank") == {0: 1, 1: -1, 2: -1}


def test_a_recv_waits_for_its_send():
    send = collective(0, {1: (5_000, 8_000)}, ranks=(0, 1), kind="send", peer_rank=0, matched=True)
    recv = collective(0, {0: (1_000, 8_100)}, ranks=(0, 1), kind="recv", peer_rank=1, matched=True)
    frame = decomposed(send, recv)
    assert column(frame, "wait_ns") == {0: 4_000, 1: 0}
    assert column(frame, "last_rank") == {0: 1, 1: -1}
    assert not frame["bound"].any()


@pytest.mark.parametrize("kind", ["recv", "broadcast", "reduce", "other"])
def test_without_its_peer_nothing_is_said_but_a_bound(kind):
    frame = decomposed(collective(0, {0: (1_000, 8_000)}, ranks=(0, 1), kind=kind))
    assert column(frame, "wait_ns") == {0: 0}
    assert column(frame, "last_rank") == {0: -1}
    assert frame["bound"].all()
    assert frame["intrinsic_ns"].isna().all()


def test_a_send_waits_for_nobody_here():
    frame = decomposed(collective(0, {0: (1_000, 8_000)}, ranks=(0, 1), kind="send"))
    assert not frame["bound"].any()


def test_a_group_of_which_ranks_are_missing_gives_bounds():
    frame = decomposed(collective(0, ARRIVE, ranks=(0, 1, 2, 3)))
    assert column(frame, "wait_ns") == {0: 3_000, 1: 0, 2: 2_000}
    assert frame["bound"].all()
    assert (frame["last_rank"] == -1).all()
    assert frame["intrinsic_ns"].isna().all()


def test_a_refused_row_stands_alone():
    frame = decomposed(collective(-1, ARRIVE))
    assert (frame["wait_ns"] == 0).all()
    assert frame["bound"].all()
    assert frame["tail_ns"].isna().all()


def test_a_rank_alone_has_nobody_to_wait_for():
    frame = decomposed(collective(0, {3: (0, 500)}))
    assert not frame["bound"].any()
    assert column(frame, "last_rank") == {3: -1}


@pytest.mark.parametrize(("lead", "last"), [(200, -1), (201, 1), (0, -1)])
def test_a_lead_within_twice_the_uncertainty_is_a_tie(lead, last):
    frame = decomposed(collective(0, {0: (1_000, 9_000), 1: (1_000 + lead, 9_000)}))
    assert set(column(frame, "last_rank").values()) == {last}


def test_a_rank_with_a_worse_clock_may_have_been_later_still():
    starts = {0: (5_000, 9_000), 1: (1_000, 9_000), 2: (3_000, 9_000)}
    assert set(column(decomposed(collective(0, starts)), "last_rank").values()) == {0}
    assert set(column(decomposed(collective(0, starts), r1=1_500), "last_rank").values()) == {0}
    assert set(column(decomposed(collective(0, starts), r1=2_500), "last_rank").values()) == {-1}
    assert set(column(decomposed(collective(0, starts), r2=1_001), "last_rank").values()) == {-1}


def test_waits_and_transfers_sum_whatever_the_times():
    random = np.random.default_rng(5)
    rows = []
    for number in range(200):
        spans = {rank: tuple(sorted(random.integers(0, 1_000, 2))) for rank in range(4)}
        rows.append(
            collective(number, spans, kind=random.choice(["all_reduce", "broadcast", "reduce"]), peer_rank=2)
        )
    frame = decomposed(*rows)
    assert (frame["wait_ns"] + frame["transfer_ns"] == frame["end_ns"] - frame["start_ns"]).all()
    assert (frame[["wait_ns", "transfer_ns"]] >= 0).all(axis=None)
