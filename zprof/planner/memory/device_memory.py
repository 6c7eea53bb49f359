"""Plan the memory of one device at its peak under each scheme.

ZeRO stages, data parallelism and model parallelism (stage 0 on a rank's part of the model) follow a walk
through a step of the reference engine if the job's units know their bytes (``walk``). Otherwise they follow
the paper's closed forms (``closed_forms``). Pipelines are in ``pipelines``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zprof.model.gaps import Gap
from zprof.model.job import Job
from zprof.model.plan import PIPELINES, Scheme, Term, get_zero_stage
from zprof.model.whatif import Assumption
from zprof.planner.memory import states
from zprof.planner.memory.closed_forms import find_memory_gaps, paper_terms
from zprof.planner.memory.pipelines import has_unit_bytes, pipeline_terms
from zprof.planner.memory.walk import peak

_PAPER = "arXiv 1910.02054"
_UNITS = (
    "a unit's own bytes instead of 12 h t where they are known; left out: what is sent between stages, and "
    "gradients on their way from autograd"
)
RESIDUAL_ASSUMPTIONS: Mapping[str, Assumption] = {
    "residual.activations": Assumption(
        formula="12 h t L elements: h hidden, t tokens of a micro-batch, L layers",
        source=f"{_PAPER}, section 3.2, footnote",
        deviation="with model parallelism all but a block's input (1 of the 12) is divided by mp",
    ),
    "residual.checkpoints": Assumption(
        formula="h t L elements, the input of each block",
        source=f"{_PAPER}, section 3.2",
        deviation="section 3.2 says about 8 GB for GPT-2 1.5B; this and the block computed again are 6.3 GB",
    ),
    "residual.working_set": Assumption(
        formula="12 h t elements of the block that is computed again", source=f"{_PAPER}, section 3.2"
    ),
    "residual.partition": Assumption(
        formula="h t L / mp elements: each rank keeps its part of the checkpoints (Pa)",
        source=f"{_PAPER}, section 6.1",
        deviation="section 6.1 prints 33 GB to 2 GB for 100B, half of this: 33.6e9 is the number of "
        "elements, which at 2 bytes are 67.1 GB to 4.19 GB",
    ),
    "residual.offload": Assumption(
        formula="0 on the device: partitioned checkpoints are in host memory (Pa+cpu)",
        source=f"{_PAPER}, section 6.1",
        deviation="the block on its way to or from the host is in the working set",
    ),
    "residual.fused_buffer": Assumption(
        formula="4 bytes x parameters of a rank", source=f"{_PAPER}, section 3.2"
    ),
    "residual.constant_buffer": Assumption(
        formula="4 bytes x the elements stated for a buffer (CB)",
        source=f"{_PAPER}, section 6.2",
        deviation="the paper states no size",
    ),
    "residual.gradient_copy": Assumption(
        formula="c bytes x the optimizer's elements, of the largest unit where units are known",
        source="reference engine",
        deviation="left out in the paper's 16 bytes a parameter; 0 for an optimizer that reads 16 bits",
    ),
    "residual.gathered_units": Assumption(
        formula="bytes on the wire x (the largest unit, a second where units are fetched ahead, those that "
        "enclose the others)",
        source="reference engine",
        deviation="left out in the paper: 15.6 GB for 1T on 1024 devices has no room for a gathered unit",
    ),
    "residual.reductions": Assumption(
        formula="bytes on the wire x the units whose gradients are being reduced", source="reference engine"
    ),
    "residual.work": Assumption(
        formula="the largest work buffers of a unit's forward or backward", source="reference engine"
    ),
    "pipeline.gpipe_activations": Assumption(
        formula="m micro-batches of the stage's activations; checkpointed: m inputs of the stage and the "
        "stage's activations of one micro-batch, computed again",
        source="arXiv 1811.06965, section 2.3",
        deviation=_UNITS,
    ),
    "pipeline.pipedream_activations": Assumption(
        formula="pp micro-batches in flight on the first stage, 1 on the last, of the stage's activations; "
        "checkpointed: of its blocks' inputs, and one block computed again",
        source="arXiv 1806.03377, section 3.2",
        deviation=f"{_UNITS}; the paper checkpoints nothing",
    ),
}


MEMORY_ASSUMPTIONS: Mapping[str, Assumption] = {**states.STATE_ASSUMPTIONS, **RESIDUAL_ASSUMPTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Terms of one device at its peak, the name of that moment, and gaps for unknown terms."""

    terms: tuple[Term, ...]
    peak_at: str
    gaps: tuple[Gap, ...] = ()


def plan_memory(job: Job, scheme: Scheme) -> MemoryPlan:
    """Return the memory of one device at its peak; unknown terms have None for their bytes.

    With an unknown term, the moment is the one with the most known bytes and the sum is a lower bound.
    """
    terms, peak_at = _plan_terms(job, scheme)
    return MemoryPlan(terms=terms, peak_at=peak_at, gaps=find_memory_gaps(job, terms))


def _plan_terms(job: Job, scheme: Scheme) -> tuple[tuple[Term, ...], str]:
    if scheme in PIPELINES:
        return pipeline_terms(job, scheme)
    if has_unit_bytes(job.units):
        return peak.peak_of(job, get_zero_stage(scheme))
    return paper_terms(job, scheme)
