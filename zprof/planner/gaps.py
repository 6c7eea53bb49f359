"""What a plan cannot say, of all its rows together: in which columns, why, and what to state."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from zprof.model.gaps import Gap
from zprof.model.planning.job import Job
from zprof.model.planning.plan import SCHEME_NAMES, PlanRow
from zprof.planner.step.rate import rate_gaps, reached_flops_per_s

_SHAPE_INSTEAD = "plan with --layers and --hidden in place of --model"


def gaps_of_plan(job: Job, made: Sequence[tuple[PlanRow, Sequence[Gap]]]) -> tuple[Gap, ...]:
    """Each once; ``made``: the rows with what is not known of the memory of each."""
    return (*rate_gaps(job), *_one_unit(job), *_of_rows(made), *_times(job, [row for row, _ in made]))


def is_one_unit(job: Job) -> bool:
    """Whether the model was counted and has nothing within its root that could be a layer."""
    return job.shape is None and bool(job.units) and all(unit.encloses for unit in job.units)


def _one_unit(job: Job) -> Iterator[Gap]:
    if is_one_unit(job):
        yield Gap(
            what="units of the model: it is one, its root",
            reason="it has no nn.ModuleList with blocks: ZeRO-3 gathers all of it at once, and GPipe and "
            "PipeDream have no layers to divide, so that they are left out",
            remedy="hold the blocks in an nn.ModuleList, or " + _SHAPE_INSTEAD,
        )


def _of_rows(made: Sequence[tuple[PlanRow, Sequence[Gap]]]) -> Iterator[Gap]:
    """With the names of the columns that lack it, where others have it."""
    for gap in dict.fromkeys(gap for _, gaps in made for gap in gaps):
        lacking = [row for row, gaps in made if gap in gaps]
        yield gap if len(lacking) == len(made) else replace(gap, what=f"{gap.what} of {_names(lacking)}")


def _times(job: Job, rows: Sequence[PlanRow]) -> Iterator[Gap]:
    """Counted units do not say what model-parallel ranks and stages of a pipeline send to each other."""
    if job.hardware is None or job.batch.tokens is None or job.shape is not None or not job.units:
        return
    lacking = [row for row in rows if row.step is None]
    if lacking and reached_flops_per_s(job, job.hardware) is not None:
        yield Gap(
            what=f"times of {_names(lacking)}",
            reason="how wide the tensors are that pass between their ranks is not known of a counted model",
            remedy=_SHAPE_INSTEAD,
        )


def _names(rows: Sequence[PlanRow]) -> str:
    *first, last = (SCHEME_NAMES[row.scheme] for row in rows)
    return f"{', '.join(first)} and {last}" if first else last
