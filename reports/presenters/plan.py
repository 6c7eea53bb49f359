"""Build the page of a plan: the predicted memory and time of a job that has not run."""

from zprof.model.plan import Plan, VerifiedStage
from zprof.model.quantities import Unit, Value
from zprof.model.report import VerdictStatus
from zprof.reports.page import (
    Facts,
    Item,
    ItemList,
    KeyFigures,
    Page,
    Paragraph,
    Section,
    VerdictBlock,
    make_section,
)
from zprof.reports.presenters.assumptions import build_plan_assumptions
from zprof.reports.presenters.findings import build_gap_section
from zprof.reports.presenters.head import MARKS
from zprof.reports.presenters.memory_formatting import tenant_name
from zprof.reports.presenters.plan_answers import (
    describe_verification,
    format_plan_title,
    list_plan_answers,
    list_plan_facts,
    list_plan_figures,
)
from zprof.reports.presenters.plan_formatting import (
    choose_size_scale,
    make_plan_row,
    make_plan_table,
    take_scaled,
)
from zprof.reports.presenters.plan_memory import build_memory_table, build_plan_bars, build_term_table
from zprof.reports.presenters.plan_sensitivity import build_sensitivity_charts, build_sensitivity_tables
from zprof.reports.presenters.plan_time import build_degree_table, build_step_table, build_traffic_table
from zprof.reports.table import Table, make_number_columns


def build_plan_page(plan: Plan, *, everything: bool = False) -> Page:
    """Build the page of a plan; with ``everything`` the terminal shows each assumption in full."""
    first, *more = list_plan_answers(plan)
    status = judge_plan(plan)
    gaps = (*plan.gaps, *(plan.verification.gaps if plan.verification else ()))
    return Page(
        kind="zprof plan: every figure is predicted",
        subject=format_plan_title(plan),
        head=(
            VerdictBlock(tone=status.value, mark=MARKS[status], text=first),
            ItemList(items=tuple(Item(text=line) for line in more)),
            KeyFigures(figures=list_plan_figures(plan), repeated=True),
            Facts(rows=(("plan", format_plan_title(plan)), *list_plan_facts(plan))),
        ),
        sections=(
            *make_section(
                "memory",
                "Memory",
                "Predicted memory of a device by tenant, for each parallelism scheme.",
                build_plan_bars(plan),
                build_memory_table(plan),
                build_term_table(plan),
            ),
            *make_section(
                "step",
                "Time and traffic",
                "The terms add up to the step; bytes are per device.",
                *build_step_table(plan),
                *build_traffic_table(plan),
                build_degree_table(plan),
            ),
            *_build_sensitivity_section(plan),
            *_build_verification_section(plan),
            *build_plan_assumptions(plan, brief=not everything),
            *build_gap_section(gaps, "Unknown"),
        ),
        made_by=f"zprof {plan.zprof_version}, {plan.schema}",
        data_command="zprof plan … -f json",
    )


def judge_plan(plan: Plan) -> VerdictStatus:
    """Return OK if any scheme fits, RISK if none does, INCONCLUSIVE if that is unknown."""
    fits = [row.fits for row in plan.rows]
    if True in fits:
        return VerdictStatus.OK
    return VerdictStatus.RISK if fits and all(fit is False for fit in fits) else VerdictStatus.INCONCLUSIVE


def _build_sensitivity_section(plan: Plan) -> tuple[Section, ...]:
    result = plan.sensitivity
    if result is None:
        return ()
    return make_section(
        "sensitivity",
        "Sensitivity",
        "One condition varies; everything else is as in the job.",
        *build_sensitivity_charts(result),
        *build_sensitivity_tables(result),
    )


def _build_verification_section(plan: Plan) -> tuple[Section, ...]:
    result = plan.verification
    if result is None:
        return ()
    return make_section(
        "verification",
        "Verification",
        "One rank of the job ran on fake tensors without memory, and its tenants were counted.",
        *(Paragraph(text=line) for line in describe_verification(result)[1:]),
        *(_build_stage_table(stage) for stage in result.stages),
    )


def _build_stage_table(stage: VerifiedStage) -> Table:
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
                        take_scaled(entry, "planned_bytes", scale),
                        take_scaled(entry, "verified_bytes", scale),
                        Value(entry.difference_ratio, Unit.RATIO, signed=True),
                    ),
                )
                for entry in stage.tenants
            ),
            make_plan_row(
                name="peak",
                cells=(
                    take_scaled(stage, "planned_peak_bytes", scale),
                    take_scaled(stage, "verified_peak_bytes", scale),
                    Value(stage.difference_ratio, Unit.RATIO, signed=True),
                ),
                total=True,
            ),
        ),
    )
