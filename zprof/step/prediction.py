"""Check a change to a run, apply it to the run's model, and predict the changed step with ranges and gaps.

The prediction is by terms of the ledger:

    predicted = measured + (model of the changed step - model of this step)
    half range = noise of this run's steps + max(error of the model on this run + a tenth of the effect,
                 minimum ratio of the kind of change * measured step)

The minimum ratios are a judgement: for jobs whose changed version was also simulated or recorded, predictions
of another stage were off by up to 8 % of the step, and predictions of other changes by up to 3 %, which the
model's error on the run does not show. The range does not cover the difference between two recordings of the
same job.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.base.errors import BadInput
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.plan import Assumption, Change, PredictedFigure
from zprof.model.time import LEDGER_TERMS
from zprof.step.links import Link
from zprof.step.schedule import EnginePolicy, Pass, PassPhase, UnitSize, build_program
from zprof.step.tasks import Floats
from zprof.step.unit_calibration import CalibratedModel, calibrate
from zprof.step.unit_replay import PassWork, ReplayedSteps, StepPasses, replay_steps
from zprof.step.units import DEFAULT_IN_FLIGHT

#: Share of a change's effect that is added to the range, on top of the model's error on the run.
TRUST_RATIO = 0.1
#: Minimum half range as a share of the measured step (see the module docstring).
MIN_STAGE_RANGE_RATIO = 0.08
MIN_RANGE_RATIO = 0.03
#: Latency scaled beyond this factor is treated separately, because part of it may not scale at all.
_FAR_RATIO = 4.0
#: A model that misses the measured step by more than this does not reproduce the run.
REPRODUCES_RATIO = 0.15
_WALL = "wall_ns"
_WAIT, _TRANSFER, _COMPUTE, _IDLE = "exposed_wait_ns", "exposed_transfer_ns", "compute_ns", "idle_ns"
ASSUMED_WALL = "whatif.wall"
ASSUMED_COMPUTE = "whatif.compute"
ASSUMED_EXPOSED = "whatif.exposed"
ASSUMED_IDLE = "whatif.idle"
ASSUMED_STATES = "whatif.states"
ASSUMED_GRADIENTS = "whatif.gradients"
ASSUMED_BUFFERS = "whatif.buffers"
ASSUMED_KEPT = "whatif.kept"
ASSUMED_PEAK = "whatif.peak"
_TERM_ASSUMPTIONS = {
    _WALL: ASSUMED_WALL,
    _COMPUTE: ASSUMED_COMPUTE,
    _WAIT: ASSUMED_EXPOSED,
    _TRANSFER: ASSUMED_EXPOSED,
    _IDLE: ASSUMED_IDLE,
}
#: The formula and the source of each predicted figure.
ASSUMPTIONS: Mapping[str, Assumption] = {
    ASSUMED_WALL: Assumption(
        formula="measured + (model of the changed step - model of this step); the model replays "
        "the recorded steps of all ranks: work as recorded, messages of latency + bytes / bandwidth; "
        "latency is the entire cost of a message apart from its bytes, including software and threads",
        source="the run, and the order in which the reference engine gathers, waits and reduces",
        deviation="other engines are assumed to order their passes in the same way; a range includes the "
        "noise of this run and the model's uncertainty (at least 8 % of the step for another stage, 3 % for "
        "other changes), not the difference between two recordings of the same job",
    ),
    ASSUMED_COMPUTE: Assumption(
        formula="as recorded; equal on all ranks if the change evens them out",
        source="the run",
        deviation="kernels are assumed to be equally fast when overlapped with other messages",
    ),
    ASSUMED_EXPOSED: Assumption(
        formula="time in which a rank waits for a message: wait until the last rank arrives, transfer after "
        "that; a link carries one message at a time",
        source="latency and bandwidth of each kind of message in the run",
    ),
    ASSUMED_IDLE: Assumption(
        formula="wall - compute - exposed time - copies - unexplained",
        source="terms of the ledger add up to the step",
    ),
    ASSUMED_STATES: Assumption(
        formula="(p, k) psi / N if the stage shards them, else psi, with padding and step counters",
        source="arXiv 1910.02054, section 5, figure 1",
    ),
    ASSUMED_GRADIENTS: Assumption(
        formula="unsharded gradients in stages 0 and 1; from stage 2 on, at the time of the peak, the shards "
        "of reduced units and the unsharded gradients of the unit in its backward",
        source="arXiv 1910.02054, section 5, and the reference engine's schedule",
    ),
    ASSUMED_BUFFERS: Assumption(
        formula="units gathered at the time of the peak (stage 3: the root, the unit, prefetched units), and "
        "reductions in flight; measured + (model of the changed step - model of this step)",
        source="the reference engine's schedule",
        deviation="gloo needs scratch memory during a gather: if units stay gathered, no gather runs in the "
        "backward, so keeping them may lower the peak",
    ),
    ASSUMED_KEPT: Assumption(
        formula="as recorded; activations in proportion to the share still live at the time of the peak",
        source="the run",
    ),
    ASSUMED_PEAK: Assumption(
        formula="the highest sum of the tenants over the moments of a step",
        source="the run, arXiv 1910.02054, section 5",
    ),
}
#: Above this difference in the ranks' work, even ranks are one of the usual changes.
_SKEW_RATIO = 0.03
_KEEPS = ("none", "last", "all")
_HINT = "zprof whatif --help shows what can be changed"


class WhatIfCase(Struct, frozen=True, kw_only=True):
    """A change and the link on which it is replayed."""

    change: Change
    link: Link


def has_effect(model: CalibratedModel, change: Change) -> bool:
    """Return True if the change has any effect on the model."""
    same_link = (
        (change.bandwidth_ratio or 1.0) == 1.0
        and change.latency_ratio in (None, 1.0)
        and change.shard_ranks in (None, model.link.group_size)
    )
    same_policy = change_policy(model.policy, change) == model.policy
    return not (same_link and same_policy and change_passes(model, change) is model.skeleton)


def min_range_ratio(model: CalibratedModel, change: Change) -> float:
    """Return the minimum half range as a share of the measured step."""
    if not has_effect(model, change):
        return 0.0
    other_stage = change.stage is not None and change.stage != model.policy.stage
    return MIN_STAGE_RANGE_RATIO if other_stage else MIN_RANGE_RATIO


def likely_cases(model: CalibratedModel, change: Change) -> tuple[WhatIfCase, ...]:
    """Return the equally likely interpretations of a change; the prediction is their mean."""
    if not is_gather_unknown(model, change):
        return (WhatIfCase(change=change, link=model.link),)
    return tuple(
        WhatIfCase(change=replace(change, overlap_gather=hidden), link=model.link) for hidden in (True, False)
    )


def outer_cases(model: CalibratedModel, change: Change) -> tuple[WhatIfCase, ...]:
    """Return the cases that cannot be excluded; a prediction's range covers them."""
    link, found = model.link, []
    scales = change.bandwidth_ratio is not None or change.latency_ratio is not None
    if scales and not link.is_known:
        found += [WhatIfCase(change=change, link=link.with_latency_share(share)) for share in (0.0, 1.0)]
    if is_far_latency(change):
        found.append(WhatIfCase(change=replace(change, latency_ratio=1.0), link=link))
        found.append(WhatIfCase(change=change, link=link.with_most_latency()))
    return tuple(found)


