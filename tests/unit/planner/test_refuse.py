"""Impossible jobs and machines end in one line that names what and the remedy; possible ones pass."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from zprof.base.errors import BadInput
from zprof.model.job import Batch, Degrees, ElementBytes, Job, ModelUnit, Overlap, Residual, Shape
from zprof.model.machines import V100, Hardware
from zprof.planner.model_shapes import count_parameters
from zprof.planner.models.presets import load_presets
from zprof.planner.refusals import refuse_impossible

SHAPE = Shape(layers=48, hidden=1600, vocabulary=51_200, context=1024, heads=16)
JOB = Job(parameters=count_parameters(SHAPE), shape=SHAPE, degrees=Degrees(dp=4, mp=2, pp=2))
ALL_OFF = Residual()
SPLIT = Residual(checkpointing=True, partition=True)


def shaped(**change: object) -> Job:
    return replace(JOB, shape=replace(SHAPE, **change))  # type: ignore[arg-type]


def on(**change: object) -> Job:
    return Job(parameters=10**9, hardware=replace(V100, **change))  # type: ignore[arg-type]


def of_units(*units: ModelUnit, **change: object) -> Job:
    return Job(parameters=sum(unit.elements for unit in units) or 1, units=units, **change)  # type: ignore[arg-type]


A = ModelUnit(name="a", elements=2)
NAN, INF = float("nan"), float("inf")
LARGE_BLOCK = Shape(layers=1, hidden=40_000)
LARGE_WORDS = Shape(layers=1, hidden=8192, vocabulary=10**7)
TEXTS = ("name", "vendor", "source")
#: Each with words that the message or its remedy must hold.
REFUSED: list[tuple[Job, str, str]] = [
    (replace(JOB, parameters=0), "parameters", "1"),
    (replace(JOB, parameters=-5), "-5", "integer"),
    (replace(JOB, parameters=10**16), "1e+16", "1e+15"),
    (replace(JOB, parameters=10**400), "digits", "1e+15"),
    (replace(JOB, parameters=7.5e9), "7500000000.0", "integer"),  # type: ignore[arg-type]
    (replace(JOB, parameters=NAN), "nan", "integer"),  # type: ignore[arg-type]
    (replace(JOB, parameters=True), "True", "integer"),
    (replace(JOB, frozen_parameters=JOB.parameters + 1), "frozen", "0"),
    (shaped(layers=0), "layers", "1"),
    (shaped(layers=10**4 + 1), "layers", "10000"),
    (shaped(hidden=-1), "hidden", "1"),
    (shaped(vocabulary=-1), "vocabulary", "0"),
    (shaped(context=-1), "context", "0"),
    (shaped(heads=0), "heads", "1"),
    (shaped(heads=3), "3 heads", "heads"),
    (replace(JOB, parameters=int(JOB.parameters * 1.051)), "contradict", ""),
    (Job(parameters=124_000_000, shape=Shape(layers=12, hidden=768)), "contradict", "vocabulary"),
    (replace(of_units(A), parameters=100), "contradict", "parameters"),
    (of_units(replace(A, elements=0)), "elements", "1"),
    (of_units(replace(A, saved_bytes=-1)), "saved_bytes", "0"),
    (of_units(A, A), "'a'", "name"),
    (replace(JOB, degrees=Degrees(dp=0)), "dp", "1"),
    (replace(JOB, degrees=Degrees(mp=-2)), "mp", "1"),
    (replace(JOB, degrees=Degrees(pp=0)), "pp", "1"),
    (replace(JOB, degrees=Degrees(dp=10**5, mp=16, pp=2)), "3200000", "1000000"),
    (replace(JOB, degrees=Degrees(mp=3)), "hidden", "1, 2, 4, 8, 16"),
    (replace(shaped(heads=25), degrees=Degrees(mp=2)), "heads", "1"),
    (replace(shaped(vocabulary=50_257), degrees=Degrees(mp=16)), "vocabulary", "50272"),
    (replace(JOB, degrees=Degrees(pp=49)), "48 layers", "48"),
    (replace(JOB, degrees=Degrees(pp=5)), "48 layers", "1, 2, 3, 4"),
    (of_units(A, degrees=Degrees(pp=2)), "pp 2", "1"),
    (Job(parameters=3, degrees=Degrees(mp=2, pp=2)), "3 parameters", "mp or pp"),
    (replace(JOB, batch=Batch(samples=0)), "micro-batch", "1"),
    (replace(JOB, batch=Batch(sequence=-1)), "sequence", "1"),
    (replace(JOB, batch=Batch(micro_batches=0)), "micro-batches", "1"),
    (replace(JOB, element_bytes=ElementBytes(parameter=0)), "parameter", "1"),
    (replace(JOB, element_bytes=ElementBytes(gradient_copy=-4)), "gradient_copy", "0"),
    (replace(JOB, overlap=Overlap(prefetch=-1)), "prefetch", "0"),
    (replace(JOB, overlap=Overlap(reductions_in_flight=0)), "in flight", "1"),
    (replace(JOB, overlap=Overlap(alignment_elements=0)), "alignment", "1"),
    (replace(JOB, residual=Residual(constant_buffer_elements=0)), "constant buffer", "1"),
    (replace(JOB, degrees=Degrees(dp=4), residual=SPLIT), "Pa", "mp above 1"),
    (replace(JOB, residual=replace(ALL_OFF, partition=True)), "Pa", "checkpointing"),
    (replace(JOB, residual=Residual(checkpointing=True, offload=True)), "Pa+cpu", "Pa"),
    (replace(JOB, residual=replace(ALL_OFF, partition=True, offload=True)), "Pa+cpu", "checkpointing"),
    *((on(**{field.name: -1}), field.name, "") for field in fields(Hardware) if field.name not in TEXTS),
    (on(memory_bytes=0), "v100", "1"),
    (on(flops_per_s=0.0), "flops_per_s", "above 0"),
    (on(node_bytes_per_s=NAN), "node_bytes_per_s", "above 0"),
    (on(intra_bytes_per_s=INF), "intra_bytes_per_s", "above 0"),
    (on(efficiency_ratio=1.01), "efficiency_ratio", "at most 1"),
    (Job(parameters=12 * 40_000**2, shape=LARGE_BLOCK, hardware=V100), "38.4 GB", "mp"),
    (Job(parameters=count_parameters(LARGE_WORDS), shape=LARGE_WORDS, hardware=V100), "163.8 GB", "mp"),
    (of_units(ModelUnit(name="experts", elements=2 * 10**10), hardware=V100), "'experts'", "split"),
]


@pytest.mark.parametrize(("job", "what", "remedy"), REFUSED)
def test_an_impossible_job_is_refused_in_one_line_with_a_remedy(job: Job, what: str, remedy: str) -> None:
    with pytest.raises(BadInput) as refused:
        refuse_impossible(job)
    assert what in refused.value.message
    assert remedy in refused.value.hint
    assert "\n" not in refused.value.message + refused.value.hint
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, hardware=V100),
        replace(JOB, shape=None, parameters=10**15),
        replace(JOB, batch=Batch(samples=3, sequence=7, micro_batches=1), degrees=Degrees(pp=8)),
        replace(JOB, residual=replace(SPLIT, offload=True)),
        replace(JOB, parameters=int(JOB.parameters * 1.049)),
        replace(JOB, element_bytes=ElementBytes(optimizer_state=0, gradient_copy=0)),
        of_units(A, replace(A, name="b")),
        on(efficiency_ratio=1.0, inter_latency_ns=0),
        *(
            Job(parameters=each.parameters, shape=each.shape, hardware=V100)
            for each in load_presets().values()
        ),
    ],
)
def test_a_possible_job_passes(job: Job) -> None:
    refuse_impossible(job)


anything = st.integers(-(10**30), 10**30) | st.floats() | st.booleans()


@settings(max_examples=50)
@given(anything, anything, anything, anything)
def test_any_number_passes_or_is_refused(parameters: int, layers: int, hidden: int, degree: int) -> None:
    job = Job(
        parameters=parameters,
        shape=Shape(layers=layers, hidden=hidden),
        degrees=Degrees(dp=degree, mp=degree, pp=degree),
        hardware=V100,
    )
    with suppress(BadInput):
        refuse_impossible(job)
