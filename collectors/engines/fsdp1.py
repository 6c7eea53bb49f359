"""Read facts and settings from FullyShardedDataParallel wrappers (FSDP1)."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from torch import nn

from zprof.model.training import Engine, EngineSetting, TrainingFacts

_CLASS = "FullyShardedDataParallel"
#: Stage of the states between steps: all strategies but NO_SHARD keep parameters sharded then.
_STAGES = {"NO_SHARD": 0}
_SHARDED_STAGE = 3
#: Strategies that keep parameters gathered from the forward to the backward.
_GATHERED_ONCE = frozenset({"SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"})
_DEFAULTS = {"forward_prefetch": False, "limit_all_gathers": True}


def detect_fsdp1(model: nn.Module, micro_batches: int) -> TrainingFacts | None:
    """Return what the wrappers tell; None if there are none. The optimizer's state is not among it.

    Facts that differ between the wrappers are None.
    """
    wrappers: list[Any] = [module for module in model.modules() if _is_wrapper(module)]
    handles = [handle for wrapper in wrappers if (handle := getattr(wrapper, "_handle", None)) is not None]
    if not handles:
        return None
    strategies = {wrapper.sharding_strategy.name for wrapper in wrappers}
    strategy = strategies.pop() if len(strategies) == 1 else None
    elements, padded = _count_elements(handles)
    sharded = strategy is not None and strategy not in _STAGES
    moved = micro_batches * padded if strategy in _GATHERED_ONCE else None
    size = _get_single({handle.flat_param.dtype.itemsize for handle in handles})
    return TrainingFacts(
        engine=Engine.FSDP1,
        stage=None if strategy is None else _STAGES.get(strategy, _SHARDED_STAGE),
        parameters=elements,
        shard_ranks=_get_single({int(handle.world_size) for handle in handles}),
        replica_ranks=_find_replicas(wrappers[0]),
        parameter_bytes=size,
        gradient_bytes=size,
        communication_bytes=_get_single({_get_wire_bytes(handle) for handle in handles}),
        reduction_bytes=_get_single({_get_reduced_bytes(handle) for handle in handles}),
        padding_elements=padded - elements if elements is not None and sharded else 0,
        gathered_elements=moved,
        reduced_elements=moved,
        settings=tuple(_list_settings(wrappers[0])),
    )


def _is_wrapper(module: nn.Module) -> bool:
    return any(kind.__name__ == _CLASS for kind in type(module).__mro__)


def _count_elements(handles: Sequence[Any]) -> tuple[int | None, int]:
    """Return the elements of the original parameters (None if some are frozen), and those of all shards."""
    own = [sum(prod(shape) for shape in handle.flat_param._shapes) for handle in handles]
    padded = sum(prod(handle.flat_param._sharded_size) * int(handle.world_size) for handle in handles)
    is_trained = all(handle.flat_param.requires_grad for handle in handles)
    return sum(own) if is_trained else None, padded


def _find_replicas(wrapper: Any) -> int:
    """Return the number of groups that hold the same shards (HYBRID_SHARD), 1 without replicas."""
    group = getattr(wrapper, "_inter_node_pg", None)
    return 1 if group is None else int(group.size())


def _get_wire_bytes(handle: Any) -> int:
    return int((handle._fwd_bwd_param_dtype or handle.flat_param.dtype).itemsize)


def _get_reduced_bytes(handle: Any) -> int:
    reduced = handle._reduce_dtype
    return _get_wire_bytes(handle) if reduced is None else int(reduced.itemsize)


def _get_single(values: set[int]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None


def _list_settings(wrapper: Any) -> Iterator[EngineSetting]:
    yield EngineSetting(name="sharding_strategy", value=wrapper.sharding_strategy.name)
    yield EngineSetting(name="use_orig_params", value=str(wrapper._use_orig_params))
    backward = wrapper.backward_prefetch
    yield EngineSetting(
        name="backward_prefetch", value=getattr(backward, "name", str(backward)), is_set=False
    )
    for name, default in _DEFAULTS.items():
        value = getattr(wrapper, name, default)
        yield EngineSetting(name=name, value=str(value), is_set=value != default)
    if wrapper.cpu_offload.offload_params:
        yield EngineSetting(name="cpu_offload", value="offload_params=True")
