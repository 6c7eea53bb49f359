"""The units that a shape is made of: elements, what they keep for the backward, what they need beside.

As the reference engine splits a GPT by default: each block is a unit, the rest of the model the root, which
encloses them.  ``units_block`` and ``units_root`` hold the tables of bytes, ``units_sizes`` the elements.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from zprof.model.planning.job import Job, Shape, Unit
from zprof.planner.models import units_block as block
from zprof.planner.models import units_root as root
from zprof.planner.models.units_moments import Moments, highest_work
from zprof.planner.models.units_sizes import block_elements, root_elements, sizes_of

ROOT = "root"


def with_units(job: Job) -> Job:
    """The job with the units of its shape, one model-parallel rank's part of each.

    A job that has units, or no shape, comes back as it is; without a batch units know their elements only.
    """
    if job.units or job.shape is None:
        return job
    around, inner = _kinds(job, job.shape)
    blocks = tuple(replace(inner, name=f"blocks.{index}") for index in range(job.shape.layers))
    return replace(job, units=(around, *blocks))


def moments_of(job: Job) -> Callable[[Unit], Moments | None]:
    """Which moments a unit of the job has; None where it is not one of the job's shape."""
    known = _known_moments(job)
    return lambda unit: known.get(replace(unit, name="", frozen_elements=0))


def _known_moments(job: Job) -> Mapping[Unit, Moments]:
    if job.shape is None or job.batch.tokens is None:
        return {}
    around, inner = _kinds(job, job.shape)
    sizes = sizes_of(job, job.shape)
    return {
        replace(around, name=""): root.root_moments(sizes),
        replace(inner, name=""): block.block_moments(sizes),
    }


def _kinds(job: Job, shape: Shape) -> tuple[Unit, Unit]:
    """The root and a block."""
    sizes = sizes_of(job, shape)
    around = Unit(name=ROOT, elements=root_elements(sizes), encloses=True)
    inner = Unit(name="block", elements=block_elements(sizes))
    if job.batch.tokens is None:
        return around, inner
    return _with_bytes(around, root.root_moments(sizes), root.head_flop(sizes)), replace(
        _with_bytes(inner, block.block_moments(sizes), block.forward_flop(sizes)),
        checkpoint_bytes=sizes.stream_bytes,
    )


def _with_bytes(unit: Unit, moments: Moments, flop: float) -> Unit:
    """Of the root nothing is computed again: what it keeps is the same with checkpointing."""
    last = moments.forward_end or moments.forward
    return replace(
        unit,
        saved_bytes=last[-1].saved_bytes,
        checkpoint_bytes=last[-1].saved_bytes,
        forward_work_bytes=highest_work((*moments.forward, *moments.forward_end)),
        backward_work_bytes=highest_work((*moments.backward, *moments.backward_end)),
        forward_flop=flop,
    )