def is_far_latency(change: Change) -> bool:
    """Return True if latency is scaled so far that its unscaled part matters."""
    ratio = change.latency_ratio
    return ratio is not None and not 1 / _FAR_RATIO <= ratio <= _FAR_RATIO


def is_gather_unknown(model: CalibratedModel, change: Change) -> bool:
    """Return True if the run does not show whether stage 1 or 2 hides the gather of new parameters."""
    stage = model.policy.stage if change.stage is None else change.stage
    is_shown = not model.policy.updates_first or model.policy.stage in (1, 2)
    return stage in (1, 2) and not is_shown and change.overlap_gather is None


def find_change_gaps(model: CalibratedModel, changes: Sequence[Change]) -> list[Gap]:
    """Return the gaps of the requested changes: open questions, and changes without effect."""
    found = []
    if any(is_gather_unknown(model, change) for change in changes):
        found.append(make_gap("gather_overlap_unknown"))
    if any(is_far_latency(change) for change in changes):
        found.append(make_gap("link_latency_unknown"))
    return found + [gap for change in changes if (gap := _make_no_effect_gap(model, change))]


def _make_no_effect_gap(model: CalibratedModel, change: Change) -> Gap | None:
    """Return a gap that explains why a part of the change has no effect."""
    stage = model.policy.stage if change.stage is None else change.stage
    changes_gathers = change.prefetch is not None or change.keep_after_forward is not None
    units, key = len(model.skeleton.units), ""
    if change.overlap_gather is not None and stage not in (1, 2):
        key = "no_effect_without_update_gather"
    elif changes_gathers and stage != 3:
        key = "no_effect_without_unit_gathers"
    elif change.element_bytes_reduced is not None and not model.reduced_element_bytes:
        key = "no_effect_without_element_size"
    elif change.units_merged is not None and change.units_merged > units:
        key = "no_effect_beyond_units"
    elif change != Change() and not has_effect(model, change):
        key = "no_effect_of_same_setting"
    return make_gap(key, change=describe_change(change), stage=stage, units=units) if key else None


