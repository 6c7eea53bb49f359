"""What tensor parallelism in Megatron's manner moves, and what partitioned checkpoints add to it.

Of b samples, sequence s and hidden size h, a block all-reduces b s h elements twice in its forward, twice in
its backward, and twice more where it is computed again.  An all-reduce counts twice: 12 b s h elements with
checkpointing, 8 without.  Each waits for the product before it and the next product waits for it, so nothing
is hidden.  Pa adds one all-gather of b s h before each recomputation: 1/12 of the volume.  Pa+cpu moves a
rank's part of a checkpoint, 2 b s h / mp bytes, to the host in the forward and back in the backward, beside
the compute.

Source: arXiv 1910.02054, section 8; arXiv 1909.08053, section 3.  Left out: the all-reduces of a
vocabulary that is split, once a step.
"""

from dataclasses import dataclass

from zprof.model.planning.hardware import Hardware
from zprof.model.planning.job import Job
from zprof.planner.step.activations import stream_elements
from zprof.planner.step.collectives import all_reduce_ns, gather_ns
from zprof.planner.step.placement import model_group

#: All-reduces of a block in each of its passes.
_A_PASS = 2
#: An all-reduce is a reduce-scatter and an all-gather.
_TWICE = 2
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTraffic:
    """Of one block in one micro-batch.  ``gather_elements``: of Pa, among ``elements``.

    ``host_bytes``: each way.
    """

    elements: int
    gather_elements: int
    host_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTimes:
    """Of one block in one micro-batch, ns."""

    forward_ns: int
    backward_ns: int
    copy_ns: int


def block_traffic(job: Job) -> BlockTraffic | None:
    """None where the shape or the batch is not known."""
    tensor = stream_elements(job)
    if tensor is None:
        return None
    mp, residual = job.degrees.mp, job.residual
    reduced = 0 if mp == 1 else _TWICE * _A_PASS * _passes(job) * tensor
    gathered = tensor if _partitions(job) else 0
    kept = tensor * job.element_bytes.parameter // (mp if residual.partition else 1)
    copied = kept if residual.checkpointing and residual.offload else 0
    return BlockTraffic(elements=reduced + gathered, gather_elements=gathered, host_bytes=copied)


def block_times(job: Job, hardware: Hardware) -> BlockTimes | None:
    """None where the shape or the batch is not known."""
    tensor, traffic = stream_elements(job), block_traffic(job)
    if tensor is None or traffic is None:
        return None
    group, size = model_group(hardware, job.degrees), tensor * job.element_bytes.parameter
    one_pass = _A_PASS * all_reduce_ns(group, size)
    gather = gather_ns(group, size) if traffic.gather_elements else 0.0
    return BlockTimes(
        forward_ns=round(one_pass),
        backward_ns=round((_passes(job) - 1) * one_pass + gather),
        copy_ns=round(traffic.host_bytes / hardware.host_bytes_per_s * _NS_PER_S),
    )


def _passes(job: Job) -> int:
    """Forward, backward, and the forward again."""
    return 3 if job.residual.checkpointing else 2


def _partitions(job: Job) -> bool:
    return job.degrees.mp > 1 and job.residual.checkpointing and job.residual.partition
