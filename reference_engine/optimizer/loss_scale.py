"""The dynamic loss scale of float16: gradients are made larger, so that small ones are not rounded to zero.

Micikevicius et al., arXiv 1710.03740, section 3.2.  The loss is multiplied on the way into the backward, and
the optimizer divides again; between the two all gradients carry the scale.  It lives on the device, and the
host never reads it.
"""

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

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The scale and the count, not copied."""
        return {"value": self.value, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from a saved scale."""
        self.value.copy_(state["value"])
        self.good_steps.copy_(state["good_steps"])

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
        # In float32: the scale itself may be more than float16 can hold.
        return (gradients[0].float() * ctx.scale).to(gradients[0].dtype), None


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