class ModelledRun(Struct, frozen=True, kw_only=True):
    """The measured step and its modelled replay, as means over ranks and steps."""

    model: CalibratedModel
    measured: Mapping[str, float]
    modelled: Mapping[str, float]
    noise_ns: float
    played: ReplayedSteps

    @property
    def error_ratio(self) -> float:
        """Relative error of the modelled wall time."""
        return self.modelled[_WALL] / self.measured[_WALL] - 1 if self.measured[_WALL] else 0.0

    @property
    def reproduces(self) -> bool:
        """True if the model is within 15 % of the measured step."""
        return abs(self.error_ratio) <= REPRODUCES_RATIO


def model_run(analysis: RunAnalysis) -> ModelledRun | Gap:
    """Calibrate a run's model, replay it unchanged, and compare it with the measurement.

    Done once per analysis. The result is a gap if the run does not record enough.
    """
    return analysis.compute_once(_model_run)


def _model_run(analysis: RunAnalysis) -> ModelledRun | Gap:
    model = calibrate(analysis)
    if isinstance(model, Gap):
        return model
    rows = analysis.steps
    is_modelled = np.isin(rows.ints("rank"), model.skeleton.ranks)
    is_modelled &= np.isin(rows.ints("step"), model.skeleton.steps)
    measured = {name: float(rows.ints(name).mean()) for name in (_WALL, *LEDGER_TERMS)}
    sampled = {name: float(rows.ints(name)[is_modelled].mean()) for name in (_WALL, *LEDGER_TERMS)}
    played = _replay_change(model, Change(), model.link)
    # the modelled ranks and steps are a sample: their difference from the mean of all is not a model error
    modelled = {
        name: value + measured[name] - sampled[name]
        for name, value in _compute_modelled_terms(model, played, played, sampled).items()
    }
    noise = float(analysis.time.step_noise_ns or 0)
    return ModelledRun(model=model, measured=measured, modelled=modelled, noise_ns=noise, played=played)


def predict_step(base: ModelledRun, change: Change) -> tuple[PredictedFigure, ...]:
    """Return ``wall_ns`` of the changed step, and the terms that sum to it."""
    likely = [_compute_case_delta(base, case) for case in likely_cases(base.model, change)]
    outer = [_compute_case_delta(base, case) for case in outer_cases(base.model, change)]
    delta = {name: sum(each[name] for each in likely) / len(likely) for name in likely[0]}
    wall = base.measured[_WALL] + delta[_WALL]
    walls = [
        (base.measured[_WALL] + each[_WALL], _compute_half_range(base, change, each[_WALL]))
        for each in likely + outer
    ]
    low, high = min(ns - half for ns, half in walls), max(ns + half for ns, half in walls)
    rows = [_make_row(_WALL, base, wall, low, high)]
    below, above = (min(ns for ns, _ in walls) - wall, max(ns for ns, _ in walls) - wall)
    terms = _balance_terms(base, delta, wall)
    for name in LEDGER_TERMS:
        uncertainty = abs(base.modelled[name] - base.measured[name]) + TRUST_RATIO * abs(delta.get(name, 0.0))
        min_ns, max_ns = (
            terms[name] - uncertainty + min(0.0, below),
            terms[name] + uncertainty + max(0.0, above),
        )
        rows.append(_make_row(name, base, terms[name], min_ns, max_ns))
    return tuple(rows)


def _compute_half_range(base: ModelledRun, change: Change, delta: float) -> float:
    if not has_effect(base.model, change):
        return base.noise_ns
    error_ns = abs(base.modelled[_WALL] - base.measured[_WALL])
    error_ns = error_ns if base.reproduces else 2 * error_ns
    min_half_range = min_range_ratio(base.model, change) * base.measured[_WALL]
    return base.noise_ns + max(error_ns + TRUST_RATIO * abs(delta), min_half_range)


