"""Read the options of a DeepSpeed engine, and which of them change nothing."""

from collections.abc import Iterator
from typing import Any

from zprof.model.training import EngineSetting, SettingEffect

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
