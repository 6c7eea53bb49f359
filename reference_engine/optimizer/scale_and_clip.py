"""Compute the gradient norm over all ranks, clip by it, and adapt float16's dynamic loss scale.

The host never reads the numbers.

    norm = sqrt(sum of g^2) / loss scale
    divisor = loss scale * max(1, norm / clip_norm)        found_inf = 1 where norm is inf or nan, else 0

Every logical element counts once.  Loss scale: Micikevicius et al., arXiv 1710.03740, section 3.2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.config import LossScale
from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.gradients.reducer import UnitGradients
from zprof.reference_engine.optimizer.adamw import StepControl, Update

#: Unit name that the norm's all-reduce is accounted to.
NORM_UNIT = "gradient_norm"
_MAX_FLOAT32 = torch.finfo(torch.float32).max


class SumOfSquares:
    """Sum the squares of all gradients, in float64.

    Costs one all-reduce of 8 bytes in the data-parallel group (none in stage 0) and one in the
    tensor-parallel group.  Inf and nan survive the sum, so all ranks see an overflow in the same number.
    """

    def __init__(
        self, gradients: Mapping[FlatUnit, UnitGradients], update: Update, *, comm: Comm, mp: Comm | None
    ) -> None:
        self._update = update
        counts_replicated = mp is None or mp.rank == 0
        self._counted = tuple(
            (unit_gradients, list_counted_ranges(unit, counts_replicated=counts_replicated))
            for unit, unit_gradients in gradients.items()
        )
        sharded = any(unit.policy.shard_optimizer for unit in gradients)
        groups = (comm if sharded else None, mp)
        self._groups = tuple(group for group in groups if group is not None and group.world_size > 1)
        self._device = next(iter(gradients)).full.device

    def sum(self) -> torch.Tensor:
        """Return one float64 element, equal on all ranks."""
        parts = [unit_gradients.mean_shard[part] for unit_gradients, ranges in self._counted for part in ranges]
        if parts:
            total = self._update.sum_of_squares(parts)
        else:
            total = torch.zeros((), dtype=torch.float64, device=self._device)
        for group in self._groups:
            group.all_reduce(total, NORM_UNIT).wait()
        return total


def list_counted_ranges(unit: FlatUnit, *, counts_replicated: bool) -> Sequence[slice]:
    """Return the ranges of a unit's owned gradient that this rank adds to the norm; padding is zero
    anyway.
    """
    owned = unit.owned_range
    if counts_replicated:
        return [slice(0, owned.stop - owned.start)]
    parts: list[slice] = []
    for slot, parameter in zip(unit.layout.slots, unit.parameters, strict=True):
        first = max(slot.offset, owned.start) - owned.start
        last = min(slot.offset + slot.numel, owned.stop) - owned.start
        if not getattr(parameter, "tensor_parallel_split", False) or first >= last:
            continue
        if parts and parts[-1].stop == first:
            first = parts.pop().start
        parts.append(slice(first, last))
    return parts


def compute_norm(squares: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Return the norm of the unscaled gradients in float64; inf or nan if a gradient is."""
    norm = squares.sqrt()
    return norm if scale is None else norm / scale


def compute_step_control(
    norm: torch.Tensor, scale: torch.Tensor | None, clip_norm: float | None
) -> StepControl:
    """Return the divisor of the gradients, and the flag that skips the step.

    A norm that is inf or nan skips the step and leaves the clipping factor at 1.  A divisor beyond float32
    becomes the largest float32 number: gradients that large are then clipped to slightly above ``clip_norm``.
    """
    divisor = torch.ones_like(norm) if scale is None else scale.double()
    if clip_norm is not None:
        divisor = divisor * (norm / clip_norm).nan_to_num(nan=1.0, posinf=1.0).clamp(min=1.0)
    return StepControl(
        divisor=divisor.clamp(max=_MAX_FLOAT32).float(), found_inf=norm.isfinite().logical_not().float()
    )


#: Lower bound: gradients that are never finite would halve the scale to 0, and then divide 0 by 0.
MIN_LOSS_SCALE = torch.finfo(torch.float32).tiny


class DynamicLossScale:
    """The scale and the number of good steps since its last change: 4 bytes each, equal on all ranks."""

    def __init__(self, config: LossScale, device: torch.device) -> None:
        self.value = torch.full((), config.initial, dtype=torch.float32, device=device)
        self.good_steps = torch.zeros((), dtype=torch.int32, device=device)
        self._config = config

    def update(self, found_inf: torch.Tensor) -> None:
        """Halve the scale after an overflow, double it after enough good steps (factors from the config)."""
        torch._amp_update_scale_(
            self.value,
            self.good_steps,
            found_inf,
            self._config.growth_factor,
            self._config.backoff_factor,
            self._config.growth_interval,
        )
        self.value.clamp_(min=MIN_LOSS_SCALE)

    def scale_output_gradients(self, outputs: Any) -> Any:
        """Return the outputs with their gradients multiplied by the scale.

        ``outputs`` may be any nest of tuples, lists, dicts and types that torch's pytree knows.  The product
        has the dtype of the output: a gradient below float16's smallest number is lost before it is scaled.
        So compute the loss in the module, or return outputs in float32.

        Raises:
            TypeError: an output of another type holds tensors, which would go unscaled.
        """
        return tree_map(self._scale_gradient_of, outputs)

    def numbers(self) -> dict[str, float | int]:
        """Return the scale and the step count for a checkpoint (waits for the device)."""
        return {"value": float(self.value), "good_steps": int(self.good_steps)}

    def set(self, numbers: Mapping[str, float | int]) -> None:
        """Restore the values of a checkpoint."""
        self.value.fill_(numbers["value"])
        self.good_steps.fill_(numbers["good_steps"])

    def _scale_gradient_of(self, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return _attach_scale(output, self.value) if output.requires_grad else output
        _refuse_hidden_tensors(output)
        return output


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.scale = scale
        return output.detach()  # not a view: the caller may change it in place, as without an engine

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        # Not in float16: the scale itself may exceed its range.
        gradient = gradients[0]
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        return (wide * ctx.scale).to(gradient.dtype), None


def _attach_scale(output: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    scaled: torch.Tensor = _ScaleGradient.apply(output, scale)  # type: ignore[no-untyped-call]
    return scaled


def _refuse_hidden_tensors(output: object) -> None:
    inside = getattr(output, "__dict__", {}).values()
    if any(isinstance(value, torch.Tensor) and value.requires_grad for value in inside):
        kind = type(output).__name__
        raise TypeError(
            f"the model returns a {kind}, whose tensors the loss scale cannot find; return tensors, or tell "
            f"torch of the type: torch.utils._pytree.register_dataclass({kind})"
        )
