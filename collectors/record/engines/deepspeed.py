"""Find DeepSpeed's engines among the live objects, and read facts and settings (and which of them change
nothing) from them.

DeepSpeed is never imported here: a program that does not use it must not pay for it. Only attributes that
its engines, its ZeRO optimizers and its configuration have had for several releases are read.

Gradients of stages 1 to 3 are not in ``.grad`` when the optimizer runs, master weights of stage 3 are not in
the optimizer's groups, and a parameter is gathered into a new tensor each time.

The optimizer inside an engine steps once per parameter group or sub-group, steps once while the engine is set
up, and does not step at all if the loss scale overflows. The engine's own count of updates is the step.
"""

import functools
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from zprof.collectors.record.memory.log import StorageRole
from zprof.collectors.record.memory.storages import find_nested_tensors
from zprof.model.tenants import Tenant
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
_PARTITION = StorageRole(Tenant.GRADIENTS, "partition", "engine")
_ACCUMULATED = StorageRole(Tenant.GRADIENTS, "accumulated", "engine")
_MASTER = StorageRole(Tenant.OPTIMIZER_STATE, "master", "engine")
BUCKET = StorageRole(Tenant.COMMUNICATION_BUFFERS, "reduce_bucket", "engine")
_STAGING = StorageRole(Tenant.COMMUNICATION_BUFFERS, "offload_staging", "engine")

