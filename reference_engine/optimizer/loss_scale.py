"""The dynamic loss scale of float16: gradients are made larger, so that small ones are not rounded to zero.

Micikevicius et al., arXiv 1710.03740, section 3.2.  The loss is multiplied on the way into the backward, and
the optimizer divides again; between the two all gradients carry the scale.  It lives on the device, and the
host never reads it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from zprof.reference_engine.config import LossScale

#: Gradients that are never finite would halve the scale to 0, and 0 / 0 is not a gradient.
SMALLEST = torch.finfo(torch.float32).tiny


class DynamicLossScale:
    """The scale and the count of good steps since it changed: 4 bytes each, equal on all ranks."""

    def __init__(self, config: LossScale, device: torch.device) -> None:
        self.value = torch.full((), config.initial, dtype=torch.float32, device=device)
        self.good_steps = torch.zeros((), dtype=torch.int32, device=device)
        self._config = config

    def update(self, found_inf: torch.Tensor) -> None:
        """Halve after an overflow, double after enough steps without (or what the config says instead)."""
        torch._amp_update_scale_(
            self.value,
            self.good_steps,
            found_inf,
            self._config.growth_factor,
            self._config.backoff_factor,
            self._config.growth_interval,
        )
        self.value.clamp_(min=SMALLEST)

    def scale_gradients_of(self, outputs: Any) -> Any:
        """The same outputs, whose gradients are multiplied by the scale when they come.

        Any nest of tuples, lists, dicts and types that torch's pytree knows.  The product has the type of the
        output: what is below float16's smallest number is lost before it is scaled, so compute the loss in
        the module, or give outputs in float32.

        Raises:
            TypeError: an output is of another type and holds tensors, which would go unscaled.
        """
        return tree_map(self._scale_gradient_of, outputs)

    def numbers(self) -> dict[str, float | int]:
        """For a checkpoint; waits for the device."""
        return {"value": float(self.value), "good_steps": int(self.good_steps)}

    def set(self, numbers: Mapping[str, float | int]) -> None:
        """Go on from the numbers of a checkpoint."""
        self.value.fill_(numbers["value"])
        self.good_steps.fill_(numbers["good_steps"])

    def _scale_gradient_of(self, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return _scaled(output, self.value) if output.requires_grad else output
        _refuse_hidden_tensors(output)
        return output


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.scale = scale
        return output.detach()  # not a view: the caller may change it in place, as without an engine

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        # Not in float16: the scale itself may be more than that can hold.
        gradient = gradients[0]
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        return (wide * ctx.scale).to(gradient.dtype), None


def _scaled(output: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
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
