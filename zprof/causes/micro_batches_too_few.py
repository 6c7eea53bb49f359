"""ZP306: a pipeline has too few micro-batches to keep its stages busy.

Filling and draining a pipeline of p stages with v model chunks per rank costs (p - 1) / (m v) of the time of
m micro-batches (Narayanan et al. 2021). With m = p that is nearly half of the step.

A finding has fewer than two micro-batches per stage, a note fewer than three. The saving is that of four per
stage with the same tokens:

    T (p - 1) / v * (1 / m - 1 / (4 p))          T: time of the kernels of a stage

and at most that share of the measured bubble. A smaller micro-batch has less efficient kernels, and a
zero-bubble schedule has less to gain, so the lower end is 0.6 of it.
"""

from zprof.analysis.analysis import RunAnalysis, make_fact
from zprof.analysis.mesh.stages import measure_stages
from zprof.causes.cause import Cause, Need, Signal
from zprof.causes.fix import Fix
from zprof.model.findings import Confidence
from zprof.model.quantities import Unit

#: Micro-batches per stage below which there are too few: certainly, and possibly.
_FEW, _POSSIBLY_FEW = 2.0, 3.0
#: Micro-batches per stage with the fix.
_ENOUGH = 4
#: What the fix saves at least and at most, against the formula.
_SAVED_RATIOS = (0.6, 1.3)

CAUSE = Cause(
    id="ZP306",
    name="micro_batches_too_few",
    meaning="A pipeline has too few micro-batches, so its stages wait while it fills and drains.",
    needs=(Need.STEPS,),
    terms=("exposed_wait_ns", "exposed_transfer_ns", "idle_ns"),
    amounts=("micro_batches",),
    sentence="{micro_batches} micro-batches {per_step} for {stages} pipeline stages: filling and draining "
    "takes {ideal:percent} of a step of equal stages; {enough} micro-batches would leave {rest:percent}",
    evidence={
        "micro_batches": ("micro-batches {per_step}", Unit.COUNT),
        "pipeline_stages": ("stages of the pipeline", Unit.COUNT),
        "chunks_per_stage": ("model chunks per rank", Unit.COUNT),
        "bubble_share": ("bubble: waits for other stages, share {of_step}", Unit.RATIO),
        "ideal_bubble_share": ("bubble of equal stages with as many micro-batches", Unit.RATIO),
        "bubble_per_step": ("waits for other stages {per_step}, mean of the ranks", Unit.NS),
    },
    fix=Fix(
        forms={},
        general="split the batch of a step into $enough micro-batches or more\n"
        "  Megatron-LM: a smaller --micro-batch-size, or a larger --global-batch-size\n"
        "  torchtitan: parallelism.pipeline_parallel_microbatch_size, training.local_batch_size\n"
        '  DeepSpeed: "gradient_accumulation_steps": $enough, "train_micro_batch_size_per_gpu" smaller\n'
        "  torch.distributed.pipelining: Schedule1F1B(stage, n_microbatches=$enough)\n"
        "if the micro-batch cannot be smaller: fewer stages and more data ranks, or several chunks per rank\n"
        "  Megatron-LM: --num-layers-per-virtual-pipeline-stage N",
    ),
    disprove="record with twice the micro-batches and the same tokens: if the step is not shorter, smaller "
    "micro-batches run slower by as much",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if a pipeline has fewer than three micro-batches per stage."""
    stages = measure_stages(analysis)
    if stages is None:
        return None
    bubble = stages.bubble
    count, micro_batches, enough = bubble.stages, bubble.micro_batches, _ENOUGH * bubble.stages
    if micro_batches >= _POSSIBLY_FEW * count:
        return None
    busy_ns = stages.stages[stages.reference].busy_ns
    lost_ns = min(
        busy_ns * (count - 1) / bubble.virtual * (1 / micro_batches - 1 / enough),
        bubble.total_ns * (1 - micro_batches / enough),
    )
    low, high = (ratio * lost_ns for ratio in _SAVED_RATIOS)
    return Signal(
        confidence=Confidence.HIGH if micro_batches < _FEW * count else Confidence.LOW,
        words={
            "micro_batches": micro_batches,
            "stages": count,
            "ideal": bubble.ideal_ratio,
            "enough": enough,
            "rest": (count - 1) / (enough * bubble.virtual + count - 1),
        },
        facts=[
            make_fact("micro_batches", micro_batches),
            make_fact("pipeline_stages", count),
            make_fact("chunks_per_stage", bubble.virtual),
            make_fact("bubble_share", bubble.share_ratio),
            make_fact("ideal_bubble_share", bubble.ideal_ratio),
            make_fact("bubble_per_step", bubble.total_ns),
        ],
        saving_ns=(low, high),
        numbers={"enough": enough},
    )
