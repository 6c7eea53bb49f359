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
    make_number_columns,
    make_section,
)
from zprof.reports.presenters.assumptions import build_plan_assumptions
from zprof.reports.presenters.findings import build_gap_section
from zprof.reports.presenters.head import MARKS
from zprof.reports.presenters.memory_figures import tenant_name
from zprof.reports.presenters.plan_answers import (
    describe_verification,
    format_plan_title,
    list_plan_answers,
    list_plan_facts,
    list_plan_figures,
)
from zprof.reports.presenters.plan_memory import build_memory_table, build_plan_bars, build_term_table
from zprof.reports.presenters.plan_sensitivity import build_sensitivity_charts, build_sensitivity_tables
from zprof.reports.presenters.plan_time import build_degree_table, build_step_table, build_traffic_table
from zprof.reports.presenters.plan_words import (
    choose_size_scale,
    format_scaled,
    format_signed_percent,
    make_plan_row,
    make_plan_table,
)


def build_plan_page(plan: Plan, *, everything: bool = False) -> Page:
    """Return a plan as a page; with ``everything`` the terminal has each assumption in full."""
    first, *more = list_plan_answers(plan)
    status = judge_plan(plan)
    gaps = (*plan.gaps, *(plan.verification.gaps if plan.verification else ()))
    return Page(
        kind="zprof plan: every figure is predicted",
        subject=format_plan_title(plan),
        head=(
            Verdict(tone=status.value, mark=MARKS[status], text=first),
            ItemList(items=tuple(Item(text=line) for line in more)),
            KeyFigures(figures=list_plan_figures(plan), repeated=True),
            Facts(rows=(("plan", format_plan_title(plan)), *list_plan_facts(plan))),
        ),
        sections=(
            *make_section(
                "memory",
                "Memory",
                "Who would own the bytes of a device, by the way in which the model is spread.",
                build_plan_bars(plan),
                build_memory_table(plan),
                build_term_table(plan),
            ),
            *make_section(
                "step",
                "Time and traffic",
                "The terms sum to the step; bytes are those that one device moves.",
                *build_step_table(plan),
                *build_traffic_table(plan),
                build_degree_table(plan),
            ),
            *_sensitivity_section(plan),
            *_verification_section(plan),
            *build_plan_assumptions(plan, brief=not everything),
            *build_gap_section(gaps, "Not known"),
        ),
        made_by=f"zprof {plan.zprof_version}, {plan.schema}",
        data_command="zprof plan … -f json",
    )


def judge_plan(plan: Plan) -> VerdictStatus:
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
        *build_sensitivity_charts(found),
        *build_sensitivity_tables(found),
    )


def _verification_section(plan: Plan) -> tuple[Section, ...]:
    found = plan.verification
    if found is None:
        return ()
    return make_section(
        "verification",
        "Verification",
        "One rank of the job ran on tensors without memory, and its tenants were counted.",
        *(Paragraph(text=line) for line in describe_verification(found)[1:]),
        *(_stage(stage) for stage in found.stages),
    )


def _stage(stage: VerifiedStage) -> Table:
    scale = choose_size_scale([stage.planned_peak_bytes, stage.verified_peak_bytes])
    return make_plan_table(
        title=f"Stage {stage.stage} against a counted rank",
        unit=scale.unit,
        note=f"peak: {stage.peak_at}" if stage.peak_at else "",
        columns=(
            *make_number_columns("planned", "counted", unit=scale.unit),
            *make_number_columns("difference", unit="%"),
        ),
        rows=(
            *(
                make_plan_row(
                    name=tenant_name(entry.tenant),
                    cells=(
                        format_scaled(entry.planned_bytes, scale),
                        format_scaled(entry.verified_bytes, scale),
                        format_signed_percent(entry.difference_ratio),
                    ),
                )
                for entry in stage.tenants
            ),
            make_plan_row(
                name="peak",
                cells=(
                    format_scaled(stage.planned_peak_bytes, scale),
                    format_scaled(stage.verified_peak_bytes, scale),
                    format_signed_percent(stage.difference_ratio),
                ),
                total=True,
            ),
        ),
    )
