"""ZP430: tokens travel to their experts and back while nothing computes.

The signs and the saving are those of :mod:`zprof.causes.exposed_role`.
"""

from zprof.analysis.analysis import RunAnalysis, Untested
from zprof.causes.cause import Cause, Signal
from zprof.causes.exposed_role import RECORD, SENTENCE, find_exposed_role, speed_up_role
from zprof.causes.mesh_fixes import MeshFix
from zprof.model.mesh import GroupRole

_FIX = MeshFix(
    megatron="--overlap-moe-expert-parallel-comm --delay-wgrad-compute (dispatch of one micro-batch beside"
    " the compute of another)\n"
    "  --moe-token-dispatcher-type flex --moe-enable-deepep; --moe-shared-expert-overlap",
    torchtitan='[parallelism] expert_parallel_comm_backend = "deepep"',
    deepspeed="MoE(..., use_tutel=True); expert groups within a node: ep_size at most the ranks of a node",
    general="expert groups within a node, if the experts fit: a smaller expert parallel size",
)

CAUSE = Cause(
    id="ZP430",
    name="exposed_dispatch",
    meaning="Tokens travel to their experts and back while nothing computes.",
    sentence=SENTENCE,
    disprove="run the same job with all experts on each rank (an expert parallel size of 1, fewer layers"
    " if memory requires): if a layer takes as long, the exchange is not the cause",
    **RECORD,
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if all_to_alls of expert parallelism are exposed."""
    return find_exposed_role(analysis, GroupRole.EXPERT, "all_to_alls of expert parallelism", _FIX)


CAUSE.edit(speed_up_role(GroupRole.EXPERT))


@CAUSE.doubt
def may_be_impossible(analysis: RunAnalysis) -> bool:
    """Return True: messages of a usual bandwidth are exposed, and no step shows that they can be hidden."""
    return True
