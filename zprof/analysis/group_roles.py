"""Name the role of a process group from the words that frameworks give it: tensor, pipeline, expert, data.

Torch meshes ("mesh_tp"), Megatron ("TENSOR_MODEL_PARALLEL_GROUP") and DeepSpeed name their groups; most
others have no name.
"""

import re
from enum import StrEnum


class GroupRole(StrEnum):
    """What the ranks of a group share or split."""

    REPLICA = "replica"
    EXPERT = "expert"
    TENSOR = "tensor"
    PIPELINE = "pipeline"
    CONTEXT = "context"
    DATA = "data"


#: The first match counts: an expert group that is also a tensor group is one of experts.
_ROLES_BY_WORD = (
    (frozenset({"replicate", "replica", "replicas"}), GroupRole.REPLICA),
    (frozenset({"ep", "expert", "experts"}), GroupRole.EXPERT),
    (frozenset({"tp", "tensor"}), GroupRole.TENSOR),
    (frozenset({"pp", "pipe", "pipeline"}), GroupRole.PIPELINE),
    (frozenset({"cp", "context", "sequence"}), GroupRole.CONTEXT),
    (frozenset({"dp", "ddp", "data", "fsdp", "shard", "zero"}), GroupRole.DATA),
)
_WORD = re.compile(r"[a-z]+")


def find_role(description: str) -> GroupRole | None:
    """Return the role that the name of a group tells; None if it tells none."""
    words = frozenset(_WORD.findall(description.lower()))
    return next((role for names, role in _ROLES_BY_WORD if words & names), None)
