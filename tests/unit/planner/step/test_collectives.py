"""Times of collectives against figures worked out before, and what the model of a group says."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.model.job import Degrees
from zprof.planner.hardware import H100, V100
from zprof.planner.step.collectives import (
    Group,
    all_reduce_ns,
    boundary_group,
    data_group,
    gather_ns,
    link_name,
    make_group,
    model_group,
    tree_all_reduce_ns,
)

#: One alpha for every hop: a ring of 1024 in one node whose hops take 10 us.
FLAT = Group(ranks=1024, per_node=1024, bytes_per_s=50e9, latency_ns=1023 * 10_000, hop_ns=10_000)


def machine(per_node: int, beta: float) -> Group:
    """H100's hops, and a bandwidth that both links have."""
    hardware = replace(H100, devices_per_node=per_node, node_bytes_per_s=beta, intra_bytes_per_s=beta)
    ranks = {8: 8, 16: 64}[per_node]
    return make_group(hardware, ranks)


@pytest.mark.parametrize(
    ("group", "size", "printed"),
    [
        (machine(8, 130e9), 1e9, "6.744769"),
        (machine(16, 100e9), 15e9, "147.816250"),
        (make_group(H100, 1024), 2e12 / 128, "46.432392"),
    ],
)
def test_gathers(group: Group, size: float, printed: str) -> None:
    assert f"{gather_ns(group, size) / 1e6:.6f}" == printed


def test_ring_and_tree() -> None:
    assert f"{gather_ns(FLAT, 1e9) / 1e6:.3f}" == "30.210"
    printed_is_twice_the_rounded = 2 * round(gather_ns(FLAT, 1e9) / 1e6, 3)
    assert f"{printed_is_twice_the_rounded:.3f}" == "60.420"
    assert f"{2 * gather_ns(FLAT, 1e9) / 1e6:.3f}" == "60.421"
    assert f"{tree_all_reduce_ns(FLAT, 1e9) / 1e6:.3f}" == "40.200"
    assert f"{gather_ns(FLAT, 1e6) / 1e6:.3f}" == "10.250"
    assert f"{tree_all_reduce_ns(FLAT, 1e6) / 1e6:.3f}" == "0.240"


@given(st.integers(1, 5000), st.floats(1, 1e12), st.integers(1, 100))
def test_the_faster_all_reduce_is_taken(ranks: int, size: float, messages: int) -> None:
    group = make_group(H100, ranks)
    ring, tree = 2 * gather_ns(group, size, messages), tree_all_reduce_ns(group, size, messages)
    assert all_reduce_ns(group, size, messages) == min(ring, tree)


@given(st.integers(2, 5000))
def test_a_message_of_n_half_takes_as_long_in_hops_as_in_bytes(ranks: int) -> None:
    group = make_group(V100, ranks)
    size = group.latency_ns / 1e9 * group.bytes_per_s * ranks / (ranks - 1)
    assert gather_ns(group, size) == pytest.approx(2 * group.latency_ns)


def test_one_rank_moves_nothing() -> None:
    alone = make_group(H100, 1)
    assert (gather_ns(alone, 1e9), all_reduce_ns(alone, 1e9)) == (0, 0)


def test_a_flat_group_gets_all_cards_and_one_rank_a_node_its_share() -> None:
    assert data_group(V100, Degrees(dp=1024)).bytes_per_s == 100e9
    assert data_group(V100, Degrees(dp=64, mp=16)).bytes_per_s == 100e9 / 16
    assert data_group(V100, Degrees(dp=64, mp=4)).bytes_per_s == 25e9
    assert data_group(V100, Degrees(dp=16)).bytes_per_s == 130e9


def test_hops_within_and_between_nodes() -> None:
    assert make_group(H100, 1024).latency_ns == 128 * 10_000 + 896 * 2_000
    assert make_group(H100, 8).latency_ns == 7 * 2_000
    assert make_group(H100, 128, stride=8).latency_ns == 128 * 10_000


def test_links() -> None:
    assert link_name(model_group(H100, Degrees(mp=8, dp=4))) == "intra"
    assert link_name(model_group(H100, Degrees(mp=16))) == "inter"
    assert link_name(data_group(H100, Degrees(dp=2, mp=8))) == "inter"
    assert link_name(boundary_group(H100, Degrees(pp=8))) == "intra"
    assert link_name(boundary_group(H100, Degrees(pp=4, dp=4))) == "inter"
    assert boundary_group(H100, Degrees(pp=4, dp=4)).bytes_per_s == 50e9
