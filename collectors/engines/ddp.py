"""Read the facts and settings of DistributedDataParallel and of ZeroRedundancyOptimizer, and of programs
without an engine.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from zprof.collectors.engines.sizes import (
    count_ranks,
    count_trained_elements,
    find_element_bytes,
    get_common,
    list_class_names,
)
from zprof.model.training import EngineSetting, TrainingFacts

_WRAPPER = "DistributedDataParallel"
_OPTIMIZER = "ZeroRedundancyOptimizer"
_MIB = 1 << 20
_DEFAULT_BUCKET_MB = 25
#: Options of DDP that are off by default.
_FLAGS = ("gradient_as_bucket_view", "find_unused_parameters", "static_graph")


def detect_engine(model: nn.Module) -> str:
    """Return the name of the engine; a program without one is plain PyTorch."""
    return "ddp" if _list_wrappers(model) else "pytorch"


def detect_facts(model: nn.Module, optimizers: Sequence[Any]) -> TrainingFacts:
    """Return the facts of a model that is wrapped by DDP or not at all; the size of the state is unknown."""
    parameters = list(model.parameters())
    wrappers = _list_wrappers(model)
    sharding = [optimizer for optimizer in optimizers if _OPTIMIZER in list_class_names(optimizer)]
    size = find_element_bytes(parameters)
    # A communication hook changes what is sent.
    wire = size if not any(getattr(wrapper, "_comm_hooks", None) for wrapper in wrappers) else None
    elements = count_trained_elements(parameters)
    # The stage is unknown for a multi-rank program that does not use an engine of torch.
    unsharded_stage = 0 if wrappers or count_ranks() == 1 else None
    # DDP all-reduces whole gradients although each rank needs only its share, and the owners broadcast.
    is_all_reduced = bool(wrappers and sharding)
    # The number of ranks, or the size of the mesh on which the program itself shards.
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
        settings=tuple(_list_settings(wrappers, sharding)),
    )


def _list_wrappers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if _WRAPPER in list_class_names(module)]


def _list_settings(wrappers: Sequence[Any], optimizers: Sequence[Any]) -> Iterator[EngineSetting]:
    for name in _FLAGS if wrappers else ():
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
