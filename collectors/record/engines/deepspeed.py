"""Find DeepSpeed's engines among the live objects, and read facts and settings (and which of them change
nothing) from them.

DeepSpeed is never imported here: a program that does not use it must not pay for it. Only attributes that
its engines, its ZeRO optimizers and its configuration have had for several releases are read.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from zprof.collectors.record.memory.storages import find_nested_tensors
from zprof.model.training import EngineSetting, SettingEffect, TrainingFacts

ENGINE_MODULE = "deepspeed.runtime.engine"
_ENGINE_CLASS = "DeepSpeedEngine"
#: The stage that shards parameters.
_FIRST_SHARDED_STAGE = 3
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
#: Attributes of the ZeRO optimizers with gradients that stay allocated between steps.
KEPT_GRADIENTS = ("grad_partitions_flat_buffer", "accumulated_grads_in_cpu")
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
    gathered, reduced = _count_moved_elements(engine, stage, trained)
    # The global batch size if the engine provides it.
    batch = getattr(engine, "train_batch_size", None)
    return TrainingFacts(
        engine="deepspeed",
        stage=stage,
        parameters=None if trained is None else sum(map(_count_elements, trained)),
        shard_ranks=ranks,
        parameter_bytes=model_type.itemsize,
        gradient_bytes=_measure_kept_gradients(engine) or accumulation_type.itemsize,
        optimizer_state_bytes=_measure_state(engine),
        communication_bytes=model_type.itemsize,
        reduction_bytes=engine.communication_data_type.itemsize,
        padding_elements=0 if trained is None else _count_padding(engine, trained, ranks),
        step_counters=_count_step_counters(engine),
        micro_batches=int(engine.gradient_accumulation_steps()),
        samples_per_step=int(batch()) if callable(batch) else None,
        gathered_elements=gathered,
        reduced_elements=reduced,
        settings=tuple(list_settings(engine)),
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


def _count_moved_elements(
    engine: Any, stage: int, parameters: Sequence[nn.Parameter] | None
) -> tuple[int | None, int | None]:
    """Return the elements gathered and reduced per step, where DeepSpeed differs from the stage's formula.

    Read in its sources: stages 1 and 2 all-reduce buckets of gradients, stage 1 once per step. Stage 3 keeps
    what it gathers if it is used again within ``stage3_max_reuse_distance``, and gathers the parameters that
    it does not shard once, after the step. If it keeps only some, the volume depends on the prefetching.
    """
    micro_batches = int(engine.gradient_accumulation_steps())
    if parameters is None or stage == 0:
        return None, None
    elements = sum(map(_count_elements, parameters))
    padded = elements + _count_padding(engine, parameters, int(engine.seq_dp_world_size))
    if stage < _FIRST_SHARDED_STAGE:
        passes = micro_batches if stage == 2 else 1
        return padded, 2 * passes * padded
    zero = getattr(getattr(engine, "_config", None), "zero_config", None)
    if getattr(zero, "max_reuse_distance", 0) < 2 * elements:
        return None, None
    # Every rank keeps the parameters of stage 3 gathered that are too small to be sharded.
    small = getattr(engine.optimizer, "persistent_parameters", None) or ()
    persistent = sum(int(getattr(each, "ds_numel", 0)) for each in small)
    return micro_batches * (padded - persistent) + persistent, micro_batches * padded


def _measure_kept_gradients(engine: Any) -> int | None:
    """Return the bytes per element of the gradients that the engine keeps between steps; None if it has none.

    Stage 3 keeps its partition; an optimizer on the host keeps fp32 gradients beside what it accumulates.
    """
    elements = sum(tensor.numel() for tensor in list_masters(engine))
    kept = [tensor.grad for tensor in list_masters(engine) if tensor.grad is not None]
    for name in KEPT_GRADIENTS:
        kept.extend(find_nested_tensors(getattr(engine.optimizer, name, None)))
    size = sum(int(tensor.numel() * tensor.element_size()) for tensor in kept)
    return size // elements if elements and size % elements == 0 else None


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


def list_settings(engine: Any) -> Iterator[EngineSetting]:
    """Yield the options of an engine that matter for memory and communication, as JSON writes them."""
    stage = int(engine.zero_optimization_stage())
    config = getattr(engine, "_config", None)
    zero = getattr(config, "zero_config", None)
    # What the program wrote: the parsed configuration has the defaults, too.
    written = (getattr(config, "_param_dict", None) or {}).get("zero_optimization") or {}
    yield EngineSetting(name="stage", value=str(stage))
    for name, attribute, first_stage in _OPTIONS:
        value = getattr(zero, attribute, None)
        if stage >= first_stage and value is not None:
            yield EngineSetting(
                name=name,
                value=_format(value),
                is_set=name in written,
                effect=_find_effect(engine, stage, name, value),
            )
    for name in _OFFLOADS:
        offload = getattr(zero, name, None)
        device = getattr(getattr(offload, "device", None), "value", _NO_OFFLOAD)
        if device != _NO_OFFLOAD:
            pinned = ", pinned" if getattr(offload, "pin_memory", False) else ""
            yield EngineSetting(name=name, value=f"{device}{pinned}")
    for name, is_on in _list_instruments(config):
        if is_on:
            yield EngineSetting(name=name, value="true", effect=SettingEffect.SYNCHRONISES)


def _list_instruments(config: Any) -> Iterator[tuple[str, bool]]:
    """Yield the options that make DeepSpeed wait for the device around what they measure."""
    yield "wall_clock_breakdown", bool(getattr(config, "wall_clock_breakdown", False))
    logger = getattr(getattr(config, "comms_config", None), "comms_logger", None)
    yield "comms_logger.enabled", bool(getattr(logger, "enabled", False))
    yield (
        "flops_profiler.enabled",
        bool(getattr(getattr(config, "flops_profiler_config", None), "enabled", 0)),
    )


def _find_effect(engine: Any, stage: int, name: str, value: Any) -> SettingEffect:
    """Return why an option that is set changes nothing here; NORMAL if it may.

    Read in DeepSpeed 0.19: streams exist only on asynchronous devices; stages 1 and 2 reduce buckets by
    all-reduce whatever ``reduce_scatter`` says, and gather into the flat buffer in one call whatever
    ``allgather_bucket_size`` says.
    """
    device = next(iter(engine.module.parameters())).device.type
    if name == "overlap_comm" and value and device == "cpu":
        return SettingEffect.NO_STREAMS
    if name == "overlap_comm" and value and hasattr(engine, "train_batch"):
        return SettingEffect.OFF_IN_PIPELINES
    if name == "reduce_scatter" and value and stage in (1, 2):
        return SettingEffect.REDUCED_BY_ALL_REDUCE
    if name == "allgather_bucket_size" and stage in (1, 2):
        return SettingEffect.GATHERED_IN_ONE_CALL
    return SettingEffect.NORMAL


def _format(value: Any) -> str:
    """Return a value as the JSON file has it; large sizes in powers of ten, as people write them."""
    if isinstance(value, bool):
        return str(value).lower()
    return (
        f"{value:g}"
        if isinstance(value, int) and value >= 10_000 and value == float(f"{value:g}")
        else str(value)
    )
