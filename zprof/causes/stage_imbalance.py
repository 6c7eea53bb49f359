"""ZP304: one pipeline stage has more work than the others: more layers, or the head and the loss.

A pipeline runs at the pace of its fullest stage. The last stage also projects to the vocabulary and computes
the loss, the first one embeds; equal numbers of layers are then unequal stages.

The stage runs more kernels (:mod:`zprof.analysis.mesh.stages`): more of all kernels of a layer, or kernels
that other stages lack. Only more of the forward's kernels is ZP305. With the fix all stages have the mean
work.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.mesh.stages import ExtraWork, measure_stages
from zprof.base.formatting import printable, shorten
from zprof.causes.cause import Cause, Need, Sign, Signal
from zprof.causes.fix import Fix
from zprof.causes.stage_work import WORK_EVIDENCE, balance_stages, is_long, make_work_signal, name_operations

_MAX_NAME = 40

CAUSE = Cause(
    id="ZP304",
    name="stage_imbalance",
    meaning="One pipeline stage has more layers, or the head and the loss, and the other stages wait.",
    needs=(Need.STEPS,),
    terms=("exposed_wait_ns", "exposed_transfer_ns", "idle_ns"),
    produces=(Sign.LATE_RANK,),
    amounts=("stage_work_excess",),
    sentence="stage {stage} of {stages} ({ranks}) has {more:percent} more work than the mean stage, "
    "{excess:ns} {per_step}: {why}; an equal split would win up to {won:ns}",
    evidence=WORK_EVIDENCE,
    fix=Fix(
        forms={},
        general="split the layers so that stages take equally long; the head counts like layers\n"
        "  Megatron-LM: --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split, or\n"
        "    --decoder-first-pipeline-num-layers N --decoder-last-pipeline-num-layers N\n"
        "  torchtitan: parallelism.pipeline_parallel_last_stage_less_layers, module_fqns_per_model_part\n"
        '  DeepSpeed: PipelineModule(..., partition_method="parameters"), or "type:LAYER_CLASS"\n'
        "  torch.distributed.pipelining: pipeline(..., split_spec={...}) with other split points\n"
        "more, smaller stages per rank even out the rest: --num-layers-per-virtual-pipeline-stage 1",
    ),
    disprove="move one layer from this stage to the stage with the least work and record again: if the step "
    "is not shorter, this stage does not set the pace",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if one stage runs more kernels than the others."""
    stages = measure_stages(analysis)
    if stages is None:
        return None
    full = stages.find_fullest()
    if full.extra in (None, ExtraWork.FORWARD):
        return None
    if not is_long(analysis, full.work_ns - stages.mean_work_ns):
        return None
    own = f"{name_operations(analysis)} of its own ({shorten(printable(full.extra_names[0]), _MAX_NAME)})"
    why = "more layers" if full.extra is ExtraWork.LAYERS else own
    return make_work_signal(analysis, stages, {"why": why})


CAUSE.edit(balance_stages)
