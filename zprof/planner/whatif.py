"""Predict step time and memory peak of a measured run after single changes, with error and range.

The peak is predicted by tenant, on the rank with the highest peak:

    predicted = recorded + (model of the changed step - model of this step)

Parameters and optimizer state follow the ZeRO formula of the stage (arXiv 1910.02054, section 5) with the
engine's padding and step counters. Bytes outside the model stay as recorded.

Moments of a step at which memory may peak, in the order of the schedule (:mod:`zprof.step.schedule`), with d
units prefetched and at most L reductions in flight:

    forward of unit j     gathered (root, j, d ahead), activations of the units up to j
    backward of j starts  the same gathered, min(L, reduced) buckets, shards of reduced gradients, activations
                          of the units up to j
    backward of j ends    with j's unsharded gradients, without its activations
    optimizer             all gradients

Unsharded gradients stay in stages 0 and 1. gloo allocates scratch of the message size during a reduce_scatter
or all_gather; scratch counts if the run used any.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.zero_formulas import compute_tenant_formulas
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.hang import is_stuck
from zprof.model.memory import RankMemory
from zprof.model.plan import Change, Outlook, PredictedFigure, Prediction
from zprof.model.report import Report
from zprof.model.tenants import BACKEND_SCRATCH, Tenant
from zprof.step.prediction import (
    ASSUMED_BUFFERS,
    ASSUMED_GRADIENTS,
    ASSUMED_KEPT,
    ASSUMED_PEAK,
    ASSUMED_STATES,
    ASSUMPTIONS,
    REPRODUCES_RATIO,
    ModelledRun,
    change_passes,
    change_policy,
    describe_change,
    find_change_gaps,
    model_run,
    predict_step,
    refuse_change,
    saving_range_ns,
    usual_changes,
)
from zprof.step.schedule import (
    Await,
    Compute,
    EnginePolicy,
    Launch,
    PassPhase,
    Release,
    StartPass,
    build_program,
)
from zprof.step.unit_calibration import CalibratedModel
from zprof.step.unit_replay import StepPasses

#: Gathers of updated parameters that hold scratch at the same time.
_CONCURRENT_GATHERS = 2

BytesByTenant = dict[Tenant, float]
#: Share of a predicted effect that widens the range, in addition to the model error on the run.
_EFFECT_ERROR_RATIO = 0.1
_TENANT_ASSUMPTIONS = {
    Tenant.PARAMETERS: ASSUMED_STATES,
    Tenant.OPTIMIZER_STATE: ASSUMED_STATES,
    Tenant.GRADIENTS: ASSUMED_GRADIENTS,
    Tenant.COMMUNICATION_BUFFERS: ASSUMED_BUFFERS,
}
_FORMULA_TENANTS = (Tenant.PARAMETERS, Tenant.OPTIMIZER_STATE)


class MemorySizes(Struct, frozen=True, kw_only=True):
    """Sizes for the walk, in addition to the units.

    ``gradients``: bytes of all gradients as stored; ``ranks``: ranks that share them. ``activations``: bytes
    saved by a full forward pass. ``scratch``: True if the backend allocates any.
    """

    gradients: float
    ranks: int
    activations: float
    scratch: bool


#: Rank with the highest peak, and its sizes for the walk.
MeasuredMemory = tuple[RankMemory, MemorySizes]


def predict_changes(analysis: RunAnalysis, changes: Sequence[Change] | None = None) -> Outlook:
    """Predict the effect of changes on a run; ``changes=None``: the default changes.

    Raises:
        BadInput: a change is impossible, such as stage 4 or bandwidth 0.
    """
    for change in changes or ():
        refuse_change(change)
    base = model_run(analysis)
    memory = measure_memory(analysis)
    gaps = [result for result in (base, memory) if isinstance(result, Gap)]
    if isinstance(base, Gap):
        requested = tuple(changes or ())
        predictions = tuple(_predict_memory_only(analysis, memory, change) for change in requested)
        return _make_outlook(analysis, predictions, None, gaps)
    requested = usual_changes(base.model) if changes is None else tuple(changes)
    gaps += [*_model_gaps(base), *find_change_gaps(base.model, requested)]
    predictions = ()
    for change in requested:
        prediction = _predict_memory_only(analysis, memory, change, base.model)
        step = predict_step(base, change)
        predictions += (replace(prediction, step=step, saving_ns=saving_range_ns(step)),)
    return _make_outlook(analysis, predictions, base, gaps)


def add_outlook(report: Report, analysis: RunAnalysis) -> Report:
    """Return the report with predictions for the default changes; unchanged if nothing can be predicted.

    A stuck job has no step to shorten.
    """
    if is_stuck(report.hang):
        return report
    outlook = predict_changes(analysis)
    return replace(report, outlook=outlook) if outlook.predictions else report


def _make_outlook(
    analysis: RunAnalysis,
    predictions: tuple[Prediction, ...],
    base: ModelledRun | None,
    gaps: Sequence[Gap],
) -> Outlook:
    keys = {row.assumption for prediction in predictions for row in (*prediction.step, *prediction.memory)}
    return Outlook(
        predictions=predictions,
        calibration=None if base is None else base.model.summary,
        assumptions={key: ASSUMPTIONS[key] for key in sorted(keys)},
        gaps=tuple(dict.fromkeys(gaps)),
        is_window=analysis.time.is_whole,
    )


def _predict_memory_only(
    analysis: RunAnalysis, memory: MeasuredMemory | Gap, change: Change, model: CalibratedModel | None = None
) -> Prediction:
    rows = () if isinstance(memory, Gap) else predict_memory(analysis, memory, model, change)
    return Prediction(change=change, words=describe_change(change), memory=rows)


def _model_gaps(base: ModelledRun) -> list[Gap]:
    """Return the gaps that make the model uncertain."""
    gaps = []
    if not base.reproduces:
        gaps.append(make_gap("model_inexact", error=abs(base.error_ratio), limit=REPRODUCES_RATIO))
    if not base.model.link.is_known:
        gaps.append(make_gap("link_of_one_size"))
    return gaps


def list_moments(
    skeleton: StepPasses, policy: EnginePolicy, sizes: MemorySizes
) -> Iterator[tuple[str, BytesByTenant]]:
    """Yield each moment as its phase and its bytes of gradients, communication buffers and activations.

    The walk covers the last micro-batch.
    """
    passes = [each for each in skeleton.passes if each.micro_batch == skeleton.micro_batches - 1]
    walk, phase = _Walk(skeleton, policy, sizes), PassPhase.FORWARD
    for op in build_program(skeleton.units, passes, policy):
        match op:
            case StartPass():
                phase = passes[op.what].phase
            case Launch(key=key) if key.startswith("gather."):
                walk.gathered[op.unit] = phase
            case Launch(key=key) if key.startswith("reduce."):
                walk.reduced.append(op.unit)
                walk.in_flight[key] = op.bytes
            case Await(key=key):
                walk.in_flight.pop(key, None)
            case Release():
                del walk.gathered[op.unit]
            case Compute() if op.what >= 0 and not skeleton.units[passes[op.what].unit].encloses:
                is_forward = phase is PassPhase.FORWARD
                unit = passes[op.what].unit
                for held in walk.forward(unit) if is_forward else walk.backward(unit):
                    yield str(phase), held
    yield "optimizer", walk.optimizer()


class _Walk:
    """Live units and reductions at a point in the schedule.

    ``gathered``: gathered units, with the phase in which they were gathered. ``in_flight``: bytes of
    reductions not awaited yet.
    """

    def __init__(self, skeleton: StepPasses, policy: EnginePolicy, sizes: MemorySizes) -> None:
        self._units = skeleton.units
        self._inner = [unit for unit in skeleton.units if not unit.encloses]
        self._total_reduce_bytes = sum(unit.reduce_bytes for unit in skeleton.units) or 1.0
        self._policy = policy
        self._sizes = sizes
        self._has_several_micro_batches = skeleton.micro_batches > 1
        self._saved_units = 0
        self.gathered: dict[int, PassPhase] = {}
        self.reduced: list[int] = []
        self.in_flight: dict[str, float] = {}

    def forward(self, unit: int) -> Iterator[BytesByTenant]:
        """Yield the moment at the end of a unit's forward pass."""
        self._saved_units += 1
        scratch = self._scratch_bytes(unit) if self._policy.stage == 3 else 0.0
        yield self._make_moment(self._before_backward(), self._gathered_bytes() + scratch)

    def backward(self, unit: int) -> Iterator[BytesByTenant]:
        """Yield the moments at the start and the end of a unit's backward pass."""
        buckets = sum(self.in_flight.values()) if self._policy.stage >= 2 else 0.0
        reducing = self._scratch_bytes(unit) if self.reduced and self._policy.stage else 0.0
        gathers_again = self.gathered.get(unit) is PassPhase.BACKWARD
        gathering = self._scratch_bytes(unit) if gathers_again else 0.0
        done, own = self._gradient_bytes(), self._units[unit].gather_bytes
        buffers = self._gathered_bytes() + buckets + reducing
        yield self._make_moment(done, buffers + gathering)
        self._saved_units -= 1
        yield self._make_moment(done + (own if self._policy.stage >= 2 else 0.0), buffers)

    def optimizer(self) -> BytesByTenant:
        """Return the moment of the optimizer update."""
        scratch = 0.0
        if self._policy.stage in (1, 2) and self._inner and self._sizes.scratch:
            scratch = _CONCURRENT_GATHERS * self._inner[-1].gather_bytes
        self._saved_units = 0
        return self._make_moment(
            self._sizes.gradients / (self._sizes.ranks if self._policy.stage >= 2 else 1), scratch
        )

    def _gathered_bytes(self) -> float:
        return sum(self._units[unit].gather_bytes for unit in self.gathered)

    def _scratch_bytes(self, unit: int) -> float:
        return self._units[unit].gather_bytes if self._sizes.scratch else 0.0

    def _before_backward(self) -> float:
        if self._policy.stage < 2:
            return self._sizes.gradients
        return self._sizes.gradients / self._sizes.ranks if self._has_several_micro_batches else 0.0

    def _gradient_bytes(self) -> float:
        """Return the gradient bytes during a unit's backward pass."""
        if self._policy.stage < 2 or self._has_several_micro_batches:
            return self._before_backward()
        share = sum(self._units[unit].reduce_bytes for unit in self.reduced) / self._total_reduce_bytes
        return share * self._sizes.gradients / self._sizes.ranks

    def _make_moment(self, gradients: float, buffers: float) -> BytesByTenant:
        return {
            Tenant.GRADIENTS: gradients,
            Tenant.COMMUNICATION_BUFFERS: buffers,
            Tenant.ACTIVATIONS: self._sizes.activations * self._saved_units / max(1, len(self._inner)),
        }


