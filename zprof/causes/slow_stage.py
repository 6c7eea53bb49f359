"""ZP303: all ranks of a pipeline's stage run the same kernels slower than the other stages.

A pipeline runs at the pace of its slowest stage. Without a comparison of stages this looks like a late rank,
or like a bubble: every other stage waits for the stage in each micro-batch.

Stages are compared by kernel name (:mod:`zprof.analysis.mesh.stages`): the stage runs as many kernels, but
each takes longer. A slow rank whose peers of the same stage are not slow is ZP301. With the fix the stage
runs at the pace of the others.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, make_fact, mean_wall_ns
from zprof.analysis.mesh.stages import measure_stages
from zprof.causes.cause import Cause, Need, Sign, Signal
from zprof.causes.fix import Fix
from zprof.causes.stage_work import MIN_STEP_RATIO, name_ranks, rate_excess
from zprof.model.findings import Finding
from zprof.model.quantities import Unit
from zprof.step.edits import scale_ranks
from zprof.step.tasks import Graph

#: Minimum difference in pace: devices of one kind differ by one or two percent.
_MIN_SLOWER_RATIO = 0.02
#: What the fix gains at least, of the gain in a replay: with several chunks per rank more messages are posted
#: ahead, whose waits do not show.
_LEAST_GAIN_RATIO, _LEAST_GAIN_RATIO_OF_CHUNKS = 0.95, 0.8

CAUSE = Cause(
    id="ZP303",
    name="slow_stage",
    meaning="All ranks of one pipeline stage run the same kernels slower, and the other stages wait.",
    needs=(Need.STEPS, Need.DEVICE),
    terms=("exposed_wait_ns", "exposed_transfer_ns", "idle_ns"),
    produces=(Sign.LATE_RANK,),
    is_stall=True,
    amounts=("stage_time_excess",),
    sentence="stage {stage} of {stages} ({ranks}) is slow: its kernels take {slower:percent} longer than the "
    "same kernels on other stages, {excess:ns} {per_step}, and the other stages wait for it; layers split by "
    "pace would win {won:ns}",
    evidence={
        "stage_time_excess": ("time of the slow stage beyond the pace of the others {per_step}", Unit.NS),
        "stage_pace": ("time of the same kernels, against the other stages", Unit.RATIO),
        "stage_busy": ("kernels of stage {stage} {per_step}", Unit.NS),
        "bubble_per_step": ("waits for other stages {per_step}, mean of the ranks", Unit.NS),
    },
    fix=Fix(
        forms={},
        general="compare the devices and hosts of these ranks with another stage's: clocks, power cap, ECC\n"
        "  nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE,ECC\n"
        "if they are slower by design, give the stage fewer layers:\n"
        "  Megatron-LM: --decoder-first-pipeline-num-layers N, --decoder-last-pipeline-num-layers N,\n"
        "    --pipeline-model-parallel-layout for stages in between\n"
        "  torchtitan: parallelism.module_fqns_per_model_part\n"
        '  DeepSpeed: PipelineModule(..., partition_method="type:LAYER_CLASS"), or layers in another order\n'
        "  torch.distributed.pipelining: pipeline(..., split_spec={...}) with other split points",
    ),
    disprove="swap the hosts of this stage and of another stage and record again: if the stage stays slow, "
    "its work is larger, not its devices slower",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if one stage runs the same kernels slower."""
    stages = measure_stages(analysis)
    if stages is None:
        return None
    slow = stages.find_slowest()
    excess_ns = slow.busy_ns - slow.work_ns
    if slow.pace_ratio < 1 + _MIN_SLOWER_RATIO or excess_ns < MIN_STEP_RATIO * mean_wall_ns(analysis):
        return None
    return Signal(
        confidence=rate_excess(analysis, excess_ns),
        words={
            "stage": slow.stage + 1,
            "stages": len(stages.stages),
            "ranks": name_ranks(slow.ranks),
            "slower": slow.pace_ratio - 1,
            "excess": excess_ns,
            "won": stages.gain_of_split_by_pace_ns,
        },
        facts=[
            make_fact("stage_time_excess", excess_ns),
            make_fact("stage_pace", slow.pace_ratio),
            make_fact("stage_busy", slow.busy_ns, stage=slow.stage + 1),
            make_fact("bubble_per_step", stages.bubble.total_ns),
        ],
        lost_ns=excess_ns,
    )


@CAUSE.edit
def run_at_pace(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step in which slow stages run at the pace of the others, and that with most of their excess.

    A slow stage finds its inputs already there, so the recording does not show which kernels need them.
    """
    stages = measure_stages(analysis)
    if stages is None:
        return []
    least_ratio = _LEAST_GAIN_RATIO if stages.bubble.virtual == 1 else _LEAST_GAIN_RATIO_OF_CHUNKS
    outcomes = []
    for removed_ratio in (1.0, least_ratio):
        ratios = {
            rank: 1 - removed_ratio * max(0.0, 1 - 1 / stage.pace_ratio)
            for stage in stages.stages
            for rank in stage.ranks
        }
        outcomes.append(scale_ranks(graph, ratios))
    return outcomes
