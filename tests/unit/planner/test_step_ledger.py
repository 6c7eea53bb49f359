"""The ledger of a planned step: its terms, what bandwidth and tokens do to it, and what is unknown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.planned_jobs import known_step as step
from tests.support.planned_jobs import trillion
from zprof.model.job import Batch, Degrees, ElementBytes, Job, ModelUnit, Overlap, Residual, Shape
from zprof.model.machines import A100, H100, MACHINES, V100
from zprof.model.plan import Scheme
from zprof.planner.plan import plan
from zprof.planner.planned_step import STEP_ASSUMPTIONS, plan_step
from zprof.planner.sensitivity import with_bandwidth, with_latency, with_tokens

FP32 = ElementBytes(parameter=4, gradient=4, optimizer_state=8, gathered=4, reduced=4, gradient_copy=0)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    sizes = draw(st.lists(st.integers(10**4, 10**9), min_size=2, max_size=6))
    has_root = draw(st.booleans())
    units = [
        ModelUnit(name=f"b{i}", elements=size, encloses=has_root and not i) for i, size in enumerate(sizes)
    ]
    degrees = Degrees(
        dp=draw(st.sampled_from((1, 2, 8, 48, 1024))),
        mp=draw(st.sampled_from((1, 4, 16))),
        pp=draw(st.sampled_from((1, 3, 4))),
    )
    return Job(
        parameters=sum(unit.elements for unit in units) * degrees.mp,
        shape=Shape(layers=len(units) - has_root, hidden=draw(st.sampled_from((256, 8192)))),
        units=tuple(units),
        degrees=degrees,
        batch=Batch(
            samples=draw(st.integers(1, 64)),
            sequence=draw(st.sampled_from((512, 4096))),
            micro_batches=draw(st.integers(1, 5)),
        ),
        residual=Residual(
            checkpointing=draw(st.booleans()),
            partition=draw(st.booleans()),
            offload=draw(st.booleans()),
            constant_buffer_elements=draw(st.sampled_from((None, 10**6))),
        ),
        overlap=Overlap(prefetch=draw(st.integers(0, 2)), keep_last=draw(st.booleans())),
        hardware=draw(st.sampled_from(list(MACHINES.values()))),
    )


@settings(max_examples=60)
@given(jobs(), st.sampled_from(Scheme))
def test_terms_sum_to_the_wall(job: Job, scheme: Scheme) -> None:
    found = step(job, scheme)
    terms = (found.compute_ns, found.exposed_transfer_ns, found.exposed_memcpy_ns, found.idle_ns)
    assert sum(terms) == found.wall_ns
    assert min(terms) >= 0
    assert found.overlapped_ns + found.exposed_transfer_ns == found.collective_ns
    assert found.overlapped_ns >= 0
    assert found.efficiency_ratio == (found.compute_ns / found.wall_ns if found.wall_ns else 1.0)
    assert set(found.assumptions.values()) <= set(STEP_ASSUMPTIONS)


@settings(max_examples=40)
@given(jobs(), st.sampled_from(Scheme), st.floats(0.05, 1.0), st.integers(2, 50))
def test_a_slower_network_never_helps_and_more_tokens_never_hurt(
    job: Job, scheme: Scheme, ratio: float, times: int
) -> None:
    """More tokens by more samples: a gather stays as it is.  Terms are rounded to whole nanoseconds."""
    fast = step(job, scheme)
    late = with_latency(job, 10 * H100.inter_latency_ns)
    for slow in (step(with_bandwidth(job, ratio), scheme), step(late, scheme)):
        assert slow.exposed_transfer_ns >= fast.exposed_transfer_ns
        assert slow.compute_ns == fast.compute_ns
    few, many = (step(with_tokens(job, (job.batch.tokens or 0) * n), scheme) for n in (1, times))
    rounding_ratio = 2 / max(few.wall_ns, 1)
    assert many.efficiency_ratio >= few.efficiency_ratio - rounding_ratio


@pytest.mark.parametrize("scheme", list(Scheme))
def test_one_device_alone_only_computes(scheme: Scheme) -> None:
    alone = step(replace(trillion(H100, 512), degrees=Degrees()), scheme)
    assert alone.wall_ns == alone.compute_ns
    assert alone.efficiency_ratio == 1.0
    tiny = Job(
        parameters=1,
        units=(ModelUnit(name="u", elements=1),),
        batch=Batch(samples=1, sequence=1),
        hardware=A100,
    )
    assert (step(tiny, scheme).wall_ns, step(tiny, scheme).efficiency_ratio) == (0, 1.0)


def test_recomputation_is_a_forward_more_of_all_but_the_root() -> None:
    job = replace(trillion(H100, 512), degrees=Degrees())
    plain = step(replace(job, residual=Residual()))
    assert step(job).compute_ns == pytest.approx(plain.compute_ns * 4 / 3)
    root = replace(job, units=(ModelUnit(name="root", elements=10**9, encloses=True),))
    assert step(root).compute_ns == step(replace(root, residual=Residual())).compute_ns


def test_frozen_parameters_have_no_gradient_to_compute_or_to_reduce() -> None:
    job = replace(trillion(H100, 512), residual=Residual())
    frozen = replace(job, frozen_parameters=job.parameters)
    whole, half = step(job, Scheme.DATA_PARALLEL), step(frozen, Scheme.DATA_PARALLEL)
    assert half.collective_ns == 0
    assert half.compute_ns == pytest.approx(whole.compute_ns * 2 / 3)
    assert step(frozen).collective_ns == pytest.approx(step(job).collective_ns * 255 / 383, rel=1e-6)


def test_constant_buffers_cut_reductions_into_messages() -> None:
    job, buffer = trillion(H100, 512), 500_000_000
    cut = replace(job, residual=Residual(checkpointing=True, constant_buffer_elements=buffer))
    messages = -(-job.units[0].elements // buffer)
    more = step(cut, Scheme.ZERO_2).collective_ns - step(job, Scheme.ZERO_2).collective_ns
    assert more == 128 * (messages - 1) * (128 * 10_000 + 896 * 2_000)


def test_a_job_in_fp32_computes_at_the_fp32_peak() -> None:
    for hardware, ratio in ((V100, 125 / 15.7), (A100, 312 / 19.5), (H100, 989 / 67)):
        half = trillion(hardware, 512)
        whole = replace(half, element_bytes=FP32)
        assert step(whole).compute_ns / step(half).compute_ns == pytest.approx(ratio, rel=1e-4)


def test_a_job_in_fp32_has_no_time_where_that_peak_is_unknown() -> None:
    unknown = replace(trillion(H100, 512), hardware=replace(H100, fp32_flops_per_s=None))
    assert plan_step(unknown, Scheme.ZERO_3) is not None
    made = plan(replace(unknown, element_bytes=FP32), schemes=[Scheme.ZERO_3], with_sensitivity=True)
    assert made.rows[0].step is None
    assert any("peak_fp32_tflops" in gap.remedy and "--precision" in gap.remedy for gap in made.gaps)
    assert made.sensitivity is not None
    assert not made.sensitivity.break_even
    assert not made.sensitivity.answers


@pytest.mark.parametrize(
    "unknown",
    [
        {"hardware": None},
        {"batch": Batch()},
        {"units": ()},
        {"degrees": Degrees(dp=64, mp=16)},
        {"degrees": Degrees(dp=64, pp=4)},
        {"residual": Residual(checkpointing=True, offload=True)},
    ],
)
def test_without_all_of_its_inputs_there_is_no_time(unknown: dict[str, object]) -> None:
    job = replace(trillion(H100, 512), **unknown)  # type: ignore[arg-type]
    assert plan_step(job, Scheme.ZERO_3) is None


def test_a_unit_that_states_its_flop_is_believed_for_the_batch_it_is_of() -> None:
    job = replace(trillion(H100, 512), degrees=Degrees(), residual=Residual())
    stated = replace(job, units=tuple(replace(unit, forward_flop=1e12) for unit in job.units))
    seconds = 3 * 128 * 1e12 / (H100.flops_per_s * H100.efficiency_ratio)
    assert step(stated).compute_ns / 1e9 == pytest.approx(seconds)
