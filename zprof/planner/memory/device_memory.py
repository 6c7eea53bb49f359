"""Plan the memory of one device at its peak under each scheme.

ZeRO stages, data parallelism and model parallelism (stage 0 on one rank's share of the model) follow a walk
through a step of the reference engine if the bytes of the job's units are known (``walk``). Otherwise they
follow the paper's closed forms (``closed_forms``). Pipelines are in ``pipelines``.
"""

from collections.abc import Mapping

from msgspec import Struct

from zprof.model.gaps import Gap
from zprof.model.job import Job
from zprof.model.plan import PIPELINES, Scheme, Term, get_zero_stage
from zprof.model.whatif import Assumption
from zprof.planner.memory import states
from zprof.planner.memory.closed_forms import find_memory_gaps, make_paper_terms
from zprof.planner.memory.pipelines import has_unit_bytes, make_pipeline_terms
from zprof.planner.memory.walk import peak

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


MEMORY_ASSUMPTIONS: Mapping[str, Assumption] = {**states.STATE_ASSUMPTIONS, **RESIDUAL_ASSUMPTIONS}


class MemoryPlan(Struct, frozen=True, kw_only=True):
    """Terms of one device at its peak, the location of the peak, and gaps for unknown terms."""

    terms: tuple[Term, ...]
    peak_at: str
    gaps: tuple[Gap, ...] = ()


def plan_memory(job: Job, scheme: Scheme) -> MemoryPlan:
    """Return the memory of one device at its peak; unknown terms have None for their bytes.

    With an unknown term, the peak is the moment with the most known bytes, and the sum is a lower bound.
    """
    if scheme in PIPELINES:
        terms, peak_at = make_pipeline_terms(job, scheme)
    elif has_unit_bytes(job.units):
        terms, peak_at = peak.find_peak(job, get_zero_stage(scheme))
    else:
        terms, peak_at = make_paper_terms(job, scheme)
    return MemoryPlan(terms=terms, peak_at=peak_at, gaps=find_memory_gaps(job, terms))
