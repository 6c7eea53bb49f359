"""ZP303: all ranks of a pipeline's stage run the same kernels slower than the other stages.

A pipeline runs at the pace of its slowest stage. Without a comparison of stages this looks like a late rank,
or like a bubble: every other stage waits for the stage in each micro-batch.

Stages are compared by kernel name (:mod:`zprof.analysis.mesh.stages`): the stage runs as many kernels, but
each takes longer. A slow rank whose peers of the same stage are not slow is ZP301. With the fix the stage
runs at the pace of the others.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, make_fact
from zprof.analysis.mesh.stages import measure_stages
from zprof.causes.cause import Cause, Need, Proof, Sign, Signal
from zprof.causes.fix import Fix, is_on_cpu
from zprof.causes.stage_work import is_long, name_operations, name_ranks, rate_excess, scale_stages
from zprof.model.findings import Finding
from zprof.model.quantities import Unit
from zprof.step.tasks import Graph

#: Minimum difference in pace: devices of one kind differ by one or two percent, processors with their
#: neighbors' load.
_MIN_SLOWER_RATIO, _MIN_SLOWER_RATIO_ON_CPU = 0.02, 0.10
#: What the fix gains at least, of the gain in a replay: with several chunks per rank more messages are posted
#: ahead, whose waits do not show.
_LEAST_GAIN_RATIO, _LEAST_GAIN_RATIO_OF_CHUNKS = 0.95, 0.8

_SPLIT = (
    "if they are slower by design, give the stage fewer layers:\n"
    "  Megatron-LM: --decoder-first-pipeline-num-layers N, --decoder-last-pipeline-num-layers N,\n"
    "    --pipeline-model-parallel-layout for stages in between\n"
    "  torchtitan: parallelism.module_fqns_per_model_part\n"
    '  DeepSpeed: PipelineModule(..., partition_method="type:LAYER_CLASS"), or layers in another order\n'
    "  torch.distributed.pipelining: pipeline(..., split_spec={...}) with other split points"
)
_FIX = Fix(
    forms={},
    general="compare the devices and hosts of these ranks with another stage's: clocks, power cap, ECC\n"
    f"  nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE,ECC\n{_SPLIT}",
)
_CPU_FIX = (
    "compare the hosts of these ranks with another stage's: other processes on its cores, threads, clocks\n"
    f"  top; OMP_NUM_THREADS; numactl --cpunodebind=N --membind=N python train.py\n{_SPLIT}"
)

CAUSE = Cause(
    id="ZP303",
    name="slow_stage",
    meaning="All ranks of one pipeline stage run the same kernels slower, and the other stages wait.",
    needs=(Need.STEPS,),
    terms=("exposed_wait_ns", "exposed_transfer_ns", "idle_ns"),
    produces=(Sign.LATE_RANK,),
    is_stall=True,
    proof=Proof.SPEEDS,
    amounts=("stage_time_excess",),
    sentence="stage {stage} of {stages} ({ranks}) is slow: its {operations} take {slower:percent} longer "
    "than the same {operations} on other stages, {excess:ns} {per_step}, and the other stages wait for it; "
    "layers split by pace would win {won:ns}",
    evidence={
        "stage_time_excess": ("time of the slow stage beyond the pace of the others {per_step}", Unit.NS),
        "stage_pace": ("time of the same {operations}, against the other stages", Unit.RATIO),
        "stage_busy": ("{operations} of stage {stage} {per_step}", Unit.NS),
        "bubble_per_step": ("waits for other stages {per_step}, mean of the ranks", Unit.NS),
    },
    fix=_FIX,
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
    on_cpu = is_on_cpu(analysis)
    min_ratio = _MIN_SLOWER_RATIO_ON_CPU if on_cpu else _MIN_SLOWER_RATIO
    if slow.pace_ratio < 1 + min_ratio or not is_long(analysis, excess_ns):
        return None
    operations = name_operations(analysis)
    return Signal(
        confidence=rate_excess(analysis, excess_ns),
        words={
            "stage": slow.stage + 1,
            "stages": len(stages.stages),
            "ranks": name_ranks(slow.ranks),
            "operations": operations,
            "slower": slow.pace_ratio - 1,
            "excess": excess_ns,
            "won": stages.gain_of_split_by_pace_ns,
        },
        facts=[
            make_fact("stage_time_excess", excess_ns),
            make_fact("stage_pace", slow.pace_ratio, operations=operations),
            make_fact("stage_busy", slow.busy_ns, stage=slow.stage + 1, operations=operations),
            make_fact("bubble_per_step", stages.bubble.total_ns),
        ],
        lost_ns=excess_ns,
        fix=_CPU_FIX if on_cpu else None,
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
            stage.stage: 1 - removed_ratio * max(0.0, 1 - 1 / stage.pace_ratio) for stage in stages.stages
        }
        outcomes.append(scale_stages(analysis, graph, ratios))
    return outcomes
