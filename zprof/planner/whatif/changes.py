"""A change, applied to what the model knows of a run; the changes that are usually asked about."""

from dataclasses import replace

import numpy as np

from zprof.model.planning.whatif import Change
from zprof.planner.whatif.calibrate import Calibrated
from zprof.planner.whatif.habits import IN_FLIGHT, Habits
from zprof.planner.whatif.skeleton import Floats, Pass, Phase, Skeleton, UnitSize, Work

#: Ranks differ by more than this share of their work: to make them even is worth a question.
_SKEW_RATIO = 0.03


def changed_habits(habits: Habits, change: Change) -> Habits:
    """What the engine does after a change."""
    stage = habits.stage if change.stage is None else change.stage
    from_2 = habits.stage >= 2
    ahead = habits.prefetch if habits.stage == 3 or stage != 3 else 1
    return Habits(
        stage=stage,
        prefetch=ahead if change.prefetch is None else change.prefetch,
        keep=habits.keep if change.keep_after_forward is None else change.keep_after_forward,
        overlap_reduce=_or(change.overlap_reduce, habits.overlap_reduce),
        overlap_gather=_or(change.overlap_gather, habits.overlap_gather),
        in_flight=habits.in_flight if from_2 else _in_flight(habits, stage),
        updates_first=habits.updates_first,
    )


def _in_flight(habits: Habits, stage: int) -> int:
    """Below stage 2 nothing shows how many reductions an engine would have under way from it on."""
    return IN_FLIGHT if stage >= 2 else habits.in_flight


def _or(value: bool | None, otherwise: bool) -> bool:
    return otherwise if value is None else value


def changed_skeleton(model: Calibrated, change: Change) -> Skeleton:
    """Passes, their work and the bytes of their messages after a change."""
    skeleton = model.skeleton
    if change.stage is not None:
        skeleton = _reducing(skeleton, model.habits.stage, change.stage)
    if change.micro_batches is not None and change.micro_batches != skeleton.micro_batches:
        skeleton = _with_micro_batches(skeleton, change.micro_batches)
    if change.units_merged is not None and change.units_merged > 1:
        skeleton = _merged(skeleton, change.units_merged)
    if change.element_bytes_reduced is not None and model.reduced_element_bytes:
        skeleton = _with_element_bytes(skeleton, change.element_bytes_reduced / model.reduced_element_bytes)
    if change.even:
        skeleton = replace(skeleton, work=_even(skeleton.work))
    return skeleton


def _with_element_bytes(skeleton: Skeleton, times: float) -> Skeleton:
    if times == 1:
        return skeleton
    units = tuple(replace(unit, reduce_bytes=unit.reduce_bytes * times) for unit in skeleton.units)
    return replace(skeleton, units=units)


def _reducing(skeleton: Skeleton, old: int, new: int) -> Skeleton:
    """With accumulation: stages 0 and 1 reduce after the last micro-batch, the others after each."""
    if (old >= 2) == (new >= 2) or skeleton.micro_batches == 1:
        return skeleton
    last = skeleton.micro_batches - 1
    ends = {id(each) for each in skeleton.passes if _ends(each, skeleton)}
    passes = tuple(
        replace(each, reduces=id(each) in ends and (new >= 2 or each.micro_batch == last))
        for each in skeleton.passes
    )
    return replace(skeleton, passes=passes)


def _ends(each: Pass, skeleton: Skeleton) -> bool:
    """Whether the gradients of the unit are complete after it."""
    encloses = skeleton.units[each.unit].encloses
    return each.phase is Phase.BACKWARD and (not encloses or not each.needs)


def _with_micro_batches(skeleton: Skeleton, count: int) -> Skeleton:
    """The same samples a step in other portions: each pass has its share of the work."""
    old, size = skeleton.micro_batches, len(skeleton.passes) // skeleton.micro_batches
    first = skeleton.passes[-size:]
    each_reduces = all(
        any(each.reduces for each in skeleton.passes if each.micro_batch == number) for number in range(old)
    )
    passes = tuple(
        replace(each, micro_batch=number, reduces=each.reduces and (each_reduces or number == count - 1))
        for number in range(count)
        for each in first
    )
    mean = skeleton.work.passes.reshape(old, size, *skeleton.work.passes.shape[1:]).mean(axis=0)
    work = replace(skeleton.work, passes=np.concatenate([mean * old / count] * count))
    return replace(skeleton, passes=passes, work=work, micro_batches=count)


def _merged(skeleton: Skeleton, count: int) -> Skeleton:
    """So many neighbours become one unit; the one that encloses them stays by itself."""
    inside = [index for index, unit in enumerate(skeleton.units) if not unit.encloses]
    around = [index for index, unit in enumerate(skeleton.units) if unit.encloses]
    groups = [[index] for index in around]
    groups += [inside[start : start + count] for start in range(0, len(inside), count)]
    place = {index: number for number, group in enumerate(groups) for index in group}
    units = tuple(_one([skeleton.units[index] for index in group]) for group in groups)
    passes: list[Pass] = []
    work: list[Floats] = []
    for each, ns in zip(skeleton.passes, skeleton.work.passes, strict=True):
        mine = replace(each, unit=place[each.unit])
        if passes and passes[-1] == mine and not units[mine.unit].encloses:
            work[-1] = work[-1] + ns
        else:
            passes.append(mine)
            work.append(ns)
    return replace(
        skeleton, units=units, passes=tuple(passes), work=replace(skeleton.work, passes=np.array(work))
    )


def _one(units: list[UnitSize]) -> UnitSize:
    return UnitSize(
        name=units[0].name if len(units) == 1 else f"{units[0].name} to {units[-1].name}",
        gather_bytes=sum(unit.gather_bytes for unit in units),
        reduce_bytes=sum(unit.reduce_bytes for unit in units),
        encloses=units[0].encloses,
    )


def _even(work: Work) -> Work:
    """All ranks as the median one."""

    def median(values: Floats) -> Floats:
        middle = np.median(values, axis=-1, keepdims=True)
        return np.broadcast_to(middle, values.shape).copy()

    return Work(
        head=median(work.head), passes=median(work.passes), tail=median(work.tail), between=work.between
    )


def usual_of(model: Calibrated) -> tuple[Change, ...]:
    """What is asked first of a run: each other stage, prefetch, the link, even ranks, what stays gathered."""
    habits, summary = model.habits, model.summary
    found = [Change(stage=stage) for stage in range(4) if stage != habits.stage]
    if habits.stage == 3:
        found += [Change(prefetch=depth) for depth in (0, 1, 2) if depth != habits.prefetch]
        found += [Change(keep_after_forward=keep) for keep in ("last", "all") if keep != habits.keep]
    found += [Change(bandwidth_ratio=2.0), Change(bandwidth_ratio=0.5)]
    busy = summary.forward_ns + summary.backward_ns
    if summary.skew_ns > _SKEW_RATIO * max(1, busy):
        found.append(Change(even=True))
    return tuple(found)
