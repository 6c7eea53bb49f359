"""ZP432: keys and values pass between the ranks of a context group while nothing computes.

The signs and the saving are those of :mod:`zprof.causes.exposed_role`.
"""

from zprof.analysis.analysis import RunAnalysis, Untested
from zprof.causes.cause import Cause, Signal
from zprof.causes.exposed_role import RECORD, SENTENCE, find_exposed_role, speed_up_role
from zprof.causes.mesh_fixes import MeshFix
from zprof.model.mesh import GroupRole

_FIX = MeshFix(
    megatron="--cp-comm-type a2a (heads must be divisible), or a2a+p2p with --hierarchical-context-"
    "parallel-sizes\n"
    "  p2p hides the exchange if a turn of attention takes longer than its message",
    torchtitan='[parallelism] context_parallel_rotate_method = "alltoall" or "allgather": try the other',
    deepspeed="Ulysses: a sequence_parallel_size within a node",
    general="context groups within a node, and a smaller context parallel size with more recomputation",
)

CAUSE = Cause(
    id="ZP432",
    name="exposed_context_exchange",
    meaning="Keys and values pass between context-parallel ranks while nothing computes.",
    sentence=SENTENCE,
    disprove="run with a context parallel size of 1 and sequences shorter by that factor: if a token "
    "takes as long, the exchange is not the cause",
    **RECORD,
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if exchanges of context parallelism are exposed."""
    return find_exposed_role(analysis, GroupRole.CONTEXT, "exchanges of context parallelism", _FIX)


CAUSE.edit(speed_up_role(GroupRole.CONTEXT))


@CAUSE.doubt
def may_be_impossible(analysis: RunAnalysis) -> bool:
    """Return True: messages of a usual bandwidth are exposed, and no step shows that they can be hidden."""
    return True
