"""A plan as chapters: what all faces show, in the order in which they show it."""

from zprof.model.planning.plan import Plan
from zprof.reports.plan.grid import Chapter
from zprof.reports.plan.memory import memory_grid, term_grid
from zprof.reports.plan.sensitivity import sensitivity_grids
from zprof.reports.plan.sensitivity_chart import sensitivity_charts
from zprof.reports.plan.time import degree_grid, step_grid, traffic_grid
from zprof.reports.plan.verification import verification_grids, verification_sentences


def plan_chapters(plan: Plan) -> tuple[Chapter, ...]:
    """Those that have something to say."""
    made = (
        Chapter(
            anchor="memory",
            title="Memory",
            lead="Who would own the bytes of a device, under each way to spread the model.",
            grids=(memory_grid(plan), term_grid(plan)),
        ),
        Chapter(
            anchor="step",
            title="Time and traffic",
            lead="The terms sum to the step; bytes are those that one device moves.",
            grids=(*step_grid(plan), *traffic_grid(plan), degree_grid(plan)),
        ),
        *_sensitivity(plan),
        *_verification(plan),
    )
    return tuple(chapter for chapter in made if chapter.grids or chapter.sentences)


def _sensitivity(plan: Plan) -> tuple[Chapter, ...]:
    found = plan.sensitivity
    if found is None:
        return ()
    return (
        Chapter(
            anchor="sensitivity",
            title="Sensitivity",
            lead="One condition changes, all else is the job's.",
            sentences=found.answers,
            grids=sensitivity_grids(found),
            charts=sensitivity_charts(found),
        ),
    )


def _verification(plan: Plan) -> tuple[Chapter, ...]:
    found = plan.verification
    if found is None:
        return ()
    return (
        Chapter(
            anchor="verification",
            title="Verification",
            lead="One rank of the job ran on tensors without memory, and its tenants were counted.",
            sentences=verification_sentences(found),
            grids=verification_grids(found),
        ),
    )
