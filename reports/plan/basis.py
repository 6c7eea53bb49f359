"""What the figures of a plan or a prediction rest on: each assumption, and which figures name it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zprof.model.planning.assumption import Assumption
from zprof.model.planning.plan import Plan
from zprof.model.planning.whatif import Outlook
from zprof.reports.plan.prediction import term_name
from zprof.reports.plan.words import AXES, SCHEMES
from zprof.reports.shown.memory_names import tenant_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """An assumption by its key, and the figures that rest on it."""

    key: str
    figures: str
    assumption: Assumption


def plan_basis(plan: Plan) -> tuple[Basis, ...]:
    """In the order of the keys; schemes stand after what they have in common."""
    return _basis(plan.assumptions, _plan_uses(plan))


def outlook_basis(outlook: Outlook) -> tuple[Basis, ...]:
    """The same for predictions."""
    return _basis(outlook.assumptions, _outlook_uses(outlook))


def _basis(known: Mapping[str, Assumption], uses: Iterator[tuple[str, str, str]]) -> tuple[Basis, ...]:
    """``uses``: key, what, and for which scheme."""
    named: dict[str, dict[str, dict[str, None]]] = {key: {} for key in known}
    for key, what, where in uses:
        named.setdefault(key, {}).setdefault(what, {})[where] = None
    return tuple(Basis(key=key, figures=_figures(named[key]), assumption=known[key]) for key in sorted(known))


def _figures(uses: Mapping[str, Mapping[str, None]]) -> str:
    """``gradients, parameters (ZeRO-3); ...``: what stands for the same schemes is named together."""
    by_schemes: dict[tuple[str, ...], list[str]] = {}
    for what, schemes in uses.items():
        by_schemes.setdefault(tuple(schemes), []).append(what)
    return "; ".join(
        f"{', '.join(names)} ({', '.join(schemes)})" if any(schemes) else ", ".join(names)
        for schemes, names in by_schemes.items()
    )


def _plan_uses(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for row in plan.rows:
        scheme = SCHEMES[row.scheme]
        for term in row.terms:
            name = tenant_name(term.tenant)
            yield term.assumption, f"{name}: {term.sub.replace('_', ' ')}" if term.sub else name, scheme
        for link in row.links:
            yield link.assumption, f"bytes, {AXES[link.axis]}", scheme
        for leaf, key in row.step.assumptions.items() if row.step else ():
            yield key, term_name(leaf), scheme


def _outlook_uses(outlook: Outlook) -> Iterator[tuple[str, str, str]]:
    for prediction in outlook.predictions:
        for entry in (*prediction.step, *prediction.memory):
            yield entry.assumption, term_name(entry.name), ""
