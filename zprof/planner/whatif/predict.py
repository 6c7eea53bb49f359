"""The step of the changed run by terms of the ledger.

    predicted = measured + (model of the changed step - model of this step)

The range: the model's error on this run, the noise of its steps, a tenth of what the change makes, and what
is unknown of the link (latency and bandwidth where they could not be told apart).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.planning.whatif import Change, Predicted
from zprof.model.time import LEDGER_TERMS
from zprof.planner.whatif import assumptions
from zprof.planner.whatif.calibrate import Calibrated
from zprof.planner.whatif.changes import changed_habits, changed_skeleton
from zprof.planner.whatif.links import Link
from zprof.planner.whatif.machine import Played, play
from zprof.planner.whatif.program import program_of

#: A model that misses the measured step by more does not reproduce the run.
REPRODUCES_RATIO = 0.15
#: How well the model of a change is trusted, beyond its error on the run.
_TRUST_RATIO = 0.1
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
    deltas = [_delta(base, change, link) for link in _links(base.model.link, change)]
    wall = base.measured[_WALL] + deltas[0][_WALL]
    lowest = min(delta[_WALL] for delta in deltas) - deltas[0][_WALL]
    highest = max(delta[_WALL] for delta in deltas) - deltas[0][_WALL]
    half = _half(base, deltas[0][_WALL])
    rows = [_predicted(_WALL, base, wall, wall - half + lowest, wall + half + highest)]
    terms = _summing(base, deltas[0], wall)
    for name in LEDGER_TERMS:
        doubt = abs(base.modelled[name] - base.measured[name]) + _TRUST_RATIO * abs(deltas[0].get(name, 0.0))
        low, high = terms[name] - doubt + min(0.0, lowest), terms[name] + doubt + max(0.0, highest)
        rows.append(_predicted(name, base, terms[name], low, high))
    return tuple(rows)


def _half(base: Base, delta: float) -> float:
    missed = abs(base.modelled[_WALL] - base.measured[_WALL])
    missed = missed if base.reproduces else 2 * missed
    if delta == 0:
        return base.noise_ns
    return base.noise_ns + missed + _TRUST_RATIO * abs(delta)


def _links(link: Link, change: Change) -> list[Link]:
    """The link, and where it is not known what of a message is latency, both ends."""
    scales = change.bandwidth_ratio is not None or change.latency_ratio is not None
    if link.is_known or not scales:
        return [link]
    return [link, link.with_latency_share(0.0), link.with_latency_share(1.0)]


def _delta(base: Base, change: Change, link: Link) -> dict[str, float]:
    before = base.played
    if link is not base.model.link:
        before = _played(base.model, Change(), link)
    after = _played(base.model, change, link)
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
