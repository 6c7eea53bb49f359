"""What is kept of a unit between its forward and its backward where it is computed again.

    whole                    its input
    Pa   (partition)         1/N of it on each of N model-parallel ranks; gathered again before its backward
    Pa+cpu (offload)         nothing: it is in host memory
    MD   (defragment)        the same, in one chunk that stays; places of a multiple of 256 bytes

arXiv 1910.02054, section 6.1 and 6.3; the reference engine keeps them in this way.
"""

from dataclasses import dataclass

from zprof.model.planning.job import Job, Unit
from zprof.planner.rounding import ceil_div

_PLACE_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Bytes of one checkpoint.

    ``stays_bytes``: from forward to backward, beside a chunk; ``copied_bytes``: of what comes back from the
    host to be gathered; ``input_is_new``: whether what the recomputation reads is not what stayed;
    ``is_gathered``: whether ranks put it together, from parts that are communication buffers from then on.
    """

    stays_bytes: int
    copied_bytes: int
    input_is_new: bool
    is_gathered: bool = False


def kept_of(unit: Unit, job: Job) -> Kept:
    """What is kept of a unit's checkpoint."""
    residual, whole = job.residual, unit.checkpoint_bytes or 0
    part = ceil_div(whole, job.degrees.mp) if residual.partition else whole
    if residual.offload:
        return Kept(
            stays_bytes=0,
            copied_bytes=part if residual.partition else 0,
            input_is_new=True,
            is_gathered=residual.partition,
        )
    stays = 0 if residual.defragment else part
    return Kept(
        stays_bytes=stays, copied_bytes=0, input_is_new=residual.partition, is_gathered=residual.partition
    )


def chunk_bytes(job: Job) -> int:
    """Of the chunk of all checkpoints; 0 where each has memory of its own."""
    residual = job.residual
    if not (residual.checkpointing and residual.defragment) or residual.offload:
        return 0
    share = job.degrees.mp if residual.partition else 1
    inner = [unit.checkpoint_bytes or 0 for unit in job.units if not unit.encloses]
    largest = ceil_div(max(inner, default=0), share)
    return len(inner) * ceil_div(largest, _PLACE_BYTES) * _PLACE_BYTES
