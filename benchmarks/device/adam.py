"""Measure the engine's AdamW kernel on a GPU: error against float64, time and bandwidth.

It is compared with torch's fused AdamW plus casts, and with a plain copy.

Bytes per parameter, with bfloat16 gradients and parameters: the kernel reads 14 and writes 14; the norm reads
2. Up to some million parameters everything fits into the device's cache, so ratios to the copy above 1 are no
error there.  ``small_units`` compares one call for many units with one call per unit: small units are bound
by launches, so their times include the host's.
"""

from typing import Any

import torch

from benchmarks.device.checks import CheckFailed, NotMeasured
from benchmarks.device.facts import measure_copy_bytes_per_s, time_on_gpu_ms
from zprof.reference_engine.optimizer.adamw import (
    AdamWHyperparameters,
    Shard,
    StepControl,
    TorchAdamW,
    Update,
)

#: One size that vectors do not divide, one that fills the device.
CORRECTNESS_ELEMENTS = (5003, 2**22 + 3)
DTYPES = ((torch.float32, None), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16),
          (torch.float32, torch.bfloat16))  # fmt: skip
DIVISOR = 3.7
#: A weight of 0.1 in float32 is known to 7e-9; the update itself, 1e-3, to 1e-10 and a few roundings.
ALLOWED = 5e-8
#: A thread sums 128 squares in float32.
SQUARES_ALLOWED = 2.0**-17


def measure_adam_correctness() -> dict[str, Any]:
    """Return the largest weight errors for each pair of types.

    Raises:
        CheckFailed: an error is too large, or the kernel breaks a rule.
    """
    kernel = load_engine_kernel()
    errors: dict[str, Any] = {}
    wrong: list[str] = []
    for elements in CORRECTNESS_ELEMENTS:
        for gradient, low in DTYPES:
            shard = make_shard(elements, gradient, low)
            name = f"{gradient} -> {low}, {elements}".replace("torch.", "")
            mine, torchs = _max_error(kernel, shard), _max_error(TorchAdamW(), shard)
            errors[name] = {"kernel": mine, "torch": torchs}
            if not mine <= max(ALLOWED, 2 * torchs):
                wrong.append(f"{name}: weights are off by {mine:.3g}, torch's by {torchs:.3g}")
            wrong += [f"{name}: {what}" for what in _find_broken_rules(kernel, shard)]
    if wrong:
        raise CheckFailed("; ".join(wrong), errors)
    return errors


def _max_error(update: Update, shard: Shard) -> float:
    seen = copy_shard(shard)
    update.adamw([seen], NUMBERS, make_step_control(DIVISOR))
    return float((seen.weights.double() - compute_true_weights(shard, DIVISOR)).abs().max())


def _find_broken_rules(kernel: Update, shard: Shard) -> list[str]:
    broken = []
    seen = copy_shard(shard)
    kernel.adamw([seen], NUMBERS, make_step_control(DIVISOR))
    low = seen.low_precision
    if low is not None and not torch.equal(low, seen.weights.to(low.dtype)):
        broken.append("the low-precision copy is not the rounded weight")
    if not torch.equal(seen.gradient, shard.gradient):
        broken.append("the gradient was changed")
    skipped = copy_shard(shard)
    kernel.adamw([skipped], NUMBERS, make_step_control(DIVISOR, found_inf=True))
    broken += [
        f"a skipped step changed {name}"
        for name in ("weights", "exp_avg", "exp_avg_sq")
        if not torch.equal(getattr(skipped, name), getattr(shard, name))
    ]
    squares, truth = (
        float(kernel.sum_of_squares([shard.gradient])),
        float(shard.gradient.double().square().sum()),
    )
    if not abs(squares - truth) <= SQUARES_ALLOWED * truth:
        broken.append(f"sum of squares is {squares!r}, not {truth!r}")
    return broken


BANDWIDTH_ELEMENTS = tuple(2**power for power in (20, 22, 24, 26, 28, 30))
#: Units per call, and the elements of each.
SMALL_UNITS = ((100, 2**10 + 3), (100, 2**14 + 3), (100, 2**18), (1000, 2**10 + 3))
UPDATE_BYTES = 28
NORM_BYTES = 2
#: The shard itself, and the fp32 gradient and random numbers that are made for it.
NEEDED_BYTES = 16 + 12


def measure_adam_bandwidth() -> dict[str, Any]:
    """Return one entry per size that fits into the memory."""
    copy = measure_copy_bytes_per_s()
    torch.cuda.empty_cache()
    try:
        kernel, missing = load_engine_kernel(), None
    except NotMeasured as reason:
        kernel, missing = None, str(reason)
    sizes = {}
    for elements in BANDWIDTH_ELEMENTS:
        if elements * NEEDED_BYTES < 0.9 * torch.cuda.mem_get_info()[0]:
            sizes[str(elements)] = _measure_size(elements, kernel, copy)
            torch.cuda.empty_cache()
    small = {
        f"{units} x {elements}": _measure_small_units(units, elements, kernel, copy)
        for units, elements in SMALL_UNITS
    }
    return {"copy_bytes_per_s": copy, "kernel": missing or "ok", "sizes": sizes, "small_units": small}


