"""The engine's AdamW kernel against AdamW in float64, beside torch's fused one against the same."""

from typing import Any

import torch

from benchmarks.device.adam_shards import NUMBERS, control, copy_of, engine_kernel, shard_of, true_weights
from benchmarks.device.row import CheckFailed
from zprof.reference_engine.optimizer.torch_adamw import TorchAdamW
from zprof.reference_engine.optimizer.update import Shard, Update

#: One that vectors do not divide, one that fills the device.
ELEMENTS = (5003, 2**22 + 3)
DTYPES = ((torch.float32, None), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16),
          (torch.float32, torch.bfloat16))  # fmt: skip
DIVISOR = 3.7
#: A weight of 0.1 in float32 is known to 7e-9; the update itself, 1e-3, to 1e-10 and a few roundings.
ALLOWED = 5e-8
#: A thread sums 128 squares in float32.
SQUARES_ALLOWED = 2.0**-17


def measure() -> dict[str, Any]:
    """Largest errors of the weights, for each pair of types."""
    kernel = engine_kernel()
    errors: dict[str, Any] = {}
    wrong: list[str] = []
    for elements in ELEMENTS:
        for gradient, low in DTYPES:
            shard = shard_of(elements, gradient, low)
            name = f"{gradient} -> {low}, {elements}".replace("torch.", "")
            mine, torchs = _error(kernel, shard), _error(TorchAdamW(), shard)
            errors[name] = {"kernel": mine, "torch": torchs}
            if not mine <= max(ALLOWED, 2 * torchs):
                wrong.append(f"{name}: weights are off by {mine:.3g}, torch's by {torchs:.3g}")
            wrong += [f"{name}: {what}" for what in _broken_rules(kernel, shard)]
    if wrong:
        raise CheckFailed("; ".join(wrong), errors)
    return errors


def _error(update: Update, shard: Shard) -> float:
    seen = copy_of(shard)
    update.adamw([seen], NUMBERS, control(DIVISOR))
    return float((seen.weights.double() - true_weights(shard, DIVISOR)).abs().max())


def _broken_rules(kernel: Update, shard: Shard) -> list[str]:
    broken = []
    seen = copy_of(shard)
    kernel.adamw([seen], NUMBERS, control(DIVISOR))
    low = seen.low_precision
    if low is not None and not torch.equal(low, seen.weights.to(low.dtype)):
        broken.append("the low-precision copy is not the rounded weight")
    if not torch.equal(seen.gradient, shard.gradient):
        broken.append("the gradient was changed")
    skipped = copy_of(shard)
    kernel.adamw([skipped], NUMBERS, control(DIVISOR, found_inf=True))
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