def _compute_case_delta(base: ModelledRun, case: WhatIfCase) -> dict[str, float]:
    before = base.played
    if case.link is not base.model.link:
        before = _replay_change(base.model, Change(), case.link)
    after = _replay_change(base.model, case.change, case.link)
    return {
        _WALL: float(after.wall_ns.mean() - before.wall_ns.mean()),
        _WAIT: float(after.wait_ns.mean() - before.wait_ns.mean()),
        _TRANSFER: float(after.transfer_ns.mean() - before.transfer_ns.mean()),
        _COMPUTE: float(after.work_ns.mean() - before.work_ns.mean()),
    }


def _replay_change(model: CalibratedModel, change: Change, link: Link) -> ReplayedSteps:
    skeleton = change_passes(model, change)
    ops = build_program(skeleton.units, skeleton.passes, change_policy(model.policy, change))
    return replay_steps(ops, skeleton.work, link.changed(change), model.costs)


def _compute_modelled_terms(
    model: CalibratedModel, played: ReplayedSteps, base: ReplayedSteps, sampled: Mapping[str, float]
) -> dict[str, float]:
    """Return modelled terms: wait and transfer from the replay, idle as the remainder, others as measured."""
    wall = float(played.wall_ns.mean())
    terms = {name: sampled[name] for name in LEDGER_TERMS}
    terms[_WAIT], terms[_TRANSFER] = float(played.wait_ns.mean()), float(played.transfer_ns.mean())
    terms[_IDLE] = 0.0
    terms[_IDLE] = max(0.0, wall - sum(terms.values()))
    return {_WALL: wall, **terms}


def _balance_terms(base: ModelledRun, delta: Mapping[str, float], wall: float) -> dict[str, float]:
    """Return non-negative terms that sum to the wall; idle takes the remainder."""
    terms = {name: max(0.0, base.measured[name] + delta.get(name, 0.0)) for name in LEDGER_TERMS}
    remainder = wall - sum(ns for name, ns in terms.items() if name != _IDLE)
    if remainder >= 0:
        return terms | {_IDLE: remainder}
    terms[_IDLE] = 0.0
    total = sum(terms.values())
    return {name: ns * wall / total if total else 0.0 for name, ns in terms.items()}


def _make_row(name: str, base: ModelledRun, value: float, low: float, high: float) -> PredictedFigure:
    measured, modelled = base.measured[name], base.modelled[name]
    return PredictedFigure(
        name=name,
        measured=round(measured),
        modelled=round(modelled),
        predicted=round(value),
        low=max(0, round(low)),
        high=round(high),
        error_ratio=modelled / measured - 1 if measured else None,
        assumption=_TERM_ASSUMPTIONS.get(name, ASSUMED_COMPUTE),
    )


def saving_range_ns(step: Sequence[PredictedFigure]) -> tuple[int, int] | None:
    """Return the lowest and highest saving per step, in ns; None if the wall time is not predicted."""
    wall = next((row for row in step if row.name == "wall_ns"), None)
    if wall is None or wall.measured is None or wall.low is None or wall.high is None:
        return None
    return wall.measured - wall.high, wall.measured - wall.low


def predict_gain_ns(analysis: RunAnalysis, change: Change) -> float | None:
    """Return the predicted saving per step in ns, negative if the changed step is longer.

    None if the run cannot be modelled, or if the model misses the measured step by more than 15 %.
    """
    base = model_run(analysis)
    if isinstance(base, Gap) or not base.reproduces:
        return None
    wall = next((row for row in predict_step(base, change) if row.name == _WALL), None)
    return None if wall is None else float((wall.measured or 0) - (wall.predicted or 0))


def change_policy(policy: EnginePolicy, change: Change) -> EnginePolicy:
    """Return the engine policy after a change."""
    stage = policy.stage if change.stage is None else change.stage
    shards_gradients = policy.stage >= 2
    ahead = policy.prefetch if policy.stage == 3 or stage != 3 else 1
    # The reductions in flight; a run below stage 2 does not show them, so use the default.
    return EnginePolicy(
        stage=stage,
        prefetch=ahead if change.prefetch is None else change.prefetch,
        keep=policy.keep if change.keep_after_forward is None else change.keep_after_forward,
        overlap_reduce=_value_or(change.overlap_reduce, policy.overlap_reduce),
        overlap_gather=_value_or(change.overlap_gather, policy.overlap_gather),
        in_flight=policy.in_flight
        if shards_gradients
        else (DEFAULT_IN_FLIGHT if stage >= 2 else policy.in_flight),
        updates_first=policy.updates_first,
    )


