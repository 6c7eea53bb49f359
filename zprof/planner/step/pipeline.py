"""A pipeline of p stages and m micro-batches: its bubble, and what passes between stages.

GPipe: every micro-batch forward, then every one backward, then the update.  With f and b a stage's forward
and backward of one micro-batch and x the transfer between two stages,

    forward   p f + (p-1) x + (m-1) max(f, x)        backward likewise with b

of which (p-1)(f+b) is bubble: (p-1)/(m+p-1) of the compute's time (arXiv 1811.06965, section 2.3).  One
device moves a tensor each way for each micro-batch, 2 m x: it waits for its first each way, and for what is
longer than compute.  The other 2 (p-2) x to fill and drain are on the links of other stages: bubble too.

PipeDream, in its steady state (one forward, one backward): no flush and no bubble, for which each stage
keeps stashed weights; a micro-batch takes max(f+b, 2x) (arXiv 1806.03377, sections 3.2 and 3.3).  It updates,
and reduces gradients over data-parallel ranks, with every micro-batch.

A transfer is b s h elements a boundary, each way, a micro-batch.
"""

from dataclasses import dataclass

from zprof.model.planning.hardware import Hardware
from zprof.model.planning.job import Job
from zprof.planner.step.placement import boundary

_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What a pipeline adds to the passes of one device.

    ``idle_ns``: it waits for the compute and the transfers of other stages.  ``moved_ns``: its own transfers,
    a tensor each way for each micro-batch, hidden or not; ``exposed_ns``: those of them that are not hidden.
    """

    idle_ns: int
    exposed_ns: int
    moved_ns: int


def transfer_ns(job: Job, hardware: Hardware, elements: int) -> int:
    """One transfer: a hop, and the bytes; each model-parallel rank sends the whole tensor."""
    pair = boundary(hardware, job.degrees)
    size = elements * job.element_bytes.parameter
    return round(pair.hop_ns + size / pair.bytes_per_s * _NS_PER_S)


def gpipe(*, stages: int, micro_batches: int, forward_ns: int, backward_ns: int, transfer: int) -> Flow:
    """Flushed after the last micro-batch; two stages or more, as one alone moves nothing."""
    beyond = max(0, transfer - forward_ns) + max(0, transfer - backward_ns)
    return Flow(
        idle_ns=(stages - 1) * (forward_ns + backward_ns) + 2 * (stages - 2) * transfer,
        exposed_ns=2 * transfer + (micro_batches - 1) * beyond,
        moved_ns=2 * micro_batches * transfer,
    )


def pipedream(*, micro_batches: int, forward_ns: int, backward_ns: int, transfer: int) -> Flow:
    """In its steady state."""
    beyond = max(0, 2 * transfer - forward_ns - backward_ns)
    return Flow(idle_ns=0, exposed_ns=micro_batches * beyond, moved_ns=2 * micro_batches * transfer)
