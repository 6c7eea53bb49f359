"""A plan composes its parts: rows, what is known to be unknown, and what fits."""

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.planned_jobs import known_unit
from zprof.base.errors import BadInput
from zprof.model.job import Batch, Degrees, Job, ModelUnit, Residual, Shape
from zprof.model.machines import V100, Hardware
from zprof.model.plan import PIPELINES, Plan, PlanRow, Scheme
from zprof.model.tenants import Tenant
from zprof.planner.gpt_units import with_units
from zprof.planner.memory.closed_forms import state_bytes
from zprof.planner.model_shapes import count_parameters
from zprof.planner.models.presets import find_preset
from zprof.planner.parallelism import spread_devices
from zprof.planner.plan import ASSUMPTIONS, TIGHT_RATIO, plan

BARE = Job(parameters=7_500_000_000, degrees=Degrees(dp=64))
GB = 10**9
SHAPE = Shape(layers=8, hidden=512, heads=8, vocabulary=1024, context=256)
SMALL = Job(
    parameters=count_parameters(SHAPE),
    shape=SHAPE,
    degrees=Degrees(dp=4),
    batch=Batch(samples=1, sequence=256, micro_batches=4),
    hardware=replace(V100, memory_bytes=GB),
)


def machine(memory_bytes: int) -> Hardware:
    return replace(V100, memory_bytes=memory_bytes)


def row(made: Plan, scheme: Scheme) -> PlanRow:
    return next(each for each in made.rows if each.scheme is scheme)


def test_parameters_alone_give_figure_1_of_the_paper_and_gaps() -> None:
    made = plan(BARE)
    assert [each.scheme for each in made.rows] == list(Scheme)
    assert {each.degrees.devices for each in made.rows} == {64}
    sizes = {each.stage: round(each.state_bytes / 1e9, 1) for each in made.rows if each.stage is not None}
    assert sizes == {0: 120, 1: 31.4, 2: 16.6, 3: 1.9}
    assert plan(BARE, schemes=[Scheme.ZERO_2]).rows == (row(made, Scheme.ZERO_2),)
    assert len(made.gaps) == len({gap.what for gap in made.gaps}) == 3
    for each in made.rows:
        unknown = {term.tenant for term in each.terms if term.bytes is None}
        assert unknown
        assert unknown.isdisjoint(each.tenants)
        assert each.least_bytes == each.state_bytes
        assert (each.peak_bytes, each.left_bytes, each.tight) == (None, None, False)
        assert (each.largest_parameters, each.step, each.fits) == (None, None, None)


def test_it_does_not_fit_as_soon_as_what_is_known_does_not() -> None:
    made = plan(replace(BARE, hardware=machine(31 * GB)))
    fits = [row(made, scheme).fits for scheme in (Scheme.DATA_PARALLEL, Scheme.ZERO_1, Scheme.ZERO_2)]
    assert fits == [False, False, None]
    assert {each.left_bytes for each in made.rows} == {None}


def test_a_stated_batch_leaves_nothing_unknown_and_every_figure_has_an_assumption() -> None:
    made = plan(replace(SMALL, degrees=Degrees(dp=16)))
    assert made.gaps == ()
    for each in made.rows:
        assert each.peak_bytes == each.least_bytes
        assert each.fits is not None
        assert each.step is not None
    named = {term.assumption for each in made.rows for term in each.terms}
    named |= {link.assumption for each in made.rows for link in each.links}
    named |= {key for each in made.rows if each.step for key in each.step.assumptions.values()}
    assert set(made.assumptions) == named | {"largest.model"}
    assert named <= set(ASSUMPTIONS)


def test_less_than_a_tenth_of_a_device_left_is_tight() -> None:
    peak = plan(SMALL, schemes=[Scheme.ZERO_2]).rows[0].peak_bytes
    assert peak is not None
    edge = round(peak / (1 - TIGHT_RATIO))
    for memory, fits, tight in (
        (edge + 2, True, False),
        (edge - 2, True, True),
        (peak, True, True),
        (peak - 1, False, False),
    ):
        found = plan(replace(SMALL, hardware=machine(memory)), schemes=[Scheme.ZERO_2]).rows[0]
        assert (found.fits, found.tight, found.left_bytes) == (fits, tight, memory - peak)


