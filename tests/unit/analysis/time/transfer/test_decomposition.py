"""Who waits for whom, by kind of collective, and who surely came last."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.matched_rows import clocks, collective, table
from zprof.analysis.time.decomposition import decompose_collectives


def decomposed(*collectives, **of_rank):
    frame = decompose_collectives(table(*collectives), clocks(100, **of_rank))
    return frame.to_frame().set_index(["instance", "rank"])


def column(frame, name, instance=0):
    return dict(zip(frame.loc[instance].index, frame.loc[instance, name].tolist(), strict=True))


ARRIVE = {0: (1_000, 9_000), 1: (4_000, 9_300), 2: (2_000, 9_100)}
FOR_ALL = ({0: 3_000, 1: 0, 2: 2_000}, {0: 1, 1: 1, 2: 1})
FOR_THE_ROOT = ({0: 1_000, 1: 0, 2: 0}, {0: 2, 1: -1, 2: -1})
OF_THE_ROOT = ({0: 3_000, 1: 0, 2: 0}, {0: 1, 1: -1, 2: -1})


@pytest.mark.parametrize(
    ("kind", "root", "expected"),
    [
        ("all_reduce", None, FOR_ALL),
        ("all_gather", None, FOR_ALL),
        ("reduce_scatter", None, FOR_ALL),
        ("all_to_all", None, FOR_ALL),
        ("barrier", None, FOR_ALL),
        ("broadcast", 2, FOR_THE_ROOT),
        ("scatter", 2, FOR_THE_ROOT),
        ("reduce", 0, OF_THE_ROOT),
        ("gather", 0, OF_THE_ROOT),
    ],
)
def test_waits_by_kind(kind, root, expected) -> None:
    frame = decomposed(collective(0, ARRIVE, kind=kind, peer_rank=root))
    assert (column(frame, "wait_ns"), column(frame, "last_rank")) == expected
    waits = column(frame, "wait_ns")
    lengths = {rank: end - start for rank, (start, end) in ARRIVE.items()}
    assert column(frame, "transfer_ns") == {rank: lengths[rank] - waits[rank] for rank in ARRIVE}
    assert not frame["bound"].any()
    if expected is FOR_ALL:
        assert column(frame, "tail_ns") == {0: 300, 1: 0, 2: 200}
        assert set(column(frame, "intrinsic_ns").values()) == {5_000}
    elif expected is FOR_THE_ROOT:
        assert set(column(frame, "intrinsic_ns").values()) == {5_300}  # of the last to start, from its start


def test_a_receive_waits_for_its_send() -> None:
    send = collective(0, {1: (5_000, 8_000)}, ranks=(0, 1), kind="send", peer_rank=0, matched=True)
    recv = collective(0, {0: (1_000, 8_100)}, ranks=(0, 1), kind="recv", peer_rank=1, matched=True)
    frame = decomposed(send, recv)
    assert (column(frame, "wait_ns"), column(frame, "last_rank")) == ({0: 4_000, 1: 0}, {0: 1, 1: -1})
    assert not frame["bound"].any()


def pair(send: tuple[int, int], recv: tuple[int, int]):
    """A message of rank 0 to rank 1, decomposed."""
    return decomposed(
        collective(0, {0: send}, ranks=(0, 1), kind="send", peer_rank=1, matched=True),
        collective(0, {1: recv}, ranks=(0, 1), kind="recv", peer_rank=0, matched=True),
    )


def test_a_send_waits_for_its_receive() -> None:
    frame = pair((1_000, 126_000), (125_600, 126_075))
    assert column(frame, "wait_ns") == {0: 124_600, 1: 0}
    assert column(frame, "transfer_ns") == {0: 400, 1: 475}
    assert set(column(frame, "intrinsic_ns").values()) == {400}
    assert column(frame, "last_rank") == {0: 1, 1: -1}


def test_a_send_that_was_buffered_did_not_wait() -> None:
    """It ended before its receive started: the data lay in a buffer."""
    frame = pair((1_000, 4_000), (9_000, 9_500))
    assert column(frame, "wait_ns") == {0: 0, 1: 0}
    assert column(frame, "transfer_ns") == {0: 3_000, 1: 500}
    assert column(frame, "last_rank") == {0: -1, 1: -1}
    assert not frame["bound"].any()


def test_a_send_without_its_receive_has_bounds() -> None:
    frame = decomposed(
        collective(0, {0: (1_000, 4_000)}, ranks=(0, 1), kind="send", peer_rank=1, matched=False)
    )
    assert frame["bound"].all()


@settings(max_examples=30)
@given(starts=st.tuples(*[st.integers(0, 10_000)] * 2), lengths=st.tuples(*[st.integers(1, 10_000)] * 2))
def test_a_message_moves_for_no_longer_than_its_shorter_side(starts, lengths) -> None:
    """Both ends are within the transfer, unless the send had ended before."""
    (send, recv) = [(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    frame = pair(send, recv)
    both = max(0, min(send[1], recv[1]) - max(send[0], recv[0]))
    for rank, (start, end) in enumerate((send, recv)):
        wait, transfer = column(frame, "wait_ns")[rank], column(frame, "transfer_ns")[rank]
        assert wait + transfer == end - start
        if both:
            assert wait == max(send[0], recv[0]) - start


BOUNDS = {
    **{
        f"{kind} without its peer": (collective(0, {0: (1_000, 8_000)}, ranks=(0, 1), kind=kind), {0: 0})
        for kind in ("recv", "broadcast", "reduce", "other")
    },
    "ranks are missing": (collective(0, ARRIVE, ranks=(0, 1, 2, 3)), {0: 3_000, 1: 0, 2: 2_000}),
    "refused rows": (collective(-1, ARRIVE), {0: 0, 1: 0, 2: 0}),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_an_incomplete_collective_gives_bounds_and_names_nobody(name) -> None:
    rows, waits = BOUNDS[name]
    frame = decomposed(rows)
    assert column(frame, "wait_ns", rows[0]["instance"]) == waits
    assert frame["bound"].all()
    assert (frame["last_rank"] == -1).all()
    assert frame["intrinsic_ns"].isna().all()


@pytest.mark.parametrize(
    ("starts", "uncertainty", "last"),
    [
        ({0: 1_000, 1: 1_000}, {}, -1),
        ({0: 1_000, 1: 1_200}, {}, -1),  # within twice the uncertainty of 100
        ({0: 1_000, 1: 1_201}, {}, 1),
        ({0: 5_000, 1: 1_000, 2: 3_000}, {}, 0),
        ({0: 5_000, 1: 1_000, 2: 3_000}, {"r1": 1_500}, 0),
        ({0: 5_000, 1: 1_000, 2: 3_000}, {"r1": 2_500}, -1),  # it may have been later still
        ({0: 5_000, 1: 1_000, 2: 3_000}, {"r2": 1_001}, -1),
    ],
)
def test_the_last_rank_is_named_beyond_the_uncertainty_of_the_clocks(starts, uncertainty, last) -> None:
    rows = collective(0, {rank: (start, 9_000) for rank, start in starts.items()})
    assert set(column(decomposed(rows, **uncertainty), "last_rank").values()) == {last}


def test_waits_and_transfers_sum_whatever_the_times() -> None:
    random = np.random.default_rng(5)
    rows = []
    for number in range(200):
        spans = {rank: tuple(sorted(random.integers(0, 1_000, 2))) for rank in range(4)}
        kind = random.choice(["all_reduce", "broadcast", "reduce"])
        rows.append(collective(number, spans, kind=kind, peer_rank=2))
    frame = decomposed(*rows)
    assert (frame["wait_ns"] + frame["transfer_ns"] == frame["end_ns"] - frame["start_ns"]).all()
    assert (frame[["wait_ns", "transfer_ns"]] >= 0).all(axis=None)
