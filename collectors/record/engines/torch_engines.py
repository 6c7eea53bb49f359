"""Read the facts and settings of torch's own engines, and of programs without an engine.

DistributedDataParallel and ZeroRedundancyOptimizer are read through their attributes,
FullyShardedDataParallel (FSDP1) through its wrappers and flat parameters, and ``fully_shard`` (FSDP2) through
its parameter groups.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from zprof.collectors.record.torch_private import (
    FlatShard,
    ShardedGroup,
    list_flat_shards,
    list_sharded_groups,
    uses_original_parameters,
)
from zprof.model.training import EngineSetting, SettingEffect, TrainingFacts

_DDP_CLASS = "DistributedDataParallel"
_ZERO_CLASS = "ZeroRedundancyOptimizer"
_MIB = 1 << 20
_DEFAULT_BUCKET_MB = 25
#: Options of DDP that are off by default.
_DDP_FLAGS = ("gradient_as_bucket_view", "find_unused_parameters", "static_graph")
_FSDP1_CLASS = "FullyShardedDataParallel"
#: ZeRO stage of each sharding strategy, within the shard group. Between steps SHARD_GRAD_OP shards the
#: parameters, too; the stage describes its communication.
_FSDP1_STAGES = {
    "FULL_SHARD": 3,
    "HYBRID_SHARD": 3,
    "SHARD_GRAD_OP": 2,
    "_HYBRID_SHARD_ZERO2": 2,
    "NO_SHARD": 0,
}
_DEFAULT_STRATEGY, _DEFAULT_PREFETCH = "FULL_SHARD", "BACKWARD_PRE"
#: Options that order work on streams, which the CPU does not have.
_STREAM_OPTIONS = frozenset({"forward_prefetch", "backward_prefetch", "limit_all_gathers"})
_FSDP2_CLASS = "FSDPModule"
_FULL_STAGE, _KEEPING_STAGE = 3, 2
#: Settings of gradient accumulation, and their values without it.
_KNOBS = ("requires_gradient_sync", "requires_all_reduce", "reshard_after_backward")
_T = TypeVar("_T")


def detect_engine(model: nn.Module) -> str:
    """Return the name of the engine; a program without one is plain PyTorch."""
    return "ddp" if _list_wrappers(model) else "pytorch"


def detect_ddp_facts(model: nn.Module, optimizers: Sequence[Any]) -> TrainingFacts:
    """Return the facts of a model wrapped by DDP, or not at all; the size of the optimizer state is
    unknown.
    """
    parameters = list(model.parameters())
    wrappers = _list_wrappers(model)
    sharding = [optimizer for optimizer in optimizers if _ZERO_CLASS in list_class_names(optimizer)]
    size = find_element_bytes(parameters)
    # A communication hook changes the data that is sent.
    wire = size if not any(getattr(wrapper, "_comm_hooks", None) for wrapper in wrappers) else None
    elements = count_trained_elements(parameters)
    # The stage is unknown for a multi-rank program that does not use an engine of torch.
    unsharded_stage = 0 if wrappers or count_ranks() == 1 else None
    # DDP all-reduces whole gradients although each rank needs only its share, and the owners broadcast.
    is_all_reduced = bool(wrappers and sharding)
    # The number of ranks, or the size of the mesh if the program shards tensors itself.
    mesh: Any = getattr(parameters[0], "device_mesh", None)
    shard_ranks = count_ranks() if mesh is None else int(mesh.size()) if mesh.ndim == 1 else None
    return TrainingFacts(
        engine=detect_engine(model),
        stage=1 if sharding else unsharded_stage,
        parameters=elements,
        shard_ranks=shard_ranks,
        parameter_bytes=size,
        gradient_bytes=size,
        communication_bytes=wire,
        reduction_bytes=wire,
        gathered_elements=elements if is_all_reduced else None,
        reduced_elements=2 * elements if is_all_reduced and elements is not None else None,
        settings=tuple(_list_ddp_settings(wrappers, sharding)),
    )


def _list_wrappers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if _DDP_CLASS in list_class_names(module)]


def _list_ddp_settings(wrappers: Sequence[Any], optimizers: Sequence[Any]) -> Iterator[EngineSetting]:
    for name in _DDP_FLAGS if wrappers else ():
        value = get_common(bool(getattr(wrapper, name, False)) for wrapper in wrappers)
        if value is not None:
            yield EngineSetting(name=name, value=str(value), is_set=value)
    bucket_bytes = get_common(getattr(wrapper, "bucket_bytes_cap", None) for wrapper in wrappers)
    if bucket_bytes is not None:
        size = bucket_bytes / _MIB
        yield EngineSetting(name="bucket_cap_mb", value=f"{size:g}", is_set=size != _DEFAULT_BUCKET_MB)
    for name, attribute in (
        ("overlap_with_ddp", "_overlap_with_ddp"),
        ("parameters_as_bucket_view", "parameters_as_bucket_view"),
    ):
        value = get_common(getattr(optimizer, attribute, None) for optimizer in optimizers)
        if value is not None:
            yield EngineSetting(name=name, value=str(value), is_set=bool(value))


def is_fsdp1(model: nn.Module) -> bool:
    """Return True if a module of the model is wrapped by FSDP1."""
    return any(_FSDP1_CLASS in list_class_names(module) for module in model.modules())


def detect_fsdp1_facts(model: nn.Module) -> TrainingFacts:
    """Return the facts of a wrapped model; the size of the optimizer state is unknown.

    The parameters are counted from the flat parameters, because the model holds only this rank's shards.
    """
    wrappers = [module for module in model.modules() if _FSDP1_CLASS in list_class_names(module)]
    shards = list_flat_shards(wrappers)
    flat = {id(parameter) for shard in shards for parameter in shard.parameters}
    others = [parameter for parameter in model.parameters() if id(parameter) not in flat]
    strategy = get_common(_get_strategy(wrapper) for wrapper in wrappers)
    ignored = count_trained_elements(others)
    is_known = ignored == 0 and bool(shards) and all(shard.is_trained for shard in shards)
    elements = sum(shard.elements for shard in shards)
    element_bytes = get_common(shard.dtype for shard in shards)
    gathered = get_common(shard.gathered_dtype for shard in shards)
    reduced = get_common(shard.reduced_dtype for shard in shards)
    keeps_reduced = get_common(shard.keeps_low_precision for shard in shards)
    size = find_element_bytes(list(model.parameters())) if element_bytes is None else element_bytes.itemsize
    are_sizes_known = gathered is not None and reduced is not None
    return TrainingFacts(
        engine="fsdp1",
        stage=None if strategy is None else _FSDP1_STAGES.get(strategy),
        parameters=elements if is_known else None,
        shard_ranks=get_common(shard.ranks for shard in shards),
        replica_ranks=get_common(shard.replicas for shard in shards),
        parameter_bytes=size,
        gradient_bytes=gathered.itemsize if keeps_reduced and gathered is not None else size,
        communication_bytes=gathered.itemsize if are_sizes_known and gathered is not None else None,
        reduction_bytes=reduced.itemsize if are_sizes_known and reduced is not None else None,
        padding_elements=sum(shard.padded_elements for shard in shards) - elements if is_known else 0,
        settings=tuple(_list_fsdp1_settings(wrappers, shards)),
    )


def _get_strategy(wrapper: Any) -> str | None:
    return getattr(getattr(wrapper, "sharding_strategy", None), "name", None)


def _list_fsdp1_settings(wrappers: Sequence[Any], shards: Sequence[FlatShard]) -> Iterator[EngineSetting]:
    """Yield the options as the arguments of the wrapper name them, where all wrappers agree."""
    is_on_cpu = bool(shards) and all(shard.computes_on_cpu for shard in shards)
    for name, value, default in _list_fsdp1_options(wrappers):
        if value is None:
            continue
        is_idle = is_on_cpu and name in _STREAM_OPTIONS and value not in ("False", "None")
        yield EngineSetting(
            name=name,
            value=value,
            is_set=value != default,
            effect=SettingEffect.NO_STREAMS if is_idle else SettingEffect.NORMAL,
        )


def _list_fsdp1_options(wrappers: Sequence[Any]) -> Iterator[tuple[str, str | None, str]]:
    """Yield name, value (None if it differs between wrappers) and default of each option."""
    yield "sharding_strategy", get_common(map(_get_strategy, wrappers)), _DEFAULT_STRATEGY
    yield "use_orig_params", get_common(str(uses_original_parameters(each)) for each in wrappers), "False"
    offload = get_common(str(bool(each.cpu_offload.offload_params)) for each in wrappers)
    yield "cpu_offload", offload, "False"
    prefetch = get_common(getattr(each.backward_prefetch, "name", "None") for each in wrappers)
    yield "backward_prefetch", prefetch, _DEFAULT_PREFETCH
    yield "forward_prefetch", get_common(str(bool(each.forward_prefetch)) for each in wrappers), "False"
    yield "limit_all_gathers", get_common(str(bool(each.limit_all_gathers)) for each in wrappers), "True"
    for name in ("param_dtype", "reduce_dtype"):
        dtypes = {getattr(each.mixed_precision, name) for each in wrappers}
        value = format_dtype(dtypes.pop()) if len(dtypes) == 1 else None
        yield f"mixed_precision.{name}", value, "None"


def is_fsdp2(model: nn.Module) -> bool:
    """Return True if a module of the model is sharded by FSDP2."""
    return any(_FSDP2_CLASS in list_class_names(module) for module in model.modules())


def detect_fsdp2_facts(model: nn.Module) -> TrainingFacts:
    """Return the facts of a sharded model; the size of the optimizer state is unknown."""
    parameters = list(model.parameters())
    groups = list_sharded_groups(
        module for module in model.modules() if _FSDP2_CLASS in list_class_names(module)
    )
    size = find_element_bytes(parameters)
    # Bytes of a gathered and of a reduced element, if equal in all groups.
    sent = [get_item_bytes(group.param_dtype, size) for group in groups]
    gathered = get_common(sent)
    reduced = get_common(
        get_item_bytes(group.reduce_dtype, each) for group, each in zip(groups, sent, strict=True)
    )
    are_sizes_known = gathered is not None and reduced is not None
    elements = count_trained_elements(parameters)
    is_data_parallel_only = all(group.shards_only for group in groups)
    # The stage is 2 if all groups stay gathered until their backward, else 3. The root stays gathered by
    # default, because its backward pass comes first; the program did not choose that. Between steps the
    # parameters are sharded in both cases; the stage describes the communication.
    chosen = [group for group in groups if not group.is_default_root]
    are_kept = bool(chosen) and all(group.reshard_after_forward is False for group in chosen)
    return TrainingFacts(
        engine="fsdp2",
        stage=_KEEPING_STAGE if are_kept else _FULL_STAGE,
        parameters=elements,
        shard_ranks=get_common(group.ranks for group in groups) if is_data_parallel_only else None,
        replica_ranks=get_common(group.replicas for group in groups) if is_data_parallel_only else None,
        parameter_bytes=size,
        gradient_bytes=size,
        communication_bytes=gathered if are_sizes_known else None,
        reduction_bytes=reduced if are_sizes_known else None,
        padding_elements=0 if elements is None else sum(group.padding_elements for group in groups),
        settings=tuple(_list_fsdp2_settings(groups)),
    )


def _list_fsdp2_settings(groups: Sequence[ShardedGroup]) -> Iterator[EngineSetting]:
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


def list_class_names(value: Any) -> set[str]:
    """Return the names of a value's class and of its base classes."""
    return {kind.__name__ for kind in type(value).__mro__}


def get_common(values: Iterable[_T | None]) -> _T | None:
    """Return the common value; None if values differ or there are none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def get_item_bytes(dtype: Any, default_bytes: int | None) -> int | None:
    """Return the bytes of an element of a type; the default if no type is set."""
    return default_bytes if dtype is None else int(dtype.itemsize)


def count_trained_elements(parameters: Sequence[nn.Parameter]) -> int | None:
    """Return the number of elements; None if some are frozen or lazy."""
    if any(is_lazy(parameter) or not parameter.requires_grad for parameter in parameters):
        return None
    return sum(parameter.numel() for parameter in parameters)


def find_element_bytes(parameters: Sequence[nn.Parameter]) -> int | None:
    """Return the bytes per element if all parameters have the same type; lazy parameters also have a type."""
    dtype = get_common(parameter.dtype for parameter in parameters)
    return None if dtype is None else dtype.itemsize


def count_ranks() -> int:
    """Return the number of ranks of the program."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def format_dtype(dtype: Any) -> str:
    """Return a type as written in programs, without the package."""
    return str(dtype).removeprefix("torch.")