#: Attributes of the ZeRO optimizers, and who owns the tensors in them.
_ATTRIBUTES = (
    ("averaged_gradients", _PARTITION),
    ("all_grad_tensors", _PARTITION),
    *((name, _ACCUMULATED) for name in KEPT_GRADIENTS),
    ("fp32_groups_gradients", _ACCUMULATED),
    ("temp_grad_buffer_for_cpu_offload", _STAGING),
    ("temp_grad_buffer_for_gpu_offload", _STAGING),
    ("param_buffer_of_bit16_for_cpu_offload_groups", _STAGING),
)
_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator"
_PACKAGE = "deepspeed."
#: Classes and methods that update the model, where their modules are imported.
_UPDATES = (
    (ENGINE_MODULE, "DeepSpeedEngine", "step"),
    ("deepspeed.runtime.pipe.engine", "PipelineEngine", "train_batch"),
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

    According to its sources, stages 1 and 2 all-reduce gradient buckets, stage 1 once per step. Stage 3 keeps
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
    # Stage 3 keeps parameters that are too small to be sharded on every rank.
    small = getattr(engine.optimizer, "persistent_parameters", None) or ()
    persistent = sum(int(getattr(each, "ds_numel", 0)) for each in small)
    return micro_batches * (padded - persistent) + persistent, micro_batches * padded


def _measure_kept_gradients(engine: Any) -> int | None:
    """Return the bytes per element of the gradients that the engine keeps between steps; None if it keeps
    none.

    Stage 3 keeps its partition; an optimizer on the host keeps fp32 gradients in addition to the accumulated
    ones.
    """
    elements = sum(tensor.numel() for tensor in list_masters(engine))
    kept = [tensor.grad for tensor in list_masters(engine) if tensor.grad is not None]
    for name in KEPT_GRADIENTS:
        kept.extend(find_nested_tensors(getattr(engine.optimizer, name, None)))
    size = sum(int(tensor.numel() * tensor.element_size()) for tensor in kept)
    return size // elements if elements and size % elements == 0 else None


def _measure_state(engine: Any) -> int | None:
    """Return the bytes of optimizer state per element, including master weights; None before the state
    exists.
    """
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
    # With fp32 parameters, stage 3 updates the shards themselves.
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
    # Only what the program set: the parsed configuration also has the defaults.
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
    """Yield the options that make DeepSpeed wait for the device in order to measure."""
    yield "wall_clock_breakdown", bool(getattr(config, "wall_clock_breakdown", False))
    logger = getattr(getattr(config, "comms_config", None), "comms_logger", None)
    yield "comms_logger.enabled", bool(getattr(logger, "enabled", False))
    yield (
        "flops_profiler.enabled",
        bool(getattr(getattr(config, "flops_profiler_config", None), "enabled", 0)),
    )


def _find_effect(engine: Any, stage: int, name: str, value: Any) -> SettingEffect:
    """Return why an option that is set has no effect here; NORMAL if it may have one.

    In DeepSpeed 0.19, streams exist only on asynchronous devices. Stages 1 and 2 all-reduce their buckets
    regardless of ``reduce_scatter``, and gather into the flat buffer in one call regardless of
    ``allgather_bucket_size``.
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
    """Return a value as written in the JSON file; large sizes as powers of ten."""
    if isinstance(value, bool):
        return str(value).lower()
    return (
        f"{value:g}"
        if isinstance(value, int) and value >= 10_000 and value == float(f"{value:g}")
        else str(value)
    )


def iter_held_tensors(engine: Any) -> Iterator[tuple[StorageRole, torch.Tensor]]:
    """Yield each tensor that an engine holds for its sharding, with its owner."""
    optimizer = engine.optimizer
    for tensor in list_masters(engine):
        yield _MASTER, tensor
        if tensor.grad is not None:
            yield _PARTITION, tensor.grad
    for name, role in _ATTRIBUTES:
        for tensor in find_nested_tensors(getattr(optimizer, name, None)):
            yield role, tensor
    for parameter in engine.module.parameters():
        accumulated = getattr(parameter, "grad_accum", None)
        if isinstance(accumulated, torch.Tensor):
            yield _ACCUMULATED, accumulated
    for tensor in iter_buckets(engine):
        yield BUCKET, tensor


def iter_buckets(engine: Any) -> Iterator[torch.Tensor]:
    """Yield the buckets in which the engine collects gradients, in stages 1 and 2 only during a backward
    pass.

    They are copied before the reduction, so no collective uses them directly.
    """
    for bucket in list((getattr(engine.optimizer, "ipg_buckets", None) or {}).values()):
        yield from find_nested_tensors(getattr(bucket, "buffer", None))


class EngineWatch:
    """Report gathers and steps of engines between ``install`` and ``remove``. The callbacks must not raise.

    Args:
        engines: The engines of the model.
        on_gathered: Called with a module whose parameters have just been gathered.
        before_step: Called before an engine's ZeRO optimizer steps: its gradients are complete.
        after_step: Called after the optimizer has gathered the updated parameters.
    """

    def __init__(
        self,
        engines: Sequence[Any],
        on_gathered: Callable[[Any], None],
        before_step: Callable[[], None],
        after_step: Callable[[], None],
    ) -> None:
        self._engines = engines
        self._on_gathered, self._before_step, self._after_step = on_gathered, before_step, after_step
        self._is_active = False
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Wrap the optimizers' ``step``, and the gathering of stage 3."""
        self._is_active = True
        for engine in self._engines:
            if not isinstance(engine.optimizer, torch.optim.Optimizer):  # torch's own has hooks
                self._patch(engine.optimizer, "step", self._wrap_step)
        coordinator = getattr(sys.modules.get(_COORDINATOR), "PartitionedParameterCoordinator", None)
        if self._engines and coordinator is not None:
            self._patch(coordinator, "fetch_sub_module", self._wrap_fetch)

    def remove(self) -> None:
        """Restore the methods; a wrapper that was itself wrapped in the meantime stays in place, inactive."""
        self._is_active = False
        while self._undo:
            self._undo.pop()()
        self._engines = ()

    def _patch(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        is_own = name in vars(owner)
        original = getattr(owner, name)
        wrapper = wrap(original)
        setattr(owner, name, wrapper)

        def undo() -> None:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original) if is_own else delattr(owner, name)

        self._undo.append(undo)

    def _wrap_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            if not self._is_active:
                return original(*args, **kwargs)
            self._before_step()
            try:
                return original(*args, **kwargs)
            finally:
                self._after_step()

        return step

    def _wrap_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fetch_sub_module(coordinator: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(coordinator, module, *args, **kwargs)
            if self._is_active:
                self._on_gathered(module)
            return result

        return fetch_sub_module


class EngineSteps:
    """Patch the engines' classes between ``install`` and ``remove``. The callbacks must not raise.

    Args:
        before: Called with the engine before a call that may update the model.
        after: Called with the engine and whether the update was skipped, after it has updated the model.
    """

    def __init__(self, before: Callable[[Any], None], after: Callable[[Any, bool], None]) -> None:
        self._before, self._after = before, after
        self._local = threading.local()
        self._is_active = True
        self._patched: dict[type[Any], tuple[str, Any, Any]] = {}

    def install(self) -> None:
        """Patch the engine classes imported so far; call it again for later ones."""
        for module, class_name, method in _UPDATES:
            kind = getattr(sys.modules.get(module), class_name, None)
            original = None if kind is None or kind in self._patched else kind.__dict__.get(method)
            if kind is not None and original is not None and self._is_active:
                wrapper = self._wrap(original)
                setattr(kind, method, wrapper)
                self._patched[kind] = method, original, wrapper

    def remove(self) -> None:
        """Restore the classes; a wrapper that was wrapped in the meantime stays in place, inactive."""
        self._is_active = False
        for kind, (method, original, wrapper) in self._patched.items():
            if kind.__dict__.get(method) is wrapper:
                setattr(kind, method, original)
        self._patched.clear()

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_active or getattr(self._local, "is_inside", False):
                return original(engine, *args, **kwargs)
            self._local.is_inside = True
            try:
                self._before(engine)
                result, skipped = call_update(engine, lambda: original(engine, *args, **kwargs))
            finally:
                self._local.is_inside = False
            if skipped is not None:
                self._after(engine, skipped)
            return result

        return update


def call_update(engine: Any, call: Callable[[], Any]) -> tuple[Any, bool | None]:
    """Call an engine method that may update the model; return its result, and whether the update was skipped
    (None: there was no update).

    ``global_steps`` counts in all modes. ``is_gradient_accumulation_boundary()``
    would have to be called before the step, and returns False if the caller decides when gradients are
    complete.
    """
    steps, skipped = engine.global_steps, _count_skipped(engine)
    result = call()
    return result, None if engine.global_steps == steps else _count_skipped(engine) != skipped


def is_called_by_engine() -> bool:
    """Return True if DeepSpeed is among the callers: steps of its optimizer are not the program's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
            return True
        frame = frame.f_back
    return False


def _count_skipped(engine: Any) -> int:
    return int(getattr(engine, "skipped_steps", 0))
