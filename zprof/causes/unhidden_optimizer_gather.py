"""ZP416: a ZeRO stage 1 or 2 step ends with an unhidden gather of all parameters.

After the optimizer step, each rank has only its shard of the new parameters. Gathered at once at the end of
the step, all parameters are exposed; unit by unit, in the order of the next forward pass, only the first unit
is.

Signal, on one rank and without clocks: all large gathers (or broadcasts, as of PyTorch's
ZeroRedundancyOptimizer) of a step start after its last reduction of gradients. At least half of their
transfer is exposed, and that is at least 3 % of the step (docs/thresholds.md), in the median step. Half,
because a hidden gather still exposes its first unit: 18 % of it with 4 blocks (measured on the reference
engine). At most the compute of the next forward can hide it: a third of the compute of a micro-batch if the
backward pass takes twice as long as the forward pass, a quarter if it also recomputes. With e exposed and C
the compute, at most min(e, 0.4 C) is lost. With the fix the gathers overlap the next forward pass.

Stages 1 and 2 need no more than data parallelism: a reduce-scatter of gradients (psi) and this gather (psi).
If gradients are all-reduced in full (2 psi) before it, all ranks could update all parameters themselves. The
gather then saves only memory, at 3 psi instead of 2 psi. The bytes of one rank prove this, and half of the
all-reduces' transfer is lost as well.
"""

from collections.abc import Sequence

import numpy as np

from zprof.analysis.analysis import (
    Fact,
    RunAnalysis,
    Untested,
    find_missing_collectives,
    make_fact,
    mean_per_step,
    mean_wall_ns,
)
from zprof.analysis.columns import Columns
from zprof.base.formatting import format_bytes
from zprof.causes.cause import Cause, Signal
from zprof.causes.fix import Fix
from zprof.model.findings import Confidence, Finding
from zprof.model.plan import Change
from zprof.model.quantities import Unit
from zprof.model.training import Engine
from zprof.step.gathers import hide_closing_gathers, read_closing_gathers
from zprof.step.needless_bytes import measure_half_bytes
from zprof.step.tasks import Graph
from zprof.step.traffic import are_mostly_bounds

_MIN_STEP_RATIO = 0.03
#: Minimum exposed share of the gathers' transfer; below it they already overlap the next forward pass.
_EXPOSED_RATIO = 0.5
#: Maximum share of the forward pass in a micro-batch's compute.
_MAX_FORWARD_RATIO = 0.4

_FIX = Fix(
    forms={
        Engine.FSDP2: "fully_shard(block, reshard_after_forward=False)   # stage 2, gathered during "
        "the forward",
        Engine.FSDP1: "FullyShardedDataParallel(block, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,\n"
        "                         forward_prefetch=True)",
        Engine.ZERO1: "ZeroRedundancyOptimizer(..., overlap_with_ddp=True) with the hook "
        "hook_with_zero_step\n"
        "or stage 2 with FSDP2: fully_shard(block, reshard_after_forward=False), gathered during the forward",
        Engine.DEEPSPEED: '"zero_optimization": {"stage": 3, '
        '"stage3_prefetch_bucket_size": $deeper_elements}\n'
        "(no option of stages 1 and 2 hides this gather or scatters the gradients: in DeepSpeed 0.19 "
        "allgather_bucket_size\nand reduce_scatter change nothing there; with room for the state, stage 0 "
        "moves 2 instead of 3 times the parameters)",
        Engine.REFERENCE: "ZeroConfig(stage=$stage, overlap_gather=True)",
    },
)