jobs = st.builds(
    lambda layers, hidden, dp, samples, memory, checkpointing: Job(
        parameters=count_parameters(Shape(layers=layers, hidden=hidden * 64, vocabulary=512)),
        shape=Shape(layers=layers, hidden=hidden * 64, vocabulary=512),
        degrees=Degrees(dp=dp),
        batch=Batch(samples=samples, sequence=64 if samples else None),
        hardware=machine(memory * 4 * 10**6),
        residual=Residual(checkpointing=checkpointing),
    ),
    st.integers(1, 24),
    st.integers(1, 8),
    st.sampled_from([1, 2, 8, 12]),
    st.none() | st.integers(1, 8),
    st.integers(1, 300),
    st.booleans(),
)


@settings(max_examples=4)
@given(jobs)
def test_rows_are_consistent(job: Job) -> None:
    try:
        made = plan(job)
    except BadInput:  # a unit that is larger than the device
        reject()
    for each in made.rows:
        known = sum(term.bytes for term in each.terms if term.bytes is not None)
        assert each.least_bytes == known == sum(each.tenants.values())
        by_tenant = state_bytes(with_units(spread_devices(job, each.scheme)), each.scheme)
        stashed = each.degrees.pp - 1 if each.scheme is Scheme.PIPEDREAM else 0
        assert each.state_bytes == sum(by_tenant.values()) + stashed * by_tenant[Tenant.PARAMETERS]
        assert job.hardware is not None
        assert (each.fits is False) == (known > job.hardware.memory_bytes)
        assert (each.fits is None) == (each.peak_bytes is None and each.fits is not False)
        assert each.largest_parameters is not None
        assert (job.parameters > each.largest_parameters) == (each.fits is False)


def counted_unit(name: str, *, encloses: bool = False) -> ModelUnit:
    unit = known_unit(name, 1000, encloses=encloses, saved=640, kept=64, forward=64, backward=128)
    return replace(unit, forward_flop=2e6, largest_gradient_elements=1000)


ROOT = counted_unit("root", encloses=True)
ONE_UNIT = Job(
    parameters=1000,
    units=(ROOT,),
    degrees=Degrees(dp=8),
    batch=Batch(samples=2, sequence=16),
    hardware=machine(10**6),
)
BLOCKS = replace(ONE_UNIT, parameters=5000, units=(ROOT, *(counted_unit(f"block{n}") for n in range(4))))


@pytest.mark.parametrize(
    ("job", "schemes", "untimed"),
    [
        (ONE_UNIT, [each for each in Scheme if each not in PIPELINES], [Scheme.MODEL_PARALLEL]),
        (BLOCKS, list(Scheme), [Scheme.MODEL_PARALLEL, *PIPELINES]),
    ],
)
def test_a_counted_model_has_the_rows_and_figures_that_its_units_tell(
    job: Job, schemes: list[Scheme], untimed: list[Scheme]
) -> None:
    """A model of one unit is in no pipeline; between model-parallel ranks pass tensors of unknown width."""
    made = plan(job)
    assert [each.scheme for each in made.rows] == schemes
    assert {each.scheme for each in made.rows if each.step is None} == set(untimed)
    lacking = [each.scheme for each in made.rows if any(term.bytes is None for term in each.terms)]
    assert lacking == [Scheme.MODEL_PARALLEL]
    assert any("nn.ModuleList" in gap.remedy for gap in made.gaps) == (job is ONE_UNIT)
    assert any("Megatron" in gap.what for gap in made.gaps)


def test_the_remedy_fits_the_way_the_model_was_named() -> None:
    uncounted = replace(BLOCKS, units=tuple(replace(each, saved_bytes=None) for each in BLOCKS.units))
    named = find_preset("1.5b")
    for job, remedy in (
        (uncounted, "int64"),
        (replace(BLOCKS, units=()), "--preset"),
        (Job(parameters=named.parameters, shape=named.shape), "--micro-batch"),
    ):
        gaps = plan(job, schemes=[Scheme.ZERO_3]).gaps
        assert gaps
        assert all(remedy in gap.remedy for gap in gaps)
