"""Plan the memory of one device at its peak under each scheme.

ZeRO stages, data parallelism and model parallelism (stage 0 on one rank's share of the model) follow a walk
through a step of the reference engine (``walk``) if unit bytes are known. Otherwise they follow the paper's
closed forms (``closed_forms``). Pipelines (GPipe and PipeDream) are planned for their worst device.

With m micro-batches per step, pp stages, S the bytes a micro-batch keeps on a stage, and B the input of the
stage's first block:

    GPipe (arXiv 1811.06965, section 2.3)      one version of the weights
        m S; checkpointed: m B + S (the stage is recomputed one micro-batch at a time). The last stage is the
        worst, because its S includes the loss.
    PipeDream (arXiv 1806.03377, section 3)    one forward, one backward; weights stashed
        first stage: pp versions of the weights, pp S;  last stage: 1 version, 1 S with the loss.
        Checkpointed: S is the inputs of the stage's blocks, and one block is recomputed.

Model parallelism is stage 0 on a rank's part of the model.

S and B come from the units if their bytes are known. Otherwise the paper's figures apply: 12 h t e per
block and h t e for its input (arXiv 1910.02054, section 3.2), without work buffers.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from zprof.model.gaps import Gap
from zprof.model.job import Job, ModelUnit
from zprof.model.plan import PIPELINES, Assumption, Scheme, Term, get_zero_stage
from zprof.model.tenants import Tenant
from zprof.planner.memory.closed_forms import (
    STATE_ASSUMPTIONS,
    checkpoint_bytes,
    find_memory_gaps,
    make_copy_terms,
    make_paper_terms,
    make_stashed_term,
    make_state_terms,
    make_unknown_term,
    pick_highest_moment,
    split_stages,
    sum_known_bytes,
    working_set_bytes,
)
from zprof.planner.memory.walk import peak
from zprof.planner.rounding import ceil_div

_PAPER = "arXiv 1910.02054"
_UNITS = (
    "a unit's own bytes instead of 12 h t if they are known; excludes transfers between stages and gradients "
    "that autograd has not handed over yet"
)
RESIDUAL_ASSUMPTIONS: Mapping[str, Assumption] = {
    "residual.activations": Assumption(
        formula="12 h t L elements: h hidden, t tokens of a micro-batch, L layers; Llama blocks: "
        "(4 h + 2 q + 2 k + 4 m) t L, as in walk.saved",
        source=f"{_PAPER}, section 3.2, footnote",
        deviation="with model parallelism, everything except a block's input (1 of the 12) is divided by mp",
    ),
    "residual.checkpoints": Assumption(
        formula="h t L elements, the input of each block",
        source=f"{_PAPER}, section 3.2",
        deviation="section 3.2 gives about 8 GB for GPT-2 1.5B; this plus the recomputed block is 6.3 GB",
    ),
    "residual.working_set": Assumption(
        formula="12 h t elements of the block being recomputed", source=f"{_PAPER}, section 3.2"
    ),
    "residual.partition": Assumption(
        formula="h t L / mp elements: each rank keeps its shard of the checkpoints (Pa)",
        source=f"{_PAPER}, section 6.1",
        deviation="section 6.1 prints 33 GB to 2 GB for 100B, half of this: 33.6e9 is the number of "
        "elements, which at 2 bytes are 67.1 GB to 4.19 GB",
    ),
    "residual.offload": Assumption(
        formula="0 on the device: partitioned checkpoints are in host memory (Pa+cpu)",
        source=f"{_PAPER}, section 6.1",
        deviation="the block being copied to or from the host is in the working set",
    ),
    "residual.fused_buffer": Assumption(
        formula="4 bytes x parameters per rank", source=f"{_PAPER}, section 3.2"
    ),
    "residual.constant_buffer": Assumption(
        formula="4 bytes x the stated elements of a buffer (CB)",
        source=f"{_PAPER}, section 6.2",
        deviation="the paper states no size",
    ),
    "residual.gradient_copy": Assumption(
        formula="c bytes x the optimizer's elements (of the largest unit if units are known)",
        source="reference engine",
        deviation="not in the paper's 16 bytes per parameter; 0 for an optimizer that reads 16-bit gradients",
    ),
    "residual.gathered_units": Assumption(
        formula="bytes on the wire x (the largest unit, a second one with prefetch, and those that "
        "enclose the others)",
        source="reference engine",
        deviation="not in the paper: its 15.6 GB for 1T on 1024 devices do not include a gathered unit",
    ),
    "residual.reductions": Assumption(
        formula="bytes on the wire x the units whose gradients are being reduced", source="reference engine"
    ),
    "residual.work": Assumption(
        formula="the largest work buffers of a unit's forward or backward", source="reference engine"
    ),
    "pipeline.gpipe_activations": Assumption(
        formula="m micro-batches of the stage's activations; checkpointed: m inputs of the stage plus one "
        "micro-batch of the stage's activations, recomputed",
        source="arXiv 1811.06965, section 2.3",
        deviation=_UNITS,
    ),
    "pipeline.pipedream_activations": Assumption(
        formula="the stage's activations of the micro-batches in flight (pp on the first stage, 1 on the "
        "last); checkpointed: its blocks' inputs, plus one recomputed block",
        source="arXiv 1806.03377, section 3.2",
        deviation=f"{_UNITS}; the paper uses no checkpointing",
    ),
}
MEMORY_ASSUMPTIONS: Mapping[str, Assumption] = {**STATE_ASSUMPTIONS, **RESIDUAL_ASSUMPTIONS}
_Terms = tuple[Term, ...]


class MemoryPlan(Struct, frozen=True, kw_only=True):
    """Terms of one device at its peak, the location of the peak, and gaps for unknown terms."""

    terms: tuple[Term, ...]
    peak_at: str
    gaps: tuple[Gap, ...] = ()


class StageBytes(Struct, frozen=True, kw_only=True):
    """Bytes of one micro-batch on one stage.

    ``saved``: without recomputation. ``checkpoints``: inputs of all blocks. ``input``: input of the first
    block. ``largest_saved``: the block that saves the most. ``work``: temporary buffers, not part of the
    others.
    """

    saved: int
    checkpoints: int
    input: int
    largest_saved: int
    work: int


def plan_memory(job: Job, scheme: Scheme) -> MemoryPlan:
    """Return the memory of one device at its peak; unknown terms have None for their bytes.

    With an unknown term, the moment with the most known bytes counts as the peak, and the sum is a lower
    bound.
    """
    if scheme in PIPELINES:
        terms, peak_at = make_pipeline_terms(job, scheme)
    elif has_unit_bytes(job.units):
        terms, peak_at = peak.find_peak(job, get_zero_stage(scheme))
    else:
        terms, peak_at = make_paper_terms(job, scheme)
    return MemoryPlan(terms=terms, peak_at=peak_at, gaps=find_memory_gaps(job, terms))


def has_unit_bytes(units: Sequence[ModelUnit]) -> bool:
    """Return True if there are units and the saved and temporary bytes of each are known."""
    return bool(units) and all(
        None
        not in (unit.saved_bytes, unit.checkpoint_bytes, unit.forward_work_bytes, unit.backward_work_bytes)
        for unit in units
    )


def stage_bytes(job: Job, *, with_head: bool) -> StageBytes | None:
    """Return the bytes of the largest stage, with or without the loss; None if unknown."""
    if has_unit_bytes(job.units):
        stages = split_stages(job.units, job.degrees.pp)
        roots = [unit for unit in job.units if unit.encloses] if with_head else []
        return max(
            (_stage_bytes_of_units(job, stage, roots) for stage in stages), key=lambda stage: stage.saved
        )
    shape, tokens = job.shape, job.batch.tokens
    if shape is None or tokens is None:
        return None
    size, mp = job.element_bytes.parameter, job.degrees.mp
    blocks = ceil_div(shape.layers, job.degrees.pp)
    block = working_set_bytes(shape, tokens, size, mp=mp)
    all_inputs = checkpoint_bytes(shape, tokens, size, job.residual, mp=mp)
    one_input = ceil_div(all_inputs, shape.layers)
    return StageBytes(
        saved=blocks * block, checkpoints=blocks * one_input, input=one_input, largest_saved=block, work=0
    )


def _stage_bytes_of_units(job: Job, inner: Sequence[ModelUnit], roots: Sequence[ModelUnit]) -> StageBytes:
    head = sum(unit.saved_bytes or 0 for unit in roots)
    saved = [unit.saved_bytes or 0 for unit in inner]
    # Under Pa the device keeps its share of each checkpoint, under Pa+cpu nothing.
    checkpoints = [unit.checkpoint_bytes or 0 for unit in inner]
    if job.residual.offload:
        checkpoints = [0 for _ in inner]
    elif job.residual.partition:
        checkpoints = [ceil_div(checkpoint, job.degrees.mp) for checkpoint in checkpoints]
    return StageBytes(
        saved=sum(saved) + head,
        checkpoints=sum(checkpoints),
        input=checkpoints[0] if checkpoints else 0,
        largest_saved=max(saved, default=0) + head,
        work=max(
            (max(unit.forward_work_bytes or 0, unit.backward_work_bytes or 0) for unit in (*inner, *roots)),
            default=0,
        ),
    )


def make_pipeline_terms(job: Job, scheme: Scheme) -> tuple[_Terms, str]:
    """Return the terms of the worst device at its peak, and the peak's location."""
    copies = make_copy_terms(job, scheme)
    peaks = (
        pick_highest_moment({"backward": (*states, *kept), "optimizer": (*states, *copies)})
        for states, kept in _DEVICES[scheme](job)
    )
    return max(peaks, key=lambda peak: sum_known_bytes(peak[0]))


