"""Memory of the worst device of a pipeline: GPipe and PipeDream.

m micro-batches a step, pp stages, S what a micro-batch keeps on a stage, B the input of its first block:

    GPipe (arXiv 1811.06965, section 2.3)      one version of the weights
        m S; checkpointed m B + S (the stage is computed again, a micro-batch at a time).  Worst: the last
        stage, whose loss is in S.
    PipeDream (arXiv 1806.03377, section 3)    one forward, one backward; weights stashed
        first stage: pp versions of the weights, pp S;  last stage: 1 version, 1 S with the loss.
        Checkpointed, S is the inputs of the stage's blocks, and one block is computed again.

Model parallelism has no moment of its own: it is stage 0 on a rank's part of the model.
"""

from collections.abc import Callable, Mapping, Sequence

from zprof.model.planning.job import Job
from zprof.model.planning.plan import Scheme, Term
from zprof.model.tenants import Tenant
from zprof.planner.memory.moments import highest, known_bytes
from zprof.planner.memory.paper import copy_terms
from zprof.planner.memory.stage_bytes import StageBytes, stage_bytes
from zprof.planner.memory.states import stashed_term, state_terms
from zprof.planner.memory.unknown import unknown

_Terms = tuple[Term, ...]


def pipeline_terms(job: Job, scheme: Scheme) -> tuple[_Terms, str]:
    """Terms of the worst device at its highest moment, and that moment."""
    return max((_device(job, scheme, states, kept) for states, kept in _DEVICES[scheme](job)), key=_known)


def _device(job: Job, scheme: Scheme, states: _Terms, kept: Sequence[Term]) -> tuple[_Terms, str]:
    return highest({"backward": (*states, *kept), "optimizer": (*states, *copy_terms(job, scheme))})


def _gpipe_devices(job: Job) -> list[tuple[_Terms, _Terms]]:
    stage = stage_bytes(job, with_head=True)
    size = None if stage is None else _gpipe_activations(job, stage)
    return [(state_terms(job, Scheme.GPIPE), _kept(stage, size, "pipeline.gpipe_activations"))]


def _gpipe_activations(job: Job, stage: StageBytes) -> int:
    in_flight = job.batch.micro_batches
    if job.residual.checkpointing:
        return in_flight * stage.input + stage.saved
    return in_flight * stage.saved


def _pipedream_devices(job: Job) -> list[tuple[_Terms, _Terms]]:
    states = state_terms(job, Scheme.PIPEDREAM)
    stashed = (*states, stashed_term(job, Scheme.PIPEDREAM))
    last = _in_flight(job, 1, with_head=True)
    if job.degrees.pp == 1:
        return [(states, last)]
    return [(stashed, _in_flight(job, job.degrees.pp, with_head=False)), (states, last)]


def _in_flight(job: Job, micro_batches: int, *, with_head: bool) -> _Terms:
    stage = stage_bytes(job, with_head=with_head)
    size = None
    if stage is not None and job.residual.checkpointing:
        size = micro_batches * stage.checkpoints + stage.largest_saved
    elif stage is not None:
        size = micro_batches * stage.saved
    return _kept(stage, size, "pipeline.pipedream_activations")


def _kept(stage: StageBytes | None, size: int | None, assumption: str) -> _Terms:
    if stage is None:
        return (
            unknown(Tenant.ACTIVATIONS, "in_flight", assumption),
            unknown(Tenant.TEMPORARY_BUFFERS, "op_output", "residual.work"),
        )
    return (
        Term(tenant=Tenant.ACTIVATIONS, sub="in_flight", bytes=size, assumption=assumption),
        Term(tenant=Tenant.TEMPORARY_BUFFERS, sub="op_output", bytes=stage.work, assumption="residual.work"),
    )


def _known(device: tuple[_Terms, str]) -> int:
    return known_bytes(device[0])


_DEVICES: Mapping[Scheme, Callable[[Job], list[tuple[_Terms, _Terms]]]] = {
    Scheme.GPIPE: _gpipe_devices,
    Scheme.PIPEDREAM: _pipedream_devices,
}
