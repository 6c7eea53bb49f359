"""Traffic of a device against the law that measured runs are held against, and against the step's ledger."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.planned_jobs import trillion
from zprof.analysis.zero_formulas import compute_expected_volume
from zprof.model.job import Batch, Degrees, ElementBytes, Job, Overlap, Unit
from zprof.model.plan import Axis, Scheme
from zprof.model.training import TrainingFacts
from zprof.planner.hardware import H100
from zprof.planner.step.assumptions import TRAFFIC_ASSUMPTIONS
from zprof.planner.step.ledger import plan_step
from zprof.planner.step.traffic import plan_traffic

STAGES = {0: Scheme.DATA_PARALLEL, 1: Scheme.ZERO_1, 2: Scheme.ZERO_2, 3: Scheme.ZERO_3}


@settings(max_examples=60)
@given(
    st.integers(0, 3),
    st.integers(1, 10**12),
    st.integers(2, 5000),
    st.integers(1, 64),
    st.sampled_from((2, 4)),
    st.sampled_from((2, 4)),
)
def test_volume_is_the_law(
    stage: int, parameters: int, ranks: int, micro_batches: int, gathered: int, reduced: int
) -> None:
    job = Job(
        parameters=parameters,
        degrees=Degrees(dp=ranks),
        batch=Batch(micro_batches=micro_batches),
        element_bytes=ElementBytes(gathered=gathered, reduced=reduced),
    )
    [link] = plan_traffic(job, STAGES[stage])
    law = compute_expected_volume(
        TrainingFacts(
            stage=stage,
            parameters=parameters,
            shard_ranks=ranks,
            communication_bytes=gathered,
            reduction_bytes=reduced,
            micro_batches=micro_batches,
        )
    )
    assert link.bytes == law
    assert link.ring_bytes == pytest.approx(law * (ranks - 1) / ranks, rel=1e-12, abs=1)


@pytest.mark.parametrize(("scheme", "times"), [("zero_1", 2), ("zero_2", 5), ("zero_3", 12)])
def test_micro_batches(scheme: str, times: int) -> None:
    job = Job(parameters=1000, degrees=Degrees(dp=8), batch=Batch(micro_batches=4))
    [link] = plan_traffic(job, Scheme(scheme))
    assert link.elements == times * 1000


@pytest.mark.parametrize("scheme", list(STAGES.values()))
@pytest.mark.parametrize("keep_last", [False, True])
def test_time_on_the_link_is_what_the_ledger_has(scheme: Scheme, keep_last: bool) -> None:
    job = replace(trillion(H100, 512, units=16), overlap=Overlap(keep_last=keep_last))
    job = replace(job, batch=replace(job.batch, micro_batches=3))
    root = Unit(name="root", elements=10**9, encloses=True)
    for units in (job.units, (root, *job.units)):
        there = replace(job, units=units)
        [link] = plan_traffic(there, scheme)
        found = plan_step(there, scheme)
        assert found is not None
        assert link.time_ns == found.collective_ns


def test_a_kept_unit_is_not_gathered_again() -> None:
    job = replace(trillion(H100, 512), overlap=Overlap())
    again, kept = (
        plan_traffic(replace(job, overlap=Overlap(keep_last=keep)), Scheme.ZERO_3)[0].elements
        for keep in (False, True)
    )
    assert again == 3 * job.parameters
    assert again - kept == job.units[-1].elements


def test_one_device_moves_nothing() -> None:
    assert plan_traffic(Job(parameters=1000), Scheme.ZERO_3) == ()


def test_without_hardware_there_is_traffic_and_no_time() -> None:
    job = replace(trillion(H100, 512), hardware=None)
    [link] = plan_traffic(job, Scheme.ZERO_3)
    assert (link.time_ns, link.link, link.axis) == (None, "inter", Axis.DATA)
    [within] = plan_traffic(replace(job, degrees=Degrees(dp=8)), Scheme.ZERO_3)
    assert within.link == "intra"


def test_frozen_parameters_are_gathered_in_stage_3_only() -> None:
    job = Job(parameters=1000, frozen_parameters=900, degrees=Degrees(dp=8))
    moved = [plan_traffic(job, scheme)[0].elements for scheme in STAGES.values()]
    assert moved == [200, 200, 200, 2100]


def test_assumptions_are_known() -> None:
    job = replace(trillion(H100, 512), degrees=Degrees(dp=8))
    for scheme in Scheme:
        assert {link.assumption for link in plan_traffic(job, scheme)} <= set(TRAFFIC_ASSUMPTIONS)
