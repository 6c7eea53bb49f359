"""What a plan cannot say without the model's shape or the batch, and what to state for it."""

from zprof.model.gaps import Gap
from zprof.model.planning.job import Job
from zprof.model.planning.plan import Term
from zprof.model.tenants import Tenant

_SHAPE = (
    "the model's layers are not known",
    "state --layers and --hidden, or --preset, in place of --params",
)
_BATCH = ("the batch is not known", "state --micro-batch and --sequence")
#: Of a model that was counted.
_UNITS = (
    "what the model's units keep and need is not known",
    "let its forward take int64 tokens [samples, sequence], or plan with --layers and --hidden in place of "
    "--model",
)
_SPLIT = (
    "how model-parallel ranks share what a counted model keeps and needs is not known",
    "plan with --layers and --hidden in place of --model",
)
_WORDS = {
    Tenant.ACTIVATIONS: "planned activations",
    Tenant.TEMPORARY_BUFFERS: "planned temporary buffers",
    Tenant.COMMUNICATION_BUFFERS: "planned communication buffers",
}


def unknown(tenant: Tenant, sub: str, assumption: str) -> Term:
    """A term without its bytes."""
    return Term(tenant=tenant, sub=sub, bytes=None, assumption=assumption)


def gaps_of(job: Job, terms: tuple[Term, ...]) -> tuple[Gap, ...]:
    """One for each tenant of which a term is unknown."""
    tenants = dict.fromkeys(term.tenant for term in terms if term.bytes is None)
    return tuple(_gap(job, tenant) for tenant in tenants)


def _gap(job: Job, tenant: Tenant) -> Gap:
    if job.shape is None and not job.units:
        reason, remedy = _SHAPE
    elif job.batch.tokens is None:
        reason, remedy = _BATCH
    else:
        reason, remedy = _UNITS if job.degrees.mp == 1 else _SPLIT
    return Gap(what=_WORDS[tenant], reason=reason, remedy=remedy)
