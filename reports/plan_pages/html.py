"""A plan or a prediction as HTML: one file that needs no network and no script to be read."""

from collections.abc import Iterator
from dataclasses import replace

from zprof.model.planning.plan import Plan
from zprof.model.planning.whatif_document import WhatIf
from zprof.model.report import VerdictStatus
from zprof.reports.html import words
from zprof.reports.html.blocks import Facts, Head, KeyFigure, Page, Section
from zprof.reports.html.grid import basis_section, chapter_section, plan_gap_section
from zprof.reports.html.plan_bars import memory_bars
from zprof.reports.plan.basis import outlook_basis, plan_basis
from zprof.reports.plan.chapters import plan_chapters
from zprof.reports.plan.head import answers, facts, gaps, key_figures, mark, status, title
from zprof.reports.plan.outlook import outlook_answers, outlook_chapters, outlook_figures
from zprof.reports.shown.run_words import describe_run, steps_text


def render_plan(plan: Plan) -> str:
    """The whole document."""
    from zprof.reports.html.document import document

    return document(plan_page(plan))


def render_whatif(found: WhatIf) -> str:
    """The whole document."""
    from zprof.reports.html.document import document

    return document(whatif_page(found))


def plan_page(plan: Plan) -> Page:
    """The answer first."""
    first, *more = answers(plan)
    about = Facts(rows=tuple((name, words.sentence(said)) for name, said in facts(plan)))
    job = Section(anchor="job", title="The job", lead="What every figure is computed from.", blocks=(about,))
    return Page(
        head=Head(
            product="zprof plan: every figure is predicted",
            title=words.name(title(plan)),
            status=status(plan).value,
            mark=mark(plan),
            verdict=words.sentence(first),
            more=tuple(map(words.sentence, more)),
            attempt=(),
            runs=(),
            modelled="",
            figures=tuple(
                KeyFigure(name=name, value=value, note=note) for name, value, note in key_figures(plan)
            ),
        ),
        sections=(
            *_sections(plan),
            job,
            *plan_gap_section(gaps(plan)),
            *basis_section(plan_basis(plan)),
        ),
        made_by=words.name(f"zprof {plan.zprof_version}, {plan.schema}"),
        data_command="zprof plan … -f json",
    )


def _sections(plan: Plan) -> Iterator[Section]:
    """The chapters; that of memory begins with a picture."""
    for chapter in plan_chapters(plan):
        section = chapter_section(chapter)
        if chapter.anchor == "memory":
            section = replace(section, blocks=(memory_bars(plan), *section.blocks))
        yield section


def whatif_page(found: WhatIf) -> Page:
    """The answer first."""
    outlook, run = found.outlook, found.run
    first, *more = outlook_answers(outlook)
    return Page(
        head=Head(
            product="zprof whatif: ~ is predicted",
            title=words.name(run.name),
            status=VerdictStatus.INCONCLUSIVE.value,
            mark="~" if outlook.predictions else "?",
            verdict=words.sentence(first),
            more=tuple(map(words.sentence, more)),
            attempt=(),
            runs=(("this run", words.sentence(describe_run(run, steps_text(run.steps)))),),
            modelled=words.sentence("; ".join(run.modelled)),
            figures=tuple(
                KeyFigure(name=words.name(name), value=value, note=words.sentence(note))
                for name, value, note in outlook_figures(outlook)
            ),
        ),
        sections=(
            *map(chapter_section, outlook_chapters(outlook)),
            *plan_gap_section(outlook.gaps),
            *basis_section(outlook_basis(outlook)),
        ),
        made_by=words.name(f"zprof {found.zprof_version}, {found.schema}"),
        data_command="zprof whatif RUN -f json",
    )