def _value_or(value: bool | None, default: bool) -> bool:
    return default if value is None else value


def change_passes(model: CalibratedModel, change: Change) -> StepPasses:
    """Return passes, work and message bytes after a change."""
    skeleton = model.skeleton
    if change.stage is not None:
        skeleton = _change_reductions(skeleton, model.policy.stage, change.stage)
    if change.micro_batches is not None and change.micro_batches != skeleton.micro_batches:
        # Split the same samples per step into ``count`` micro-batches, and the work of each pass with them.
        old, size = skeleton.micro_batches, len(skeleton.passes) // skeleton.micro_batches
        first = skeleton.passes[-size:]
        each_reduces = all(
            any(each.reduces for each in skeleton.passes if each.micro_batch == number)
            for number in range(old)
        )
        passes = tuple(
            replace(
                each,
                micro_batch=number,
                reduces=each.reduces and (each_reduces or number == change.micro_batches - 1),
            )
            for number in range(change.micro_batches)
            for each in first
        )
        mean = skeleton.work.passes.reshape(old, size, *skeleton.work.passes.shape[1:]).mean(axis=0)
        work = replace(
            skeleton.work, passes=np.concatenate([mean * old / change.micro_batches] * change.micro_batches)
        )
        skeleton = replace(skeleton, passes=passes, work=work, micro_batches=change.micro_batches)
    if change.units_merged is not None and change.units_merged > 1:
        skeleton = _merge_units(skeleton, change.units_merged)
    if change.element_bytes_reduced is not None and model.reduced_element_bytes:
        times = change.element_bytes_reduced / model.reduced_element_bytes
        units = tuple(replace(unit, reduce_bytes=unit.reduce_bytes * times) for unit in skeleton.units)
        skeleton = replace(skeleton, units=units)
    if change.even:
        skeleton = replace(skeleton, work=_level_ranks(skeleton.work))
    return skeleton


def _change_reductions(skeleton: StepPasses, old: int, new: int) -> StepPasses:
    """Move reductions: with accumulation, stages 0 and 1 reduce in the last micro-batch, 2 and 3 in each."""
    if (old >= 2) == (new >= 2) or skeleton.micro_batches == 1:
        return skeleton
    last = skeleton.micro_batches - 1
    ends = {id(each) for each in skeleton.passes if _completes_gradients(each, skeleton)}
    passes = tuple(
        replace(each, reduces=id(each) in ends and (new >= 2 or each.micro_batch == last))
        for each in skeleton.passes
    )
    return replace(skeleton, passes=passes)


def _completes_gradients(each: Pass, skeleton: StepPasses) -> bool:
    """Return True if the unit's gradients are complete after this pass."""
    encloses = skeleton.units[each.unit].encloses
    return each.phase is PassPhase.BACKWARD and (not encloses or not each.needs)


def _merge_units(skeleton: StepPasses, count: int) -> StepPasses:
    """Merge each ``count`` neighbouring units into one; units that enclose others stay separate."""
    inner = [index for index, unit in enumerate(skeleton.units) if not unit.encloses]
    enclosing = [index for index, unit in enumerate(skeleton.units) if unit.encloses]
    groups = [[index] for index in enclosing]
    groups += [inner[start : start + count] for start in range(0, len(inner), count)]
    group_of_unit = {index: number for number, group in enumerate(groups) for index in group}
    units = tuple(_merge_sizes([skeleton.units[index] for index in group]) for group in groups)
    passes: list[Pass] = []
    work: list[Floats] = []
    for each, ns in zip(skeleton.passes, skeleton.work.passes, strict=True):
        merged = replace(each, unit=group_of_unit[each.unit])
        if passes and passes[-1] == merged and not units[merged.unit].encloses:
            work[-1] = work[-1] + ns
        else:
            passes.append(merged)
            work.append(ns)
    return replace(
        skeleton, units=units, passes=tuple(passes), work=replace(skeleton.work, passes=np.array(work))
    )


def _merge_sizes(units: list[UnitSize]) -> UnitSize:
    return UnitSize(
        name=units[0].name if len(units) == 1 else f"{units[0].name} to {units[-1].name}",
        gather_bytes=sum(unit.gather_bytes for unit in units),
        reduce_bytes=sum(unit.reduce_bytes for unit in units),
        encloses=units[0].encloses,
    )