def measure_memory(analysis: RunAnalysis) -> MeasuredMemory | Gap:
    """Return the recorded memory that predictions start from, or a gap if the run records too little."""
    if not analysis.memory.per_rank:
        return make_gap("peak_without_memory")
    if len(compute_tenant_formulas(analysis.training)) < len(_TENANT_ASSUMPTIONS) - 1:
        return make_gap("peak_without_facts")
    rank = max(analysis.memory.per_rank, key=lambda entry: entry.peak_bytes)
    facts = analysis.training
    phases = [phase for phase in analysis.memory.phases if phase.rank == rank.rank]
    saved = max(
        [phase.tenants.get(Tenant.ACTIVATIONS, 0) for phase in phases]
        + [_tenant_bytes(rank, Tenant.ACTIVATIONS)]
    )
    elements = (facts.parameters or 0) + facts.padding_elements
    sizes = MemorySizes(
        gradients=float(elements * (facts.gradient_bytes or 0)),
        ranks=facts.shard_ranks or 1,
        activations=float(saved),
        scratch=any(part.sub == BACKEND_SCRATCH for part in rank.parts),
    )
    return rank, sizes


def predict_memory(
    analysis: RunAnalysis, memory: MeasuredMemory, model: CalibratedModel | None, change: Change
) -> tuple[PredictedFigure, ...]:
    """Return ``peak_bytes`` and tenants of the changed run; without a model, only model states change."""
    rank, sizes = memory
    before, after = _formula_states(analysis, Change()), _formula_states(analysis, change)
    if model is not None:
        before |= _highest_moment(model.skeleton, model.policy, sizes, before)
        skeleton = change_passes(model, change)
        changed_sizes = replace(
            sizes,
            activations=sizes.activations * model.skeleton.micro_batches / skeleton.micro_batches,
            ranks=change.shard_ranks or sizes.ranks,
        )
        after |= _highest_moment(skeleton, change_policy(model.policy, change), changed_sizes, after)
    tenants = [tenant for tenant in Tenant if tenant in rank.tenants]
    rows = [
        _predict_tenant(
            str(tenant),
            _tenant_bytes(rank, tenant),
            before.get(tenant),
            after.get(tenant),
            _TENANT_ASSUMPTIONS.get(tenant, ASSUMED_KEPT),
        )
        for tenant in tenants
    ]
    measured = rank.peak_bytes
    modelled = sum(round(before.get(tenant, _tenant_bytes(rank, tenant))) for tenant in tenants)
    modelled += rank.untagged_bytes
    predicted = sum(row.predicted or 0 for row in rows) + rank.untagged_bytes
    return (_predict_peak(measured, modelled, predicted), *rows)