def _gpipe_devices(job: Job) -> list[tuple[_Terms, _Terms]]:
    stage = stage_bytes(job, with_head=True)
    size, in_flight = None, job.batch.micro_batches
    if stage is not None and job.residual.checkpointing:
        size = in_flight * stage.input + stage.saved
    elif stage is not None:
        size = in_flight * stage.saved
    return [
        (make_state_terms(job, Scheme.GPIPE), _activation_terms(stage, size, "pipeline.gpipe_activations"))
    ]


def _pipedream_devices(job: Job) -> list[tuple[_Terms, _Terms]]:
    states = make_state_terms(job, Scheme.PIPEDREAM)
    stashed = (*states, make_stashed_term(job, Scheme.PIPEDREAM))
    last = _in_flight_terms(job, 1, with_head=True)
    if job.degrees.pp == 1:
        return [(states, last)]
    return [(stashed, _in_flight_terms(job, job.degrees.pp, with_head=False)), (states, last)]


def _in_flight_terms(job: Job, micro_batches: int, *, with_head: bool) -> _Terms:
    stage = stage_bytes(job, with_head=with_head)
    size = None
    if stage is not None and job.residual.checkpointing:
        size = micro_batches * stage.checkpoints + stage.largest_saved
    elif stage is not None:
        size = micro_batches * stage.saved
    return _activation_terms(stage, size, "pipeline.pipedream_activations")


def _activation_terms(stage: StageBytes | None, size: int | None, assumption: str) -> _Terms:
    if stage is None:
        return (
            make_unknown_term(Tenant.ACTIVATIONS, "in_flight", assumption),
            make_unknown_term(Tenant.TEMPORARY_BUFFERS, "op_output", "residual.work"),
        )
    return (
        Term(tenant=Tenant.ACTIVATIONS, sub="in_flight", bytes=size, assumption=assumption),
        Term(tenant=Tenant.TEMPORARY_BUFFERS, sub="op_output", bytes=stage.work, assumption="residual.work"),
    )


_DEVICES: Mapping[Scheme, Callable[[Job], list[tuple[_Terms, _Terms]]]] = {
    Scheme.GPIPE: _gpipe_devices,
    Scheme.PIPEDREAM: _pipedream_devices,
}
