"""A plan as a page: what a job would need that did not run, and what it would cost."""

from zprof.model.plan import Plan, VerifiedStage
from zprof.model.report import VerdictStatus
from zprof.reports.page import (
    Facts,
    Item,
    ItemList,
    KeyFigures,
    Page,
    Paragraph,
    Section,
    Table,
    Verdict,
    make_section,
    numbers,
)
from zprof.reports.presenters.assumptions import plan_assumptions
from zprof.reports.presenters.findings import gap_section
from zprof.reports.presenters.head import MARKS
from zprof.reports.presenters.memory_figures import tenant_name
from zprof.reports.presenters.plan_answers import (
    plan_answers,
    plan_facts,
    plan_figures,
    plan_title,
    verification_sentences,
)
from zprof.reports.presenters.plan_memory import memory_table, plan_bars, term_table
from zprof.reports.presenters.plan_sensitivity import sensitivity_charts, sensitivity_tables
from zprof.reports.presenters.plan_time import degree_table, step_table, traffic_table
from zprof.reports.presenters.plan_words import plan_row, plan_table, scaled, signed_percent, size_scale


def plan_page(plan: Plan, *, everything: bool = False) -> Page:
    """Return a plan as a page; with ``everything`` the terminal has each assumption in full."""
    first, *more = plan_answers(plan)
    status = plan_status(plan)
    gaps = (*plan.gaps, *(plan.verification.gaps if plan.verification else ()))
    return Page(
        kind="zprof plan: every figure is predicted",
        subject=plan_title(plan),
        head=(
            Verdict(tone=status.value, mark=MARKS[status], text=first),
            ItemList(items=tuple(Item(text=line) for line in more)),
            KeyFigures(figures=plan_figures(plan), repeated=True),
            Facts(rows=(("plan", plan_title(plan)), *plan_facts(plan))),
        ),
        sections=(
            *make_section(
                "memory",
                "Memory",
                "Who would own the bytes of a device, by the way in which the model is spread.",
                plan_bars(plan),
                memory_table(plan),
                term_table(plan),
            ),
            *make_section(
                "step",
                "Time and traffic",
                "The terms sum to the step; bytes are those that one device moves.",
                *step_table(plan),
                *traffic_table(plan),
                degree_table(plan),
            ),
            *_sensitivity_section(plan),
            *_verification_section(plan),
            *plan_assumptions(plan, brief=not everything),
            *gap_section(gaps, "Not known"),
        ),
        made_by=f"zprof {plan.zprof_version}, {plan.schema}",
        data_command="zprof plan … -f json",
    )


def plan_status(plan: Plan) -> VerdictStatus:
    """Return if something fits, nothing does, or that is unknown."""
    fits = [row.fits for row in plan.rows]
    if True in fits:
        return VerdictStatus.OK
    return VerdictStatus.RISK if fits and all(fit is False for fit in fits) else VerdictStatus.INCONCLUSIVE


def _sensitivity_section(plan: Plan) -> tuple[Section, ...]:
    found = plan.sensitivity
    if found is None:
        return ()
    return make_section(
        "sensitivity",
        "Sensitivity",
        "One condition changes, everything else is the job's.",
        *sensitivity_charts(found),
        *sensitivity_tables(found),
    )


def _verification_section(plan: Plan) -> tuple[Section, ...]:
    found = plan.verification
    if found is None:
        return ()
    return make_section(
        "verification",
        "Verification",
        "One rank of the job ran on tensors without memory, and its tenants were counted.",
        *(Paragraph(text=line) for line in verification_sentences(found)[1:]),
        *(_stage(stage) for stage in found.stages),
    )


def _stage(stage: VerifiedStage) -> Table:
    scale = size_scale([stage.planned_peak_bytes, stage.verified_peak_bytes])
    return plan_table(
        title=f"Stage {stage.stage} against a counted rank",
        unit=scale.unit,
        note=f"peak: {stage.peak_at}" if stage.peak_at else "",
        columns=(
            *numbers("planned", "counted", unit=scale.unit),
            *numbers("difference", unit="%"),
        ),
        rows=(
            *(
                plan_row(
                    name=tenant_name(entry.tenant),
                    cells=(
                        scaled(entry.planned_bytes, scale),
                        scaled(entry.verified_bytes, scale),
                        signed_percent(entry.difference_ratio),
                    ),
                )
                for entry in stage.tenants
            ),
            plan_row(
                name="peak",
                cells=(
                    scaled(stage.planned_peak_bytes, scale),
                    scaled(stage.verified_peak_bytes, scale),
                    signed_percent(stage.difference_ratio),
                ),
                total=True,
            ),
        ),
    )
