"""ZP307: the bubble of a pipeline is large although its micro-batches are many and its stages equal.

What is left is the schedule: one chunk of the model per rank has the largest bubble, (p - 1) / (m + p - 1).
With two chunks per rank (interleaved 1F1B) it is half of it, and schedules that compute weight gradients in
the gaps (zero bubble, Qi et al. 2024) have less still. Both cost memory or messages, so this is a note.
"""

from zprof.analysis.analysis import RunAnalysis, make_fact, mean_wall_ns
from zprof.analysis.mesh.stages import measure_stages
from zprof.causes.cause import Cause, Need, Signal
from zprof.causes.fix import Fix
from zprof.model.findings import Confidence
from zprof.model.quantities import Unit

#: Minimum bubble as a share of the step.
_MIN_SHARE_RATIO = 0.10
#: Minimum micro-batches per stage: with fewer, the number of micro-batches is the cause (ZP306).
_MANY = 3
#: Stages are equal if pace and work differ from the others' by less.
_EQUAL_RATIO = 0.04
#: Share of the ideal bubble that two chunks per rank save.
_SAVED_RATIO = 0.5

CAUSE = Cause(
    id="ZP307",
    name="pipeline_bubble",
    meaning="Stages are equal and micro-batches many, but the schedule leaves a large bubble.",
    needs=(Need.STEPS,),
    terms=("exposed_wait_ns", "exposed_transfer_ns", "idle_ns"),
    sentence="ranks wait {bubble:ns} {per_step} for other stages ({share:percent}), although {stages} equal "
    "stages have {micro_batches} micro-batches: a schedule with several chunks per rank waits less",
    evidence={
        "bubble_share": ("bubble: waits for other stages, share {of_step}", Unit.RATIO),
        "ideal_bubble_share": ("bubble of equal stages with this schedule", Unit.RATIO),
        "warm_up_per_step": ("of the waits: before the first input {per_step}", Unit.NS),
        "drain_per_step": ("of the waits: after the last output {per_step}", Unit.NS),
        "micro_batches": ("micro-batches {per_step}", Unit.COUNT),
        "pipeline_stages": ("stages of the pipeline", Unit.COUNT),
    },
    fix=Fix(
        forms={},
        general="use a schedule with a smaller bubble; it needs more messages or memory\n"
        "  Megatron-LM: --num-layers-per-virtual-pipeline-stage N (interleaved 1F1B)\n"
        '  torchtitan: parallelism.pipeline_parallel_schedule = "Interleaved1F1B" or\n'
        '    "InterleavedZeroBubble"\n'
        "  torch.distributed.pipelining: ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble\n"
        "  DeepSpeed: its pipeline has one schedule; more gradient_accumulation_steps, or fewer stages",
    ),
    disprove="record with twice the micro-batches: if the waits stay the same share of the step, they are "
    "not the filling and draining of the pipeline",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal, never above low confidence, if equal stages wait long for each other."""
    stages = measure_stages(analysis)
    if stages is None:
        return None
    bubble, mean_ns = stages.bubble, stages.mean_work_ns
    is_equal = (
        stages.find_slowest().pace_ratio < 1 + _EQUAL_RATIO
        and stages.find_fullest().work_ns < (1 + _EQUAL_RATIO) * mean_ns
    )
    is_many = bubble.micro_batches >= _MANY * bubble.stages
    if not is_equal or not is_many or bubble.virtual > 1 or bubble.share_ratio < _MIN_SHARE_RATIO:
        return None
    lost_ns = min(bubble.share_ratio, bubble.ideal_ratio) * mean_wall_ns(analysis)
    return Signal(
        confidence=Confidence.LOW,
        words={
            "bubble": bubble.total_ns,
            "share": bubble.share_ratio,
            "stages": bubble.stages,
            "micro_batches": bubble.micro_batches,
        },
        facts=[
            make_fact("bubble_share", bubble.share_ratio),
            make_fact("ideal_bubble_share", bubble.ideal_ratio),
            make_fact("warm_up_per_step", bubble.warm_up_ns),
            make_fact("drain_per_step", bubble.drain_ns),
            make_fact("micro_batches", bubble.micro_batches),
            make_fact("pipeline_stages", bubble.stages),
        ],
        lost_ns=_SAVED_RATIO * lost_ns,
    )
