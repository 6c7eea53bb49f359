"""ZP441: data-parallel ranks have sequences of unequal length, and wait for the longest.

The compute of attention grows with the square of a sequence's length, the rest with the number of tokens. If
batches have equal tokens in sequences of unequal length (packing),
attention differs between ranks from micro-batch to micro-batch, and other kernels take the same time. A rank
with more tokens has more work in all kernels (uneven_shapes), a slow rank as well (straggler_rank): see
:mod:`zprof.step.unequal_work`.

Saving: the step in which each attention kernel takes the mean of its kind.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, make_fact
from zprof.causes.cause import Cause, Observation, Sign
from zprof.causes.mesh_fixes import MeshFix, choose_mesh_fix
from zprof.model.findings import Finding
from zprof.model.quantities import Unit
from zprof.step.play import PlayedStep
from zprof.step.tasks import Graph
from zprof.step.unequal_work import MIN_ATTENTION_SPREAD_RATIO, even_out_attention, measure_attention

_FIX = MeshFix(
    megatron="--dynamic-context-parallel (before: --hybrid-context-parallel): long sequences over more ranks",
    general="spread sequences over ranks by the sum of their squared lengths, in each micro-batch: sort a "
    "global\nbatch by length and deal it out, or pack with a limit on that sum instead of on tokens",
)

CAUSE = Cause(
    id="ZP441",
    name="sequence_length_imbalance",
    meaning="Data-parallel ranks have sequences of unequal length, and wait for the longest.",
    terms=("exposed_wait_ns", "idle_ns", "exposed_transfer_ns"),
    produces=(Sign.LATE_RANK, Sign.UNEQUAL_WORK, Sign.LATE_GATHERS, Sign.GATHERS_OF_BACKWARD),
    is_stall=True,
    amounts=("attention_spread",),
    observed="attention takes {spread:percent} longer on the slowest rank of each kernel than on the mean "
    "rank (rank {rank}: {load:.2f} times), other compute {rest:percent}: with equal lengths of sequences "
    "{step_is} shorter",
    evidence={
        "attention_spread": ("slowest rank's attention beyond the mean, over all kernels", Unit.RATIO),
        "other_spread": ("the same of the rest of the compute", Unit.RATIO),
        "attention_load": ("attention of the rank with the most, relative to the mean", Unit.RATIO),
        "attention_per_step": ("attention {per_step}, mean of the ranks", Unit.NS),
    },
    disprove="log the sum of squared lengths of each rank's sequences per micro-batch: if it is equal, the "
    "lengths are not the cause",
)


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return the ranks whose attention is the most unequal."""
    graph, analysis = step.graph, step.analysis
    assert graph is not None
    found = [each for each in measure_attention(analysis, graph) if each.is_by_data]
    worst = max(found, key=lambda each: each.spread_ratio * each.mean_ns, default=None)
    if worst is None or worst.spread_ratio < MIN_ATTENTION_SPREAD_RATIO:
        return None
    return Observation(
        words={
            "rank": worst.heaviest,
            "load": worst.largest_load,
            "spread": worst.spread_ratio,
            "rest": worst.rest_ratio,
        },
        facts=[
            make_fact("attention_spread", worst.spread_ratio),
            make_fact("other_spread", worst.rest_ratio),
            make_fact("attention_load", worst.largest_load, rank=worst.heaviest),
            make_fact("attention_per_step", worst.mean_ns),
        ],
        fix=choose_mesh_fix(analysis, _FIX),
    )


@CAUSE.edit
def even_out(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step in which attention takes the same time on all ranks."""
    return [even_out_attention(analysis, graph)]
