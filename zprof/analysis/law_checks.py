"""Each rank's model states against the law of their stage, with the cause of what differs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from zprof.analysis.law_causes import Difference, explain
from zprof.analysis.laws import TenantLaw, tenant_laws
from zprof.model.gaps import Gap
from zprof.model.memory import LawCheck
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts

_STATES = (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE)
#: Of the law; more above it is something else than padding.
_MOST_PADDING = 0.1
_UNEVEN = "shards of unequal size: all ranks together hold the law"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStates:
    """Model states of one rank, each when it is complete, and what helps to explain them.

    ``counter_bytes`` are those of optimizer state in tensors of one number; ``buffer_bytes`` the model's
    buffers, which are in no state; ``rounding_bytes`` what the allocator added to the tensors' own bytes.
    """

    rank: int
    bytes: Mapping[Tenant, int]
    counter_bytes: int = 0
    buffer_bytes: int = 0
    rounding_bytes: Mapping[Tenant, int] = field(default_factory=dict)


def check_laws(facts: TrainingFacts, measured: Sequence[MeasuredStates]) -> tuple[LawCheck, ...]:
    """One check a rank and state whose law is known, in the order of the ranks."""
    laws = tenant_laws(facts)
    checks = [_check(difference, states.rank) for states in measured for difference in _all(laws, states)]
    found = _uneven_shards(laws, checks)
    counters = {states.rank: states.counter_bytes for states in measured}
    counted = [_with_counters(check, counters[check.rank]) for check in checks]
    own = _uneven_shards(laws, counted)
    return tuple(found.get(key) or own.get(key) or check for key, check in enumerate(checks))


def law_gaps(facts: TrainingFacts, measured: Sequence[MeasuredStates]) -> tuple[Gap, ...]:
    """The states that no law could be given for, and which fact is missing."""
    laws = tenant_laws(facts)
    missing = [tenant for tenant in _STATES if tenant not in laws]
    if not measured or not missing:
        return ()
    names = " and ".join(tenant.value.replace("_", " ") for tenant in missing)
    return (
        Gap(
            what="law of the model states",
            reason=f"no law of {names}: {_missing_fact(facts)}",
            remedy="tell the recorder: zprof.record(..., training=TrainingFacts(...))",
        ),
    )


def _missing_fact(facts: TrainingFacts) -> str:
    if facts.stage is None:
        return "how the program shards its states is unknown"
    if facts.parameters is None:
        return (
            "the number of parameters is unknown, because some are frozen or lazy, or the model was not given"
        )
    if not facts.shard_ranks:
        return "over how many ranks the states are sharded is unknown"
    return "the bytes of an element are unknown"


def _all(laws: Mapping[Tenant, TenantLaw], states: MeasuredStates) -> list[Difference]:
    differences = {
        tenant: _difference(tenant, laws[tenant], states)
        for tenant in _STATES
        if tenant in laws and tenant in states.bytes
    }
    excess = {tenant: _excess(difference) for tenant, difference in differences.items()}
    return [
        replace(difference, excess_elements=_shared(excess, tenant))
        for tenant, difference in differences.items()
    ]


def _difference(tenant: Tenant, law: TenantLaw, states: MeasuredStates) -> Difference:
    counters = states.counter_bytes if tenant is Tenant.OPTIMIZER_STATE else 0
    return Difference(
        tenant=tenant,
        law_bytes=law.law_bytes,
        padding_bytes=law.padding_bytes,
        scalar_bytes=law.scalar_bytes or counters,
        measured_bytes=states.bytes[tenant],
        element_bytes=law.element_bytes,
        ranks=law.ranks,
        sharded=law.sharded,
        buffer_bytes=states.buffer_bytes,
        rounding_bytes=states.rounding_bytes.get(tenant, 0),
    )


def _excess(state: Difference) -> int | None:
    """Whole elements above the law, where they are few enough to be padding."""
    rest = state.unexplained_bytes
    few = 0 < rest <= _MOST_PADDING * state.law_bytes
    return rest // state.element_bytes if few and rest % state.element_bytes == 0 else None


def _shared(excess: Mapping[Tenant, int | None], tenant: Tenant) -> int | None:
    """The excess of one state, where another one shows as many elements: padding is the same in all."""
    mine = excess[tenant]
    others = [size for other, size in excess.items() if other is not tenant]
    return mine if mine in others else None


def _check(state: Difference, rank: int) -> LawCheck:
    return LawCheck(
        rank=rank,
        tenant=state.tenant,
        law_bytes=state.law_bytes,
        measured_bytes=state.measured_bytes,
        padding_bytes=state.padding_bytes,
        scalar_bytes=state.scalar_bytes,
        unexplained_bytes=state.unexplained_bytes,
        cause=explain(state),
    )


def _uneven_shards(laws: Mapping[Tenant, TenantLaw], checks: Sequence[LawCheck]) -> dict[int, LawCheck]:
    """Return the checks, by place, of sharded states that are uneven and together hold the formula.

    A rank's share is rounded up to a byte, so that the shares are up to a byte a rank above the whole.
    """
    found = {}
    for tenant, law in laws.items():
        mine = {place: check for place, check in enumerate(checks) if check.tenant is tenant}
        rests = [check.unexplained_bytes for check in mine.values()]
        if law.sharded and len(rests) == law.ranks and any(rests) and abs(sum(rests)) < law.ranks:
            uneven = {place: replace(check, cause=_UNEVEN) for place, check in mine.items()}
            found.update({place: check for place, check in uneven.items() if check.unexplained_bytes})
    return found


def _with_counters(check: LawCheck, counter_bytes: int) -> LawCheck:
    """The check with the step counters that this rank itself holds.

    The stated number is that of one rank; where whole parameters are dealt out, each has its own.
    """
    if check.tenant is not Tenant.OPTIMIZER_STATE or not counter_bytes:
        return check
    rest = check.unexplained_bytes + check.scalar_bytes - counter_bytes
    return replace(check, scalar_bytes=counter_bytes, unexplained_bytes=rest)
