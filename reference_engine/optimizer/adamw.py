"""Update shards with AdamW: the interface, torch's fused kernel, and the choice of the kernel.

    g = gradient / divisor
    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

The divisor, the flag that skips a step and the step count stay on the device.

torch's kernel needs weights and gradients of the same dtype, and overwrites the gradient when it unscales it.
So a 16-bit gradient, or one that must be divided, is first copied to fp32, piece by piece.
"""

import importlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from zprof.reference_engine.config import AdamKernel, ZeroConfig

INSTALL = "pip install 'zprof[cuda]'"

#: Number of squares summed at a time: their float64 copy (2 MiB) fits in a CPU's cache.
NORM_PIECE_ELEMENTS = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWHyperparameters:
    """AdamW's hyperparameters for one step (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2)."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepControl:
    """Values derived from all ranks' gradients: one-element float32 tensors that the host does not read.

    ``divisor``    divides the gradients: loss scale x max(1, norm / clip_norm)
    ``found_inf``  1.0 if any gradient on any rank is inf or nan, and the step is skipped; else 0.0
    """

    divisor: torch.Tensor
    found_inf: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Tensors of one update: contiguous, one-dimensional, of equal length, on one device.

    ``weights``, ``exp_avg`` and ``exp_avg_sq`` are float32.  ``gradient`` is float32, bfloat16 or float16 and
    is not changed.  ``low_precision`` receives the rounded weights; it is None if the weights are the
    parameters.  ``step`` is the step count t, a one-element float32 tensor that the caller has already
    incremented.  ``skip`` is a one-element float32 tensor; if it is not 0, the shard is not updated.  None
    never skips.
    """

    weights: torch.Tensor
    gradient: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    low_precision: torch.Tensor | None
    step: torch.Tensor
    skip: torch.Tensor | None = None


def combine_skip(control: StepControl | None, skip: torch.Tensor | None) -> StepControl | None:
    """Combine the step's control with the ``skip`` flag of a shard."""
    if skip is None:
        return control
    if control is None:
        return StepControl(divisor=torch.ones_like(skip), found_inf=skip)
    return replace(control, found_inf=torch.maximum(control.found_inf, skip))


class Update(Protocol):
    """Runs AdamW on shards; asynchronous on a GPU, on torch's current stream."""

    @property
    def joins_units(self) -> bool:
        """True if one call for several units is faster than one call per unit."""

    def sum_of_squares(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the sum of squares of one or more gradients as one float64 element; inf or nan if one is."""

    def adamw(
        self, shards: Sequence[Shard], hyperparameters: AdamWHyperparameters, control: StepControl | None
    ) -> None:
        """Update shards in place.  Without ``control``, the divisor is 1 and nothing is skipped."""


def choose_update(config: ZeroConfig, device: torch.device) -> Update:
    """Return the engine's CUDA kernel if requested, or available with ``auto``; else torch's fused AdamW.

    Warns if ``auto`` cannot use the CUDA kernel on a GPU.

    Raises:
        ValueError: the CUDA kernel is requested but unavailable; the one-line message has reason and fix.
    """
    on_gpu = device.type == "cuda"
    if config.adam is AdamKernel.CUDA and not on_gpu:
        raise ValueError(
            f"adam is cuda, but parameters are on {device}; move the model to a GPU before zero()"
        )
    if config.adam is AdamKernel.TORCH or not on_gpu:
        return TorchAdamW(config.constant_buffers)
    kernel = _load_cuda_kernel(device)
    if not isinstance(kernel, str):
        return kernel
    message = f"the CUDA kernel for AdamW cannot be used: {kernel}"
    if config.adam is AdamKernel.CUDA:
        raise ValueError(message)
    warnings.warn(f"{message}; using torch's fused AdamW instead", stacklevel=2)
    return TorchAdamW(config.constant_buffers)


def _load_cuda_kernel(device: torch.device) -> Update | str:
    """Return the kernel, or the reason why it is unavailable."""
    cuda = importlib.import_module("zprof.reference_engine.optimizer.cuda")
    reason: str | None = cuda.explain_unavailable()
    if reason is not None:
        return reason if INSTALL in reason else f"{reason} ({INSTALL})"
    try:
        kernel: Update = cuda.CudaAdamW(device)
    except RuntimeError as error:  # compiling or loading failed
        return str(error)
    return kernel


class TorchAdamW:
    """torch's fused AdamW; see :class:`Update`."""

    #: A call launches one kernel per shard, and a unit's all-gather can start when its own kernel is done.
    joins_units = False

    def __init__(self, piece_elements: int | None = None) -> None:
        """Copy at most ``piece_elements`` of a gradient at a time; None copies an entire shard."""
        self._piece_elements = piece_elements

    def sum_of_squares(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the sum of squares of all gradients as one float64 element; inf or nan if one is.

        Squares and sums are float64, so that no finite fp32 gradient overflows.
        """
        start = torch.zeros(1, dtype=torch.float64, device=gradients[0].device)
        return torch.cat([start, *(self._sum_squares(gradient).reshape(1) for gradient in gradients)]).sum()

    def adamw(
        self, shards: Sequence[Shard], hyperparameters: AdamWHyperparameters, control: StepControl | None
    ) -> None:
        """Update shards in place.  Without ``control``, the divisor is 1 and nothing is skipped."""
        for shard in shards:
            shard_control = combine_skip(control, shard.skip)
            if shard_control is None and shard.gradient.dtype == torch.float32:
                _run_fused_adamw(shard, shard.gradient, slice(None), hyperparameters, None)
            else:
                total = shard.gradient.numel()
                elements = self._piece_elements or max(total, 1)
                for start in range(0, total, elements):
                    part = slice(start, min(start + elements, total))
                    _run_fused_adamw(
                        shard,
                        shard.gradient[part].to(torch.float32, copy=True),
                        part,
                        hyperparameters,
                        shard_control,
                    )
            if shard.low_precision is not None:
                shard.low_precision.copy_(shard.weights)

    def _sum_squares(self, gradient: torch.Tensor) -> torch.Tensor:
        elements = min(self._piece_elements or NORM_PIECE_ELEMENTS, NORM_PIECE_ELEMENTS)
        parts = torch.split(gradient, elements)
        norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts]
        return torch.stack(norms).square().sum()


def _run_fused_adamw(
    shard: Shard,
    gradient: torch.Tensor,
    part: slice,
    hyperparameters: AdamWHyperparameters,
    control: StepControl | None,
) -> None:
    torch._fused_adamw_(
        [shard.weights[part]],
        [gradient],
        [shard.exp_avg[part]],
        [shard.exp_avg_sq[part]],
        [],
        [shard.step],
        lr=hyperparameters.learning_rate,
        beta1=hyperparameters.beta1,
        beta2=hyperparameters.beta2,
        weight_decay=hyperparameters.weight_decay,
        eps=hyperparameters.eps,
        amsgrad=False,
        maximize=False,
        grad_scale=None if control is None else control.divisor,
        found_inf=None if control is None else control.found_inf,
    )
