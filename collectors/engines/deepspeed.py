"""Find DeepSpeed's engines among the live objects, and read facts and settings from them.

DeepSpeed is never imported here: a program that does not use it must not pay for it. Only attributes that
its engines, its ZeRO optimizers and its configuration have had for several releases are read.
"""

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from zprof.model.training import EngineSetting, TrainingFacts

ENGINE_MODULE = "deepspeed.runtime.engine"
_ENGINE_CLASS = "DeepSpeedEngine"
_ENGINE_ATTRIBUTES = (
    "module",
    "optimizer",
    "global_steps",
    "zero_optimization_stage",
    "gradient_accumulation_steps",
)
#: Lists of the ZeRO optimizers that hold the fp32 master weights of this rank, by the optimizer's class.
MASTER_ATTRIBUTES = (
    "single_partition_of_fp32_groups",  # stages 1 and 2
    "fp32_partitioned_groups_flat",  # stage 3
    "fp32_groups_flat_partition",  # stage 1 with bf16 and fp32 accumulation
    "fp32_groups_flat",  # stage 0 with fp16
)


def is_deepspeed_engine(model: Any) -> bool:
    """Return True if an object has the attributes of a DeepSpeed engine that is completely set up."""
    return all(hasattr(model, name) for name in _ENGINE_ATTRIBUTES)


def find_engines(model: nn.Module | None) -> list[Any]:
    """Return the engines within a model, else the live engine that trains it; empty without DeepSpeed."""
    if model is None or ENGINE_MODULE not in sys.modules:
        return []
    inside = [module for module in model.modules() if _is_engine(module)]
    return inside or [engine for engine in find_live_engines() if engine.module is model]


def find_live_engines() -> list[Any]:
    """Return the engines that are completely set up; empty without DeepSpeed."""
    if ENGINE_MODULE not in sys.modules:
        return []
    # type(), not isinstance(): access to its ``__class__`` would materialize a lazy proxy.
    return [value for value in gc.get_objects() if issubclass(type(value), nn.Module) and _is_engine(value)]


def list_optimizers(engine: Any) -> list[Any]:
    """List the innermost optimizer and the master weights, which it holds only during its step in stage 3."""
    masters = list_masters(engine)
    partitions = [SimpleNamespace(param_groups=[{"params": masters}], state={})] if masters else []
    inner = engine.optimizer
    while (wrapped := getattr(inner, "optimizer", None)) is not None:
        inner = wrapped
    return [inner, *partitions]


def list_masters(engine: Any) -> list[torch.Tensor]:
    """List the fp32 tensors that the engine's optimizer updates instead of the parameters."""
    for name in MASTER_ATTRIBUTES:
        held = getattr(engine.optimizer, name, None)
        if held:
            return [tensor for tensor in held if isinstance(tensor, torch.Tensor)]
    return []


def get_shard(parameter: Any) -> torch.Tensor | None:
    """Return this rank's shard of a parameter of stage 3; None if the parameter is not sharded."""
    shard = getattr(parameter, "ds_tensor", None)
    return shard if isinstance(shard, torch.Tensor) else None


def detect_facts(engine: Any) -> TrainingFacts:
    """Return the training facts of an engine; the optimizer state is None if there are no master weights.

    In stage 3 the size of a parameter tensor is 0, and ``ds_numel`` is the actual size.
    """
    stage = int(engine.zero_optimization_stage())
    parameters = list(engine.module.parameters())
    trained = None if any(not each.requires_grad for each in parameters) else parameters
    model_type, accumulation_type = engine.get_data_types()
    ranks = int(engine.seq_dp_world_size)
    return TrainingFacts(
        engine="deepspeed",
        stage=stage,
        parameters=None if trained is None else sum(map(_count_elements, trained)),
        shard_ranks=ranks,
        parameter_bytes=model_type.itemsize,
        gradient_bytes=accumulation_type.itemsize,
        optimizer_state_bytes=_measure_state(engine),
        communication_bytes=model_type.itemsize,
        reduction_bytes=engine.communication_data_type.itemsize,
        padding_elements=0 if trained is None else _count_padding(engine, trained, ranks),
        step_counters=_count_step_counters(engine),
        micro_batches=int(engine.gradient_accumulation_steps()),
        samples_per_step=_get_samples_per_step(engine),
        settings=tuple(_list_settings(engine, stage)),
    )


def _is_engine(module: nn.Module) -> bool:
    names = {kind.__name__ for kind in type(module).__mro__}
    return _ENGINE_CLASS in names and is_deepspeed_engine(module)


def _count_elements(parameter: nn.Parameter) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _count_padding(engine: Any, parameters: Sequence[nn.Parameter], ranks: int) -> int:
    """Return the elements that the engine adds to make all shards equal, over the whole model."""
    elements = sum(map(_count_elements, parameters))
    if flat := getattr(engine.optimizer, "bit16_groups_flat", None):
        return max(0, sum(int(group.numel()) for group in flat) - elements)
    shards = [shard for each in parameters if (shard := get_shard(each)) is not None]
    padded = sum(ranks * int(getattr(shard, "ds_numel", shard.numel())) for shard in shards)
    return padded - elements if len(shards) == len(parameters) else 0


