"""What the figures of a plan or a prediction rest on: each assumption and its figures."""

from collections.abc import Iterator, Mapping

from zprof.model.plan import Plan
from zprof.model.whatif import Assumption, Outlook
from zprof.reports.page import Item, ItemList, Section, make_section
from zprof.reports.presenters.memory_figures import tenant_name
from zprof.reports.presenters.plan_words import AXES, SCHEMES
from zprof.reports.presenters.predictions import format_term_name


def build_plan_assumptions(plan: Plan, *, brief: bool) -> tuple[Section, ...]:
    """Return the assumptions of a plan; schemes stand after what they have in common."""
    return _assumption_section(plan.assumptions, _plan_uses(plan), brief=brief)


def build_outlook_assumptions(outlook: Outlook) -> ItemList | None:
    """Return the assumptions of predictions as a list."""
    return _assumption_list(outlook.assumptions, _outlook_uses(outlook), brief=False)


def build_whatif_assumptions(outlook: Outlook, *, brief: bool) -> tuple[Section, ...]:
    """Return the assumptions of predictions as a section."""
    return _assumption_section(outlook.assumptions, _outlook_uses(outlook), brief=brief)


def _assumption_section(
    known: Mapping[str, Assumption], uses: Iterator[tuple[str, str, str]], *, brief: bool
) -> tuple[Section, ...]:
    found = _assumption_list(known, uses, brief=brief)
    lead = "Each predicted figure names one of these."
    note = "in full: --assumptions" if brief else ""
    return make_section("basis", "What the figures rest on", lead, found, note=note)


def _assumption_list(
    known: Mapping[str, Assumption], uses: Iterator[tuple[str, str, str]], *, brief: bool
) -> ItemList | None:
    """Return each assumption by its key; ``uses``: key, what, and for which scheme."""
    named: dict[str, dict[str, dict[str, None]]] = {key: {} for key in known}
    for key, what, where in uses:
        named.setdefault(key, {}).setdefault(what, {})[where] = None
    items = [_item(key, known[key], _figures(named[key])) for key in sorted(known)]
    return ItemList(items=tuple(items), brief=brief, what="assumptions") if items else None


def _item(key: str, assumption: Assumption, figures: str) -> Item:
    details = (("figures", figures), ("source", assumption.source), ("but", assumption.deviation))
    return Item(
        label=key,
        text=assumption.formula,
        details=tuple((name, text) for name, text in details if text),
    )


def _figures(uses: Mapping[str, Mapping[str, None]]) -> str:
    """Return ``gradients, parameters (ZeRO-3); ...``: figures of the same schemes together."""
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
            yield key, format_term_name(leaf), scheme


def _outlook_uses(outlook: Outlook) -> Iterator[tuple[str, str, str]]:
    for prediction in outlook.predictions:
        for entry in (*prediction.step, *prediction.memory):
            yield entry.assumption, format_term_name(entry.name), ""
