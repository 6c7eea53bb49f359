"""Predict the changed step by terms of the ledger, with ranges and gaps.

    predicted = measured + (model of the changed step - model of this step)
    half range = noise of this run's steps + max(error of the model on this run + a tenth of the effect,
                 minimum ratio of the kind of change * measured step)

The minimum ratios are a judgement: on jobs whose changed version was also simulated or recorded, predictions
for another stage were off by up to 8 % of the step and those for other changes by up to 3 %, which the
model's error on the run does not show. The range does not cover the difference between two recordings of the
same job.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.plan import Change, PredictedFigure
from zprof.model.time import LEDGER_TERMS
from zprof.step.from_units import assumptions
from zprof.step.from_units.calibration import CalibratedModel, calibrate
from zprof.step.from_units.changes import change_passes, change_policy, describe_change
from zprof.step.from_units.unit_replay import ReplayedSteps, replay_steps
from zprof.step.links import Link
from zprof.step.schedule import build_program

#: Share of a change's effect that is added to the range, on top of the model's error on the run.
TRUST_RATIO = 0.1
#: Minimum half range as a share of the measured step (see the module docstring).
MIN_STAGE_RANGE_RATIO = 0.08
MIN_RANGE_RATIO = 0.03
#: Latency scaled beyond this factor is examined separately: part of it may not scale at all.
_FAR_RATIO = 4.0
#: A model that misses the measured step by more than this does not reproduce the run.
REPRODUCES_RATIO = 0.15
_WALL = "wall_ns"
_WAIT, _TRANSFER, _COMPUTE, _IDLE = "exposed_wait_ns", "exposed_transfer_ns", "compute_ns", "idle_ns"
_TERM_ASSUMPTIONS = {
    _WALL: assumptions.WALL,
    _COMPUTE: assumptions.COMPUTE,
    _WAIT: assumptions.EXPOSED,
    _TRANSFER: assumptions.EXPOSED,
    _IDLE: assumptions.IDLE,
}


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
    """Return the cases that cannot be excluded; the range of a prediction covers them."""
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
    """Return True if the run does not show if stage 1 or 2 hides the gather of new parameters."""
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
    """Return a gap with the reason why a part of the change has no effect."""
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
    """Calibrate the model of a run, replay it unchanged, and compare it with the measurement.

    This is done once per analysis. The result is a gap if the run does not record enough.
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
    """Return ``wall_ns`` and the terms of the changed step, which sum to it."""
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
        assumption=_TERM_ASSUMPTIONS.get(name, assumptions.COMPUTE),
    )


def saving_range_ns(step: Sequence[PredictedFigure]) -> tuple[int, int] | None:
    """Return the lowest and highest saving per step, in ns; None if the wall time is not predicted."""
    wall = next((row for row in step if row.name == "wall_ns"), None)
    if wall is None or wall.measured is None or wall.low is None or wall.high is None:
        return None
    return wall.measured - wall.high, wall.measured - wall.low


def predict_gain_ns(analysis: RunAnalysis, change: Change) -> float | None:
    """Return the predicted saving per step in ns, negative if the changed step is longer.

    None if the run cannot be modelled, or if the model misses its measured step by more than 15 %.
    """
    base = model_run(analysis)
    if isinstance(base, Gap) or not base.reproduces:
        return None
    wall = next((row for row in predict_step(base, change) if row.name == _WALL), None)
    return None if wall is None else float((wall.measured or 0) - (wall.predicted or 0))
