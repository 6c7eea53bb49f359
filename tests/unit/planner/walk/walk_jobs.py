"""Jobs for the tests of a walked step."""

from typing import Any

from msgspec.structs import replace

from zprof.model.job import Batch, Degrees, ElementBytes, Job, ModelUnit, Overlap, Shape
from zprof.planner.gpt_units import with_units
from zprof.planner.memory.walk.peak import find_peak

FP32 = ElementBytes(parameter=4, gradient=4, optimizer_state=8, gathered=4, reduced=4, gradient_copy=0)
BF16 = ElementBytes(parameter=2, gradient=2, optimizer_state=12, gathered=2, reduced=2, gradient_copy=4)


def by_hand(*units: ModelUnit, dp: int = 2, mp: int = 1, micro_batches: int = 1, **changes: Any) -> Job:
    """A job of units without a shape, without prefetch; as much of it is frozen as the units say."""
    usual = {
        "element_bytes": FP32,
        "batch": Batch(samples=1, sequence=1, micro_batches=micro_batches),
        "overlap": Overlap(prefetch=0, reductions_in_flight=1),
    }
    return Job(
        parameters=sum(each.elements for each in units),
        frozen_parameters=sum(each.frozen_elements for each in units),
        degrees=Degrees(dp=dp, mp=mp),
        units=units,
        **{**usual, **changes},
    )


def of_shape(*, layers: int, hidden: int, vocabulary: int, tied: bool = False, **changes: Any) -> Job:
    """A job of a GPT."""
    shape = Shape(layers=layers, hidden=hidden, heads=4, vocabulary=vocabulary, context=8, tied=tied)
    job = Job(parameters=1, shape=shape, batch=Batch(samples=2, sequence=8))
    return with_units(replace(job, **changes))


def terms_at_peak(job: Job, stage: int) -> dict[str, int]:
    """Bytes at the peak by kind."""
    return {term.sub: term.bytes or 0 for term in find_peak(job, stage)[0]}


def peak_bytes(job: Job, stage: int) -> int:
    return sum(term.bytes or 0 for term in find_peak(job, stage)[0])