CAUSE = Cause(
    id="ZP416",
    name="unhidden_optimizer_gather",
    meaning="A step of ZeRO stage 1 or 2 ends with a gather of all new parameters, with nothing beside it.",
    terms=("exposed_transfer_ns",),
    sentence="each step ends with a gather of {size}new parameters (exposed {bound}{exposed:ns} of "
    "{transfer:ns}){all_reduced}",
    evidence={
        "gathered_bytes_per_step": ("new parameters gathered {per_step}", Unit.BYTES),
        "transfer_per_step": ("transfer of these gathers {per_step}", Unit.NS),
        "hideable_max": ("maximum that the next forward can hide", Unit.NS),
        "all_reduced_bytes_per_step": ("gradients all-reduced in full {per_step}", Unit.BYTES),
        "moved_bytes_per_step": ("moved {per_step}, counting an all-reduce twice", Unit.BYTES),
        "reduce_scatter_saving_max": ("maximum gain of reduce-scatters", Unit.NS),
    },
    fix=_FIX,
    disprove="run some steps without optimizer.step() and record again: if they are not shorter by the "
    "exposed part, the gather is not the cause",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if the gather of new parameters delays the step."""
    missing, seen = find_missing_collectives(analysis), read_closing_gathers(analysis)
    if missing or seen is None:
        return missing
    min_ns = _MIN_STEP_RATIO * mean_wall_ns(analysis)
    exposed_ns = _median_step_sum(seen.gathers, "exposed_transfer_ns")
    transfer_ns = _median_step_sum(seen.gathers, "transfer_ns")
    delays = exposed_ns >= max(min_ns, _EXPOSED_RATIO * transfer_ns)
    compute_ns = float(analysis.steps.ints("compute_ns").mean()) / max(1, analysis.training.micro_batches)
    hideable_ns = min(exposed_ns, _MAX_FORWARD_RATIO * compute_ns) if delays else 0.0
    if not hideable_ns and not seen.three_psi:
        return None
    spared_ns = measure_half_bytes(analysis, seen.reductions).lost_ns if seen.three_psi else 0.0
    is_bound, is_sure = are_mostly_bounds(seen.gathers), hideable_ns > 0 and hideable_ns + spared_ns >= min_ns
    sure = Confidence.MEDIUM if is_bound else Confidence.HIGH
    gathered = mean_per_step(analysis, seen.gathers.ints("bytes").sum())
    reduced = mean_per_step(analysis, seen.reductions.ints("bytes").sum())
    return Signal(
        confidence=sure if is_sure else Confidence.LOW,  # otherwise only the 3 psi were found: a note
        words={
            "size": f"{format_bytes(gathered)} of " if gathered else "",
            "bound": "at most, because ranks are missing; " if is_bound else "",
            "exposed": exposed_ns,
            "transfer": transfer_ns,
            "all_reduced": f", after {format_bytes(reduced)} of gradients were all-reduced in full: "
            "three times the parameters are sent where two would suffice"
            if seen.three_psi
            else "",
        },
        facts=[
            *([make_fact("gathered_bytes_per_step", gathered)] if gathered else ()),
            make_fact("transfer_per_step", transfer_ns),
            make_fact("exposed_part", exposed_ns),
            make_fact("hideable_max", hideable_ns),
            *(_list_full_reductions(gathered, reduced, spared_ns) if seen.three_psi else ()),
        ],
        lost_ns=hideable_ns + spared_ns,
        numbers={"stage": analysis.training.stage or 1},
    )


def _median_step_sum(gathers: Columns, column: str) -> float:
    """Return the median sum over ranks and steps; the gather of the last step is never hidden."""
    return float(np.median(gathers.group_by("rank", "step").sum(gathers.ints(column))))


def _list_full_reductions(gathered: float, reduced: float, spared_ns: float) -> list[Fact]:
    return [
        make_fact("all_reduced_bytes_per_step", reduced),
        make_fact("moved_bytes_per_step", 2 * reduced + gathered),
        make_fact("reduce_scatter_saving_max", spared_ns),
    ]


@CAUSE.edit
def hide(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the steps in which the next forward pass hides the gathers."""
    return hide_closing_gathers(analysis, graph)


@CAUSE.reschedule
def overlap_gather(analysis: RunAnalysis, finding: Finding) -> Sequence[Change]:
    """Return the schedule of an engine that gathers new parameters during the next forward pass."""
    return [Change(overlap_gather=True)]
