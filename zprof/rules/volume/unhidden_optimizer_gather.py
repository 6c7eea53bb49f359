"""ZP416 unhidden_optimizer_gather: a ZeRO stage 1 or 2 step ends with an unhidden gather of all parameters.

After the optimizer step, each rank has only its shard of the new parameters. Gathered at once, at the end of
the step, all of it is exposed; unit by unit, in the order of the next forward, only the first unit is.

Signal, on one rank and without clocks: all large gathers (or broadcasts, as of PyTorch's
ZeroRedundancyOptimizer) of a step start after its last reduction of gradients. At least half of their
transfer is exposed, and that is at least 3 % of the step (docs/thresholds.md), in the median step. Half,
because a hidden gather still exposes its first unit: 18 % of it with 4 blocks (measured on the reference
engine). At most the compute of the next forward can hide it: a third of the compute of a micro-batch if the
backward takes twice as long as the forward, a quarter if it also recomputes. With e exposed and C the
compute, at most min(e, 0.4 C) is lost. With the fix the gathers run beside the next forward.

Stages 1 and 2 need no more than data parallelism: a reduce-scatter of gradients (psi) and this gather (psi).
If gradients are all-reduced in full (2 psi) before it, all ranks could update all parameters themselves. The
gather then saves only memory, at 3 psi instead of 2 psi. That is proven by bytes, from one rank, and half of
the all-reduces' transfer is lost as well.
"""

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, Groups, Mask, find_places
from zprof.analysis.intervals import Int64s
from zprof.analysis.per_step import has_no_collectives, mean_per_step, mean_wall_ns
from zprof.analysis.time.collective_rows import select_kind
from zprof.causes.fix import Fix, choose_fix
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_bytes, format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Engine
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap
from zprof.step.half_precision import measure_half_bytes
from zprof.step.traffic import (
    are_mostly_bounds,
    count_elements,
    has_known_sizes,
    select_large,
    weigh_rows,
)

_SHARING_KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST)
_SCATTERING_KIND = CollectiveKind.REDUCE_SCATTER
_REDUCING_KINDS = (_SCATTERING_KIND, CollectiveKind.ALL_REDUCE)
#: Minimum share of the bytes gathered in all steps; programs that also gather before (stage 3) have less.
_MIN_CLOSING_RATIO = 0.95
#: Minimum size relative to the reductions: less (predictions, metrics) is not parameters.
_MIN_GATHERED_RATIO = 0.10
#: Maximum bytes relative to the reductions: parameters of 32 bits, gradients of 8. More (embeddings) is
#: not the parameters whose gradients were reduced.
_MAX_GATHERED_RATIO = 4.0
#: All-reduced gradients have as many elements as gathered parameters, except for padding and frozen ones.
_SAME_RATIO = 0.10
#: Method of collectives whose launches were not recorded: gloo runs a reduce-scatter as an all-reduce.
_WITHOUT_LAUNCH = "gloo_execution"


class ClosingGathers(Struct, frozen=True, kw_only=True):
    """Rows of the collectives: those that share new parameters, and the reductions before them."""

    gathers: Columns
    reductions: Columns
    three_psi: bool


def read_closing_gathers(analysis: RunAnalysis) -> ClosingGathers | None:
    """Return the gathers that share parameters at the end of steps, None if there are none; read once."""
    return analysis.compute_once(_read_closing_gathers)


def _read_closing_gathers(analysis: RunAnalysis) -> ClosingGathers | None:
    rows = select_large(analysis.collectives)
    reductions, gathers = (select_kind(rows, *kinds) for kinds in (_REDUCING_KINDS, _SHARING_KINDS))
    if not len(gathers) or not len(reductions):
        return None
    closing = gathers.at(_begin_after_reductions(gathers, reductions))
    if weigh_rows(closing).sum() < _MIN_CLOSING_RATIO * weigh_rows(gathers).sum():
        return None
    if weigh_rows(closing).sum() < _MIN_GATHERED_RATIO * weigh_rows(reductions).sum():
        return None
    if (
        has_known_sizes(rows)
        and closing.ints("bytes").sum() > _MAX_GATHERED_RATIO * reductions.ints("bytes").sum()
    ):
        return None
    return ClosingGathers(
        gathers=closing,
        reductions=reductions,
        three_psi=has_known_sizes(rows)
        and _is_reduced_in_full(reductions, closing)
        and not any(_WITHOUT_LAUNCH in entry.method for entry in analysis.time.collectives),
    )


def _begin_after_reductions(gathers: Columns, reductions: Columns) -> Mask:
    """Return a mask of the gathers that started after the last reduction of their rank and step."""
    rank, step = reductions.ints("rank"), reductions.ints("step")
    steps = Groups(rank, step)
    places = find_places([gathers.ints("rank"), gathers.ints("step")], [rank[steps.first], step[steps.first]])
    last = steps.max(reductions.ints("start_ns"))[places]
    behind: Mask = (places >= 0) & (gathers.ints("start_ns") > last)
    return behind


