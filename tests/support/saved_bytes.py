"""What autograd saves in a forward."""

from collections.abc import Callable

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks


def saved_bytes(module: nn.Module, forward: Callable[[], object]) -> int:
    """Bytes of the storages that autograd saves in a forward, each once, parameters left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    seen: dict[int, torch.Tensor] = {}  # held, so that no address is used twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda packed: packed):
        forward()
    return sum(tensor.untyped_storage().nbytes() for address, tensor in seen.items() if address not in own)
