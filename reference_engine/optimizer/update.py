"""The seam between the optimizer and what computes AdamW: torch's fused kernels, or the engine's CUDA kernel.

    g = gradient / divisor
    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

Everything that depends on the gradients stays on the device: the divisor (loss scale and clipping), the
flag that skips the step, and the step count t, which a skipped step does not advance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWNumbers:
    """AdamW's numbers for one step (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2)."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepControl:
    """What the gradients of all ranks say about the step: float32 tensors of one element, not for the host.

    ``divisor``    gradients are divided by it: loss scale times max(1, norm / clip_norm)
    ``found_inf``  1.0 where any gradient on any rank is inf or nan: nothing may change; else 0.0
    """

    divisor: torch.Tensor
    found_inf: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What one update reads and writes: contiguous, one-dimensional, of equal length, on one device.

    ``weights``, ``exp_avg`` and ``exp_avg_sq`` are float32; ``gradient`` is float32, bfloat16 or float16 and
    is not changed; ``low_precision`` gets the rounded weights, None where the weights are the parameters.
    ``step`` is the count t, a float32 tensor of one element that the caller has already advanced.
    ``skip`` is a float32 tensor of one element: where it is not 0 this shard is left alone; None: it is not.
    """

    weights: torch.Tensor
    gradient: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    low_precision: torch.Tensor | None
    step: torch.Tensor
    skip: torch.Tensor | None = None


def control_with_skip(control: StepControl | None, skip: torch.Tensor | None) -> StepControl | None:
    """Return the control of a part of the weights that ``skip`` may leave out of the step."""
    if skip is None:
        return control
    if control is None:
        return StepControl(divisor=torch.ones_like(skip), found_inf=skip)
    return replace(control, found_inf=torch.maximum(control.found_inf, skip))


class Update(Protocol):
    """Computes on shards; asynchronous on a GPU, on torch's current stream."""

    @property
    def joins_units(self) -> bool:
        """Tell if one call for several units is cheaper than a call for each of them."""

    def sum_of_squares(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Add the squares of all gradients, of any supported types; there must be at least one.

        Returns one float64 element; inf or nan where an element is.
        """

    def adamw(self, shards: Sequence[Shard], numbers: AdamWNumbers, control: StepControl | None) -> None:
        """Update shards in place.  No ``control`` means divisor 1 and no skipping."""
