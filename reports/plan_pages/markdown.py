"""A plan or a prediction as Markdown: the answer first, then tables, what they rest on folded, unknowns."""

from collections.abc import Sequence

from zprof.model.gaps import Gap
from zprof.model.planning.plan import Plan
from zprof.model.planning.whatif_document import WhatIf
from zprof.reports.escape_markdown import code, prose
from zprof.reports.markdown.blocks import bullets
from zprof.reports.markdown.document import Part, joined
from zprof.reports.markdown.grid import basis_blocks, grid_blocks, plan_gap_blocks
from zprof.reports.plan.basis import Basis, outlook_basis, plan_basis
from zprof.reports.plan.chapters import plan_chapters
from zprof.reports.plan.grid import Chapter
from zprof.reports.plan.head import answers, facts, gaps, mark, title
from zprof.reports.plan.outlook import outlook_answers, outlook_chapters
from zprof.reports.shown.run_words import describe_run, steps_text


def render_plan(plan: Plan) -> str:
    """The whole plan."""
    said = bullets([prose(line) for line in answers(plan)])
    about = bullets([f"{name}: {prose(value)}" for name, value in facts(plan)])
    parts = [
        Part(blocks=[f"## {mark(plan)} Plan: {prose(title(plan), 160)}", said]),
        *_chapters(plan_chapters(plan)),
        Part(title="The job", blocks=[about]),
        *_end(plan_basis(plan), gaps(plan)),
    ]
    return joined(
        parts, f"---\nzprof {prose(plan.zprof_version, 40)}, {plan.schema}: all figures are predicted"
    )


def render_whatif(found: WhatIf) -> str:
    """The whole prediction."""
    outlook, run = found.outlook, found.run
    said = bullets([prose(line) for line in outlook_answers(outlook)])
    about = bullets([f"run {prose(describe_run(run, steps_text(run.steps)), 400)}"])
    simulated = "; ".join(prose(name, 300) for name in run.modelled)
    blocks = [f"## What if: {code(run.name)}", said, about]
    blocks += [f"> **MODELLED**: {simulated}. Simulated, not run."] if simulated else []
    parts = [
        Part(blocks=blocks),
        *_chapters(outlook_chapters(outlook)),
        *_end(outlook_basis(outlook), outlook.gaps),
    ]
    return joined(parts, f"---\nzprof {prose(found.zprof_version, 40)}, run {code(run.name)}")


def _chapters(chapters: Sequence[Chapter]) -> list[Part]:
    return [Part(title=chapter.title, blocks=grid_blocks(chapter.grids)) for chapter in chapters]


def _end(basis: Sequence[Basis], unknown: Sequence[Gap]) -> list[Part]:
    parts = [
        Part(title="Not known", blocks=plan_gap_blocks(unknown)),
        Part(title="What the figures rest on", blocks=basis_blocks(basis), is_folded=True),
    ]
    return [part for part in parts if part.blocks]
