"""A plan checked against one rank whose tenants were counted: sentences, and a table per stage."""

from zprof.model.planning.verification import PlanVerification, VerifiedStage
from zprof.reports.page import Table, numbers
from zprof.reports.presenters.memory_figures import tenant_name
from zprof.reports.presenters.plan_words import (
    plan_row,
    plan_table,
    scaled,
    signed_percent,
    size_scale,
    whole,
)


def verification_sentences(found: PlanVerification) -> tuple[str, ...]:
    """Return how far off the plan is at most, and what it was checked against."""
    off = [(abs(s.difference_ratio), s) for s in found.stages if s.difference_ratio is not None]
    took = "" if found.seconds is None else f" It took {found.seconds:.1f} s."
    ran = f"One of {whole(found.ranks)} ranks was counted, {found.how}: {found.program}.{took}"
    if not off:
        return ("The plan's peak could not be checked against what was counted.", ran)
    most, worst = max(off, key=lambda entry: entry[0])
    if signed_percent(most) == signed_percent(0.0):
        return ("The planned peak is that of a counted rank, to a tenth of a percent.", ran)
    return (
        f"The planned peak is off by {signed_percent(worst.difference_ratio)} at most (stage {worst.stage}).",
        ran,
    )


def verification_tables(found: PlanVerification) -> tuple[Table, ...]:
    """Return a table per stage."""
    return tuple(_stage(stage) for stage in found.stages)


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
