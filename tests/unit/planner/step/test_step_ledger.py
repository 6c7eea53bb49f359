"""The ledger of a planned step: its terms, what bandwidth and tokens do to it, and what is unknown."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.planned_jobs import trillion
from zprof.model.job import Batch, Degrees, Hardware, Job, Overlap, Residual, Shape, Unit
from zprof.model.plan import PlannedStep, Scheme
from zprof.planner.hardware import A100, H100, PRESETS
from zprof.planner.sensitivity.conditions import with_bandwidth, with_latency, with_tokens
from zprof.planner.step.assumptions import STEP_ASSUMPTIONS
from zprof.planner.step.ledger import plan_step
from zprof.planner.step.unit_times import stack_units


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    layers, hidden = draw(st.integers(1, 6)), draw(st.sampled_from((256, 1024, 8192)))
    blocks = [Unit(name=f"b{i}", elements=draw(st.integers(10**4, 10**9))) for i in range(layers)]
    root = [Unit(name="root", elements=draw(st.integers(10**4, 10**9)), encloses=True)]
    units = (root if draw(st.booleans()) else []) + blocks
    degrees = Degrees(
        dp=draw(st.sampled_from((1, 2, 8, 48, 1024))),
        mp=draw(st.sampled_from((1, 4, 16))),
        pp=draw(st.sampled_from((1, 3, 4))),
    )
    return Job(
        parameters=sum(unit.elements for unit in units) * degrees.mp,
        shape=Shape(layers=layers, hidden=hidden),
        units=tuple(units),
        degrees=degrees,
        batch=Batch(
            samples=draw(st.integers(1, 64)),
            sequence=draw(st.sampled_from((1, 512, 4096))),
            micro_batches=draw(st.integers(1, 5)),
        ),
        residual=Residual(
            checkpointing=draw(st.booleans()),
            partition=draw(st.booleans()),
            offload=draw(st.booleans()),
            constant_buffer_elements=draw(st.sampled_from((None, 10**6))),
        ),
        overlap=Overlap(prefetch=draw(st.integers(0, 2)), keep_last=draw(st.booleans())),
        hardware=draw(st.sampled_from(list(PRESETS.values()))),
    )


SCHEMES = st.sampled_from(Scheme)


def step(job: Job, scheme: Scheme) -> PlannedStep:
    found = plan_step(job, scheme)
    assert found is not None
    return found


@settings(max_examples=60)
@given(jobs(), SCHEMES)
def test_terms_sum_to_wall(job: Job, scheme: Scheme) -> None:
    found = step(job, scheme)
    terms = (found.compute_ns, found.exposed_transfer_ns, found.exposed_memcpy_ns, found.idle_ns)
    assert sum(terms) == found.wall_ns
    assert min(terms) >= 0
    assert found.overlapped_ns + found.exposed_transfer_ns == found.collective_ns
    assert found.overlapped_ns >= 0
    assert found.efficiency_ratio == (found.compute_ns / found.wall_ns if found.wall_ns else 1.0)
    assert set(found.assumptions.values()) <= set(STEP_ASSUMPTIONS)
    assert set(found.assumptions) == {
        name for name in PlannedStep.__dataclass_fields__ if name != "assumptions"
    }


@pytest.mark.parametrize("scheme", list(Scheme))
def test_a_step_of_less_than_a_nanosecond_loses_nothing(scheme: Scheme) -> None:
    job = Job(
        parameters=1,
        units=(Unit(name="u", elements=1),),
        batch=Batch(samples=1, sequence=1),
        hardware=A100,
    )
    assert (step(job, scheme).wall_ns, step(job, scheme).efficiency_ratio) == (0, 1.0)


@settings(max_examples=40)
@given(jobs(), SCHEMES, st.floats(0.05, 1.0))
def test_a_slower_network_never_helps(job: Job, scheme: Scheme, ratio: float) -> None:
    fast, slow = step(job, scheme), step(with_bandwidth(job, ratio), scheme)
    assert slow.exposed_transfer_ns >= fast.exposed_transfer_ns
    assert slow.compute_ns == fast.compute_ns
    late = step(with_latency(job, 10 * H100.inter_latency_ns), scheme)
    assert late.exposed_transfer_ns >= fast.exposed_transfer_ns


@settings(max_examples=40)
@given(jobs(), SCHEMES, st.integers(2, 50))
def test_more_tokens_never_lower_the_efficiency(job: Job, scheme: Scheme, times: int) -> None:
    """By more samples: a gather stays as it is.  Whole nanoseconds may round the other way."""
    tokens = job.batch.tokens
    assert tokens is not None
    assume(tokens >= 512)
    few = step(with_tokens(job, tokens), scheme)
    assert step(with_tokens(job, tokens * times), scheme).efficiency_ratio >= few.efficiency_ratio - 1e-6


@pytest.mark.parametrize("scheme", list(Scheme))
def test_one_device_alone_only_computes(scheme: Scheme) -> None:
    found = step(replace(trillion(H100, 512), degrees=Degrees()), scheme)
    assert found.wall_ns == found.compute_ns
    assert found.efficiency_ratio == 1.0


def test_recomputation_is_a_forward_more() -> None:
    job = replace(trillion(H100, 512), degrees=Degrees())
    plain = step(replace(job, residual=Residual()), Scheme.ZERO_3)
    assert step(job, Scheme.ZERO_3).compute_ns == pytest.approx(plain.compute_ns * 4 / 3)


def test_the_root_is_not_recomputed() -> None:
    job = replace(trillion(H100, 512), degrees=Degrees(), units=())
    root = Unit(name="root", elements=10**9, encloses=True)
    alone, again = (
        step(replace(job, units=(root,), residual=residual), Scheme.ZERO_3).compute_ns
        for residual in (Residual(), Residual(checkpointing=True))
    )
    assert alone == again


def test_a_unit_that_says_its_flop_is_believed() -> None:
    job = replace(trillion(H100, 512), degrees=Degrees(), residual=Residual())
    told = tuple(replace(unit, forward_flop=1e12) for unit in job.units)
    rate = H100.flops_per_s * H100.efficiency_ratio
    found = step(replace(job, units=told), Scheme.ZERO_3)
    assert found.compute_ns / 1e9 == pytest.approx(3 * 128 * 1e12 / rate)
    more = with_tokens(replace(job, units=told), 1024)
    stack = stack_units(replace(job, units=told))
    assert stack is not None
    assert stack.runs[0].flop_per_token * 1024 == pytest.approx(2e12)
    assert step(more, Scheme.ZERO_3).compute_ns == pytest.approx(found.compute_ns)  # as it says for its batch


def test_frozen_parameters_have_no_gradient_to_compute_or_to_reduce() -> None:
    job = replace(trillion(H100, 512), residual=Residual())
    frozen = replace(job, frozen_parameters=job.parameters)
    whole, half = step(job, Scheme.DATA_PARALLEL), step(frozen, Scheme.DATA_PARALLEL)
    assert half.collective_ns == 0
    assert half.compute_ns == pytest.approx(whole.compute_ns * 2 / 3)
    gathered = step(frozen, Scheme.ZERO_3).collective_ns
    assert gathered == pytest.approx(step(job, Scheme.ZERO_3).collective_ns * 255 / 383, rel=1e-6)


def test_constant_buffers_cut_reductions_into_messages() -> None:
    job = trillion(H100, 512)
    cut = replace(job, residual=Residual(checkpointing=True, constant_buffer_elements=BUFFER))
    messages = -(-job.units[0].elements // BUFFER)
    more = step(cut, Scheme.ZERO_2).collective_ns - step(job, Scheme.ZERO_2).collective_ns
    latency = 128 * 10_000 + 896 * 2_000
    assert more == 128 * (messages - 1) * latency


BUFFER = 500_000_000


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
def test_what_is_not_known_is_no_time(unknown: dict[str, object]) -> None:
    job = replace(trillion(H100, 512), **unknown)
    assert plan_step(job, Scheme.ZERO_3) is None


def test_a_hundred_thousand_layers_are_one_run() -> None:
    same = Unit(name="u", elements=1000)
    stack = stack_units(replace(trillion(H100, 512), units=(same,) * 100_000))
    assert stack is not None
    assert [run.count for run in stack.runs] == [100_000]


def test_model_parallel_in_a_node_is_faster_than_across() -> None:
    shape = Shape(layers=128, hidden=25600)
    walls = []
    for per_node in (16, 8):
        hardware: Hardware = replace(H100, devices_per_node=per_node)
        job = replace(trillion(hardware, 512, degrees=Degrees(dp=1, mp=16)), shape=shape)
        walls.append(step(job, Scheme.MODEL_PARALLEL).wall_ns)
    assert walls[0] < walls[1]
