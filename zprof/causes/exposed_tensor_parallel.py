"""ZP433: partial results of layers are combined over the tensor group while nothing computes.

The signs and the saving are those of :mod:`zprof.causes.exposed_role`.
"""

from zprof.analysis.analysis import RunAnalysis, Untested
from zprof.causes.cause import Cause, Signal
from zprof.causes.exposed_role import RECORD, SENTENCE, find_exposed_role, speed_up_role
from zprof.causes.mesh_fixes import MeshFix
from zprof.model.mesh import GroupRole

_FIX = MeshFix(
    megatron="--sequence-parallel --tp-comm-overlap; a smaller --tensor-model-parallel-size with more "
    "pipeline or data ranks",
    torchtitan="[parallelism] enable_async_tensor_parallel = true, with torch.compile",
    deepspeed='"tensor_parallel": {"autotp_size": ...}: a smaller size, within a node',
    fsdp2="torch._inductor.config._micro_pipeline_tp = True with sequence parallelism and torch.compile"
    " (async TP)",
    general="tensor groups within a node: their messages cannot wait for later",
)

CAUSE = Cause(
    id="ZP433",
    name="exposed_tensor_parallel",
    meaning="Partial results of layers are combined over the tensor group while nothing computes.",
    sentence=SENTENCE,
    disprove="run with half the tensor parallel size (fewer layers if memory requires): if a layer's "
    "tokens take twice as long, its collectives are not the cause",
    **RECORD,
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if collectives of tensor parallelism are exposed."""
    return find_exposed_role(analysis, GroupRole.TENSOR, "collectives of tensor parallelism", _FIX)


CAUSE.edit(speed_up_role(GroupRole.TENSOR))


@CAUSE.doubt
def may_be_impossible(analysis: RunAnalysis) -> bool:
    """Return True: messages of a usual bandwidth are exposed, and no step shows that they can be hidden."""
    return True
