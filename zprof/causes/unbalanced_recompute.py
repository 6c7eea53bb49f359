"""ZP305: one pipeline stage computes more of its forward again than the others.

Activation checkpointing is often set for the first stages only, because these hold the most micro-batches.
Their backward passes are then up to a third longer, and all stages run at their pace.

The stage runs more of the forward's kernels, but not more of the backward's
(:mod:`zprof.analysis.mesh.stages`). With the fix all stages have the mean work: the same amount of
recomputation, evenly spread.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.mesh.stages import ExtraWork, measure_stages
from zprof.causes.cause import Cause, Need, Sign, Signal
from zprof.causes.fix import Fix
from zprof.causes.stage_work import WORK_EVIDENCE, balance_stages, is_long, make_work_signal

CAUSE = Cause(
    id="ZP305",
    name="unbalanced_recompute",
    meaning="One pipeline stage computes more of its forward again, and the other stages wait.",
    needs=(Need.STEPS,),
    terms=("exposed_wait_ns", "exposed_transfer_ns", "idle_ns"),
    produces=(Sign.LATE_RANK,),
    amounts=("stage_work_excess",),
    sentence="stage {stage} of {stages} ({ranks}) computes more of its forward again than the others: "
    "{excess:ns} {per_step} beyond the mean stage; spread evenly it would win up to {won:ns}",
    evidence=WORK_EVIDENCE,
    fix=Fix(
        forms={},
        general="recompute as much on every stage, or give this stage fewer layers\n"
        "  Megatron-LM: --recompute-method block counts layers per stage: a lower --recompute-num-layers;\n"
        "    --recompute-granularity selective recomputes less on all stages; or\n"
        "    --decoder-first-pipeline-num-layers N gives the first stage fewer layers\n"
        "  torchtitan: activation_checkpoint.mode = selective on all stages; module_fqns_per_model_part\n"
        "  DeepSpeed: PipelineModule(..., activation_checkpoint_interval=N), partition_method\n"
        "  torch.distributed.pipelining: wrap the same layers of each stage in checkpoint()",
    ),
    disprove="turn recomputation off for this stage with a smaller micro-batch and record again: if its "
    "kernels are still more than the other stages', they are not recomputation",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if one stage runs more of the forward's kernels only."""
    stages = measure_stages(analysis)
    if stages is None or stages.find_fullest().extra is not ExtraWork.FORWARD:
        return None
    if not is_long(analysis, stages.find_fullest().work_ns - stages.mean_work_ns):
        return None
    return make_work_signal(analysis, stages)


CAUSE.edit(balance_stages)
