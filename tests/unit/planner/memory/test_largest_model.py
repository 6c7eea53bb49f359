"""The largest model that fits, and that the next larger one does not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.model.job import Batch, Degrees, Hardware, Job, Residual, Shape, Unit
from zprof.model.plan import Scheme, Term
from zprof.model.tenants import Tenant
from zprof.planner.gpt_units import with_units
from zprof.planner.hardware import V100
from zprof.planner.memory import device_memory, largest_model
from zprof.planner.memory.closed_forms import sum_known_bytes
from zprof.planner.memory.largest_model import count_parameters_with_layers, largest_parameters, with_layers
from zprof.planner.memory.states import stashed_term, state_bytes
from zprof.planner.model_shapes import count_parameters, find_preset

STAGED = (Scheme.DATA_PARALLEL, Scheme.ZERO_1, Scheme.ZERO_2, Scheme.ZERO_3)
# Table 2, theoretical: billions of parameters on 32 GB at DP 64, by MP degree.
TABLE_2 = {
    1: (2, 7.6, 14.4, 128),
    2: (4, 15.2, 28.8, 256),
    4: (8, 30.4, 57.6, 500),
    8: (16, 60.8, 115.2, 1000),
    16: (32, 121.6, 230.4, 2000),
}


def machine(memory_bytes: int) -> Hardware:
    return Hardware(
        name="any",
        memory_bytes=memory_bytes,
        flops_per_s=1e14,
        efficiency_ratio=0.5,
        devices_per_node=8,
        node_bytes_per_s=1e11,
        intra_bytes_per_s=1e11,
    )


def bare(memory_bytes: int, **degrees: int) -> Job:
    return Job(parameters=1, degrees=Degrees(**degrees), hardware=machine(memory_bytes))


@pytest.mark.parametrize("mp", TABLE_2)
def test_theory_of_table_2(mp: int) -> None:
    """The paper rounds the first row and multiplies: 0.6 %; its 0.5T, 1T, 2T stand for 512, 1024, 2048."""
    job = bare(32 * 10**9, dp=64, mp=mp)
    for scheme, printed in zip(STAGED, TABLE_2[mp], strict=True):
        ours = largest_parameters(job, scheme)
        assert ours is not None
        within = 0.025 if printed >= 500 else 0.006
        assert ours / 1e9 == pytest.approx(printed, rel=within)


def test_largest_models_of_64_devices() -> None:
    """Section 5: 7.5B, 14B and 128B, and data parallelism alone below 2B."""
    found = [largest_parameters(bare(32 * 10**9, dp=64), scheme) or 0 for scheme in STAGED]
    assert found[0] == 2_000_000_000
    assert found[1] >= 7_500_000_000
    assert found[2] >= 14_000_000_000
    assert found[3] == 128_000_000_000
    assert found[1] < 7_700_000_000
    assert found[2] < 14_500_000_000


def test_alternatives_by_their_states() -> None:
    assert largest_parameters(bare(1_600_000, mp=4), Scheme.MODEL_PARALLEL) == 400_000
    assert largest_parameters(bare(1_600_000, pp=4), Scheme.GPIPE) == 400_000
    assert largest_parameters(bare(2_200_000, pp=4), Scheme.PIPEDREAM) == 400_000


def test_nothing_is_known_without_hardware() -> None:
    assert largest_parameters(Job(parameters=1), Scheme.ZERO_3) is None


def test_the_job_itself_does_not_matter_where_states_alone_are_known() -> None:
    job = bare(10**9, dp=4)
    assert largest_parameters(job, Scheme.ZERO_1) == largest_parameters(
        replace(job, parameters=10**12), Scheme.ZERO_1
    )


@given(
    st.integers(16, 10**12),
    st.integers(1, 1024),
    st.integers(1, 16),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(list(Scheme)),
)
def test_by_states_it_fits_and_the_next_does_not(
    memory: int, dp: int, mp: int, pp: int, scheme: Scheme
) -> None:
    def states(parameters: int) -> int:
        model = replace(job, parameters=parameters)
        stashed = (stashed_term(model, scheme).bytes or 0) if scheme is Scheme.PIPEDREAM else 0
        return sum(state_bytes(model, scheme).values()) + stashed

    job = bare(memory, dp=dp, mp=mp, pp=pp)
    found = largest_parameters(job, scheme)
    assert found is not None
    assert states(found + 1) > memory
    assert found == 0 or states(found) <= memory


def walk(job: Job, stage: int) -> tuple[tuple[Term, ...], str]:
    """States by the law, and twice what units keep: grows with layers, and with hidden."""
    scheme = STAGED[stage]
    kept = sum(unit.saved_bytes or 0 for unit in job.units)
    sizes = (*state_bytes(job, scheme).values(), kept)
    return tuple(Term(tenant=Tenant.ACTIVATIONS, sub="", bytes=size, assumption="") for size in sizes), ""


def units_of(job: Job) -> Job:
    if job.units or job.shape is None:
        return job
    hidden = job.shape.hidden
    block = known(Unit(name="block", elements=12 * hidden**2), 100 * hidden)
    root = known(Unit(name="root", elements=job.shape.vocabulary * hidden + 1, encloses=True), 7)
    return replace(job, units=(root, *([block] * job.shape.layers)))


def known(unit: Unit, saved: int) -> Unit:
    return replace(unit, saved_bytes=saved, checkpoint_bytes=1, forward_work_bytes=0, backward_work_bytes=0)


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory.peak, "peak_of", walk)
    monkeypatch.setattr("zprof.planner.memory.largest_model.with_units", units_of)


def shaped(memory: int, layers: int, hidden: int, dp: int) -> Job:
    shape = Shape(layers=layers, hidden=hidden, vocabulary=100)
    job = Job(
        parameters=count_parameters(shape),
        shape=shape,
        degrees=Degrees(dp=dp),
        batch=Batch(samples=1, sequence=1),
        hardware=machine(memory),
    )
    return units_of(job)


def peak(job: Job, scheme: Scheme) -> int:
    return sum_known_bytes(device_memory.plan_memory(job, scheme).terms)


def test_layers_grow_until_the_next_does_not_fit(walked: None) -> None:
    machines = ((10**6, 16, 1), (10**6, 16, 8), (5 * 10**6, 64, 1), (2 * 10**7, 64, 8))
    for memory, hidden, dp in machines:
        for scheme in STAGED:
            job = shaped(memory, 3, hidden, dp)
            found = largest_model._largest_by_layers(job, scheme, memory)
            assert job.shape is not None
            layers = (found - 100 * hidden) // (12 * hidden**2)
            assert found == count_parameters(replace(job.shape, layers=layers))
            assert layers >= 1
            assert layers < largest_model.MAX_WALKED_LAYERS
            assert peak(with_layers(job, layers), scheme) <= memory
            assert peak(with_layers(job, layers + 1), scheme) > memory


def test_a_job_fits_where_it_is_not_larger_than_the_largest(walked: None) -> None:
    for layers in (1, 2, 3, 20, 21, 22, 200):
        job = shaped(5 * 10**6, layers, 32, 2)
        found = largest_parameters(job, Scheme.ZERO_2)
        assert found is not None
        assert (peak(job, Scheme.ZERO_2) <= 5 * 10**6) == (job.parameters <= found)


def layers_of(found: int, shape: Shape) -> int:
    """Of the layers that a number of parameters stands for, in blocks of 12 h^2."""
    around = count_parameters(replace(shape, layers=0))
    assert (found - around) % (12 * shape.hidden**2) == 0
    return (found - around) // (12 * shape.hidden**2)


@pytest.mark.parametrize(("memory", "bend"), [(10**7, 0), (10**8, 700), (3 * 10**7, 3000)])
def test_beyond_the_layers_that_are_walked_it_fits_and_the_next_does_not(
    walked: None, monkeypatch: pytest.MonkeyPatch, memory: int, bend: int
) -> None:
    """Also where memory grows faster from some layer on."""

    def bent(job: Job, stage: int) -> tuple[tuple[Term, ...], str]:
        terms, moment = walk(job, stage)
        more = 50_000 * max(0, len(job.units) - 1 - bend) if bend else 0
        return (*terms, Term(tenant=Tenant.ACTIVATIONS, sub="bend", bytes=more, assumption="")), moment

    monkeypatch.setattr(device_memory.peak, "peak_of", bent)
    job = shaped(memory, 3, 16, 64)
    assert job.shape is not None
    layers = layers_of(largest_model._largest_by_layers(job, Scheme.ZERO_3, memory), job.shape)
    assert layers > largest_model.MAX_WALKED_LAYERS
    assert peak(with_layers(job, layers), Scheme.ZERO_3) <= memory
    assert peak(with_layers(job, layers + 1), Scheme.ZERO_3) > memory


def test_no_more_layers_than_a_plan_takes(walked: None) -> None:
    job = shaped(10**15, 3, 16, 64)
    assert job.shape is not None
    assert layers_of(largest_model._largest_by_layers(job, Scheme.ZERO_3, 10**15), job.shape) == 10_000


def test_the_job_s_layers_of_another_width_where_that_is_larger(walked: None) -> None:
    for layers in (1, 3, 40):
        job = shaped(10**6, layers, 4096, 1)
        found = largest_parameters(job, Scheme.DATA_PARALLEL)
        hidden = next(h for h in range(1, 4096) if 12 * layers * h * h + 100 * h == found)
        assert peak(shaped(10**6, layers, hidden, 1), Scheme.DATA_PARALLEL) <= 10**6
        assert peak(shaped(10**6, layers, hidden + 1, 1), Scheme.DATA_PARALLEL) > 10**6


def test_another_width_is_one_that_heads_and_model_parallel_ranks_divide(walked: None) -> None:
    job = shaped(10**6, 2, 4096, 1)
    assert job.shape is not None
    odd = replace(job, shape=replace(job.shape, heads=6), degrees=Degrees(mp=4))
    for memory in (10**6, 2 * 10**6, 3 * 10**6, 5 * 10**6):
        there = replace(odd, hardware=machine(memory))
        found = largest_parameters(there, Scheme.MODEL_PARALLEL)
        hidden = next(h for h in range(1, 4096) if 24 * h * h + 100 * h == found)
        assert hidden % 12 == 0


def test_the_larger_of_both_also_where_a_layer_of_its_width_fits(walked: None) -> None:
    job = shaped(10**6, 40, 64, 1)
    assert largest_model._largest_by_layers(job, Scheme.DATA_PARALLEL, 10**6) == 12 * 64**2 + 100 * 64
    assert largest_parameters(job, Scheme.DATA_PARALLEL) == 40 * 12 * 11**2 + 100 * 11


GRID = [
    (Scheme.ZERO_3, Batch(samples=1, sequence=1024), True, 1),
    (Scheme.ZERO_2, Batch(samples=1, sequence=1024), False, 1),
    (Scheme.ZERO_3, Batch(), True, 1),
    (Scheme.GPIPE, Batch(samples=1, sequence=1024, micro_batches=4), True, 4),
]


@pytest.mark.parametrize(("scheme", "batch", "checkpointing", "pp"), GRID)
def test_no_model_of_its_layers_or_width_is_larger(
    scheme: Scheme, batch: Batch, checkpointing: bool, pp: int
) -> None:
    """Every one of a small grid by the real memory of a job, none of whose layers fits at its own width."""

    def fits(layers: int, hidden: int) -> bool:
        there = replace(shape, layers=layers, hidden=hidden)
        made = replace(job, shape=there, parameters=count_parameters(there), units=())
        return peak(with_units(made), scheme) <= memory

    memory = 2 * 10**9
    shape = Shape(layers=8, hidden=25_600, vocabulary=1000, context=64, heads=160)
    job = Job(
        parameters=count_parameters(shape),
        shape=shape,
        degrees=Degrees(dp=64, pp=pp),
        batch=batch,
        residual=Residual(checkpointing=checkpointing),
        hardware=machine(memory),
    )
    of_width = [replace(shape, layers=n) for n in range(pp, 40, pp) if fits(n, shape.hidden)]
    of_layers = [replace(shape, hidden=h) for h in range(160, 9_600, 160) if fits(8, h)]
    best = max(count_parameters(each) for each in (*of_width, *of_layers))
    assert largest_parameters(with_units(job), scheme) == best


def test_a_better_scheme_does_not_hold_a_smaller_model() -> None:
    """A trillion parameters on 1024 devices: not one layer of its width fits with a whole batch."""
    named = find_preset("1t")
    job = Job(
        parameters=named.parameters,
        shape=named.shape,
        degrees=Degrees(dp=1024),
        batch=Batch(samples=1, sequence=1024),
        residual=Residual(checkpointing=True),
        hardware=V100,
    )
    found = [largest_parameters(with_units(job), scheme) or 0 for scheme in STAGED]
    assert found == sorted(found)
    assert found[-1] > 200 * 10**9


def test_zero_where_no_model_fits_beside_the_batch(walked: None) -> None:
    assert largest_parameters(shaped(50, 3, 16, 1), Scheme.ZERO_3) == 0


def test_stages_of_a_pipeline_grow_together(walked: None) -> None:
    job = replace(shaped(10**6, 4, 16, 1), degrees=Degrees(pp=4))
    found = largest_parameters(job, Scheme.GPIPE)
    assert found is not None
    layers = (found - 1600) // (12 * 256)
    assert layers % 4 == 0
    assert peak(with_layers(job, layers), Scheme.GPIPE) <= 10**6
    assert peak(with_layers(job, layers + 4), Scheme.GPIPE) > 10**6


def test_units_without_a_shape_repeat(walked: None) -> None:
    root = known(Unit(name="root", elements=5, encloses=True), 7)
    blocks = [known(Unit(name=name, elements=size), 10) for name, size in (("a", 100), ("b", 200))]
    job = Job(
        parameters=305, units=(root, *blocks), batch=Batch(samples=1, sequence=1), hardware=machine(20_000)
    )
    for layers in range(1, 7):
        grown = with_layers(job, layers)
        assert len({unit.name for unit in grown.units}) == layers + 1
        assert (
            sum(unit.elements for unit in grown.units)
            == count_parameters_with_layers(job, layers)
            == grown.parameters
        )
    found = largest_parameters(job, Scheme.DATA_PARALLEL)
    assert found == 5 + 4 * 300  # 16 * 1205 + 8 * 10 + 7 fits, 100 more do not
    assert peak(with_layers(job, 8), Scheme.DATA_PARALLEL) <= 20_000
    assert peak(with_layers(job, 9), Scheme.DATA_PARALLEL) > 20_000