def _tenant_bytes(rank: RankMemory, tenant: Tenant) -> int:
    return int(rank.tenants.get(tenant, 0))


def _formula_states(analysis: RunAnalysis, change: Change) -> dict[Tenant, float]:
    """Return parameters and optimizer state of one rank by the ZeRO formula."""
    facts = analysis.training
    facts = replace(
        facts,
        stage=facts.stage if change.stage is None else change.stage,
        shard_ranks=change.shard_ranks or facts.shard_ranks,
    )
    formulas = compute_tenant_formulas(facts)
    return {
        tenant: float(
            formulas[tenant].formula_bytes + formulas[tenant].padding_bytes + formulas[tenant].scalar_bytes
        )
        for tenant in _FORMULA_TENANTS
    }


def _highest_moment(
    skeleton: StepPasses, policy: EnginePolicy, sizes: MemorySizes, states: Mapping[Tenant, float]
) -> dict[Tenant, float]:
    """Return the bytes by tenant at the moment with the highest total."""
    return max(
        (sizes_by_tenant for _, sizes_by_tenant in list_moments(skeleton, policy, sizes)),
        key=lambda sizes_by_tenant: sum(sizes_by_tenant.values()),
    )


def _predict_tenant(
    name: str, measured: int, before: float | None, after: float | None, key: str
) -> PredictedFigure:
    if before is None or after is None:
        return PredictedFigure(
            name=name, measured=measured, modelled=None, predicted=measured, low=measured, high=measured,
            error_ratio=None, assumption=key,
        )  # fmt: skip
    predicted = max(0, round(measured + after - before))
    half_range = round(abs(measured - before) + _EFFECT_ERROR_RATIO * abs(after - before))
    if key == ASSUMED_STATES:
        half_range = round(abs(measured - before))
    return PredictedFigure(
        name=name,
        measured=measured,
        modelled=round(before),
        predicted=predicted,
        low=max(0, predicted - half_range),
        high=predicted + half_range,
        error_ratio=before / measured - 1 if measured else None,
        assumption=key,
    )


def _predict_peak(measured: int, modelled: int, predicted: int) -> PredictedFigure:
    half_range = round(abs(modelled - measured) + _EFFECT_ERROR_RATIO * abs(predicted - measured))
    return PredictedFigure(
        name="peak_bytes",
        measured=measured,
        modelled=modelled,
        predicted=predicted,
        low=max(0, predicted - half_range),
        high=predicted + half_range,
        error_ratio=modelled / measured - 1 if measured else None,
        assumption=ASSUMED_PEAK,
    )
