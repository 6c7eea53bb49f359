"""A plan held against one rank that was counted, as tables: a stage a column pair, a tenant a row."""

from zprof.model.planning.verification import PlanVerification, VerifiedStage
from zprof.reports.plan.grid import Grid, GridColumn, GridRow
from zprof.reports.plan.words import scaled, signed_percent, size_scale, whole
from zprof.reports.shown.memory_names import tenant_name


def verification_sentences(found: PlanVerification) -> tuple[str, ...]:
    """How far off the plan is at most, and what it was held against."""
    off = [(abs(s.difference_ratio), s) for s in found.stages if s.difference_ratio is not None]
    took = "" if found.seconds is None else f" It took {found.seconds:.1f} s."
    ran = f"One of {whole(found.ranks)} ranks was counted, {found.how}: {found.program}.{took}"
    if not off:
        return ("The plan's peak could not be held against what was counted.", ran)
    most, worst = max(off, key=lambda entry: entry[0])
    if signed_percent(most) == signed_percent(0.0):
        return ("The planned peak is that of a counted rank, to a tenth of a percent.", ran)
    return (
        f"The planned peak is off by {signed_percent(worst.difference_ratio)} at most (stage {worst.stage}).",
        ran,
    )


def verification_grids(found: PlanVerification) -> tuple[Grid, ...]:
    """A table a stage."""
    return tuple(_stage(stage) for stage in found.stages)


def _stage(stage: VerifiedStage) -> Grid:
    scale = size_scale([stage.planned_peak_bytes, stage.verified_peak_bytes])
    return Grid(
        title=f"Stage {stage.stage} held against a counted rank",
        unit=scale.unit,
        note=f"peak: {stage.peak_at}" if stage.peak_at else "",
        columns=(
            GridColumn(title="planned"),
            GridColumn(title="counted"),
            GridColumn(title="difference", unit="%"),
        ),
        rows=(
            *(
                GridRow(
                    name=tenant_name(entry.tenant),
                    cells=(
                        scaled(entry.planned_bytes, scale),
                        scaled(entry.verified_bytes, scale),
                        signed_percent(entry.difference_ratio),
                    ),
                )
                for entry in stage.tenants
            ),
            GridRow(
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
