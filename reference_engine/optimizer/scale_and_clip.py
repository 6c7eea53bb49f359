"""Compute the global gradient norm, clip gradients by it, and update float16's dynamic loss scale.

All values stay on the device.

    norm = sqrt(sum of g^2) / loss scale
    divisor = loss scale * max(1, norm / clip_norm)        found_inf = 1 if norm is inf or nan, else 0

Every element counts once, even if several ranks have it.  Loss scaling: Micikevicius et al., arXiv
1710.03740, section 3.2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from zprof.reference_engine.comm.collective import Comm
from zprof.reference_engine.config import LossScale
from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.gradients.unit_gradients import UnitGradients
from zprof.reference_engine.optimizer.adamw import StepControl, Update

#: Unit name of the norm's all-reduce.
NORM_UNIT = "gradient_norm"
_MAX_FLOAT32 = torch.finfo(torch.float32).max

#: Lower bound: repeated overflows would otherwise halve the scale to 0, and unscaling would compute 0 / 0.
MIN_LOSS_SCALE = torch.finfo(torch.float32).tiny


class SumOfSquares:
    """Sums the squares of all gradients over the ranks, in float64.

    Takes one all-reduce of 8 bytes in the data-parallel group (none in stage 0) and one in the
    tensor-parallel group.  Inf and nan propagate through the sum, so all ranks detect an overflow.
    """

    def __init__(
        self, gradients: Mapping[FlatUnit, UnitGradients], update: Update, *, comm: Comm, mp: Comm | None
    ) -> None:
        self._update = update
        counts_replicated = mp is None or mp.rank == 0
        self._counted_ranges = tuple(
            (unit_gradients, list_counted_ranges(unit, counts_replicated=counts_replicated))
            for unit, unit_gradients in gradients.items()
        )
        sharded = any(unit.policy.shard_optimizer for unit in gradients)
        groups = (comm if sharded else None, mp)
        self._groups = tuple(group for group in groups if group is not None and group.world_size > 1)
        self._device = next(iter(gradients)).full.device

    def sum(self) -> torch.Tensor:
        """Return the sum as one float64 element, equal on all ranks (collective)."""
        parts = [
            unit_gradients.mean_shard[part]
            for unit_gradients, ranges in self._counted_ranges
            for part in ranges
        ]
        if parts:
            total = self._update.sum_of_squares(parts)
        else:
            total = torch.zeros((), dtype=torch.float64, device=self._device)
        for group in self._groups:
            group.all_reduce(total, NORM_UNIT).wait()
        return total


def list_counted_ranges(unit: FlatUnit, *, counts_replicated: bool) -> Sequence[slice]:
    """List the ranges of a unit's gradient shard that this rank adds to the norm; padding is zero."""
    owned = unit.owned_range
    if counts_replicated:
        return [slice(0, owned.stop - owned.start)]
    parts: list[slice] = []
    for index, parameter in enumerate(unit.parameters):
        part = unit.find_owned_part(index)
        if part is None or not getattr(parameter, "tensor_parallel_split", False):
            continue
        first = parts.pop().start if parts and parts[-1].stop == part.start else part.start
        parts.append(slice(first, part.stop))
    return parts


def compute_norm(squares: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Compute the norm of the unscaled gradients in float64; inf or nan if a gradient is."""
    norm = squares.sqrt()
    return norm if scale is None else norm / scale


def compute_step_control(
    norm: torch.Tensor, scale: torch.Tensor | None, clip_norm: float | None
) -> StepControl:
    """Compute the divisor of the gradients, and the flag that skips the step.

    If the norm is inf or nan, the step is skipped and the clipping factor stays 1.  A divisor beyond the
    range of float32 is clamped, so gradients that large are clipped to slightly above ``clip_norm``.
    """
    divisor = torch.ones_like(norm) if scale is None else scale.double()
    if clip_norm is not None:
        divisor = divisor * (norm / clip_norm).nan_to_num(nan=1.0, posinf=1.0).clamp(min=1.0)
    return StepControl(
        divisor=divisor.clamp(max=_MAX_FLOAT32).float(), found_inf=norm.isfinite().logical_not().float()
    )


class DynamicLossScale:
    """The loss scale and the number of good steps since its last change, equal on all ranks."""

    def __init__(self, config: LossScale, device: torch.device) -> None:
        self.value = torch.full((), config.initial, dtype=torch.float32, device=device)
        self.good_steps = torch.zeros((), dtype=torch.int32, device=device)
        self._config = config

    def update(self, found_inf: torch.Tensor) -> None:
        """Reduce the scale after an overflow, or increase it after enough good steps."""
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
        """Return the outputs, with gradients that will be multiplied by the scale.

        ``outputs`` may be any nest of tuples, lists, dicts and types registered with torch's pytree.  The
        scaled gradient has the dtype of the output: a gradient below float16's smallest number underflows
        before it is scaled.  So compute the loss in the module, or return outputs in float32.

        Raises:
            TypeError: an output of another type contains tensors, whose gradients could not be scaled.
        """
        return tree_map(self._scale_gradient_of, outputs)

    def read_state(self) -> dict[str, float | int]:
        """Return the scale and its step count for a checkpoint (waits for the device)."""
        return {"value": float(self.value), "good_steps": int(self.good_steps)}

    def set(self, state: Mapping[str, float | int]) -> None:
        """Restore the values of a checkpoint."""
        self.value.fill_(state["value"])
        self.good_steps.fill_(state["good_steps"])

    def _scale_gradient_of(self, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return _attach_scale(output, self.value) if output.requires_grad else output
        attributes = getattr(output, "__dict__", {}).values()
        if any(isinstance(value, torch.Tensor) and value.requires_grad for value in attributes):
            kind = type(output).__name__
            raise TypeError(
                f"the model returns a {kind}, whose tensors cannot be found for loss scaling; "
                f"return tensors, or register the type: torch.utils._pytree.register_dataclass({kind})"
            )
        return output


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.scale = scale
        return output.detach()  # not a view: the caller may modify it in place, as without an engine

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        # Not in float16: the scale itself may exceed its range.
        gradient = gradients[0]
        upcast = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        return (upcast * ctx.scale).to(gradient.dtype), None


def _attach_scale(output: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    scaled: torch.Tensor = _ScaleGradient.apply(output, scale)  # type: ignore[no-untyped-call]
    return scaled
