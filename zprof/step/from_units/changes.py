"""Describe a change of a run, check it, and apply it to the run's model."""

import numpy as np
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.model.plan import Change
from zprof.step.from_units.calibration import CalibratedModel
from zprof.step.from_units.unit_replay import PassWork, StepPasses
from zprof.step.schedule import EnginePolicy, Pass, PassPhase, UnitSize
from zprof.step.tasks import Floats
from zprof.step.units import DEFAULT_IN_FLIGHT

#: If ranks' work differs by more than this share, levelling the ranks is one of the usual changes.
_SKEW_RATIO = 0.03
_KEEPS = ("none", "last", "all")
_HINT = "zprof whatif --help shows what can be changed"


def change_policy(policy: EnginePolicy, change: Change) -> EnginePolicy:
    """Return the engine policy after a change."""
    stage = policy.stage if change.stage is None else change.stage
    shards_gradients = policy.stage >= 2
    ahead = policy.prefetch if policy.stage == 3 or stage != 3 else 1
    # The reductions in flight; a run below stage 2 does not show them, so use the default.
    return EnginePolicy(
        stage=stage,
        prefetch=ahead if change.prefetch is None else change.prefetch,
        keep=policy.keep if change.keep_after_forward is None else change.keep_after_forward,
        overlap_reduce=_value_or(change.overlap_reduce, policy.overlap_reduce),
        overlap_gather=_value_or(change.overlap_gather, policy.overlap_gather),
        in_flight=policy.in_flight
        if shards_gradients
        else (DEFAULT_IN_FLIGHT if stage >= 2 else policy.in_flight),
        updates_first=policy.updates_first,
    )


def _value_or(value: bool | None, default: bool) -> bool:
    return default if value is None else value


def change_passes(model: CalibratedModel, change: Change) -> StepPasses:
    """Return passes, their work and their message bytes after a change."""
    skeleton = model.skeleton
    if change.stage is not None:
        skeleton = _change_reductions(skeleton, model.policy.stage, change.stage)
    if change.micro_batches is not None and change.micro_batches != skeleton.micro_batches:
        # Split the same samples per step into ``count`` micro-batches, and the work of each pass with them.
        old, size = skeleton.micro_batches, len(skeleton.passes) // skeleton.micro_batches
        first = skeleton.passes[-size:]
        each_reduces = all(
            any(each.reduces for each in skeleton.passes if each.micro_batch == number)
            for number in range(old)
        )
        passes = tuple(
            replace(
                each,
                micro_batch=number,
                reduces=each.reduces and (each_reduces or number == change.micro_batches - 1),
            )
            for number in range(change.micro_batches)
            for each in first
        )
        mean = skeleton.work.passes.reshape(old, size, *skeleton.work.passes.shape[1:]).mean(axis=0)
        work = replace(
            skeleton.work, passes=np.concatenate([mean * old / change.micro_batches] * change.micro_batches)
        )
        skeleton = replace(skeleton, passes=passes, work=work, micro_batches=change.micro_batches)
    if change.units_merged is not None and change.units_merged > 1:
        skeleton = _merge_units(skeleton, change.units_merged)
    if change.element_bytes_reduced is not None and model.reduced_element_bytes:
        times = change.element_bytes_reduced / model.reduced_element_bytes
        units = tuple(replace(unit, reduce_bytes=unit.reduce_bytes * times) for unit in skeleton.units)
        skeleton = replace(skeleton, units=units)
    if change.even:
        skeleton = replace(skeleton, work=_level_ranks(skeleton.work))
    return skeleton


def _change_reductions(skeleton: StepPasses, old: int, new: int) -> StepPasses:
    """Move reductions: with accumulation, stages 0 and 1 reduce in the last micro-batch, 2 and 3 in each."""
    if (old >= 2) == (new >= 2) or skeleton.micro_batches == 1:
        return skeleton
    last = skeleton.micro_batches - 1
    ends = {id(each) for each in skeleton.passes if _completes_gradients(each, skeleton)}
    passes = tuple(
        replace(each, reduces=id(each) in ends and (new >= 2 or each.micro_batch == last))
        for each in skeleton.passes
    )
    return replace(skeleton, passes=passes)


def _completes_gradients(each: Pass, skeleton: StepPasses) -> bool:
    """Return True if the gradients of the unit are complete after this pass."""
    encloses = skeleton.units[each.unit].encloses
    return each.phase is PassPhase.BACKWARD and (not encloses or not each.needs)


def _merge_units(skeleton: StepPasses, count: int) -> StepPasses:
    """Merge every ``count`` neighbouring units into one; units that enclose others stay separate."""
    inner = [index for index, unit in enumerate(skeleton.units) if not unit.encloses]
    enclosing = [index for index, unit in enumerate(skeleton.units) if unit.encloses]
    groups = [[index] for index in enclosing]
    groups += [inner[start : start + count] for start in range(0, len(inner), count)]
    group_of_unit = {index: number for number, group in enumerate(groups) for index in group}
    units = tuple(_merge_sizes([skeleton.units[index] for index in group]) for group in groups)
    passes: list[Pass] = []
    work: list[Floats] = []
    for each, ns in zip(skeleton.passes, skeleton.work.passes, strict=True):
        merged = replace(each, unit=group_of_unit[each.unit])
        if passes and passes[-1] == merged and not units[merged.unit].encloses:
            work[-1] = work[-1] + ns
        else:
            passes.append(merged)
            work.append(ns)
    return replace(
        skeleton, units=units, passes=tuple(passes), work=replace(skeleton.work, passes=np.array(work))
    )


