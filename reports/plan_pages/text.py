"""A plan or a prediction as plain text in 80 columns: the answer first, what it rests on, unknowns last."""

from collections.abc import Iterator, Sequence

from zprof.model.gaps import Gap
from zprof.model.planning.plan import Plan
from zprof.model.planning.whatif import Outlook
from zprof.model.planning.whatif_document import WhatIf
from zprof.model.printable import printable, shorten
from zprof.model.report import RunFacts
from zprof.reports.escape_log import log_line
from zprof.reports.plan.basis import Basis, outlook_basis, plan_basis
from zprof.reports.plan.chapters import plan_chapters
from zprof.reports.plan.grid import Chapter
from zprof.reports.plan.head import answers, facts, gaps, title
from zprof.reports.plan.outlook import outlook_answers, outlook_chapters
from zprof.reports.shown.presenter import grouped_gaps
from zprof.reports.shown.run_words import describe_run, steps_text
from zprof.reports.text.grid import grid_lines
from zprof.reports.text.layout import heading, page_width, wrap
from zprof.reports.text.summary import modelled_in

_FACT = 10
#: Changes that are shown term by term.
_MOST_DETAILED = 2


def render_plan(plan: Plan, *, everything: bool = False) -> str:
    """The page; with ``everything`` each assumption in full."""
    lines = wrap(printable(f"PLAN  {title(plan)}"), first="", rest="      ")
    lines += [line for said in answers(plan) for line in wrap(printable(said), first="  - ")]
    lines += ["", *(line for name, said in facts(plan) for line in wrap(printable(said), first=_label(name)))]
    lines += _chapters(plan_chapters(plan))
    lines += basis_lines(plan_basis(plan), everything=everything)
    return _document([*lines, *gap_lines(gaps(plan))])


def render_whatif(found: WhatIf, *, everything: bool = False) -> str:
    """The same of a prediction."""
    outlook = found.outlook
    lines = wrap(f"WHAT IF  {printable(found.run.name)}", first="", rest="         ")
    lines += [line for said in outlook_answers(outlook) for line in wrap(printable(said), first="  - ")]
    lines += ["", *_run(found.run), *modelled_in([found.run])]
    lines += _predictions(outlook)
    lines += basis_lines(outlook_basis(outlook), everything=everything)
    return _document([*lines, *gap_lines(outlook.gaps)])


def basis_lines(found: Sequence[Basis], *, everything: bool) -> list[str]:
    """Each assumption: its key and formula; in full also which figures, where from, and what deviates."""
    if not found:
        return []
    lines = ["", heading("RESTS ON", "" if everything else "in full: --assumptions")]
    for entry in found:
        said = printable(f"{entry.key}: {entry.assumption.formula}")
        if not everything:
            lines.append(shorten(f"  - {said}", page_width()))
            continue
        lines += wrap(said, first="  - ", rest="    ")
        lines += [line for name, text in _full(entry) for line in wrap(printable(text), first=name)]
    return lines


def gap_lines(unknown: Sequence[Gap]) -> list[str]:
    """What is not known, why, and what would make it known."""
    groups = grouped_gaps(unknown)
    lines = ["", heading(f"NOT KNOWN ({len(groups)})")] if groups else []
    for group in groups:
        lines += wrap(printable(f"{group.what}{group.where}: {group.reason}"), first="  - ")
        lines += wrap(printable(group.remedy), first="    → ") if group.remedy else []
    return lines


def _chapters(chapters: Sequence[Chapter]) -> list[str]:
    """Their tables; sentences stand at the top of the page."""
    return [line for chapter in chapters for grid in chapter.grids for line in grid_lines(grid)]


def _predictions(outlook: Outlook) -> list[str]:
    """Term by term where there is one change or two; many would bury the table that has them all."""
    chapters = outlook_chapters(outlook)
    if len(outlook.predictions) <= _MOST_DETAILED:
        return _chapters(chapters)
    kept = [chapter for chapter in chapters if chapter.anchor != "terms"]
    return [*_chapters(kept), "", "  term by term: ask for one change, or -f md, html, json"]


def _full(entry: Basis) -> Iterator[tuple[str, str]]:
    for name, said in (
        ("figures", entry.figures),
        ("source", entry.assumption.source),
        ("but", entry.assumption.deviation),
    ):
        if said:
            yield f"      {name:<8} ", said


def _run(run: RunFacts) -> list[str]:
    return wrap(describe_run(run, steps_text(run.steps)), first=_label("run"))


def _label(name: str) -> str:
    return f"  {name:<{_FACT}}"


def _document(lines: Sequence[str]) -> str:
    """No line steers a terminal, or is a command to a runner of CI jobs."""
    return "\n".join(log_line(printable(line)) for line in lines) + "\n"
