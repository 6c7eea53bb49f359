"""Traffic of a device against the ZeRO formula and the ledger, and the time of collectives in a group."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.planned_jobs import trillion
from zprof.analysis.zero_formulas import compute_expected_volume
from zprof.model.job import Batch, Degrees, ElementBytes, Job, ModelUnit, Overlap
from zprof.model.machines import H100, V100
from zprof.model.plan import Scheme
from zprof.model.training import TrainingFacts
from zprof.planner.plan import plan_traffic
from zprof.planner.planned_step import plan_step
from zprof.step.from_plan import (
    RankRing,
    all_reduce_ns,
    gather_ns,
    get_link_name,
    make_boundary_group,
    make_data_group,
    make_group,
    make_model_group,
    tree_all_reduce_ns,
)

STAGES = {0: Scheme.DATA_PARALLEL, 1: Scheme.ZERO_1, 2: Scheme.ZERO_2, 3: Scheme.ZERO_3}
SIZE = st.sampled_from((2, 4))


@settings(max_examples=60)
@given(st.integers(0, 3), st.integers(1, 10**12), st.integers(2, 5000), st.integers(1, 64), SIZE, SIZE)
def test_the_volume_follows_the_zero_formula(
    stage: int, parameters: int, ranks: int, micro_batches: int, gathered: int, reduced: int
) -> None:
    facts = TrainingFacts(
        stage=stage,
        parameters=parameters,
        shard_ranks=ranks,
        communication_bytes=gathered,
        reduction_bytes=reduced,
        micro_batches=micro_batches,
    )
    job = Job(
        parameters=parameters,
        degrees=Degrees(dp=ranks),
        batch=Batch(micro_batches=micro_batches),
        element_bytes=ElementBytes(gathered=gathered, reduced=reduced),
    )
    [link] = plan_traffic(job, STAGES[stage])
    expected = compute_expected_volume(facts)
    assert expected is not None
    assert link.bytes == expected
    assert link.ring_bytes == pytest.approx(expected * (ranks - 1) / ranks, rel=1e-12, abs=1)


@pytest.mark.parametrize(
    ("frozen", "times"), [(0, (2000, 2000, 5000, 12_000)), (900, (200, 200, 500, 8 * 1000 + 4 * 100))]
)
def test_elements_of_four_micro_batches(frozen: int, times: tuple[int, ...]) -> None:
    """By the paper 2 psi a step, of which stage 2 reduces and stage 3 also gathers in each micro-batch."""
    batch = Batch(micro_batches=4)
    job = Job(parameters=1000, frozen_parameters=frozen, degrees=Degrees(dp=8), batch=batch)
    assert tuple(plan_traffic(job, scheme)[0].elements for scheme in STAGES.values()) == times
    assert plan_traffic(replace(job, degrees=Degrees()), Scheme.ZERO_3) == ()


@pytest.mark.parametrize("scheme", list(STAGES.values()))
@pytest.mark.parametrize("keep_last", [False, True])
def test_time_on_the_link_is_what_the_ledger_has(scheme: Scheme, keep_last: bool) -> None:
    job = replace(trillion(H100, 512, units=16), overlap=Overlap(keep_last=keep_last))
    job = replace(job, batch=replace(job.batch, micro_batches=3))
    root = ModelUnit(name="root", elements=10**9, encloses=True)
    for units in (job.units, (root, *job.units)):
        [link] = plan_traffic(replace(job, units=units), scheme)
        found = plan_step(replace(job, units=units), scheme)
        assert found is not None
        assert link.time_ns == found.collective_ns


#: One alpha for every hop: a ring of 1024 in one node whose hops take 10 us.
FLAT = RankRing(ranks=1024, per_node=1024, bytes_per_s=50e9, latency_ns=1023 * 10_000, hop_ns=10_000)


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
        assert make_data_group(V100, degrees).bytes_per_s == gb_per_s * 1e9


def test_hops_and_links_within_and_between_nodes() -> None:
    assert make_group(H100, 1024).latency_ns == 128 * 10_000 + 896 * 2_000
    assert make_group(H100, 8).latency_ns == 7 * 2_000
    assert make_group(H100, 128, stride=8).latency_ns == 128 * 10_000
    assert get_link_name(make_model_group(H100, Degrees(mp=8, dp=4))) == "intra"
    assert get_link_name(make_model_group(H100, Degrees(mp=16))) == "inter"
    assert get_link_name(make_data_group(H100, Degrees(dp=2, mp=8))) == "inter"
    assert get_link_name(make_boundary_group(H100, Degrees(pp=8))) == "intra"
    assert get_link_name(make_boundary_group(H100, Degrees(pp=4, dp=4))) == "inter"
