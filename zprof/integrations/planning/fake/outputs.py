"""What of a model's output a backward can begin with."""

from typing import Any

import torch

from zprof.integrations.planning.fake.ledger import tensors_of
from zprof.model.errors import BadInput


def output_of(value: Any) -> torch.Tensor:
    """The first tensor of a model's output through which a gradient can come.

    Raises:
        BadInput: there is none.
    """
    held = vars(value) if hasattr(value, "__dict__") and not isinstance(value, torch.Tensor) else value
    for tensor in tensors_of(held):
        if tensor.requires_grad:
            return tensor
    raise BadInput(
        "--model: what the forward returns has no tensor that a loss could be made of",
        hint="return logits, or a loss, from forward(tokens)",
    )
