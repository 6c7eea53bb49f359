"""Times of collectives against figures worked out before, and what the model of a group says."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.model.job import Degrees, Hardware
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


def machine(per_node: int, beta: float) -> Hardware:
    return replace(H100, devices_per_node=per_node, node_bytes_per_s=beta, intra_bytes_per_s=beta)


@pytest.mark.parametrize(
    ("group", "size", "printed"),
    [
        (make_group(machine(8, 130e9), 8), 1e9, "6.744769"),
        (make_group(machine(16, 100e9), 64), 15e9, "147.816250"),
        (make_group(H100, 1024), 2e12 / 128, "46.432392"),
        (FLAT, 1e9, "30.210469"),
        (FLAT, 1e6, "10.249980"),
        (make_group(H100, 1), 1e9, "0.000000"),
    ],
)
def test_a_gather_takes_its_hops_and_its_bytes(group: Group, size: float, printed: str) -> None:
    assert f"{gather_ns(group, size) / 1e6:.6f}" == printed


@settings(max_examples=50)
@given(st.integers(2, 5000), st.floats(1, 1e12), st.integers(1, 100))
def test_the_faster_of_ring_and_tree_is_taken(ranks: int, size: float, messages: int) -> None:
    assert f"{tree_all_reduce_ns(FLAT, 1e9) / 1e6:.3f}" == "40.200"
    assert f"{tree_all_reduce_ns(FLAT, 1e6) / 1e6:.3f}" == "0.240"
    group = make_group(V100, ranks)
    ring, tree = 2 * gather_ns(group, size, messages), tree_all_reduce_ns(group, size, messages)
    assert all_reduce_ns(group, size, messages) == min(ring, tree)
    half = group.latency_ns / 1e9 * group.bytes_per_s * ranks / (ranks - 1)
    assert gather_ns(group, half) == pytest.approx(2 * group.latency_ns)


@pytest.mark.parametrize(
    ("degrees", "gb_per_s"),
    [
        (Degrees(dp=1024), 100),
        (Degrees(dp=64, mp=16), 100 / 16),
        (Degrees(dp=64, mp=4), 25),
        (Degrees(dp=16), 130),
    ],
)
def test_a_flat_group_gets_all_cards_and_one_rank_a_node_its_share(degrees: Degrees, gb_per_s: float) -> None:
    assert data_group(V100, degrees).bytes_per_s == gb_per_s * 1e9


def test_hops_and_links_within_and_between_nodes() -> None:
    assert make_group(H100, 1024).latency_ns == 128 * 10_000 + 896 * 2_000
    assert make_group(H100, 8).latency_ns == 7 * 2_000
    assert make_group(H100, 128, stride=8).latency_ns == 128 * 10_000
    assert boundary_group(H100, Degrees(pp=4, dp=4)).bytes_per_s == 50e9
    links = (
        (model_group(H100, Degrees(mp=8, dp=4)), "intra"),
        (model_group(H100, Degrees(mp=16)), "inter"),
        (data_group(H100, Degrees(dp=2, mp=8)), "inter"),
        (boundary_group(H100, Degrees(pp=8)), "intra"),
        (boundary_group(H100, Degrees(pp=4, dp=4)), "inter"),
    )
    for group, link in links:
        assert link_name(group) == link
