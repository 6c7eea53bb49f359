"""The formats that reports, diagnoses, plans, predictions, comparisons and checks can be written in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any, Generic, TypeVar, overload

from zprof.model.check import Check
from zprof.model.errors import BadInput
from zprof.model.json_format import to_json
from zprof.model.plan import Plan
from zprof.model.report import Report, WhatIf
from zprof.model.side_by_side import SideBySide
from zprof.reports.page import Page

Document = TypeVar("Document")
#: A check and the report that it judged.
Checked = tuple[Check, Report]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Generic[Document]):
    """A format by name, the file suffixes that mean it, and how a document is written in it."""

    name: str
    suffixes: tuple[str, ...]
    render: Callable[[Document], str]


def page_text(page: Page) -> str:
    """Return a page as text."""
    from zprof.reports.text import render_text

    return render_text(page)


def render_page_markdown(page: Page) -> str:
    """Return a page as Markdown."""
    from zprof.reports.markdown import render_markdown

    return render_markdown(page)


def render_page_html(page: Page) -> str:
    """Return a page as HTML."""
    from zprof.reports.html import render_html

    return render_html(page)


def _report_page(report: Report) -> Page:
    from zprof.reports.presenters.report import build_report_page

    return build_report_page(report)


def _diagnosis_page(report: Report) -> Page:
    from zprof.reports.presenters.diagnosis import build_diagnosis_page

    return build_diagnosis_page(report)


def _plan_page(plan: Plan, *, everything: bool = False) -> Page:
    from zprof.reports.presenters.plan import build_plan_page

    return build_plan_page(plan, everything=everything)


def _whatif_page(found: WhatIf, *, everything: bool = False) -> Page:
    from zprof.reports.presenters.whatif import build_whatif_page

    return build_whatif_page(found, everything=everything)


def _comparison_page(both: SideBySide, *, everything: bool = False) -> Page:
    from zprof.reports.presenters.side_by_side import build_side_by_side_page

    return build_side_by_side_page(both, everything=everything)


def _check_page(checked: Checked) -> Page:
    from zprof.reports.presenters.check import build_check_page

    return build_check_page(*checked)


def _svg(report: Report) -> str:
    from zprof.reports import svg_memory

    return svg_memory.render(report)


def _junit(report: Report) -> str:
    from zprof.reports import junit

    return junit.render(report)


def _sarif(report: Report) -> str:
    from zprof.reports import sarif

    return sarif.render(report)


def _check_junit(checked: Checked) -> str:
    from zprof.reports.check_ci import render_junit

    return render_junit(*checked)


def _check_sarif(checked: Checked) -> str:
    from zprof.reports.check_ci import render_sarif

    return render_sarif(*checked)


def _check_github(checked: Checked) -> str:
    from zprof.reports.check_ci import render_github

    return render_github(*checked)


def _check_json(checked: Checked) -> str:
    """Return the check alone (``zprof.check/1``): the report has a document of its own."""
    return to_json(checked[0])


def _formats(
    make_page: Callable[[Document], Page], *, json: Callable[[Document], str] = to_json
) -> tuple[Format[Document], ...]:
    """Return the formats that every page has."""
    return (
        Format(name="text", suffixes=(".txt", ".text"), render=lambda it: page_text(make_page(it))),
        Format(name="json", suffixes=(".json",), render=json),
        Format(
            name="md", suffixes=(".md", ".markdown"), render=lambda it: render_page_markdown(make_page(it))
        ),
        Format(name="html", suffixes=(".html", ".htm"), render=lambda it: render_page_html(make_page(it))),
    )


FORMATS: tuple[Format[Report], ...] = (
    *_formats(_report_page),
    Format(name="svg", suffixes=(".svg",), render=_svg),
    Format(name="junit", suffixes=(".xml",), render=_junit),
    Format(name="sarif", suffixes=(".sarif",), render=_sarif),
)
DIAGNOSES: tuple[Format[Report], ...] = _formats(_diagnosis_page)
PLANS: tuple[Format[Plan], ...] = _formats(_plan_page)
#: Only the text is short without it; the other formats have each assumption in full anyway.
PLANS_IN_FULL: tuple[Format[Plan], ...] = _formats(partial(_plan_page, everything=True))
WHATIFS: tuple[Format[WhatIf], ...] = _formats(_whatif_page)
WHATIFS_IN_FULL: tuple[Format[WhatIf], ...] = _formats(partial(_whatif_page, everything=True))
COMPARISONS: tuple[Format[SideBySide], ...] = _formats(_comparison_page)
COMPARISONS_IN_FULL: tuple[Format[SideBySide], ...] = _formats(partial(_comparison_page, everything=True))
CHECKS: tuple[Format[Checked], ...] = (
    *_formats(_check_page, json=_check_json),
    Format(name="junit", suffixes=(".xml",), render=_check_junit),
    Format(name="sarif", suffixes=(".sarif",), render=_check_sarif),
    Format(name="github", suffixes=(), render=_check_github),
)


def format_names(formats: Sequence[Format[Any]] = FORMATS) -> tuple[str, ...]:
    """Return the names that ``by_name`` knows."""
    return tuple(entry.name for entry in formats)


@overload
def by_name(name: str) -> Format[Report]: ...
@overload
def by_name(name: str, formats: Sequence[Format[Document]]) -> Format[Document]: ...
def by_name(name: str, formats: Sequence[Format[Any]] = FORMATS) -> Format[Any]:
    """Return the format of that name; raises BadInput with the names there are."""
    for entry in formats:
        if entry.name == name:
            return entry
    raise BadInput(f"no format {name!r}", hint=f"formats: {', '.join(format_names(formats))}")


@overload
def by_path(path: PurePath) -> Format[Report]: ...
@overload
def by_path(path: PurePath, formats: Sequence[Format[Document]]) -> Format[Document]: ...
def by_path(path: PurePath, formats: Sequence[Format[Any]] = FORMATS) -> Format[Any]:
    """Return the format that a file's suffix means; raises BadInput if it means none."""
    for entry in formats:
        if path.suffix.lower() in entry.suffixes:
            return entry
    raise BadInput(
        f"{path}: its suffix names no format", hint=f"add -f and one of: {', '.join(format_names(formats))}"
    )
