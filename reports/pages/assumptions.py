"""List the assumptions of a plan or a prediction, with the figures that depend on each."""

from collections.abc import Iterator, Mapping

from zprof.model.plan import SCHEME_NAMES, Assumption, Outlook, Plan
from zprof.model.quantities import strip_unit
from zprof.model.time import LEDGER_NAMES
from zprof.reports.page import Item, ItemList, Section, make_section
from zprof.reports.pages.plan_tables import AXES
from zprof.reports.pages.tenants import tenant_name

STEP = "wall_ns"
_NAMES = {**LEDGER_NAMES, "efficiency_ratio": "efficiency"}


def build_plan_assumptions(plan: Plan, *, brief: bool) -> tuple[Section, ...]:
    """Build the section with the assumptions of a plan; figures are grouped by scheme."""
    return _build_assumption_section(plan.assumptions, _list_plan_uses(plan), brief=brief)


def build_outlook_assumptions(outlook: Outlook) -> ItemList | None:
    """Build the list of the assumptions of predictions."""
    return _build_assumption_list(outlook.assumptions, _list_outlook_uses(outlook), brief=False)


def build_whatif_assumptions(outlook: Outlook, *, brief: bool) -> tuple[Section, ...]:
    """Build the section with the assumptions of predictions."""
    return _build_assumption_section(outlook.assumptions, _list_outlook_uses(outlook), brief=brief)


def _build_assumption_section(
    assumptions: Mapping[str, Assumption], uses: Iterator[tuple[str, str, str]], *, brief: bool
) -> tuple[Section, ...]:
    item_list = _build_assumption_list(assumptions, uses, brief=brief)
    lead = "Each predicted figure depends on one of these assumptions."
    note = "in full: --assumptions" if brief else ""
    return make_section("basis", "Assumptions", lead, item_list, note=note)


def _build_assumption_list(
    assumptions: Mapping[str, Assumption], uses: Iterator[tuple[str, str, str]], *, brief: bool
) -> ItemList | None:
    """Return the assumptions sorted by key; ``uses``: (key, figure, scheme)."""
    figures_by_key: dict[str, dict[str, dict[str, None]]] = {key: {} for key in assumptions}
    for key, figure, scheme in uses:
        figures_by_key.setdefault(key, {}).setdefault(figure, {})[scheme] = None
    items = []
    for key, assumption in sorted(assumptions.items()):
        figures = _format_figures(figures_by_key[key])
        details = ((("figures", figures),) if figures else ()) + list_assumption_details(assumption)
        items.append(Item(label=key, text=assumption.formula, details=details))
    return ItemList(items=tuple(items), brief=brief, noun="assumptions") if items else None


def list_assumption_details(assumption: Assumption) -> tuple[tuple[str, str], ...]:
    """List where an assumption comes from, and what it leaves out, each with its name."""
    details = (("source", assumption.source), ("limitation", assumption.deviation))
    return tuple((name, text) for name, text in details if text)


def format_term_name(name: str, period: str) -> str:
    """Format the name of a term, such as ``exposed wait`` for ``exposed_wait_ns``; the step by its period."""
    return period if name == STEP else _NAMES.get(name) or strip_unit(name)


def _format_figures(uses: Mapping[str, Mapping[str, None]]) -> str:
    """Format the figures grouped by scheme, such as ``gradients, parameters (ZeRO-3); ...``."""
    by_schemes: dict[tuple[str, ...], list[str]] = {}
    for figure, schemes in uses.items():
        by_schemes.setdefault(tuple(schemes), []).append(figure)
    return "; ".join(
        f"{', '.join(names)} ({', '.join(schemes)})" if any(schemes) else ", ".join(names)
        for schemes, names in by_schemes.items()
    )


def _list_plan_uses(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for row in plan.rows:
        scheme = SCHEME_NAMES[row.scheme]
        for term in row.terms:
            name = tenant_name(term.tenant)
            yield term.assumption, f"{name}: {term.sub.replace('_', ' ')}" if term.sub else name, scheme
        for link in row.links:
            yield link.assumption, f"bytes, {AXES[link.axis]}", scheme
        for leaf, key in row.step.assumptions.items() if row.step else ():
            yield key, format_term_name(leaf, "step"), scheme


def _list_outlook_uses(outlook: Outlook) -> Iterator[tuple[str, str, str]]:
    for prediction in outlook.predictions:
        for entry in (*prediction.step, *prediction.memory):
            yield entry.assumption, format_term_name(entry.name, outlook.period), ""
