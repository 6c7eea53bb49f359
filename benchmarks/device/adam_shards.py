"""Shards on which AdamW is measured, and the truth in float64."""

import torch

from benchmarks.device.row import NotMeasured
from zprof.reference_engine.optimizer.update import AdamWNumbers, Shard, StepControl, Update

NUMBERS = AdamWNumbers(learning_rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)


def engine_kernel() -> Update:
    """The engine's own kernel on this device.

    Raises:
        NotMeasured: it cannot be had; one line says why.
    """
    from zprof.reference_engine.optimizer import cuda

    reason = cuda.unavailable()
    if reason is not None:
        raise NotMeasured(reason)
    kernel: Update = cuda.CudaAdamW(torch.device("cuda", 0))
    return kernel


def shard_of(elements: int, gradient: torch.dtype, low: torch.dtype | None, *, seed: int = 0) -> Shard:
    """Random weights and gradient, moments as after some steps."""
    made = torch.Generator("cuda").manual_seed(seed)

    def normal(scale: float) -> torch.Tensor:
        return torch.randn(elements, device="cuda", generator=made).mul_(scale)

    weights = normal(0.02)
    return Shard(
        weights=weights,
        gradient=normal(1.0).to(gradient),
        exp_avg=normal(0.1),
        exp_avg_sq=normal(0.1).square_(),
        low_precision=None if low is None else weights.to(low),
        step=torch.full((), 5.0, device="cuda"),
    )


def copy_of(shard: Shard) -> Shard:
    """The same values in other memory."""
    return Shard(
        weights=shard.weights.clone(),
        gradient=shard.gradient.clone(),
        exp_avg=shard.exp_avg.clone(),
        exp_avg_sq=shard.exp_avg_sq.clone(),
        low_precision=None if shard.low_precision is None else shard.low_precision.clone(),
        step=shard.step.clone(),
    )


def control(divisor: float, *, found_inf: bool = False) -> StepControl:
    """As the optimizer would give it."""
    return StepControl(
        divisor=torch.full((1,), divisor, device="cuda"),
        found_inf=torch.full((1,), float(found_inf), device="cuda"),
    )


def true_weights(shard: Shard, divisor: float) -> torch.Tensor:
    """AdamW's weights after one step, in float64."""
    t, n = float(shard.step), NUMBERS
    gradient = shard.gradient.double() / divisor
    first = n.beta1 * shard.exp_avg.double() + (1 - n.beta1) * gradient
    second = n.beta2 * shard.exp_avg_sq.double() + (1 - n.beta2) * gradient.square()
    update = first / (1 - n.beta1**t) / ((second / (1 - n.beta2**t)).sqrt() + n.eps)
    decayed = shard.weights.double() * (1 - n.learning_rate * n.weight_decay)
    return decayed.sub(update, alpha=n.learning_rate)
