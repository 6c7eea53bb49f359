"""Roles of groups by their descriptions, as frameworks write them in public sources."""

import pytest

from zprof.model.group_roles import read_role
from zprof.model.mesh import GroupRole

#: `group_desc` of Megatron-Core's `parallel_state.py`, with what its comments say that the group is for.
MEGATRON = {
    "DATA_PARALLEL_GROUP": GroupRole.SHARD,
    "DATA_PARALLEL_GROUP_GLOO": GroupRole.SHARD,
    "DATA_PARALLEL_GROUP_WITH_CP": GroupRole.SHARD,
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": GroupRole.SHARD,
    "INTER_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": GroupRole.REPLICA,
    "CONTEXT_PARALLEL_GROUP": GroupRole.CONTEXT,
    "MODEL_PARALLEL_GROUP": GroupRole.OTHER,
    "TENSOR_MODEL_PARALLEL_GROUP": GroupRole.TENSOR,
    "PIPELINE_MODEL_PARALLEL_GROUP": GroupRole.PIPELINE,
    "EMBEDDING_GROUP": GroupRole.OTHER,
    "POSITION_EMBEDDING_GROUP": GroupRole.OTHER,
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": GroupRole.OTHER,
    "TENSOR_AND_DATA_PARALLEL_GROUP": GroupRole.OTHER,
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": GroupRole.OTHER,
    "EXPERT_MODEL_PARALLEL_GROUP": GroupRole.EXPERT,
    "EXPERT_TENSOR_PARALLEL_GROUP": GroupRole.TENSOR,
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": GroupRole.EXPERT,
    "TENSOR_AND_EXPERT_PARALLEL_GROUP": GroupRole.EXPERT,
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": GroupRole.OTHER,
    "EXPERT_DATA_PARALLEL_GROUP": GroupRole.SHARD,
    "INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": GroupRole.SHARD,
    "INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": GroupRole.REPLICA,
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": GroupRole.OTHER,
}
#: Dimensions of torchtitan's `parallel_dims.py` and accelerate's `parallelism_config.py`; torch writes
#: "mesh_" before them (`device_mesh.py`), and FSDP2 one description of its own.
TORCH = {
    "mesh_dp": GroupRole.SHARD,
    "mesh_dp_cp": GroupRole.SHARD,
    "mesh_dp_shard": GroupRole.SHARD,
    "mesh_dp_shard_cp": GroupRole.SHARD,
    "mesh_dp_shard_in_ep": GroupRole.SHARD,
    "mesh_dp_shard_mod_ep": GroupRole.SHARD,
    "mesh_fsdp": GroupRole.SHARD,
    "mesh_efsdp": GroupRole.SHARD,
    "fsdp_reduce_scatter": GroupRole.SHARD,
    "mesh_dp_replicate": GroupRole.REPLICA,
    "mesh_replicate": GroupRole.REPLICA,
    "mesh_ddp": GroupRole.REPLICA,
    "mesh_cp": GroupRole.CONTEXT,
    "mesh_sp": GroupRole.CONTEXT,
    "mesh_ep": GroupRole.EXPERT,
    "mesh_tp": GroupRole.TENSOR,
    "mesh_etp": GroupRole.TENSOR,
    "mesh_pp": GroupRole.PIPELINE,
    "mesh_pp_tp": GroupRole.OTHER,
    "mesh_loss": GroupRole.OTHER,
}
#: What says nothing of a role, and words that only contain one.
UNKNOWN = (
    "default_pg",
    "undefined",
    "",
    "mesh_default",
    "mesh_dim_0",
    "string",
    "metadata",
    "step",
    "\ud800",
)


@pytest.mark.parametrize(("description", "role"), [*MEGATRON.items(), *TORCH.items()])
def test_description_names_a_role(description: str, role: GroupRole) -> None:
    assert read_role(description) is role
    assert read_role(description.lower().replace("_", "-")) is role


@pytest.mark.parametrize("description", UNKNOWN)
def test_description_names_no_role(description: str) -> None:
    assert read_role(description) is None