def _measure_size(elements: int, kernel: Update | None, copy: float) -> dict[str, Any]:
    shard = make_shard(elements, torch.bfloat16, torch.bfloat16)
    step = make_step_control(1.0)
    torchs = TorchAdamW()
    torch_ms = time_on_gpu_ms(lambda: torchs.adamw([shard], NUMBERS, step))
    figures: dict[str, Any] = {"torch_ms": torch_ms}
    if kernel is None:
        return figures
    update_ms = time_on_gpu_ms(lambda: kernel.adamw([shard], NUMBERS, step))
    norm_ms = time_on_gpu_ms(lambda: kernel.sum_of_squares([shard.gradient]))
    update_bytes_per_s = UPDATE_BYTES * elements / (update_ms / 1e3)
    return figures | {
        "update_ms": update_ms,
        "norm_ms": norm_ms,
        "update_bytes_per_s": update_bytes_per_s,
        "update_to_copy_ratio": update_bytes_per_s / copy,
        "norm_to_copy_ratio": NORM_BYTES * elements / (norm_ms / 1e3) / copy,
        "update_to_torch_time_ratio": update_ms / torch_ms,
    }


def _measure_small_units(units: int, elements: int, kernel: Update | None, copy: float) -> dict[str, Any]:
    shards = [make_shard(elements, torch.bfloat16, torch.bfloat16, seed=unit) for unit in range(units)]
    gradients = [shard.gradient for shard in shards]
    step = make_step_control(1.0)
    torchs = TorchAdamW()
    figures: dict[str, Any] = {"torch_ms": time_on_gpu_ms(lambda: torchs.adamw(shards, NUMBERS, step))}
    if kernel is None:
        return figures
    update_ms = time_on_gpu_ms(lambda: kernel.adamw(shards, NUMBERS, step))
    each_ms = time_on_gpu_ms(lambda: [kernel.adamw([shard], NUMBERS, step) for shard in shards])
    return figures | {
        "update_ms": update_ms,
        "update_each_ms": each_ms,
        "norm_ms": time_on_gpu_ms(lambda: kernel.sum_of_squares(gradients)),
        "update_to_copy_ratio": UPDATE_BYTES * units * elements / (update_ms / 1e3) / copy,
        "update_to_each_time_ratio": update_ms / each_ms,
    }


NUMBERS = AdamWHyperparameters(learning_rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)


def load_engine_kernel() -> Update:
    """Return the engine's own kernel on this device.

    Raises:
        NotMeasured: it is unavailable; the one-line message says why.
    """
    from zprof.reference_engine.optimizer import cuda

    reason = cuda.explain_unavailable()
    if reason is not None:
        raise NotMeasured(reason)
    return cuda.CudaAdamW(torch.device("cuda", 0))


def make_shard(elements: int, gradient: torch.dtype, low: torch.dtype | None, *, seed: int = 0) -> Shard:
    """Return a shard with random weights and gradient, and moments as after some steps."""
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


def copy_shard(shard: Shard) -> Shard:
    """Return a shard with the same values in other memory."""
    return Shard(
        weights=shard.weights.clone(),
        gradient=shard.gradient.clone(),
        exp_avg=shard.exp_avg.clone(),
        exp_avg_sq=shard.exp_avg_sq.clone(),
        low_precision=None if shard.low_precision is None else shard.low_precision.clone(),
        step=shard.step.clone(),
    )


def make_step_control(divisor: float, *, found_inf: bool = False) -> StepControl:
    """Return a step control as the optimizer makes it."""
    return StepControl(
        divisor=torch.full((1,), divisor, device="cuda"),
        found_inf=torch.full((1,), float(found_inf), device="cuda"),
    )


def compute_true_weights(shard: Shard, divisor: float) -> torch.Tensor:
    """Return AdamW's weights after one step, in float64."""
    t, n = float(shard.step), NUMBERS
    gradient = shard.gradient.double() / divisor
    first = n.beta1 * shard.exp_avg.double() + (1 - n.beta1) * gradient
    second = n.beta2 * shard.exp_avg_sq.double() + (1 - n.beta2) * gradient.square()
    update = first / (1 - n.beta1**t) / ((second / (1 - n.beta2**t)).sqrt() + n.eps)
    decayed = shard.weights.double() * (1 - n.learning_rate * n.weight_decay)
    return decayed.sub(update, alpha=n.learning_rate)
