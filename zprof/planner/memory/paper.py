"""Memory of a ZeRO stage, or of model parallelism, by the paper's closed forms.

For jobs whose units do not know all their bytes; what depends on what is not stated stays unknown.  Two
moments: the backward (states, activations, buffers, gathered units) and the optimizer (states and its copy
of the gradients).
"""

from zprof.model.planning.job import Job
from zprof.model.planning.plan import Scheme, Term, stage_of
from zprof.model.tenants import Tenant
from zprof.planner.memory.elements import rank_elements
from zprof.planner.memory.moments import highest
from zprof.planner.memory.residual import (
    activation_bytes,
    checkpoint_bytes,
    fused_buffer_bytes,
    gathered_bytes,
    gradient_copy_bytes,
    working_set_bytes,
)
from zprof.planner.memory.states import state_terms
from zprof.planner.memory.unknown import unknown


def paper_terms(job: Job, scheme: Scheme) -> tuple[tuple[Term, ...], str]:
    """Terms at the highest moment as far as they are known, and that moment."""
    states = state_terms(job, scheme)
    travelling = (*_gathered_terms(job, scheme), *_reduced_terms(job, scheme))
    backward = (*states, *activation_terms(job), _buffer_term(job), *travelling)
    return highest({"backward": backward, "optimizer": (*states, *copy_terms(job, scheme))})


def activation_terms(job: Job) -> tuple[Term, ...]:
    """Of one micro-batch; one unknown term where the shape or the batch is not known."""
    shape, tokens = job.shape, job.batch.tokens
    if shape is None or tokens is None:
        key = "residual.checkpoints" if job.residual.checkpointing else "residual.activations"
        return (unknown(Tenant.ACTIVATIONS, "saved", key),)
    size, mp = job.element_bytes.parameter, job.degrees.mp
    if not job.residual.checkpointing:
        whole = activation_bytes(shape, tokens, size, mp=mp)
        return (_activations("saved", whole, "residual.activations"),)
    kept = checkpoint_bytes(shape, tokens, size, job.residual, mp=mp)
    again = working_set_bytes(shape, tokens, size, mp=mp)
    return (
        _activations("checkpoints", kept, _checkpoint_key(job)),
        _activations("working_set", again, "residual.working_set"),
    )


def copy_terms(job: Job, scheme: Scheme) -> tuple[Term, ...]:
    """The optimizer's copy of the gradients; none where it makes none or the size of units is not known."""
    sharded_over = job.degrees.dp if stage_of(scheme) >= 1 else 1
    if not job.element_bytes.gradient_copy or (not job.units and job.shape is None):
        return ()
    size = gradient_copy_bytes(job, sharded_over)
    return (_temporary("optimizer", size, "residual.gradient_copy"),)


def _buffer_term(job: Job) -> Term:
    """Units whose bytes are not known have work buffers of a size that is not known either."""
    capped = job.residual.constant_buffer_elements is not None
    key = "residual.constant_buffer" if capped else "residual.fused_buffer"
    if job.units:
        return unknown(Tenant.TEMPORARY_BUFFERS, "op_output", "residual.work")
    if job.shape is None or job.batch.tokens is None:
        return unknown(Tenant.TEMPORARY_BUFFERS, "fused_buffer", key)
    return _temporary("fused_buffer", fused_buffer_bytes(rank_elements(job), job.residual), key)


def _gathered_terms(job: Job, scheme: Scheme) -> tuple[Term, ...]:
    if scheme is not Scheme.ZERO_3:
        return ()
    key = "residual.gathered_units"
    if not job.units:
        return (unknown(Tenant.COMMUNICATION_BUFFERS, "gathered_param", key),)
    size = gathered_bytes(job) if job.degrees.dp > 1 else 0
    term = Term(tenant=Tenant.COMMUNICATION_BUFFERS, sub="gathered_param", bytes=size, assumption=key)
    return (term,)


def _reduced_terms(job: Job, scheme: Scheme) -> tuple[Term, ...]:
    """Stages that shard gradients reduce them out of buffers; by the paper these are the fused ones."""
    in_place = scheme not in (Scheme.ZERO_2, Scheme.ZERO_3) or job.degrees.dp == 1
    by_paper = not job.units and job.shape is not None and job.batch.tokens is not None
    if in_place or by_paper:
        return ()
    return (unknown(Tenant.COMMUNICATION_BUFFERS, "reduce_scatter_base", "residual.reductions"),)


def _checkpoint_key(job: Job) -> str:
    if job.residual.offload:
        return "residual.offload"
    return "residual.partition" if job.residual.partition else "residual.checkpoints"


def _activations(sub: str, size: int, assumption: str) -> Term:
    return Term(tenant=Tenant.ACTIVATIONS, sub=sub, bytes=size, assumption=assumption)


def _temporary(sub: str, size: int, assumption: str) -> Term:
    return Term(tenant=Tenant.TEMPORARY_BUFFERS, sub=sub, bytes=size, assumption=assumption)
