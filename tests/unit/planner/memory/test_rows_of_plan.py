"""Memory of each scheme with and without the shape, the batch and the units' bytes."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from zprof.model.job import Batch, Degrees, Job, ModelUnit, Overlap, Residual, Shape
from zprof.model.plan import Scheme
from zprof.model.tenants import Tenant
from zprof.planner.gpt_units import with_units
from zprof.planner.memory.closed_forms import state_bytes, sum_known_bytes
from zprof.planner.memory.device_memory import MEMORY_ASSUMPTIONS, plan_memory
from zprof.planner.model_shapes import count_parameters

BARE = Job(parameters=7_500_000_000, degrees=Degrees(dp=64))
GPT_2 = Job(
    parameters=1_500_000_000,
    shape=Shape(layers=48, hidden=1600),
    degrees=Degrees(dp=4),
    batch=Batch(samples=32, sequence=1024),
)
STAGED = (Scheme.DATA_PARALLEL, Scheme.ZERO_1, Scheme.ZERO_2, Scheme.ZERO_3)


def by_sub(job: Job, scheme: Scheme) -> dict[str, int]:
    return {term.sub: term.bytes for term in plan_memory(job, scheme).terms if term.bytes is not None}


def test_the_optimizers_copy_is_a_moment_of_its_own() -> None:
    tiny = replace(GPT_2, batch=Batch(samples=1, sequence=1))
    assert plan_memory(tiny, Scheme.ZERO_1).peak_at == "backward"
    one_block = replace(tiny, units=(ModelUnit(name="block", elements=1_500_000_000),))
    optimizer = plan_memory(one_block, Scheme.DATA_PARALLEL)
    assert optimizer.peak_at == "optimizer"
    assert sum_known_bytes(optimizer.terms) == 20 * 1_500_000_000
    assert by_sub(one_block, Scheme.ZERO_1)["optimizer"] == 1_500_000_000


shapes = st.builds(Shape, layers=st.integers(1, 200), hidden=st.integers(1, 300).map(lambda n: n * 64))


@settings(max_examples=50)
@given(shapes, st.integers(1, 512), st.integers(1, 64), st.booleans(), st.sampled_from(list(Scheme)))
def test_states_follow_the_formulas_whatever_the_moment(
    shape: Shape, dp: int, samples: int, checkpointing: bool, scheme: Scheme
) -> None:
    job = Job(
        parameters=12 * shape.layers * shape.hidden**2,
        shape=shape,
        degrees=Degrees(dp=dp),
        batch=Batch(samples=samples, sequence=128),
        residual=Residual(checkpointing=checkpointing),
    )
    known: dict[Tenant, int] = {}
    for term in plan_memory(job, scheme).terms:
        assert term.assumption in MEMORY_ASSUMPTIONS
        assert term.bytes is None or term.bytes >= 0
        known[term.tenant] = known.get(term.tenant, 0) + (term.bytes or 0)
    assert {tenant: known[tenant] for tenant in state_bytes(job, scheme)} == state_bytes(job, scheme)


@settings(max_examples=40)
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
    """Else a job that fits would be said not to."""
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
