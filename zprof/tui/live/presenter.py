"""Content of the live screen: stage of the recording, ledger and tenants of completed windows.

Until a window is measured its numbers are unknown, and the table's note says when they will come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from zprof.model.tenants import Tenant
from zprof.model.time import LEDGER_NAMES
from zprof.run.live import LiveRank, LiveState
from zprof.run.manifest import PlannedSteps
from zprof.tui.figures import Aggregation, Figure, Unit, figure
from zprof.tui.live.watcher import JobState, LiveSnapshot
from zprof.tui.metric_help.registry import find_help
from zprof.tui.tables import Column, Line, Mark, Table, TextCell, numeric_column


class Activity(StrEnum):
    """Activity of the recording."""

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
    """Current activity with ``step`` of ``of`` steps done; 0 of 0 if nothing is counted."""

    doing: Activity
    step: int = 0
    of: int = 0


def find_stage(seen: LiveSnapshot) -> Stage:
    """Return the stage of the slowest rank: a window is over when it is over on all ranks."""
    state, job = seen.state, seen.job
    if state.manifest is None or not state.ranks:
        return Stage(doing=Activity.NOTHING if _is_over(job) else Activity.WAITING)
    if state.finished:
        return Stage(doing=Activity.RECORDED)
    if _is_over(job) or all(rank.finished for rank in state.ranks):
        return Stage(doing=Activity.CUT_SHORT)
    done = count_steps_done(state)
    plan = state.manifest.planned
    return (
        Stage(doing=Activity.STEPS, step=done)
        if plan is None
        else _find_planned_stage(plan, done, state.ranks)
    )


def count_steps_done(state: LiveState) -> int:
    """Return the number of steps that every rank has finished, from the program's first."""
    last = [rank.last.step + 1 if rank.last else 0 for rank in state.ranks]
    return min(last, default=0)


def _is_over(job: JobState) -> bool:
    return job.ours and not job.runs


def _find_planned_stage(plan: PlannedSteps, done: int, ranks: Sequence[LiveRank]) -> Stage:
    time_from = plan.skip + plan.memory
    if done < plan.skip:
        return Stage(doing=Activity.WARMING, step=done, of=plan.skip)
    if done < time_from:
        return Stage(doing=Activity.MEMORY, step=done - plan.skip, of=plan.memory)
    if done == time_from and plan.memory and not all(rank.manifest.memory_steps for rank in ranks):
        return Stage(doing=Activity.WRITING_MEMORY)
    if done < time_from + plan.time:
        return Stage(doing=Activity.TIME, step=done - time_from, of=plan.time)
    return Stage(doing=Activity.WRITING_TIME)


def describe_stage(seen: LiveSnapshot) -> str:
    """Return one line on the activity, its progress, and whether the job continues."""
    stage = find_stage(seen)
    parts = [stage.doing.value]
    if stage.of:
        parts.append(f"{stage.step} of {stage.of} steps done")
    elif stage.step:
        parts.append(f"{stage.step} steps done")
    if stage.doing is Activity.RECORDED:
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


_RANKS = "time.per_rank[*]"
_WIDE = 100
_FINAL_ACTIVITIES = (Activity.RECORDED, Activity.CUT_SHORT, Activity.NOTHING)


def build_ledger_table(seen: LiveSnapshot) -> Table:
    """Return the step ledger: means over ranks and the steps of the time window."""
    tree = seen.measured.tree
    steps = _format_steps(tree, "steps")
    lines = [_build_term(tree, "wall_ns", "step time", Mark.TITLE)]
    lines += [_build_term(tree, term, name, Mark.PLAIN) for term, name in LEDGER_NAMES.items()]
    return Table(
        name="live ledger",
        title="where a step goes",
        columns=(Column(title="step"), numeric_column("ms"), numeric_column("of step")),
        lines=tuple(lines),
        help="Means over ranks and steps of the time window. The terms sum to the step time.",
        note=f"mean of steps {steps}" if steps else _explain_unknown(seen, "time window"),
    )


