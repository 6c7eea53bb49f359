"""Update shards with AdamW: the interface, torch's fused kernel, and the choice of the CUDA kernel over it.

    g = gradient / divisor
    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

The divisor, the flag that skips a step and the step count stay on the device.

torch's kernel needs weights and gradients of one type, and writes the gradient back when it unscales.  So a
16-bit gradient, or one that has to be divided, is first copied to fp32, piece by piece.
"""

import importlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Protocol

import torch

from zprof.reference_engine.config import AdamKernel, ZeroConfig


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

    ``divisor``    gradients are divided by it: loss scale times max(1, norm / clip_norm)
    ``found_inf``  1.0 if any gradient on any rank is inf or nan, so that nothing may change; else 0.0
    """

    divisor: torch.Tensor
    found_inf: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Tensors of one update: contiguous, one-dimensional, of equal length, on one device.

    ``weights``, ``exp_avg`` and ``exp_avg_sq`` are float32.  ``gradient`` is float32, bfloat16 or float16 and
    is not changed.  ``low_precision`` receives the rounded weights; it is None if the weights are the
    parameters. ``step`` is the count t, a one-element float32 tensor that the caller has already advanced.
    ``skip`` is a one-element float32 tensor: if it is not 0, this shard is not updated.  None never skips.
    """

    weights: torch.Tensor
    gradient: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    low_precision: torch.Tensor | None
    step: torch.Tensor
    skip: torch.Tensor | None = None


def combine_skip(control: StepControl | None, skip: torch.Tensor | None) -> StepControl | None:
    """Return the control for weights that ``skip`` may leave out of the step."""
    if skip is None:
        return control
    if control is None:
        return StepControl(divisor=torch.ones_like(skip), found_inf=skip)
    return replace(control, found_inf=torch.maximum(control.found_inf, skip))


class Update(Protocol):
    """Compute on shards; asynchronous on a GPU, on torch's current stream."""

    @property
    def joins_units(self) -> bool:
        """True if one call for several units is cheaper than one call per unit."""

    def sum_of_squares(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the sum of the squares of all gradients, of any supported types; at least one is required.

        The result is one float64 element; inf or nan if an element is.
        """

    def adamw(
        self, shards: Sequence[Shard], numbers: AdamWHyperparameters, control: StepControl | None
    ) -> None:
        """Update shards in place.  Without ``control`` the divisor is 1 and nothing is skipped."""


INSTALL = "pip install 'zprof[cuda]'"


def choose_update(config: ZeroConfig, device: torch.device) -> Update:
    """Return the engine's CUDA kernel if requested, or available with ``auto``; else torch's fused AdamW.

    Warns if ``auto`` has to do without the CUDA kernel on a GPU.

    Raises:
        ValueError: the CUDA kernel is requested but unavailable; the one-line message has reason and fix.
    """
    on_gpu = device.type == "cuda"
    if config.adam is AdamKernel.CUDA and not on_gpu:
        raise ValueError(f"adam is cuda, parameters are on {device}; move the model to a GPU before zero()")
    if config.adam is AdamKernel.TORCH or not on_gpu:
        return TorchAdamW(config.constant_buffers)
    kernel = _load_cuda_kernel(device)
    if not isinstance(kernel, str):
        return kernel
    message = f"the CUDA kernel of AdamW cannot be used: {kernel}"
    if config.adam is AdamKernel.CUDA:
        raise ValueError(message)
    warnings.warn(f"{message}; torch's fused AdamW runs instead", stacklevel=2)
    return TorchAdamW(config.constant_buffers)


def _load_cuda_kernel(device: torch.device) -> Update | str:
    """Return the kernel, or the reason why it is unavailable."""
    cuda = _import_cuda()
    reason: str | None = cuda.explain_unavailable()
    if reason is not None:
        return _add_remedy(reason)
    try:
        kernel: Update = cuda.CudaAdamW(device)
    except RuntimeError as error:  # compiling or loading it failed on this machine
        return str(error)
    return kernel


def _import_cuda() -> ModuleType:
    return importlib.import_module("zprof.reference_engine.optimizer.cuda")  # needed only with a GPU


def _add_remedy(reason: str) -> str:
    return reason if INSTALL in reason else f"{reason} ({INSTALL})"


#: Elements whose squares are summed at a time: their float64 copy (2 MiB) stays in a CPU's cache.
NORM_PIECE_ELEMENTS = 2**18


class TorchAdamW:
    """torch's fused AdamW; see :class:`Update`."""

    #: A call launches one kernel per shard, and a unit's gather can start when its own kernel is done.
    joins_units = False

    def __init__(self, piece_elements: int | None = None) -> None:
        """Copy at most ``piece_elements`` of a gradient at a time; None copies a whole shard."""
        self._piece_elements = piece_elements

    def sum_of_squares(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the sum of the squares of all gradients as one float64 element, inf or nan if an element is.

        Squares and sums are float64, so that no finite fp32 gradient overflows.
        """
        start = torch.zeros(1, dtype=torch.float64, device=gradients[0].device)
        return torch.cat([start, *(self._squares(gradient).reshape(1) for gradient in gradients)]).sum()

    def adamw(
        self, shards: Sequence[Shard], numbers: AdamWHyperparameters, control: StepControl | None
    ) -> None:
        """Update shards in place.  Without ``control`` the divisor is 1 and nothing is skipped."""
        for shard in shards:
            of_shard = combine_skip(control, shard.skip)
            if of_shard is None and shard.gradient.dtype == torch.float32:
                _run_fused_adamw(shard, shard.gradient, slice(None), numbers, None)
            else:
                self._on_copies(shard, numbers, of_shard)
            if shard.low_precision is not None:
                shard.low_precision.copy_(shard.weights)

    def _squares(self, gradient: torch.Tensor) -> torch.Tensor:
        elements = min(self._piece_elements or NORM_PIECE_ELEMENTS, NORM_PIECE_ELEMENTS)
        parts = torch.split(gradient, elements)
        norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts]
        return torch.stack(norms).square().sum()

    def _on_copies(self, shard: Shard, numbers: AdamWHyperparameters, control: StepControl | None) -> None:
        total = shard.gradient.numel()
        elements = self._piece_elements or max(total, 1)
        for start in range(0, total, elements):
            part = slice(start, min(start + elements, total))
            _run_fused_adamw(shard, shard.gradient[part].to(torch.float32, copy=True), part, numbers, control)


def _run_fused_adamw(
    shard: Shard,
    gradient: torch.Tensor,
    part: slice,
    numbers: AdamWHyperparameters,
    control: StepControl | None,
) -> None:
    torch._fused_adamw_(
        [shard.weights[part]],
        [gradient],
        [shard.exp_avg[part]],
        [shard.exp_avg_sq[part]],
        [],
        [shard.step],
        lr=numbers.learning_rate,
        beta1=numbers.beta1,
        beta2=numbers.beta2,
        weight_decay=numbers.weight_decay,
        eps=numbers.eps,
        amsgrad=False,
        maximize=False,
        grad_scale=None if control is None else control.divisor,
        found_inf=None if control is None else control.found_inf,
    )
