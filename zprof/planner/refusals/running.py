"""How a job runs: batch, bytes of elements, overlap, and residual state that has something to work on."""

from zprof.model.errors import BadInput
from zprof.model.planning.job import Job
from zprof.planner.refusals.numbers import whole

_MOST_TOKENS = 10**9
_MOST_MICRO_BATCHES = 10**6
_MOST_ELEMENT_BYTES = 1024
_MOST_UNITS = 10**6
_MOST_ELEMENTS = 10**15
#: Element sizes that may be 0: nothing of the kind is kept.
_MAY_BE_ABSENT = ("gradient", "optimizer_state", "gradient_copy")
_ALWAYS_THERE = ("parameter", "gathered", "reduced")


def refuse_running(job: Job) -> None:
    """Batch, element sizes and overlap.

    Raises:
        BadInput: one is below its least, or beyond all reason.
    """
    batch, overlap = job.batch, job.overlap
    for name, size in (("micro-batch", batch.samples), ("sequence", batch.sequence)):
        if size is not None:
            whole(name, size, most=_MOST_TOKENS)
    whole("micro-batches", batch.micro_batches, most=_MOST_MICRO_BATCHES)
    for least, names in ((0, _MAY_BE_ABSENT), (1, _ALWAYS_THERE)):
        for name in names:
            size = getattr(job.element_bytes, name)
            whole(f"bytes of an element: {name}", size, least=least, most=_MOST_ELEMENT_BYTES)
    whole("prefetch", overlap.prefetch, least=0, most=_MOST_UNITS)
    whole("reductions in flight", overlap.reductions_in_flight, most=_MOST_UNITS)
    whole("alignment", overlap.alignment_elements, most=_MOST_ELEMENTS)


def refuse_residual(job: Job) -> None:
    """Pa and Pa+cpu need checkpoints and model-parallel ranks; a constant buffer needs a size.

    Raises:
        BadInput: one has nothing to work on.
    """
    residual = job.residual
    if residual.constant_buffer_elements is not None:
        whole("constant buffer elements", residual.constant_buffer_elements, most=_MOST_ELEMENTS)
    if residual.offload and not residual.partition:
        raise BadInput("Pa+cpu moves partitioned checkpoints, and Pa is off", hint="turn Pa on too")
    name = "Pa+cpu" if residual.offload else "Pa"
    if residual.partition and not residual.checkpointing:
        raise BadInput(f"{name} splits checkpoints, and there are none", hint="turn checkpointing on too")
    if residual.partition and job.degrees.mp == 1:
        raise BadInput(
            f"{name} splits checkpoints over model-parallel ranks, and mp is 1", hint="state mp above 1"
        )
