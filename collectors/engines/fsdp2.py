"""Read the facts and settings of ``fully_shard`` (FSDP2) from the groups of parameters that it shards."""

from collections.abc import Iterator, Sequence

from torch import nn

from zprof.collectors.engines.sizes import (
    count_trained_elements,
    find_element_bytes,
    format_dtype,
    get_common,
    get_item_bytes,
    list_class_names,
)
from zprof.collectors.torch_private import ShardedGroup, list_sharded_groups
from zprof.model.training import EngineSetting, SettingEffect, TrainingFacts

_MODULE = "FSDPModule"
_FULL_STAGE, _KEEPING_STAGE = 3, 2
#: Knobs of accumulation, and the values without it.
_KNOBS = ("requires_gradient_sync", "requires_all_reduce", "reshard_after_backward")


def is_wrapped(model: nn.Module) -> bool:
    """Return True if a module of the model is sharded by FSDP2."""
    return any(_MODULE in list_class_names(module) for module in model.modules())


def detect_facts(model: nn.Module) -> TrainingFacts:
    """Return the facts of a sharded model; the size of the optimizer state is unknown."""
    parameters = list(model.parameters())
    groups = list_sharded_groups(module for module in model.modules() if _MODULE in list_class_names(module))
    size = find_element_bytes(parameters)
    # The bytes of a gathered and of a reduced element, if they are equal in all groups.
    sent = [get_item_bytes(group.param_dtype, size) for group in groups]
    gathered = get_common(sent)
    reduced = get_common(
        get_item_bytes(group.reduce_dtype, each) for group, each in zip(groups, sent, strict=True)
    )
    are_sizes_known = gathered is not None and reduced is not None
    elements = count_trained_elements(parameters)
    is_data_parallel_only = all(group.shards_only for group in groups)
    return TrainingFacts(
        engine="fsdp2",
        stage=_find_stage(groups),
        parameters=elements,
        shard_ranks=get_common(group.ranks for group in groups) if is_data_parallel_only else None,
        replica_ranks=get_common(group.replicas for group in groups) if is_data_parallel_only else None,
        parameter_bytes=size,
        gradient_bytes=size,
        communication_bytes=gathered if are_sizes_known else None,
        reduction_bytes=reduced if are_sizes_known else None,
        padding_elements=0 if elements is None else sum(group.padding_elements for group in groups),
        settings=tuple(_list_settings(groups)),
    )


def _find_stage(groups: Sequence[ShardedGroup]) -> int:
    """Return 2 if all groups stay gathered until their backward, else 3.

    The root stays gathered by default, because its backward comes first: that is no choice of the program.
    Between steps the parameters are sharded in both: the stage is that of the communication.
    """
    chosen = [group for group in groups if not group.is_default_root]
    are_kept = bool(chosen) and all(group.reshard_after_forward is False for group in chosen)
    return _KEEPING_STAGE if are_kept else _FULL_STAGE


def _list_settings(groups: Sequence[ShardedGroup]) -> Iterator[EngineSetting]:
    """Yield the options as the arguments of ``fully_shard`` and the methods of its modules name them."""
    if not groups:
        return
    chosen = [group for group in groups if not group.is_default_root] or groups
    reshard = get_common(str(group.reshard_after_forward) for group in chosen)
    if reshard is not None:
        yield EngineSetting(name="reshard_after_forward", value=reshard, is_set=reshard != "True")
    for name in ("param_dtype", "reduce_dtype"):
        value = get_common(format_dtype(getattr(group, name)) for group in groups)
        if value is not None:
            yield EngineSetting(name=f"mp_policy.{name}", value=value, is_set=value != "None")
    offload = get_common(group.offload_policy for group in groups)
    if offload is not None:
        yield EngineSetting(name="offload_policy", value=offload, is_set=offload != "OffloadPolicy")
    is_on_cpu = all(group.computes_on_cpu for group in groups)
    for name in ("forward", "backward"):
        units = sum(getattr(group, f"prefetches_{name}") for group in groups)
        if units:
            yield EngineSetting(
                name=f"set_modules_to_{name}_prefetch",
                value=f"{units} units",
                effect=SettingEffect.NO_STREAMS if is_on_cpu else SettingEffect.NORMAL,
            )
    for name in _KNOBS:
        switched_off = sum(not getattr(group, name) for group in groups)
        if switched_off:
            yield EngineSetting(name=f"set_{name}", value=f"False in {switched_off} units")
