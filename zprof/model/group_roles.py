"""Read the role of a process group from its description, without any table of the run.

Torch's device meshes write "mesh_" and the name of the dimension, Megatron-Core and FSDP2 their own words;
DeepSpeed and most other programs write "undefined" or nothing.
"""

import re
from collections.abc import Sequence

from zprof.model.mesh import GroupRole

#: Patterns of words, in the order in which they are tried. Sources: Megatron-Core
#: `megatron/core/parallel_state.py`, torchtitan `torchtitan/distributed/parallel_dims.py`, torch
#: `torch/distributed/device_mesh.py` and `fsdp/_fully_shard`, accelerate `parallelism_config.py`.
_PATTERNS: Sequence[tuple[re.Pattern[str], GroupRole]] = tuple(
    (re.compile(pattern), role)
    for pattern, role in (
        # Groups over several dimensions: they sum norms, losses, maxima of fp8 and copies of embeddings.
        (
            r"^model parallel|tensor model pipeline|tensor and (data|context)|intra distributed optimizer|"
            r"\b(pp tp|tp pp|embedding|world|loss)\b",
            GroupRole.OTHER,
        ),
        (r"\b(replicate|replicas?|ddp)\b|inter (distributed|partial)", GroupRole.REPLICA),
        # The states of experts, which fewer ranks share than other states.
        (r"\bexperts? data\b|\bedp\b|efsdp|\bdp shard (in|mod) ep\b", GroupRole.SHARD),
        # Tokens are exchanged over both dimensions.
        (r"tensor and (expert|model)", GroupRole.EXPERT),
        (r"\btensor\b|\be?tp\b", GroupRole.TENSOR),
        (r"\b(experts?|ep|moe)\b", GroupRole.EXPERT),
        (r"\b(pipeline|pipe|pp)\b", GroupRole.PIPELINE),
        (r"\bhybrid dp cp\b", GroupRole.CONTEXT),
        (r"\b(data|dp|shard|shards|zero)\b|fsdp", GroupRole.SHARD),
        # A group for sequences splits attention as well (Ulysses, rings): Megatron's sequence parallelism
        # has no group of its own.
        (r"\b(context|cp|ring|ulysses|sequence|sp)\b", GroupRole.CONTEXT),
    )
)


def read_role(description: str) -> GroupRole | None:
    """Return the role that a description names; None if it names none."""
    words = " ".join(re.findall(r"[a-z]+", description.lower()))
    return next((role for pattern, role in _PATTERNS if pattern.search(words)), None)
