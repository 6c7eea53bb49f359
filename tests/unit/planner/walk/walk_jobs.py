"""Jobs for the tests of a walked step."""

from dataclasses import replace

from zprof.model.job import Backend, Batch, Degrees, ElementBytes, Job, Overlap, Residual, Shape, Unit
from zprof.model.plan import Term
from zprof.planner.gpt_units import with_units
from zprof.planner.memory.walk.peak import peak_of

FP32 = ElementBytes(parameter=4, gradient=4, optimizer_state=8, gathered=4, reduced=4, gradient_copy=0)
BF16 = ElementBytes(parameter=2, gradient=2, optimizer_state=12, gathered=2, reduced=2, gradient_copy=4)


def unit(
    name: str, elements: int, *, saved: int = 0, kept: int = 0, forward: int = 0, backward: int = 0
) -> Unit:
    """A unit that is known by its sums only."""
    return Unit(
        name=name,
        elements=elements,
        saved_bytes=saved,
        checkpoint_bytes=kept,
        forward_work_bytes=forward,
        backward_work_bytes=backward,
    )


def by_hand(
    *units: Unit,
    dp: int = 2,
    element_bytes: ElementBytes = FP32,
    overlap: Overlap | None = None,
    residual: Residual | None = None,
    backend: Backend = Backend.NCCL,
    micro_batches: int = 1,
) -> Job:
    """A job of units without a shape."""
    return Job(
        parameters=sum(each.elements for each in units),
        degrees=Degrees(dp=dp),
        units=units,
        element_bytes=element_bytes,
        batch=Batch(samples=1, sequence=1, micro_batches=micro_batches),
        overlap=overlap or Overlap(prefetch=0, reductions_in_flight=1),
        residual=residual or Residual(),
        backend=backend,
    )


def of_shape(
    *,
    layers: int = 4,
    hidden: int = 16,
    vocabulary: int = 32,
    samples: int = 2,
    dp: int = 2,
    mp: int = 1,
    element_bytes: ElementBytes = FP32,
    overlap: Overlap | None = None,
    residual: Residual | None = None,
    backend: Backend = Backend.NCCL,
    micro_batches: int = 1,
    tied: bool = False,
) -> Job:
    """A job of a GPT."""
    return with_units(
        Job(
            parameters=1,
            shape=Shape(layers=layers, hidden=hidden, heads=4, vocabulary=vocabulary, context=8, tied=tied),
            degrees=Degrees(dp=dp, mp=mp),
            element_bytes=element_bytes,
            batch=Batch(samples=samples, sequence=8, micro_batches=micro_batches),
            overlap=overlap or Overlap(),
            residual=residual or Residual(),
            backend=backend,
        )
    )


def with_overlap(job: Job, **fields: int | bool) -> Job:
    """The job with another schedule."""
    return replace(job, overlap=replace(job.overlap, **fields))


def peak_bytes(job: Job, stage: int) -> int:
    """All terms at the peak."""
    return sum(term.bytes or 0 for term in peak_of(job, stage)[0])


def terms_of(job: Job, stage: int) -> dict[str, int]:
    """Bytes at the peak by kind."""
    return {term.sub: term.bytes or 0 for term in terms(job, stage)}


def terms(job: Job, stage: int) -> tuple[Term, ...]:
    """Terms at the peak."""
    return peak_of(job, stage)[0]
