"""Impossible jobs end in one line that says what and what to do; possible ones pass."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refused_jobs import V100, refused_in_one_line
from zprof.model.errors import BadInput
from zprof.model.job import Batch, Degrees, ElementBytes, Job, Overlap, Residual, Shape, Unit
from zprof.planner.model_shapes import MODEL_PRESETS, count_parameters
from zprof.planner.refusals import refuse_impossible

SHAPE = Shape(layers=48, hidden=1600, vocabulary=51_200, context=1024, heads=16)
JOB = Job(parameters=count_parameters(SHAPE), shape=SHAPE, degrees=Degrees(dp=4, mp=2, pp=2))
CHECKPOINTED = Residual(checkpointing=True)


def with_shape(**change: object) -> Job:
    return replace(JOB, shape=replace(SHAPE, **change))  # type: ignore[arg-type]


REFUSED = {
    "no parameters": (replace(JOB, parameters=0), "parameters is 0", "from 1 to 1e+15"),
    "negative": (replace(JOB, parameters=-5), "parameters is -5", "whole number"),
    "too many": (replace(JOB, parameters=10**16), "parameters is 1e+16", "1e+15"),
    "beyond all": (replace(JOB, parameters=10**400), "a number of about", "1e+15"),
    "a fraction": (replace(JOB, parameters=7.5e9), "parameters is 7500000000.0", "a whole number"),
    "nan": (replace(JOB, parameters=float("nan")), "parameters is nan", "a whole number"),
    "truth": (replace(JOB, parameters=True), "parameters is True", "a whole number"),
    "frozen": (replace(JOB, frozen_parameters=JOB.parameters + 1), "frozen parameters is 1.5", "from 0"),
    "layers": (with_shape(layers=0), "layers is 0", "from 1"),
    "a million layers": (with_shape(layers=10**6), "layers is 1e+06", "10000"),
    "hidden": (with_shape(hidden=-1), "hidden is -1", "from 1"),
    "vocabulary": (with_shape(vocabulary=-1), "vocabulary is -1", "from 0"),
    "context": (with_shape(context=-1), "context is -1", "from 0"),
    "heads": (with_shape(heads=0), "heads is 0", "from 1"),
    "heads of hidden": (with_shape(heads=3), "hidden 1600 does not divide into 3 heads", "heads that"),
    "contradiction": (replace(JOB, parameters=10**10), "parameters 1e+10 contradict the shape", "out"),
    "no vocabulary": (
        Job(parameters=124_000_000, shape=Shape(layers=12, hidden=768)),
        "parameters 1.24e+08 contradict the shape of 12 layers x 768 with 8.493e+07",
        "state the vocabulary",
    ),
    "units contradict": (
        Job(parameters=100, units=(Unit(name="a", elements=50),)),
        "parameters 100 contradict the units with 50",
        "leave parameters out",
    ),
    "unit": (Job(parameters=1, units=(Unit(name="a", elements=0),)), "unit 'a': elements is 0", "from 1"),
    "unit bytes": (
        Job(parameters=1, units=(Unit(name="a", elements=1, saved_bytes=-1),)),
        "unit 'a': saved_bytes is -1",
        "from 0",
    ),
    "twins": (
        Job(parameters=2, units=(Unit(name="a", elements=1), Unit(name="a", elements=1))),
        "two units are named 'a'",
        "a name of its own",
    ),
    "dp": (replace(JOB, degrees=Degrees(dp=0)), "dp is 0", "from 1"),
    "mp": (replace(JOB, degrees=Degrees(mp=-2)), "mp is -2", "from 1"),
    "pp": (replace(JOB, degrees=Degrees(pp=0)), "pp is 0", "from 1"),
    "devices": (
        replace(JOB, degrees=Degrees(dp=10**5, mp=16, pp=2)),
        "dp 100000 x mp 16 x pp 2 is 3200000 devices",
        "at most 1000000",
    ),
    "mp of hidden": (
        replace(JOB, degrees=Degrees(mp=3)),
        "mp 3 does not divide hidden 1600",
        "1, 2, 4, 8, 16",
    ),
    "mp of heads": (
        replace(with_shape(heads=25), degrees=Degrees(mp=2)),
        "mp 2 does not divide heads 25",
        "divide: 1",
    ),
    "mp of vocabulary": (
        replace(with_shape(vocabulary=50_257), degrees=Degrees(mp=16)),
        "mp 16 does not divide vocabulary 50257",
        "pad it to 50272",
    ),
    "pp above layers": (replace(JOB, degrees=Degrees(pp=49)), "pp 49 is more than the 48 layers", "most 48"),
    "pp of layers": (
        replace(JOB, degrees=Degrees(pp=5)),
        "pp 5 does not divide 48 layers",
        "one of 1, 2, 3, 4",
    ),
    "pp of units": (
        Job(parameters=2, units=(Unit(name="a", elements=2),), degrees=Degrees(pp=2)),
        "pp 2 is more than the 1 layers",
        "at most 1",
    ),
    "more ranks than parameters": (
        Job(parameters=3, degrees=Degrees(mp=2, pp=2)),
        "mp 2 x pp 2 is more than 3 parameters",
        "lower",
    ),
    "batch": (replace(JOB, batch=Batch(samples=0)), "micro-batch is 0", "from 1"),
    "sequence": (replace(JOB, batch=Batch(sequence=-1)), "sequence is -1", "from 1"),
    "micro-batches": (replace(JOB, batch=Batch(micro_batches=0)), "micro-batches is 0", "from 1"),
    "element": (replace(JOB, element_bytes=ElementBytes(parameter=0)), "element: parameter is 0", "from 1"),
    "copy": (replace(JOB, element_bytes=ElementBytes(gradient_copy=-4)), "gradient_copy is -4", "from 0"),
    "prefetch": (replace(JOB, overlap=Overlap(prefetch=-1)), "prefetch is -1", "from 0"),
    "in flight": (replace(JOB, overlap=Overlap(reductions_in_flight=0)), "in flight is 0", "from 1"),
    "alignment": (replace(JOB, overlap=Overlap(alignment_elements=0)), "alignment is 0", "from 1"),
    "constant buffer": (
        replace(JOB, residual=Residual(constant_buffer_elements=0)),
        "constant buffer elements is 0",
        "from 1",
    ),
    "Pa alone": (
        replace(JOB, degrees=Degrees(dp=4), residual=replace(CHECKPOINTED, partition=True)),
        "Pa splits checkpoints over model-parallel ranks, and mp is 1",
        "mp above 1",
    ),
    "Pa of nothing": (
        replace(JOB, residual=Residual(partition=True)),
        "Pa splits checkpoints, and there are none",
        "checkpointing",
    ),
    "Pa+cpu without Pa": (
        replace(JOB, residual=replace(CHECKPOINTED, offload=True)),
        "Pa+cpu moves partitioned checkpoints, and Pa is off",
        "turn Pa on",
    ),
    "Pa+cpu of nothing": (
        replace(JOB, residual=Residual(partition=True, offload=True)),
        "Pa+cpu splits checkpoints, and there are none",
        "checkpointing",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line_with_a_remedy(name: str) -> None:
    job, what, remedy = REFUSED[name]
    refused_in_one_line(job, what, remedy)


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        replace(JOB, hardware=V100),
        replace(JOB, shape=None, parameters=10**15),
        replace(JOB, batch=Batch(samples=3, sequence=7, micro_batches=1), degrees=Degrees(pp=8)),
        replace(JOB, residual=replace(CHECKPOINTED, partition=True, offload=True)),
        replace(JOB, parameters=int(JOB.parameters * 1.049)),
        replace(JOB, element_bytes=ElementBytes(optimizer_state=0, gradient_copy=0)),
        Job(parameters=4, units=(Unit(name="a", elements=2), Unit(name="b", elements=2))),
    ],
)
def test_possible_jobs_pass(job: Job) -> None:
    refuse_impossible(job)


@pytest.mark.parametrize("name", MODEL_PRESETS)
@pytest.mark.parametrize("mp", [1, 2, 4, 8, 16])
def test_named_models_pass_at_the_papers_degrees(name: str, mp: int) -> None:
    each = MODEL_PRESETS[name]
    dividing = all(size % mp == 0 for size in (each.shape.hidden, each.shape.heads or mp))
    job = Job(parameters=each.parameters, shape=each.shape, degrees=Degrees(dp=64, mp=mp), hardware=V100)
    if dividing:
        refuse_impossible(job)
    else:
        with pytest.raises(BadInput, match="does not divide"):
            refuse_impossible(job)


anything = st.integers(-(10**30), 10**30) | st.floats() | st.booleans()


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