def _build_term(tree: Mapping[str, Any], term: str, name: str, mark: Mark) -> Line:
    share = figure(tree, Unit.RATIO, f"{_RANKS}.{term}", f"{_RANKS}.wall_ns", how=Aggregation.SHARE)
    time = figure(tree, Unit.MS, f"{_RANKS}.{term}", how=Aggregation.MEAN)
    return Line(key=term, cells=(TextCell(name), time, share), mark=mark)


def build_tenants_table(seen: LiveSnapshot) -> Table:
    """Return the tenants at the peak, on the rank with the highest peak."""
    tree = seen.measured.tree
    place = _find_highest_peak(tree)
    stem = f"memory.per_rank[{max(0, place)}]"
    lines = [_build_bytes_line(tree, stem, "peak_bytes", "peak", Mark.TITLE)]
    lines += [
        _build_bytes_line(tree, stem, f"tenants.{each}", each.replace("_", " "), Mark.PLAIN)
        for each in Tenant
    ]
    lines.append(_build_bytes_line(tree, stem, "untagged_bytes", "untagged", Mark.PLAIN))
    at = (
        f"rank {tree['memory']['per_rank'][place]['rank']}, steps {_format_steps(tree, 'memory_steps')}"
        if place >= 0
        else ""
    )
    return Table(
        name="live tenants",
        title="memory at the peak",
        columns=(
            Column(title="tenant"),
            numeric_column("bytes"),
            numeric_column("of peak", from_width=_WIDE),
        ),
        lines=tuple(lines),
        help="The six tenants at the highest peak of all ranks in the memory window; they sum to it.",
        note=at or _explain_unknown(seen, "memory window"),
    )


def _build_bytes_line(tree: Mapping[str, Any], stem: str, name: str, says: str, mark: Mark) -> Line:
    size = figure(tree, Unit.BYTES, f"{stem}.{name}")
    share = figure(tree, Unit.RATIO, f"{stem}.{name}", f"{stem}.peak_bytes", how=Aggregation.SHARE)
    return Line(key=name, cells=(TextCell(says), size, share), mark=mark)


def _find_highest_peak(tree: Mapping[str, Any]) -> int:
    """Return the index of the rank with the highest peak; -1 if no memory was measured."""
    ranks = tree["memory"]["per_rank"] if tree else []
    peaks = [(rank["peak_bytes"], -place) for place, rank in enumerate(ranks)]
    return -max(peaks)[1] if peaks else -1


def _format_steps(tree: Mapping[str, Any], name: str) -> str:
    """Return the steps of a window as ``4-11``; empty if there are none."""
    steps: Sequence[int] = tree["run"][name] if tree else ()
    if not steps:
        return ""
    return str(steps[0]) if len(steps) == 1 else f"{min(steps)}-{max(steps)}"


def _explain_unknown(seen: LiveSnapshot, window: str) -> str:
    if seen.measured.busy:
        return "measuring"
    return f"no {window}" if find_stage(seen).doing in _FINAL_ACTIVITIES else f"known after the {window}"


def get_verdict(seen: LiveSnapshot) -> str:
    """Return the verdict once the time window is measured, else an empty string."""
    tree = seen.measured.tree
    return str(tree["verdict"]["sentence"]) if tree and tree["run"]["steps"] else ""


def explain_number(number: Figure) -> str:
    """Return the number's meaning, formula and leaves."""
    meaning = find_help(number.leaves[0]) if number.leaves else None
    lines = [meaning.says, *([f"formula  {meaning.formula}"] if meaning.formula else [])] if meaning else []
    lines += [f"this is  {number.how.value}", *(f"  {leaf}" for leaf in number.leaves)]
    return "\n".join([*lines, "", "w shows its inputs and rows, among all screens of the run"])


def format_gaps(seen: LiveSnapshot) -> str:
    """Return what could not be measured so far."""
    gaps = seen.measured.tree.get("gaps", [])
    lines = [text for gap in gaps for text in (gap["what"], f"  {gap['reason']}", f"  {gap['remedy']}", "")]
    return "\n".join(lines) if lines else "nothing so far: windows that are not over are no gaps"
