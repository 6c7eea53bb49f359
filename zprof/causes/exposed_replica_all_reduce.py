"""ZP431: gradients are averaged between replicas (HSDP) while nothing computes.

The signs and the saving are those of :mod:`zprof.causes.exposed_role`.
"""

from zprof.analysis.analysis import RunAnalysis, Untested
from zprof.causes.cause import Cause, Signal
from zprof.causes.exposed_role import RECORD, SENTENCE, find_exposed_role, speed_up_role
from zprof.causes.mesh_fixes import MeshFix
from zprof.model.mesh import GroupRole

_FIX = MeshFix(
    megatron="--overlap-grad-reduce --overlap-param-gather; fewer --num-distributed-optimizer-instances",
    torchtitan="[parallelism] a smaller data_parallel_replicate_degree, a larger data_parallel_shard_degree",
    deepspeed='"zero_optimization": {"overlap_comm": true}; MiCS: a larger mics_shard_size',
    fsdp2="reduce once per step: model.set_requires_all_reduce(is_last_micro_batch)\n"
    "  gradients in bfloat16: MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)",
    general="more micro-batches per step: the all_reduces then cost less per token",
)

CAUSE = Cause(
    id="ZP431",
    name="exposed_replica_all_reduce",
    meaning="Gradients are averaged between replicas (HSDP) while nothing computes.",
    sentence=SENTENCE,
    disprove="run one replica alone, with the same batch per rank: if a step takes as long, the "
    "all_reduces between the replicas are not the cause",
    **RECORD,
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if all_reduces between the replicas are exposed."""
    return find_exposed_role(analysis, GroupRole.REPLICA, "all_reduces between the replicas", _FIX)


CAUSE.edit(speed_up_role(GroupRole.REPLICA))


@CAUSE.doubt
def may_be_impossible(analysis: RunAnalysis) -> bool:
    """Return True: messages of a usual bandwidth are exposed, and no step shows that they can be hidden."""
    return True
