"""The step of the changed run by terms of the ledger.

    predicted = measured + (model of the changed step - model of this step)

The range holds the noise of this run's steps, the model's error on it, and what the run leaves open of the
change (:mod:`zprof.planner.whatif.doubt`); not what two recordings of one job differ by.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.planning.whatif import Change, Predicted
from zprof.model.time import LEDGER_TERMS
from zprof.planner.whatif import assumptions
from zprof.planner.whatif.calibrate import Calibrated
from zprof.planner.whatif.changes import changed_habits, changed_skeleton
from zprof.planner.whatif.doubt import (
    TRUST_RATIO,
    Case,
    changes_something,
    floor_ratio,
    likely_cases,
    outer_cases,
)
from zprof.planner.whatif.links import Link
from zprof.planner.whatif.machine import Played, play
from zprof.planner.whatif.program import program_of

#: A model that misses the measured step by more does not reproduce the run.
REPRODUCES_RATIO = 0.15
_WALL = "wall_ns"
_WAIT, _TRANSFER, _COMPUTE, _IDLE = "exposed_wait_ns", "exposed_transfer_ns", "compute_ns", "idle_ns"
_ASSUMED = {
    _WALL: assumptions.WALL,
    _COMPUTE: assumptions.COMPUTE,
    _WAIT: assumptions.EXPOSED,
    _TRANSFER: assumptions.EXPOSED,
    _IDLE: assumptions.IDLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The step as it was measured, and as the model plays it: means over ranks and steps."""

    model: Calibrated
    measured: Mapping[str, float]
    modelled: Mapping[str, float]
    noise_ns: float
    played: Played

    @property
    def error_ratio(self) -> float:
        """Of the modelled wall."""
        return self.modelled[_WALL] / self.measured[_WALL] - 1 if self.measured[_WALL] else 0.0

    @property
    def reproduces(self) -> bool:
        """Whether the model comes near the measured step."""
        return abs(self.error_ratio) <= REPRODUCES_RATIO


def base_of(analysis: RunAnalysis, model: Calibrated) -> Base:
    """Play the run as it was."""
    mine = analysis.steps[analysis.steps["rank"].isin(model.skeleton.ranks)]
    mine = mine[mine["step"].isin(model.skeleton.steps)]
    rows = analysis.steps
    measured = {name: float(rows[name].mean()) for name in (_WALL, *LEDGER_TERMS)}
    sampled = {name: float(mine[name].mean()) for name in (_WALL, *LEDGER_TERMS)}
    played = _played(model, Change(), model.link)
    # the modelled ranks and steps are some of all: what they differ by is no error of the model
    modelled = {
        name: value + measured[name] - sampled[name]
        for name, value in _terms(model, played, played, sampled).items()
    }
    noise = float(analysis.time.step_noise_ns or 0)
    return Base(model=model, measured=measured, modelled=modelled, noise_ns=noise, played=played)


def predicted_step(base: Base, change: Change) -> tuple[Predicted, ...]:
    """``wall_ns`` and the terms of the changed step, which sum to it."""
    likely = [_delta(base, case) for case in likely_cases(base.model, change)]
    outer = [_delta(base, case) for case in outer_cases(base.model, change)]
    delta = {name: sum(each[name] for each in likely) / len(likely) for name in likely[0]}
    wall = base.measured[_WALL] + delta[_WALL]
    walls = [
        (base.measured[_WALL] + each[_WALL], _half(base, change, each[_WALL])) for each in likely + outer
    ]
    low, high = min(ns - half for ns, half in walls), max(ns + half for ns, half in walls)
    rows = [_predicted(_WALL, base, wall, low, high)]
    below, above = (min(ns for ns, _ in walls) - wall, max(ns for ns, _ in walls) - wall)
    terms = _summing(base, delta, wall)
    for name in LEDGER_TERMS:
        doubt = abs(base.modelled[name] - base.measured[name]) + TRUST_RATIO * abs(delta.get(name, 0.0))
        least, most = terms[name] - doubt + min(0.0, below), terms[name] + doubt + max(0.0, above)
        rows.append(_predicted(name, base, terms[name], least, most))
    return tuple(rows)


def _half(base: Base, change: Change, delta: float) -> float:
    if not changes_something(base.model, change):
        return base.noise_ns
    missed = abs(base.modelled[_WALL] - base.measured[_WALL])
    missed = missed if base.reproduces else 2 * missed
    floor = floor_ratio(base.model, change) * base.measured[_WALL]
    return base.noise_ns + max(missed + TRUST_RATIO * abs(delta), floor)


def _delta(base: Base, case: Case) -> dict[str, float]:
    before = base.played
    if case.link is not base.model.link:
        before = _played(base.model, Change(), case.link)
    after = _played(base.model, case.change, case.link)
    return {
        _WALL: float(after.wall_ns.mean() - before.wall_ns.mean()),
        _WAIT: float(after.wait_ns.mean() - before.wait_ns.mean()),
        _TRANSFER: float(after.transfer_ns.mean() - before.transfer_ns.mean()),
        _COMPUTE: float(after.work_ns.mean() - before.work_ns.mean()),
    }


def _played(model: Calibrated, change: Change, link: Link) -> Played:
    skeleton = changed_skeleton(model, change)
    ops = program_of(skeleton, changed_habits(model.habits, change))
    return play(ops, skeleton.work, link.changed(change), model.costs)


def _terms(model: Calibrated, played: Played, base: Played, sampled: Mapping[str, float]) -> dict[str, float]:
    """Modelled terms: waiting and transfer as played, idle what is left, the rest as measured."""
    wall = float(played.wall_ns.mean())
    terms = {name: sampled[name] for name in LEDGER_TERMS}
    terms[_WAIT], terms[_TRANSFER] = float(played.wait_ns.mean()), float(played.transfer_ns.mean())
    terms[_IDLE] = 0.0
    terms[_IDLE] = max(0.0, wall - sum(terms.values()))
    return {_WALL: wall, **terms}


def _summing(base: Base, delta: Mapping[str, float], wall: float) -> dict[str, float]:
    """Terms that are not negative and sum to the wall; idle takes what is left."""
    terms = {name: max(0.0, base.measured[name] + delta.get(name, 0.0)) for name in LEDGER_TERMS}
    rest = wall - sum(ns for name, ns in terms.items() if name != _IDLE)
    if rest >= 0:
        return terms | {_IDLE: rest}
    terms[_IDLE] = 0.0
    whole = sum(terms.values())
    return {name: ns * wall / whole if whole else 0.0 for name, ns in terms.items()}


def _predicted(name: str, base: Base, value: float, low: float, high: float) -> Predicted:
    measured, modelled = base.measured[name], base.modelled[name]
    return Predicted(
        name=name,
        measured=round(measured),
        modelled=round(modelled),
        predicted=round(value),
        low=max(0, round(low)),
        high=round(high),
        error_ratio=modelled / measured - 1 if measured else None,
        assumption=_ASSUMED.get(name, assumptions.COMPUTE),
    )
