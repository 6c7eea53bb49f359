"""Sum the bytes of each state from the live objects of an engine, by its own attributes and without zprof.

Call it when the gradients are complete and the optimizer has not started: ``Truth.before_update``. It
allocates nothing, so that the exact counter sees no difference.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

Walked = Mapping[str, int]


def walk_torch(model: nn.Module, optimizer: torch.optim.Optimizer) -> Walked:
    """Return the states of DDP, FSDP1 (flat or original parameters), FSDP2 and plain optimizers."""
    return {
        "parameters": sum_storages(model.parameters()),
        "gradients": sum_storages(parameter.grad for parameter in model.parameters()),
        "optimizer_state": sum_storages(_iter_state(optimizer)),
    }


def walk_deepspeed(engine: Any) -> Walked:
    """Return the states of a DeepSpeed engine; ``gathered``: parameters of stage 3 that are whole now.

    Stages 1 and 2 hold ``single_partition_of_fp32_groups``, stage 3 ``fp32_partitioned_groups_flat``, bf16
    without ZeRO ``fp32_groups``, or ``fp32_groups_flat_partition`` if flat. If
    masters are the parameters themselves (fp32), they count
    as parameters. Gradients are those of the update: ``averaged_gradients`` by group, the flat buffer of
    stage 3, ``accumulated_grads_in_cpu`` and the fp32 copies for an optimizer on the host.
    """
    zero = engine.optimizer
    parameters = list(engine.module.parameters())
    is_sharded = any(hasattr(each, "ds_tensor") for each in parameters)
    own = [each.ds_tensor for each in parameters] if is_sharded else parameters
    masters = [
        *_get_list(zero, "single_partition_of_fp32_groups"),
        *_get_list(zero, "fp32_partitioned_groups_flat"),
        *_get_list(zero, "fp32_groups_flat_partition"),
        *_get_list(zero, "fp32_groups"),
    ]
    inner = getattr(zero, "optimizer", zero)
    gradients = [
        *(each.grad for each in (*parameters, *masters)),
        *_iter_tensors(getattr(zero, "averaged_gradients", None)),
        *_iter_tensors(getattr(zero, "grad_partitions_flat_buffer", None)),
        *_iter_tensors(getattr(zero, "accumulated_grads_in_cpu", None)),
        *_get_list(zero, "fp32_groups_gradients_flat"),
    ]
    state = [*masters, *_iter_state(inner)]
    return {
        "parameters": sum_storages(own),
        "gradients": sum_storages(gradients),
        "optimizer_state": sum_storages(state, but=own),
        "gathered": sum_storages(parameters) if is_sharded else 0,
    }


def sum_storages(tensors: Iterable[torch.Tensor | None], but: Iterable[torch.Tensor] = ()) -> int:
    """Return the bytes of the distinct storages of tensors, without those of ``but``."""
    known = {_find_storage(each).data_ptr() for each in but}
    found = {
        storage.data_ptr(): storage.nbytes()
        for each in tensors
        if each is not None and (storage := _find_storage(each)).nbytes()
    }
    return sum(size for pointer, size in found.items() if pointer not in known)


def _find_storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage()


def _iter_state(optimizer: Any) -> Iterator[torch.Tensor]:
    for state in optimizer.state.values():
        yield from _iter_tensors(state)


def _iter_tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _iter_tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _iter_tensors(each)


def _get_list(owner: Any, name: str) -> list[torch.Tensor]:
    return list(_iter_tensors(getattr(owner, name, None)))