def _level_ranks(work: PassWork) -> PassWork:
    """Give every rank the median rank's work."""

    def median(values: Floats) -> Floats:
        medians = np.median(values, axis=-1, keepdims=True)
        return np.broadcast_to(medians, values.shape).copy()

    return PassWork(
        head=median(work.head), passes=median(work.passes), tail=median(work.tail), between=work.between
    )


def usual_changes(model: CalibratedModel) -> tuple[Change, ...]:
    """Return the usual changes: stages, prefetch, kept units, bandwidth and, if skewed, even ranks."""
    policy, summary = model.policy, model.summary
    found = [Change(stage=stage) for stage in range(4) if stage != policy.stage]
    if policy.stage == 3:
        found += [Change(prefetch=depth) for depth in (0, 1, 2) if depth != policy.prefetch]
        found += [Change(keep_after_forward=keep) for keep in ("last", "all") if keep != policy.keep]
    found += [Change(bandwidth_ratio=2.0), Change(bandwidth_ratio=0.5)]
    busy = summary.forward_ns + summary.backward_ns
    if summary.skew_ns > _SKEW_RATIO * max(1, busy):
        found.append(Change(even=True))
    return tuple(found)


def describe_change(change: Change) -> str:
    """Return a change as a phrase, such as ``stage 2, prefetch 2, bandwidth x2``."""
    plural = "" if change.micro_batches in (None, 1) else "es"
    parts = [
        _format_part("stage {}", change.stage),
        _format_part("prefetch {}", change.prefetch),
        _format_part("keep {} after the forward", change.keep_after_forward),
        _describe_switch("reductions", change.overlap_reduce),
        _describe_switch("gathers of new parameters", change.overlap_gather),
        _format_part("bandwidth x{:g}", change.bandwidth_ratio),
        _format_part("latency x{:g}", change.latency_ratio),
        "no units merged"
        if change.units_merged == 1
        else _format_part("{} units merged into one", change.units_merged),
        # "the same samples", because micro-batches of a plan add samples
        _format_part("the same samples in {} micro-batch", change.micro_batches) + plural,
        _format_part("reduced gradients of {} bytes per element", change.element_bytes_reduced),
        "" if not change.even else "even ranks",
        _format_part("sharded over {} ranks", change.shard_ranks),
    ]
    return ", ".join(text for text in parts if text) or "no change"


def _format_part(text: str, value: object) -> str:
    return "" if value is None else text.format(value)


def _describe_switch(message: str, on: bool | None) -> str:
    return "" if on is None else f"{message} {'overlapped with compute' if on else 'awaited immediately'}"


def refuse_change(change: Change) -> None:
    """Reject a change with an impossible value.

    Raises:
        BadInput: a value is out of range.
    """
    for is_wrong, message in (
        (change.stage is not None and change.stage not in range(4), f"stage {change.stage}: 0 to 3"),
        (_is_below(change.prefetch, 0), f"prefetch {change.prefetch}: 0 or more"),
        (
            change.keep_after_forward not in (None, *_KEEPS),
            f"keep {change.keep_after_forward}: none, last, all",
        ),
        (
            (change.bandwidth_ratio is not None and not 0 < change.bandwidth_ratio < float("inf")),
            f"bandwidth x{change.bandwidth_ratio}: above 0",
        ),
        (_is_below(change.latency_ratio, 0), f"latency x{change.latency_ratio}: 0 or more"),
        (_is_below(change.units_merged, 1), f"units merged {change.units_merged}: 1 or more"),
        (_is_below(change.micro_batches, 1), f"micro-batches {change.micro_batches}: 1 or more"),
        (
            _is_below(change.element_bytes_reduced, 1),
            f"element bytes {change.element_bytes_reduced}: 1 or more",
        ),
        (_is_below(change.shard_ranks, 2), f"shard ranks {change.shard_ranks}: 2 or more"),
    ):
        if is_wrong:
            raise BadInput(message, hint=_HINT)


def refuse_merging(change: Change, units: int | None) -> None:
    """Reject merging more units than the run has; ``units`` is None if unknown.

    Raises:
        BadInput: there are fewer units.
    """
    if units is not None and change.units_merged is not None and change.units_merged > units:
        raise BadInput(f"units merged {change.units_merged}: the run has {units} units", hint=_HINT)


def _is_below(value: float | None, minimum: float) -> bool:
    return value is not None and not value >= minimum
