"""The model of a group: what a gather takes, the faster of two all-reduces, and the links between ranks."""

from hypothesis import given, settings
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


def test_ring_and_tree_against_figures_worked_out_before() -> None:
    assert f"{gather_ns(make_group(H100, 1024), 2e12 / 128) / 1e6:.6f}" == "46.432392"
    for size, ring, tree in ((1e9, "30.210", "40.200"), (1e6, "10.250", "0.240")):
        assert f"{gather_ns(FLAT, size) / 1e6:.3f}" == ring
        assert f"{tree_all_reduce_ns(FLAT, size) / 1e6:.3f}" == tree


@settings(max_examples=50)
@given(st.integers(1, 5000), st.floats(1, 1e12), st.integers(1, 100))
def test_the_faster_of_ring_and_tree_is_taken(ranks: int, size: float, messages: int) -> None:
    group = make_group(V100, ranks)
    ring, tree = 2 * gather_ns(group, size, messages), tree_all_reduce_ns(group, size, messages)
    assert all_reduce_ns(group, size, messages) == min(ring, tree)
    assert (ring == 0) == (ranks == 1)


def test_a_flat_group_gets_all_cards_and_one_rank_a_node_its_share() -> None:
    for degrees, gb_per_s in (
        (Degrees(dp=1024), 100),
        (Degrees(dp=64, mp=16), 100 / 16),
        (Degrees(dp=64, mp=4), 25),
        (Degrees(dp=16), 130),
    ):
        assert data_group(V100, degrees).bytes_per_s == gb_per_s * 1e9


def test_hops_and_links_within_and_between_nodes() -> None:
    assert make_group(H100, 1024).latency_ns == 128 * 10_000 + 896 * 2_000
    assert make_group(H100, 8).latency_ns == 7 * 2_000
    assert make_group(H100, 128, stride=8).latency_ns == 128 * 10_000
    assert link_name(model_group(H100, Degrees(mp=8, dp=4))) == "intra"
    assert link_name(model_group(H100, Degrees(mp=16))) == "inter"
    assert link_name(data_group(H100, Degrees(dp=2, mp=8))) == "inter"
    assert link_name(boundary_group(H100, Degrees(pp=8))) == "intra"
    assert link_name(boundary_group(H100, Degrees(pp=4, dp=4))) == "inter"
