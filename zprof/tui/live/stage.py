"""How far a recording is: what is going on now, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from zprof.run.live import LiveRank, LiveState
from zprof.run.manifest import PlannedSteps
from zprof.tui.live.seen import Job, Seen


class Doing(StrEnum):
    """What is going on."""

    WAITING = "waiting for the first step"
    WARMING = "warming up"
    MEMORY = "memory window"
    WRITING_MEMORY = "writing the memory window"
    TIME = "time window"
    WRITING_TIME = "writing the time window"
    STEPS = "training"
    RECORDED = "recorded"
    CUT_SHORT = "ended before all was recorded"
    NOTHING = "ended, and nothing was recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """``step`` of ``of`` steps are done of what is going on; 0 of 0 where nothing is counted."""

    doing: Doing
    step: int = 0
    of: int = 0


def stage_of(seen: Seen) -> Stage:
    """That of the slowest rank: a window is over when it is over everywhere."""
    state, job = seen.state, seen.job
    if state.manifest is None or not state.ranks:
        return Stage(doing=Doing.NOTHING if _is_over(job) else Doing.WAITING)
    if state.finished:
        return Stage(doing=Doing.RECORDED)
    if _is_over(job) or all(rank.finished for rank in state.ranks):
        return Stage(doing=Doing.CUT_SHORT)
    done = steps_done(state)
    plan = state.manifest.planned
    return Stage(doing=Doing.STEPS, step=done) if plan is None else _planned(plan, done, state.ranks)


def steps_done(state: LiveState) -> int:
    """Steps that every rank has finished, counted from the first of the program."""
    last = [rank.last.step + 1 if rank.last else 0 for rank in state.ranks]
    return min(last, default=0)


def _is_over(job: Job) -> bool:
    return job.ours and not job.runs


def _planned(plan: PlannedSteps, done: int, ranks: Sequence[LiveRank]) -> Stage:
    time_from = plan.skip + plan.memory
    if done < plan.skip:
        return Stage(doing=Doing.WARMING, step=done, of=plan.skip)
    if done < time_from:
        return Stage(doing=Doing.MEMORY, step=done - plan.skip, of=plan.memory)
    if done == time_from and plan.memory and not all(rank.manifest.memory_steps for rank in ranks):
        return Stage(doing=Doing.WRITING_MEMORY)
    if done < time_from + plan.time:
        return Stage(doing=Doing.TIME, step=done - time_from, of=plan.time)
    return Stage(doing=Doing.WRITING_TIME)


def stage_words(seen: Seen) -> str:
    """One line: what is going on, how far it is, and whether the job goes on."""
    stage = stage_of(seen)
    parts = [stage.doing.value]
    if stage.of:
        parts.append(f"{stage.step} of {stage.of} steps done")
    elif stage.step:
        parts.append(f"{stage.step} steps done")
    if stage.doing is Doing.RECORDED:
        parts[0] += " (w shows all of it)"
        parts += ["the job goes on"] if seen.job.runs else []
    if seen.job.code is not None:
        parts.append(
            "the job is over" if seen.job.code == 0 else f"the job ended with exit code {seen.job.code}"
        )
    if seen.measured.busy:
        parts.append("measuring what was written")
    elif seen.measured.problem:
        parts.append(f"not measured: {seen.measured.problem}")
    if seen.state.problem:
        parts.append(seen.state.problem)
    return ", ".join(parts)
