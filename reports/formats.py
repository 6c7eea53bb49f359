"""Output formats of reports, diagnoses, plans, predictions, comparisons and checks."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any, Generic, TypeVar, overload

from msgspec import Struct

from zprof.base.errors import BadInput
from zprof.model.baseline import Baseline
from zprof.model.comparison import Check, SideBySide
from zprof.model.findings import Finding
from zprof.model.json_format import to_json
from zprof.model.plan import Plan
from zprof.model.report import Report, WhatIf
from zprof.model.step_overview import StepOverview
from zprof.reports.page import Page

Document = TypeVar("Document")


class Checked(Struct, frozen=True, kw_only=True):
    """A check and the report it checked.

    ``baseline`` and ``current``: the figures of both sides, for the comment of a pull request. ``causes``: of
    the failed gates, or else the first finding of the run.
    """

    check: Check
    report: Report
    baseline: Baseline | None = None
    current: Baseline | None = None
    causes: tuple[Finding, ...] = ()


class Format(Struct, Generic[Document], frozen=True, kw_only=True):
    """An output format: its name, file suffixes and renderer.

    ``make_page``: set for text only, which a terminal may show in colour (``render_text``).
    """

    name: str
    suffixes: tuple[str, ...]
    render: Callable[[Document], str]
    make_page: Callable[[Document], Page] | None = None


def render_page_text(page: Page) -> str:
    """Render a page as text."""
    from zprof.reports.text import render_text

    return render_text(page)


def render_page_markdown(page: Page) -> str:
    """Render a page as Markdown."""
    from zprof.reports.markdown import render_markdown

    return render_markdown(page)


def render_page_html(page: Page) -> str:
    """Render a page as HTML."""
    from zprof.reports.html import render_html

    return render_html(page)


def _make_report_page(report: Report, overview: StepOverview | None = None) -> Page:
    from zprof.reports.pages.report import build_report_page

    return build_report_page(report, overview)


def _make_diagnosis_page(report: Report) -> Page:
    from zprof.reports.pages.diagnosis import build_diagnosis_page

    return build_diagnosis_page(report)


def _make_plan_page(plan: Plan, *, everything: bool = False) -> Page:
    from zprof.reports.pages.plan import build_plan_page

    return build_plan_page(plan, everything=everything)


def _make_whatif_page(whatif: WhatIf, *, everything: bool = False) -> Page:
    from zprof.reports.pages.whatif import build_whatif_page

    return build_whatif_page(whatif, everything=everything)


def _make_comparison_page(comparison: SideBySide, *, everything: bool = False) -> Page:
    from zprof.reports.pages.compare import build_compare_page

    return build_compare_page(comparison, everything=everything)


def _make_check_page(checked: Checked) -> Page:
    from zprof.reports.pages.check import build_check_page

    return build_check_page(checked.check, checked.report)


def _render_svg(report: Report) -> str:
    from zprof.reports import svg_memory

    return svg_memory.render(report)


def _render_junit(report: Report) -> str:
    from zprof.reports import junit

    return junit.render(report)


def _render_sarif(report: Report) -> str:
    from zprof.reports import sarif

    return sarif.render(report)


def _render_check_junit(checked: Checked) -> str:
    from zprof.reports.check_ci import render_junit

    return render_junit(checked.check, checked.report)


def _render_check_sarif(checked: Checked) -> str:
    from zprof.reports.check_ci import render_sarif

    return render_sarif(checked.check, checked.report)


def _render_check_github(checked: Checked) -> str:
    from zprof.reports.check_ci import render_github

    return render_github(checked.check, checked.report)


def _render_check_comment(checked: Checked) -> str:
    from zprof.reports.pages.check_comment import render_check_comment

    return render_check_comment(checked)


def _make_formats(
    make_page: Callable[[Document], Page],
    *,
    json: Callable[[Document], str] = to_json,
    make_html_page: Callable[[Document], Page] | None = None,
) -> tuple[Format[Document], ...]:
    """Return the formats that every page supports; ``make_html_page``: if HTML shows more."""
    return (
        Format(
            name="text",
            suffixes=(".txt", ".text"),
            render=lambda document: render_page_text(make_page(document)),
            make_page=make_page,
        ),
        Format(name="json", suffixes=(".json",), render=json),
        Format(
            name="md",
            suffixes=(".md", ".markdown"),
            render=lambda document: render_page_markdown(make_page(document)),
        ),
        Format(
            name="html",
            suffixes=(".html", ".htm"),
            render=lambda document: render_page_html((make_html_page or make_page)(document)),
        ),
    )


def make_report_formats(read_overview: Callable[[], StepOverview | None]) -> tuple[Format[Report], ...]:
    """Return the formats of a report; ``read_overview`` is called for HTML only, which draws the step."""
    return (
        *_make_formats(
            _make_report_page, make_html_page=lambda report: _make_report_page(report, read_overview())
        ),
        Format(name="svg", suffixes=(".svg",), render=_render_svg),
        Format(name="junit", suffixes=(".xml",), render=_render_junit),
        Format(name="sarif", suffixes=(".sarif",), render=_render_sarif),
    )


FORMATS = make_report_formats(lambda: None)
DIAGNOSES: tuple[Format[Report], ...] = _make_formats(_make_diagnosis_page)
PLANS: tuple[Format[Plan], ...] = _make_formats(_make_plan_page)
#: Text with all assumptions in full; the other formats always have them in full.
PLANS_IN_FULL: tuple[Format[Plan], ...] = _make_formats(partial(_make_plan_page, everything=True))
WHATIFS: tuple[Format[WhatIf], ...] = _make_formats(_make_whatif_page)
WHATIFS_IN_FULL: tuple[Format[WhatIf], ...] = _make_formats(partial(_make_whatif_page, everything=True))
COMPARISONS: tuple[Format[SideBySide], ...] = _make_formats(_make_comparison_page)
COMPARISONS_IN_FULL: tuple[Format[SideBySide], ...] = _make_formats(
    partial(_make_comparison_page, everything=True)
)
CHECKS: tuple[Format[Checked], ...] = (
    # The check alone (``zprof.check/1``); the report is a separate document.
    *_make_formats(_make_check_page, json=lambda checked: to_json(checked.check)),
    Format(name="junit", suffixes=(".xml",), render=_render_check_junit),
    Format(name="sarif", suffixes=(".sarif",), render=_render_check_sarif),
    Format(name="github", suffixes=(), render=_render_check_github),
    Format(name="comment", suffixes=(), render=_render_check_comment),
)


def format_names(formats: Sequence[Format[Any]] = FORMATS) -> tuple[str, ...]:
    """Return the names of the formats."""
    return tuple(entry.name for entry in formats)


@overload
def by_name(name: str) -> Format[Report]: ...
@overload
def by_name(name: str, formats: Sequence[Format[Document]]) -> Format[Document]: ...
def by_name(name: str, formats: Sequence[Format[Any]] = FORMATS) -> Format[Any]:
    """Return the format with this name.

    Raises:
        BadInput: there is no format with this name; the hint lists all names.
    """
    for entry in formats:
        if entry.name == name:
            return entry
    raise BadInput(f"unknown format {name!r}", hint=f"formats: {', '.join(format_names(formats))}")


@overload
def by_path(path: PurePath) -> Format[Report]: ...
@overload
def by_path(path: PurePath, formats: Sequence[Format[Document]]) -> Format[Document]: ...
def by_path(path: PurePath, formats: Sequence[Format[Any]] = FORMATS) -> Format[Any]:
    """Return the format for the suffix of a file.

    Raises:
        BadInput: the suffix does not match any format.
    """
    for entry in formats:
        if path.suffix.lower() in entry.suffixes:
            return entry
    raise BadInput(
        f"{path}: no format has this suffix", hint=f"add -f and one of: {', '.join(format_names(formats))}"
    )
