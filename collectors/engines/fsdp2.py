"""Read facts and settings from modules that ``fully_shard`` was applied to (FSDP2)."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from zprof.model.training import Engine, EngineSetting, SettingEffect, TrainingFacts

_CLASS = "FSDPModule"
#: Stage of the states between steps, also if parameters stay gathered from the forward to the backward.
_STAGE = 3
_ACCELERATE_STATE = "accelerate.state"
_FSDP2 = 2


def detect_fsdp2(model: nn.Module, parameter_bytes: int | None, micro_batches: int) -> TrainingFacts | None:
    """Return what the modules' states tell; None if there are none. Sizes of parameters are not among it.

    Facts that differ between the units are None.
    """
    groups = list(_list_groups(model))
    if not groups:
        return None
    gathered = {_get_bytes(group.mp_policy.param_dtype, parameter_bytes) for group in groups}
    reduced = {
        _get_bytes(group.mp_policy.reduce_dtype, _get_bytes(group.mp_policy.param_dtype, parameter_bytes))
        for group in groups
    }
    elements = sum(param._orig_size.numel() for group in groups for param in group.fsdp_params)
    regathered = _count_regathered(groups)
    keeps_some = regathered != elements
    replicas = {int(getattr(group.mesh_info, "replicate_mesh_size", 1)) for group in groups}
    return TrainingFacts(
        engine=Engine.FSDP2,
        stage=_STAGE,
        shard_ranks=_get_single({int(getattr(group.mesh_info, "shard_mesh_size", 1)) for group in groups}),
        replica_ranks=_get_single(replicas) or 1,
        communication_bytes=_get_single(gathered),
        reduction_bytes=_get_single(reduced),
        gathered_elements=micro_batches * (elements + regathered) if keeps_some else None,
        reduced_elements=micro_batches * elements if keeps_some else None,
        settings=tuple(_list_settings(groups, regathered, elements)),
    )


def _list_groups(model: nn.Module) -> Iterator[Any]:
    """Yield the parameter group of each unit."""
    for module in model.modules():
        if any(kind.__name__ == _CLASS for kind in type(module).__mro__):
            state: Any = module._get_fsdp_state()  # type: ignore[operator]
            groups = getattr(state, "_fsdp_param_groups", None)  # torch >= 2.12 may have several
            yield from groups if groups is not None else filter(None, [state._fsdp_param_group])


def _count_regathered(groups: Sequence[Any]) -> int:
    """Return the elements that are gathered again for the backward: those of units that reshard."""
    return sum(
        param._orig_size.numel()
        for group in groups
        if group.post_forward_mesh_info is not None
        for param in group.fsdp_params
    )


def _get_bytes(dtype: Any, default_bytes: int | None) -> int | None:
    return default_bytes if dtype is None else int(dtype.itemsize)


def _get_single(values: set[int | None] | set[int]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None


def _list_settings(groups: Sequence[Any], regathered: int, elements: int) -> Iterator[EngineSetting]:
    yield EngineSetting(
        name="reshard_after_forward",
        value=_describe_resharding(groups, regathered, elements),
        is_set=regathered != elements,
    )
    replicas = getattr(groups[0].mesh_info, "replicate_mesh_size", None)
    if replicas is not None:
        shape = f"{replicas} replicas of {groups[0].mesh_info.shard_mesh_size} shards"
        yield EngineSetting(name="mesh", value=shape)
    policy = groups[0].mp_policy
    for name in ("param_dtype", "reduce_dtype"):
        if (dtype := getattr(policy, name)) is not None:
            yield EngineSetting(name=name, value=str(dtype).removeprefix("torch."))
    if hasattr(groups[0].offload_policy, "pin_memory"):
        yield EngineSetting(name="offload_policy", value="CPUOffloadPolicy")
    plugin = _find_accelerate_plugin()
    if plugin is not None and getattr(plugin, "forward_prefetch", False):
        yield EngineSetting(name="forward_prefetch", value="True", effect=SettingEffect.IGNORED_BY_FSDP2)


def _describe_resharding(groups: Sequence[Any], regathered: int, elements: int) -> str:
    sizes = {
        int(info.shard_mesh_size)
        for group in groups
        if (info := group.post_forward_mesh_info) is not None
        and info.shard_mesh_size != group.mesh_info.shard_mesh_size
    }
    if sizes:
        return str(min(sizes))
    return "True" if regathered == elements else "False" if not regathered else "in some units"


def _find_accelerate_plugin() -> Any:
    """Return accelerate's FSDP configuration if it configures FSDP2; its options are not all passed on."""
    state = getattr(sys.modules.get(_ACCELERATE_STATE), "AcceleratorState", None)
    plugin = (getattr(state, "_shared_state", None) or {}).get("fsdp_plugin")
    return plugin if getattr(plugin, "fsdp_version", None) == _FSDP2 else None