def _measure_state(engine: Any) -> int | None:
    """Return the bytes of optimizer state per element with the master weights; None before it exists."""
    masters = list_masters(engine)
    state = getattr(list_optimizers(engine)[0], "state", None) or {}
    elements = sum(tensor.numel() for tensor in masters)
    if not elements or not any(state.get(tensor) for tensor in masters):
        return None
    size: int = sum(
        value.numel() * value.element_size()
        for tensor in masters
        for value in (state.get(tensor) or {}).values()
        if isinstance(value, torch.Tensor) and value.numel() == tensor.numel()
    )
    own = {
        shard.untyped_storage().data_ptr()
        for each in engine.module.parameters()
        if (shard := get_shard(each)) is not None
    }
    # A stage 3 of fp32 parameters updates their shards themselves.
    size += sum(
        tensor.numel() * tensor.element_size()
        for tensor in masters
        if tensor.untyped_storage().data_ptr() not in own
    )
    return size // elements if size % elements == 0 else None


def _count_step_counters(engine: Any) -> int:
    """Return the number of 4-byte tensors that count the steps of a state."""
    state = getattr(list_optimizers(engine)[0], "state", None) or {}
    counters = [values.get("step") for values in state.values() if isinstance(values, dict)]
    return sum(
        isinstance(counter, torch.Tensor) and counter.numel() == 1 and counter.element_size() == 4
        for counter in counters
    )


def _get_samples_per_step(engine: Any) -> int | None:
    """Return the global batch size if the engine provides it."""
    batch = getattr(engine, "train_batch_size", None)
    return int(batch()) if callable(batch) else None


def list_persistent(engine: Any) -> Iterable[torch.Tensor]:
    """Return the parameters of stage 3 that are too small to be sharded: every rank keeps them gathered."""
    return getattr(engine.optimizer, "persistent_parameters", None) or ()


#: Options of ``zero_optimization``: name in the JSON file, name in the parsed configuration, first stage.
_OPTIONS = (
    ("overlap_comm", "overlap_comm", 1),
    ("reduce_bucket_size", "reduce_bucket_size", 1),
    ("allgather_bucket_size", "allgather_bucket_size", 1),
    ("contiguous_gradients", "contiguous_gradients", 1),
    ("reduce_scatter", "reduce_scatter", 1),
    ("round_robin_gradients", "round_robin_gradients", 1),
    ("stage3_prefetch_bucket_size", "prefetch_bucket_size", 3),
    ("stage3_param_persistence_threshold", "param_persistence_threshold", 3),
    ("stage3_max_live_parameters", "max_live_parameters", 3),
    ("stage3_max_reuse_distance", "max_reuse_distance", 3),
    ("sub_group_size", "sub_group_size", 3),
)
_OFFLOADS = ("offload_optimizer", "offload_param")
_NO_OFFLOAD = "none"
_MIN_POWER = 10_000


def _list_settings(engine: Any, stage: int) -> Iterator[EngineSetting]:
    config = getattr(getattr(engine, "_config", None), "zero_config", None)
    yield EngineSetting(name="stage", value=str(stage))
    for name, attribute, first_stage in _OPTIONS:
        value = getattr(config, attribute, None)
        if stage >= first_stage and value is not None:
            reason = _find_reason_without_effect(engine, stage, name, value)
            effective = False if reason else None
            yield EngineSetting(name=name, value=_format(value), effective=effective, reason=reason)
    for name in _OFFLOADS:
        offload = getattr(config, name, None)
        device = getattr(getattr(offload, "device", None), "value", _NO_OFFLOAD)
        if device != _NO_OFFLOAD:
            pinned = ", pinned" if getattr(offload, "pin_memory", False) else ""
            yield EngineSetting(name=name, value=f"{device}{pinned}")


def _find_reason_without_effect(engine: Any, stage: int, name: str, value: Any) -> str:
    """Return why an option that is set changes nothing here; empty if it may.

    Read in DeepSpeed 0.19: streams exist only on asynchronous devices; stages 1 and 2 reduce buckets by
    all-reduce whatever ``reduce_scatter`` says, and gather into the flat buffer in one call whatever
    ``allgather_bucket_size`` says.
    """
    device = next(iter(engine.module.parameters())).device.type
    if name == "overlap_comm" and value and device == "cpu":
        return "no_streams_on_this_device"
    if name == "overlap_comm" and value and hasattr(engine, "train_batch"):
        return "off_in_pipelines"
    if name == "reduce_scatter" and value and stage in (1, 2):
        return "reduced_by_all_reduce"
    if name == "allgather_bucket_size" and stage in (1, 2):
        return "gathered_in_one_call"
    return ""


def _format(value: Any) -> str:
    """Return a value as the JSON file has it; large sizes in powers of ten, as people write them."""
    if isinstance(value, bool):
        return str(value).lower()
    return (
        f"{value:g}"
        if isinstance(value, int) and value >= 10_000 and value == float(f"{value:g}")
        else str(value)
    )
