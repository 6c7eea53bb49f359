"""Memory of each scheme: what is said with and without the shape, the batch and the units' bytes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.model.job import Batch, Degrees, Job, Overlap, Residual, Shape, Unit
from zprof.model.plan import Scheme, Term
from zprof.model.tenants import Tenant
from zprof.planner.gpt_units import with_units
from zprof.planner.memory import device_memory
from zprof.planner.memory.closed_forms import activation_terms, sum_known_bytes
from zprof.planner.memory.device_memory import MEMORY_ASSUMPTIONS, plan_memory
from zprof.planner.memory.states import state_bytes
from zprof.planner.model_shapes import count_parameters

BARE = Job(parameters=7_500_000_000, degrees=Degrees(dp=64))
GPT_2 = Job(
    parameters=1_500_000_000,
    shape=Shape(layers=48, hidden=1600),
    degrees=Degrees(dp=4),
    batch=Batch(samples=32, sequence=1024),
)
STAGED = (Scheme.DATA_PARALLEL, Scheme.ZERO_1, Scheme.ZERO_2, Scheme.ZERO_3)
RESIDUAL = (Tenant.ACTIVATIONS, Tenant.TEMPORARY_BUFFERS, Tenant.COMMUNICATION_BUFFERS)


def by_sub(job: Job, scheme: Scheme) -> dict[str, int | None]:
    return {term.sub: term.bytes for term in plan_memory(job, scheme).terms}


def test_parameters_alone_give_the_states_and_say_what_is_missing() -> None:
    printed = []
    for scheme in STAGED:
        plan = plan_memory(BARE, scheme)
        printed.append(round(sum_known_bytes(plan.terms) / 1e9, 1))
        unknown = [term.tenant for term in plan.terms if term.bytes is None]
        buffers = {Scheme.ZERO_2: 1, Scheme.ZERO_3: 2}.get(scheme, 0)
        assert unknown == [*RESIDUAL[:2], *RESIDUAL[2:] * buffers]
        assert [gap.what for gap in plan.gaps] == [
            "planned activations",
            "planned temporary buffers",
            "planned communication buffers",
        ][: len(set(unknown))]
        assert all("--layers" in gap.remedy and "--preset" in gap.remedy for gap in plan.gaps)
    assert printed == [120, 31.4, 16.6, 1.9]


def test_a_shape_without_a_batch_asks_for_the_batch() -> None:
    plan = plan_memory(replace(GPT_2, batch=Batch()), Scheme.ZERO_2)
    assert {gap.remedy for gap in plan.gaps} == {"state --micro-batch and --sequence"}
    assert len(plan.gaps) == 3


def test_units_without_their_bytes_ask_for_a_shape() -> None:
    units = (Unit(name="a", elements=100),)
    plan = plan_memory(replace(GPT_2, shape=None, units=units), Scheme.ZERO_3)
    assert {gap.what: "--layers" in gap.remedy for gap in plan.gaps} == {
        "planned activations": True,
        "planned temporary buffers": True,
        "planned communication buffers": True,
    }
    assert {term.sub: term.bytes for term in plan.terms}["gathered_param"] == 2 * 100


def test_gpt_2_by_the_paper() -> None:
    """Section 3.2: 24 GB of states, 60.4 GB of activations and 6 GB of a fused buffer."""
    known = by_sub(GPT_2, Scheme.DATA_PARALLEL)
    assert known["saved"] == pytest.approx(60.4e9, rel=0.001)
    assert known["fused_buffer"] == 6_000_000_000
    assert sum_known_bytes(plan_memory(GPT_2, Scheme.DATA_PARALLEL).terms) == pytest.approx(90.4e9, rel=0.001)
    again = by_sub(replace(GPT_2, residual=Residual(checkpointing=True)), Scheme.DATA_PARALLEL)
    assert again["checkpoints"] + again["working_set"] == pytest.approx(6.3e9, rel=0.005)  # type: ignore[operator]


def test_the_optimizers_copy_is_a_moment_of_its_own() -> None:
    tiny = replace(GPT_2, batch=Batch(samples=1, sequence=1))
    assert plan_memory(tiny, Scheme.ZERO_1).peak_at == "backward"
    units = (Unit(name="block", elements=1_500_000_000),)
    optimizer = plan_memory(replace(tiny, units=units), Scheme.DATA_PARALLEL)
    assert optimizer.peak_at == "optimizer"
    assert {term.sub for term in optimizer.terms if term.bytes is None} == {"op_output"}
    assert sum_known_bytes(optimizer.terms) == 20 * 1_500_000_000
    shared = plan_memory(replace(tiny, units=units), Scheme.ZERO_1)
    assert {term.sub: term.bytes for term in shared.terms}["optimizer"] == 1_500_000_000


@pytest.mark.parametrize(
    ("scheme", "stage"),
    [*zip(STAGED, range(4), strict=True), (Scheme.MODEL_PARALLEL, 0)],
)
def test_units_that_know_their_bytes_are_walked_through(
    scheme: Scheme, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = Unit(
        name="a",
        elements=1,
        saved_bytes=1,
        checkpoint_bytes=1,
        forward_work_bytes=1,
        backward_work_bytes=1,
    )
    job = replace(GPT_2, units=(unit,))
    walked = Term(tenant=Tenant.ACTIVATIONS, sub="saved", bytes=5, assumption="walk.saved")

    def peak_of(asked: Job, at_stage: int) -> tuple[tuple[Term, ...], str]:
        assert (asked, at_stage) == (job, stage)
        return (walked,), "forward of a"

    monkeypatch.setattr(device_memory.peak, "peak_of", peak_of)
    plan = plan_memory(job, scheme)
    assert (plan.terms, plan.peak_at, plan.gaps) == ((walked,), "forward of a", ())


def test_residual_assumptions_are_named_by_what_is_on() -> None:
    def named(**residual: bool | int) -> set[str]:
        job = replace(GPT_2, residual=Residual(**residual))  # type: ignore[arg-type]
        return {term.assumption for term in plan_memory(job, Scheme.ZERO_2).terms}

    assert "residual.activations" in named()
    assert "residual.checkpoints" in named(checkpointing=True)
    assert "residual.partition" in named(checkpointing=True, partition=True)
    assert "residual.offload" in named(checkpointing=True, partition=True, offload=True)
    assert "residual.constant_buffer" in named(constant_buffer_elements=10)


shapes = st.builds(Shape, layers=st.integers(1, 200), hidden=st.integers(1, 300).map(lambda n: n * 64))
jobs = st.builds(
    lambda shape, dp, samples, checkpointing: Job(
        parameters=12 * shape.layers * shape.hidden**2,
        shape=shape,
        degrees=Degrees(dp=dp),
        batch=Batch(samples=samples, sequence=128),
        residual=Residual(checkpointing=checkpointing),
    ),
    shapes,
    st.integers(1, 512),
    st.integers(1, 64),
    st.booleans(),
)


@given(jobs, st.sampled_from(list(Scheme)))
def test_every_term_names_an_assumption_and_is_not_negative(job: Job, scheme: Scheme) -> None:
    plan = plan_memory(job, scheme)
    assert all(term.assumption in MEMORY_ASSUMPTIONS for term in plan.terms)
    assert all(term.bytes is None or term.bytes >= 0 for term in plan.terms)


@given(jobs, st.sampled_from(STAGED))
def test_states_are_the_laws_whatever_the_moment(job: Job, scheme: Scheme) -> None:
    known: dict[Tenant, int] = {}
    for term in plan_memory(job, scheme).terms:
        known[term.tenant] = known.get(term.tenant, 0) + (term.bytes or 0)
    assert {tenant: known[tenant] for tenant in state_bytes(job, scheme)} == state_bytes(job, scheme)


@given(shapes, st.integers(1, 64))
def test_checkpointing_keeps_less_from_two_layers_on(shape: Shape, samples: int) -> None:
    job = replace(
        GPT_2,
        shape=replace(shape, layers=shape.layers + 1),
        batch=Batch(samples=samples, sequence=128),
    )
    kept = activation_terms(replace(job, residual=Residual(checkpointing=True)))
    assert sum_known_bytes(kept) < sum_known_bytes(activation_terms(job))


@given(
    shapes,
    st.sampled_from([1, 2, 3, 16]),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([None, 1000]),
    st.sampled_from((*STAGED, Scheme.MODEL_PARALLEL)),
)
def test_what_is_known_without_a_batch_is_never_above_the_peak_with_one(
    shape: Shape, dp: int, prefetch: int, checkpointing: bool, buffer: int | None, scheme: Scheme
) -> None:
    """Else a job would be said not to fit that does."""
    thin = replace(shape, layers=1 + shape.layers % 5)
    job = Job(
        parameters=count_parameters(thin),
        shape=thin,
        degrees=Degrees(dp=dp),
        overlap=Overlap(prefetch=prefetch),
        residual=Residual(checkpointing=checkpointing, constant_buffer_elements=buffer),
    )
    least = sum_known_bytes(plan_memory(with_units(job), scheme).terms)
    with_batch = with_units(replace(job, batch=Batch(samples=1, sequence=1)))
    assert least <= sum_known_bytes(plan_memory(with_batch, scheme).terms)