def _is_reduced_in_full(reductions: Columns, gathers: Columns) -> bool:
    """Return True if the gathered elements were all-reduced before, and nothing was scattered."""
    scattered, moved_bytes = reductions.texts("kind").equals(_SCATTERING_KIND.value), reductions.ints("bytes")
    if moved_bytes[scattered].sum() > _SAME_RATIO * moved_bytes.sum():
        return False
    return count_elements(reductions.at(~scattered)) >= (1 - _SAME_RATIO) * count_elements(gathers)


_MIN_STEP_RATIO = 0.03
#: Minimum exposed share of the gathers' transfer: with less they already overlap with the next forward.
_EXPOSED_RATIO = 0.5
#: The forward's largest share of a micro-batch's compute.
_MAX_FORWARD_RATIO = 0.4

_FIXES = Fix(
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


class _Cost(Struct, frozen=True, kw_only=True):
    """A rank's gathers per step, the part that can be hidden, and what a reduce-scatter would spare.

    ``bound``: most of their time was not recorded on all ranks, so it may be waiting.
    """

    gathered_bytes: float
    reduced_bytes: float
    transfer_ns: float
    exposed_ns: float
    hideable_ns: float
    scattering_ns: float
    bound: bool

    @property
    def lost_ns(self) -> float:
        """What the gather and reductions in full cost at most."""
        return self.hideable_ns + self.scattering_ns


def unhidden_optimizer_gather(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the gather of new parameters delays the step."""
    cause = Cause.UNHIDDEN_OPTIMIZER_GATHER
    if has_no_collectives(analysis):
        return untested_gap(cause, "no collective was recorded", "record the time window")
    seen = read_closing_gathers(analysis)
    if seen is None:
        return None
    worth = _MIN_STEP_RATIO * mean_wall_ns(analysis)
    gathers, rows = seen.gathers, seen.reductions
    exposed = _median_step_sum(gathers, gathers.ints("exposed_transfer_ns"))
    transfer = _median_step_sum(gathers, gathers.ints("transfer_ns"))
    holds_up = exposed >= max(worth, _EXPOSED_RATIO * transfer)
    compute = float(analysis.steps.ints("compute_ns").mean()) / max(1, analysis.training.micro_batches)
    cost = _Cost(
        gathered_bytes=mean_per_step(analysis, gathers.ints("bytes").sum()),
        reduced_bytes=mean_per_step(analysis, rows.ints("bytes").sum()),
        transfer_ns=transfer,
        exposed_ns=exposed,
        hideable_ns=min(exposed, _MAX_FORWARD_RATIO * compute) if holds_up else 0.0,
        scattering_ns=measure_half_bytes(analysis, rows).lost_ns if seen.three_psi else 0.0,
        bound=are_mostly_bounds(gathers),
    )
    if not cost.hideable_ns and not seen.three_psi:
        return None
    sure = cost.hideable_ns > 0 and cost.lost_ns >= worth  # otherwise only three psi, a note
    return make_finding(
        analysis,
        Cause.UNHIDDEN_OPTIMIZER_GATHER,
        sentence=_make_sentence(seen, cost),
        evidence=_evidence(seen, cost),
        saving_ns=(0.0, cost.lost_ns),
        severity=rate_severity(cost.lost_ns, mean_wall_ns(analysis)),
        confidence=(Confidence.MEDIUM if cost.bound else Confidence.HIGH) if sure else Confidence.LOW,
        fix=choose_fix(analysis, _FIXES, {"stage": analysis.training.stage or 1}),
        disprove="run some steps without optimizer.step() and record again: if they are not shorter by the "
        "exposed part, the gather is not the cause",
    )


def _median_step_sum(gathers: Columns, values: Int64s | Floats) -> float:
    """Return the median sum over ranks and steps, because nothing hides the gather of the last step."""
    return float(np.median(gathers.group_by("rank", "step").sum(values)))


def _make_sentence(seen: ClosingGathers, cost: _Cost) -> str:
    bound = "at most, because ranks are missing; " if cost.bound else ""
    description = (
        f"{format_bytes(cost.gathered_bytes)} of new parameters" if cost.gathered_bytes else "new parameters"
    )
    text = (
        f"each step ends with a gather of {description} "
        f"(exposed {bound}{format_ns(cost.exposed_ns)} of {format_ns(cost.transfer_ns)})"
    )
    if seen.three_psi:
        text += (
            f", after {format_bytes(cost.reduced_bytes)} of gradients were all-reduced in full: "
            "three times the parameters are sent where two would suffice"
        )
    return text


def _evidence(seen: ClosingGathers, cost: _Cost) -> list[Fact]:
    gathered = make_fact("gathered_bytes_per_step/new_parameters", cost.gathered_bytes)
    rows = [
        *((gathered,) if cost.gathered_bytes else ()),
        make_fact("transfer_per_step/gathers", cost.transfer_ns),
        make_fact("exposed_part", cost.exposed_ns),
        make_fact("hideable_max", cost.hideable_ns),
    ]
    if seen.three_psi:
        moved = 2 * cost.reduced_bytes + cost.gathered_bytes
        rows += [
            make_fact("all_reduced_bytes_per_step", cost.reduced_bytes),
            make_fact("moved_bytes_per_step/all_reduce_twice", moved),
            make_fact("reduce_scatter_saving_max", cost.scattering_ns),
        ]
    return rows
