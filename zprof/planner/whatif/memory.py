"""The peak of the changed run by tenant, of the rank that has the highest one.

    predicted = recorded + (model of the changed step - model of this step)

Parameters and optimizer state follow the law of the stage (arXiv 1910.02054, section 5), with the padding and
the counters that the engine states.  What the model does not know stays as recorded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.laws import tenant_laws
from zprof.model.gaps import Gap
from zprof.model.memory import RankMemory
from zprof.model.planning.whatif import Change, Predicted
from zprof.model.tenants import Tenant
from zprof.planner.whatif import assumptions
from zprof.planner.whatif.calibrate import Calibrated
from zprof.planner.whatif.changes import changed_habits, changed_skeleton
from zprof.planner.whatif.habits import Habits
from zprof.planner.whatif.moments import Sizes, moments
from zprof.planner.whatif.skeleton import Skeleton

#: How well the model of a change is trusted, beyond its error on the run.
_TRUST_RATIO = 0.1
_ASSUMED = {
    Tenant.PARAMETERS: assumptions.STATES,
    Tenant.OPTIMIZER_STATE: assumptions.STATES,
    Tenant.GRADIENTS: assumptions.GRADIENTS,
    Tenant.COMMUNICATION_BUFFERS: assumptions.BUFFERS,
}
_LAWFUL = (Tenant.PARAMETERS, Tenant.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The rank with the highest peak, and its state by the law."""

    rank: RankMemory
    sizes: Sizes
    temporary: int


def measured_memory(analysis: RunAnalysis) -> Measured | Gap:
    """What the memory of a run is predicted from; a gap where that is not enough."""
    what = "peak of a changed run"
    if not analysis.memory.per_rank:
        return Gap(what=what, reason="no memory was recorded", remedy="record with the memory window on")
    if len(tenant_laws(analysis.training)) < len(_ASSUMED) - 1:
        return Gap(
            what=what,
            reason="the run does not say its stage, its parameters or the bytes of its states",
            remedy="tell the recorder: zprof.record(..., training=zprof.TrainingFacts(...))",
        )
    rank = max(analysis.memory.per_rank, key=lambda each: each.peak_bytes)
    facts = analysis.training
    phases = [phase for phase in analysis.memory.phases if phase.rank == rank.rank]
    saved = max(
        [each.tenants.get(Tenant.ACTIVATIONS, 0) for each in phases] + [_of(rank, Tenant.ACTIVATIONS)]
    )
    elements = (facts.parameters or 0) + facts.padding_elements
    return Measured(
        rank=rank,
        sizes=Sizes(
            gradients=float(elements * (facts.gradient_bytes or 0)),
            ranks=facts.shard_ranks or 1,
            activations=float(saved),
            scratch=any(part.sub == "backend_scratch" for part in rank.parts),
        ),
        temporary=_of(rank, Tenant.TEMPORARY_BUFFERS) + rank.untagged_bytes,
    )


def predicted_memory(
    analysis: RunAnalysis, memory: Measured, model: Calibrated | None, change: Change
) -> tuple[Predicted, ...]:
    """``peak_bytes`` and the tenants of the changed run; without a model the states alone change."""
    before, after = _states(analysis, Change()), _states(analysis, change)
    if model is not None:
        before |= _highest(model.skeleton, model.habits, memory.sizes, before)
        skeleton = changed_skeleton(model, change)
        sizes = _changed_sizes(memory.sizes, model.skeleton, skeleton, change)
        after |= _highest(skeleton, changed_habits(model.habits, change), sizes, after)
    tenants = [tenant for tenant in Tenant if tenant in memory.rank.tenants]
    rows = [
        _row(
            str(tenant),
            _of(memory.rank, tenant),
            before.get(tenant),
            after.get(tenant),
            _ASSUMED.get(tenant, assumptions.KEPT),
        )
        for tenant in tenants
    ]
    measured = memory.rank.peak_bytes
    modelled = sum(_or(before.get(tenant), _of(memory.rank, tenant)) for tenant in tenants)
    modelled += memory.rank.untagged_bytes
    predicted = sum(row.predicted or 0 for row in rows) + memory.rank.untagged_bytes
    return (_whole(measured, modelled, predicted), *rows)


def _or(value: float | None, otherwise: int) -> int:
    return otherwise if value is None else round(value)


def _of(rank: RankMemory, tenant: Tenant) -> int:
    return int(rank.tenants.get(tenant, 0))


def _states(analysis: RunAnalysis, change: Change) -> dict[Tenant, float]:
    """Parameters and optimizer state of one rank by the law."""
    facts = analysis.training
    facts = replace(
        facts,
        stage=facts.stage if change.stage is None else change.stage,
        shard_ranks=change.shard_ranks or facts.shard_ranks,
    )
    laws = tenant_laws(facts)
    return {
        tenant: float(laws[tenant].law_bytes + laws[tenant].padding_bytes + laws[tenant].scalar_bytes)
        for tenant in _LAWFUL
    }


def _changed_sizes(sizes: Sizes, old: Skeleton, new: Skeleton, change: Change) -> Sizes:
    """Other micro-batches keep other activations; other ranks share the gradients."""
    return replace(
        sizes,
        activations=sizes.activations * old.micro_batches / new.micro_batches,
        ranks=change.shard_ranks or sizes.ranks,
    )


def _highest(
    skeleton: Skeleton, habits: Habits, sizes: Sizes, states: Mapping[Tenant, float]
) -> dict[Tenant, float]:
    """What is held at the moment at which all together is most."""
    return max((held for _, held in moments(skeleton, habits, sizes)), key=lambda held: sum(held.values()))


def _row(name: str, measured: int, before: float | None, after: float | None, key: str) -> Predicted:
    if before is None or after is None:
        return Predicted(
            name=name, measured=measured, modelled=None, predicted=measured, low=measured, high=measured,
            error_ratio=None, assumption=key,
        )  # fmt: skip
    predicted = max(0, round(measured + after - before))
    half = round(abs(measured - before) + _TRUST_RATIO * abs(after - before))
    if key == assumptions.STATES:
        half = round(abs(measured - before))
    return Predicted(
        name=name,
        measured=measured,
        modelled=round(before),
        predicted=predicted,
        low=max(0, predicted - half),
        high=predicted + half,
        error_ratio=before / measured - 1 if measured else None,
        assumption=key,
    )


def _whole(measured: int, modelled: int, predicted: int) -> Predicted:
    half = round(abs(modelled - measured) + _TRUST_RATIO * abs(predicted - measured))
    return Predicted(
        name="peak_bytes",
        measured=measured,
        modelled=modelled,
        predicted=predicted,
        low=max(0, predicted - half),
        high=predicted + half,
        error_ratio=modelled / measured - 1 if measured else None,
        assumption=assumptions.PEAK,
    )