def _merge_sizes(units: list[UnitSize]) -> UnitSize:
    return UnitSize(
        name=units[0].name if len(units) == 1 else f"{units[0].name} to {units[-1].name}",
        gather_bytes=sum(unit.gather_bytes for unit in units),
        reduce_bytes=sum(unit.reduce_bytes for unit in units),
        encloses=units[0].encloses,
    )


def _level_ranks(work: PassWork) -> PassWork:
    """Give every rank the median rank's work."""

    def median(values: Floats) -> Floats:
        medians = np.median(values, axis=-1, keepdims=True)
        return np.broadcast_to(medians, values.shape).copy()

    return PassWork(
        head=median(work.head), passes=median(work.passes), tail=median(work.tail), between=work.between
    )


def usual_changes(model: CalibratedModel) -> tuple[Change, ...]:
    """Return the usual changes: stages, prefetch, kept units, bandwidth and, if skewed, even ranks."""
    policy, summary = model.policy, model.summary
    found = [Change(stage=stage) for stage in range(4) if stage != policy.stage]
    if policy.stage == 3:
        found += [Change(prefetch=depth) for depth in (0, 1, 2) if depth != policy.prefetch]
        found += [Change(keep_after_forward=keep) for keep in ("last", "all") if keep != policy.keep]
    found += [Change(bandwidth_ratio=2.0), Change(bandwidth_ratio=0.5)]
    busy = summary.forward_ns + summary.backward_ns
    if summary.skew_ns > _SKEW_RATIO * max(1, busy):
        found.append(Change(even=True))
    return tuple(found)


def describe_change(change: Change) -> str:
    """Return a change as a phrase, such as ``stage 2, prefetch 2, bandwidth x2``."""
    plural = "" if change.micro_batches in (None, 1) else "es"
    parts = [
        _format_part("stage {}", change.stage),
        _format_part("prefetch {}", change.prefetch),
        _format_part("keep {} after the forward", change.keep_after_forward),
        _describe_switch("reductions", change.overlap_reduce),
        _describe_switch("gathers of new parameters", change.overlap_gather),
        _format_part("bandwidth x{:g}", change.bandwidth_ratio),
        _format_part("latency x{:g}", change.latency_ratio),
        "no units merged"
        if change.units_merged == 1
        else _format_part("{} units merged into one", change.units_merged),
        # "the same samples", because micro-batches of a plan add samples
        _format_part("the same samples in {} micro-batch", change.micro_batches) + plural,
        _format_part("reduced gradients of {} bytes per element", change.element_bytes_reduced),
        "" if not change.even else "even ranks",
        _format_part("sharded over {} ranks", change.shard_ranks),
    ]
    return ", ".join(text for text in parts if text) or "no change"


def _format_part(text: str, value: object) -> str:
    return "" if value is None else text.format(value)


def _describe_switch(message: str, on: bool | None) -> str:
    return "" if on is None else f"{message} {'overlapped with compute' if on else 'awaited immediately'}"


def refuse_change(change: Change) -> None:
    """Reject a change with an impossible value.

    Raises:
        BadInput: a value is out of range.
    """
    for is_wrong, message in (
        (change.stage is not None and change.stage not in range(4), f"stage {change.stage}: 0 to 3"),
        (_is_below(change.prefetch, 0), f"prefetch {change.prefetch}: 0 or more"),
        (
            change.keep_after_forward not in (None, *_KEEPS),
            f"keep {change.keep_after_forward}: none, last, all",
        ),
        (
            (change.bandwidth_ratio is not None and not 0 < change.bandwidth_ratio < float("inf")),
            f"bandwidth x{change.bandwidth_ratio}: above 0",
        ),
        (_is_below(change.latency_ratio, 0), f"latency x{change.latency_ratio}: 0 or more"),
        (_is_below(change.units_merged, 1), f"units merged {change.units_merged}: 1 or more"),
        (_is_below(change.micro_batches, 1), f"micro-batches {change.micro_batches}: 1 or more"),
        (
            _is_below(change.element_bytes_reduced, 1),
            f"element bytes {change.element_bytes_reduced}: 1 or more",
        ),
        (_is_below(change.shard_ranks, 2), f"shard ranks {change.shard_ranks}: 2 or more"),
    ):
        if is_wrong:
            raise BadInput(message, hint=_HINT)


def refuse_merging(change: Change, units: int | None) -> None:
    """Reject merging more units than the run has; ``units`` is None if unknown.

    Raises:
        BadInput: there are fewer units.
    """
    if units is not None and change.units_merged is not None and change.units_merged > units:
        raise BadInput(f"units merged {change.units_merged}: the run has {units} units", hint=_HINT)


def _is_below(value: float | None, minimum: float) -> bool:
    return value is not None and not value >= minimum
