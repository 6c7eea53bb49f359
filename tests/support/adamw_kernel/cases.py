"""AdamW in float64, and shards to run it on."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from zprof.reference_engine.optimizer.adamw import AdamWHyperparameters, Shard, StepControl

GRADIENT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
LOW_TYPES = (None, torch.bfloat16, torch.float16)
EPS32 = 2.0**-23
#: Of float32 roundings (half a last bit each) in a chain of operations on positive numbers: ample.
ROUNDINGS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A result in float64 and how far a float32 computation may be away from it, element by element."""

    weights: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    weights_error: torch.Tensor
    exp_avg_error: torch.Tensor
    exp_avg_sq_error: torch.Tensor


def numbers(**changes: float) -> AdamWHyperparameters:
    values = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
    return AdamWHyperparameters(**(values | changes))


def control(divisor: float = 1.0, found_inf: float = 0.0, device: str = "cpu") -> StepControl:
    return StepControl(
        divisor=torch.tensor(divisor, device=device), found_inf=torch.tensor(found_inf, device=device)
    )


def shard(
    elements: int,
    gradient: torch.dtype,
    low: torch.dtype | None,
    *,
    step: int = 1,
    offsets: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0),
    device: str = "cpu",
    seed: int = 0,
) -> Shard:
    """Ragged values; each tensor (w, g, m, v, low) begins ``offsets`` elements into its memory."""
    random = torch.Generator().manual_seed(seed)

    def put(values: torch.Tensor, offset: int) -> torch.Tensor:
        memory = torch.full((elements + offset + 8,), 7.0, dtype=values.dtype, device=device)
        memory[offset : offset + elements] = values.to(device)
        return memory[offset : offset + elements]

    def normal() -> torch.Tensor:
        return torch.randn(elements, generator=random)

    return Shard(
        weights=put(normal(), offsets[0]),
        gradient=put((normal() * 4).to(gradient), offsets[1]),
        exp_avg=put(normal(), offsets[2]),
        exp_avg_sq=put(normal().square(), offsets[3]),
        low_precision=None if low is None else put(torch.zeros(elements, dtype=low), offsets[4]),
        step=torch.tensor(float(step), device=device),
    )


def tensors(of: Shard) -> Iterator[torch.Tensor]:
    yield from (of.weights, of.gradient, of.exp_avg, of.exp_avg_sq)
    if of.low_precision is not None:
        yield of.low_precision


def around(tensor: torch.Tensor) -> torch.Tensor:
    """The whole memory in which a tensor lies."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


def wanted(before: Shard, by: AdamWHyperparameters, divisor: float = 1.0) -> Wanted:
    """The formula of ``optimizer/update.py`` in float64."""
    w, g, m, v = (
        tensor.detach().cpu().double()
        for tensor in (before.weights, before.gradient, before.exp_avg, before.exp_avg_sq)
    )
    step = float(before.step)
    g = g / divisor
    new_m = by.beta1 * m + (1 - by.beta1) * g
    new_v = by.beta2 * v + (1 - by.beta2) * g * g
    m_error = ROUNDINGS * EPS32 * (by.beta1 * m.abs() + (1 - by.beta1) * g.abs()) + 2.0**-149
    root = (new_v / (1 - by.beta2**step)).sqrt() + by.eps
    rate = by.learning_rate / (1 - by.beta1**step)
    update = rate * new_m / root
    kept = w * (1 - by.learning_rate * by.weight_decay)
    w_error = ROUNDINGS * EPS32 * (kept.abs() + update.abs()) + rate * m_error / root
    return Wanted(
        weights=kept - update,
        exp_avg=new_m,
        exp_avg_sq=new_v,
        weights_error=w_error,
        exp_avg_error=m_error,
        exp_avg_sq_error=ROUNDINGS * EPS32 * new_v + 2.0**-149,
    )


def check(after: Shard, want: Wanted) -> None:
    for name in ("exp_avg", "exp_avg_sq", "weights"):
        got = getattr(after, name).cpu().double()
        away = (got - getattr(want, name)).abs()
        allowed = getattr(want, f"{name}_error")
        assert bool((away <= allowed).all()), f"{name}: {(away / allowed).max()} of the allowed error"


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    kind = torch.int32 if a.element_size() == 4 else torch.int16
    return a.dtype == b.dtype and bool((a.view(kind) == b.view(kind)).all())


def same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, but for what stands inside a NaN."""
    nan = a.isnan()
    return bool((nan == b.isnan()).all()) and same_bits(a[~nan].contiguous(), b[~nan].contiguous())
